import os
from pathlib import Path

import pytest
import torch

from fairmargin.data import sources
from fairmargin.data.datasets import coloured_mnist


@pytest.fixture(scope="module")
def root():
    folder = Path(os.environ.get("FAIRMARGIN_DATA", "no-such-folder"))
    try:
        sources.locate("mnist", folder)
    except sources.MissingData:
        pytest.skip("needs the MNIST files under $FAIRMARGIN_DATA")
    return folder


def test_lff_digits_have_their_colour(root):
    data = coloured_mnist.build(root, ratio=5, valid_fraction=0.0)
    assert int((data.train.labels != data.train.bias).sum()) == 3000
    bright = (
        data.train.pixels.amax((2, 3)).float() / 255
    )  # of each channel: the colour, where the digit is full white
    means = torch.from_numpy(coloured_mnist.COLOURS).float()
    for k in range(10):
        seen = bright[data.train.bias == k].median(0).values
        assert torch.allclose(seen, means[k].clamp(0, 1), atol=0.02)
    assert (data.train.pixels[:, :, 0, 0] == 0).all()  # black background


def test_irm_environments(root):
    data = coloured_mnist.build(root, family="irm", valid_fraction=0.0)
    assert data.train.pixels.shape == (50000, 3, 14, 14)
    rate = lambda x: (x.labels != x.bias).float().mean().item()
    assert rate(data.train.subset(torch.arange(0, 50000, 2))) == pytest.approx(0.2, abs=0.01)
    assert rate(data.train.subset(torch.arange(1, 50000, 2))) == pytest.approx(0.1, abs=0.01)
    assert rate(data.test) == pytest.approx(0.9, abs=0.01)
    lit = data.train.pixels.flatten(2).amax(2) > 0
    assert torch.equal(lit[:, 0], data.train.bias == 1)
    assert torch.equal(lit[:, 1], data.train.bias == 0)
    assert not lit[:, 2].any()


def test_lnl_train_colours_follow_the_digit_and_test_colours_do_not(root):
    data = coloured_mnist.build(root, family="lnl")
    assert torch.equal(data.train.labels, data.train.bias)
    assert (data.test.labels == data.test.bias).float().mean().item() == pytest.approx(
        0.1, abs=0.02
    )


@pytest.mark.parametrize(
    ("patch", "pixels"), [("large", 784), ("medium", 16), ("small", 4), ("variance-high", 49)]
)
def test_spuco_colours_part_of_the_background(root, patch, pixels):
    data = coloured_mnist.build(root, family="spuco", patch=patch, valid_fraction=0.0)
    assert data.info.counts.shape == (5, 5)
    own = data.info.counts.diagonal().float() / data.info.counts.sum(1)
    assert torch.allclose(own, torch.full((5,), 0.995), atol=1e-3)
    balanced = torch.bincount(data.test.labels * 5 + data.test.bias).view(5, 5)
    assert (balanced.max(1).values - balanced.min(1).values <= 1).all()
    coloured = (data.train.pixels.amax(1) != data.train.pixels.amin(1)).flatten(1).sum(1)
    assert coloured.max() <= pixels
    assert coloured.float().mean() > 0.7 * pixels
    red = data.train.pixels[data.train.bias == 0]
    lit = red.amax(1) != red.amin(1)
    assert (red.permute(0, 2, 3, 1)[lit] == torch.tensor([255, 0, 0], dtype=torch.uint8)).all()


def test_bad_options(root):
    with pytest.raises(ValueError, match="unknown family 'lfff': did you mean 'lff'"):
        coloured_mnist.build(root, family="lfff")
    with pytest.raises(ValueError, match="severity must be from 1 to 5; got 9"):
        coloured_mnist.build(root, severity=9)
