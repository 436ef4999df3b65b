import math

import pytest
import torch
from PIL import Image

from fairmargin import losses
from fairmargin.reproduce.figures import information, toy
from fairmargin.reproduce.figures.margin import draw, pair_loss


def test_margin_figure_shows_what_its_caption_says(tmp_path):
    for epsilon in (0.0, 1.0, 3.0):
        loss, pull = pair_loss(torch.tensor([-60.0, -epsilon], dtype=torch.float64), epsilon)
        assert loss[0].item() == pytest.approx(-epsilon)
        assert pull.tolist() == pytest.approx([0, 0.5])
    assert pair_loss(torch.tensor([-60.0], dtype=torch.float64), math.inf)[
        1
    ].item() == pytest.approx(1)
    assert draw(tmp_path / "margin.png").stat().st_size > 20_000


def test_information_figure_shows_what_its_caption_says(tmp_path, monkeypatch):
    scores = information.gaussian_scores(4.0, 64, torch.Generator().manual_seed(1))
    bounds = losses.information_bounds_from_scores(scores)
    assert information.estimate(scores, 0.0) == pytest.approx(bounds.lower.item(), rel=1e-9)
    assert information.estimate(scores, math.inf) == pytest.approx(bounds.upper.item(), rel=1e-9)
    monkeypatch.setattr(information, "PAIRS", 2048)
    for n in information.SIZES:
        found = [
            information.mean_estimate(information.TRUTH, n, epsilon)
            for epsilon in (0.0, 1.0, 3.0, 8.0, math.inf)
        ]
        assert found == sorted(found)
        assert found[0] < information.TRUTH < found[-1]
    assert information.draw(tmp_path / "information.png").stat().st_size > 20_000


def test_toy_is_drawn(tmp_path):
    with Image.open(toy.draw(toy.toy_pair(), tmp_path / "toy.png")) as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 100  # drawn, not blank


def test_toy_says_what_the_paper_says():
    different, equal = toy.toy_pair()
    assert different.divergence["mean"] == pytest.approx(0, abs=1e-12)
    assert different.divergence["kl"] > 0.5
    assert max(equal.divergence.values()) == pytest.approx(0, abs=1e-12)
