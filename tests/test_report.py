import math

import pytest
import torch

from fairmargin.report.margin import draw, pair_loss


def test_margin_figure_shows_what_its_caption_says(tmp_path):
    for epsilon in (0.0, 1.0, 3.0):
        loss, pull = pair_loss(torch.tensor([-60.0, -epsilon], dtype=torch.float64), epsilon)
        assert loss[0].item() == pytest.approx(-epsilon)
        assert pull.tolist() == pytest.approx([0, 0.5])
    assert pair_loss(torch.tensor([-60.0], dtype=torch.float64), math.inf)[1].item() == pytest.approx(1)
    assert draw(tmp_path / "margin.png").stat().st_size > 20_000
