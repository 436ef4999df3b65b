from pathlib import Path

import numpy as np
import pytest
import torch

from fairmargin import config as configuration
from fairmargin import evaluate
from fairmargin.data import build
from fairmargin.data.datasets import planted
from fairmargin.loop import fit
from fairmargin.runs import build as runs_build

DATA = build("planted")


def test_sizes_and_facts():
    assert (len(DATA.train), len(DATA.valid), len(DATA.test)) == (1600, 400, 1000)
    assert DATA.train.pixels.shape == (1600, 3, 12, 12)
    assert DATA.train.pixels.dtype == torch.uint8
    assert DATA.info.num_classes == DATA.info.num_biases == 4
    assert DATA.info.class_names == ("0°", "45°", "90°", "135°")
    assert DATA.info.counts.sum() == 1600


def test_the_tint_follows_the_label_in_training_by_count_and_not_in_the_test_set():
    both = torch.cat([DATA.train.bias == DATA.train.labels, DATA.valid.bias == DATA.valid.labels])
    assert int(both.sum()) == 1800  # 0.9 of 2000, not a coin flip
    assert bool((DATA.info.counts > 0).all())
    cells = torch.bincount(DATA.test.labels * 4 + DATA.test.bias, minlength=16)
    assert int(cells.max() - cells.min()) <= 2
    assert DATA.test.labels.bincount().tolist() == [250] * 4


def test_validation_has_the_same_share_of_conflicting_samples():
    share = lambda split: float((split.bias != split.labels).float().mean())
    assert share(DATA.valid) == pytest.approx(share(DATA.train), abs=0.005)


def test_the_seed_decides_everything():
    again, other = build("planted"), build("planted", seed=1)
    for split in ("train", "valid", "test"):
        a, b, c = (getattr(data, split) for data in (DATA, again, other))
        assert torch.equal(a.pixels, b.pixels)
        assert torch.equal(a.bias, b.bias)
        assert not torch.equal(a.pixels, c.pixels)


def test_tint_is_colour_without_brightness():
    colours = planted.tint(np.arange(6), 6)
    np.testing.assert_allclose(colours.sum(1), 0, atol=1e-12)
    np.testing.assert_allclose(colours[0], [1, -0.5, -0.5], atol=1e-12)  # red
    np.testing.assert_allclose(
        colours[2], [-0.5, 1, -0.5], atol=1e-12
    )  # a third of the wheel further: green
    distance = np.linalg.norm(colours[:, None] - colours, axis=-1) + 9 * np.eye(6)
    np.testing.assert_allclose(distance.min(1), distance.min())  # neighbours are equally far apart


def test_bars_lie_at_their_angles():
    """Brightness changes across a bar, not along it."""
    angle = np.array([0, 1, 2, 3])
    bars = planted.bar(angle, 4, 12, np.random.RandomState(0))
    down, right = np.gradient(bars, axis=(1, 2))
    found = 0.5 * np.arctan2(
        2 * (down * right).sum((1, 2)), (right**2 - down**2).sum((1, 2))
    )  # of the gradients
    along = (np.degrees(found) + 90) % 180
    apart = np.abs(along - 45 * angle)
    assert np.minimum(apart, 180 - apart).max() < 3
    assert bars.max() <= 1
    assert bars.min() >= 0


def test_strengths():
    """What is switched off is not there: pixels no longer depend on it."""
    grey = build("planted", shortcut=0.0, noise=0.0).test
    assert torch.equal(grey.pixels[:, 0], grey.pixels[:, 1])
    flat = build("planted", core=0.0, noise=0.0).test
    assert (flat.pixels == flat.pixels[:, :, :1, :1]).all()
    assert torch.unique(flat.pixels[:, :, 0, 0], dim=0).shape[0] == 4
    still = build("planted", shortcut=0.0, core=0.0, noise=0.0).test
    assert (still.pixels == 128).all()


def test_other_shapes():
    data = build("planted", classes=3, side=9, train=60, test=90, rho=0.5, valid_fraction=0.0)
    assert data.train.pixels.shape == (60, 3, 9, 9)
    assert data.info.counts.tolist() == [[10, 5, 5], [5, 10, 5], [5, 5, 10]]
    assert len(data.valid) == 0
    two = build("planted", views="jitter", train=40)
    assert two.train_views(two.train.images(torch.arange(3))).shape == (3, 2, 3, 12, 12)
    assert two.eval_views(two.train.images(torch.arange(3))).shape == (3, 3, 12, 12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "classes must be from 2 to 8; got 1"),
        ({"train": 20}, "train must be at least 40 with 4 classes; got 20"),
        ({"noise": -0.1}, r"noise must lie in \[0, 1\], black to white; got -0.1"),
        ({"rho": 1.5}, "rho must lie in"),
    ],
)
def test_errors_say_what_is_possible(options, message):
    with pytest.raises(ValueError, match=message):
        planted.build(Path("unused"), **options)


def accuracy(*changes):
    config = configuration.load(dataset="planted", method="ce", overrides=changes)
    data = runs_build.data(config)
    method = runs_build.method(config, data)
    device = torch.device("cpu")
    fit(runs_build.training(config, method, data, device), config.train.epochs)
    return evaluate.quick(method, data.test, data.eval_views, data.info)


@pytest.mark.slow
def test_the_lesson():
    """The small network learns the core if it is alone; with the shortcut, it learns that."""
    assert accuracy("data.shortcut=0.0")["plain"] > 0.9
    assert accuracy("data.rho=0.25")["plain"] > 0.9  # the tint is there and says nothing
    fooled = accuracy()
    assert fooled["aligned"] > 0.9
    assert fooled["conflicting"] < 0.4
