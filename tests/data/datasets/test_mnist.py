import pytest
import torch

from fairmargin.data import build
from fairmargin.data.sources import VARIABLE, MissingData, data_root, locate

DATA = build("mnist-mini")


def test_sizes_and_facts():
    assert (len(DATA.train), len(DATA.valid), len(DATA.test)) == (3600, 400, 1000)
    assert DATA.train.pixels.shape == (3600, 3, 28, 28)
    assert DATA.train.pixels.dtype == torch.uint8
    assert DATA.train.bias is None
    assert DATA.info.bias_names == ()
    assert DATA.info.counts.shape == (10, 0)
    assert DATA.test.labels.bincount().tolist() == [100] * 10


def test_pictures_are_grey():
    for split in (DATA.train, DATA.valid, DATA.test):
        assert torch.equal(split.pixels[:, 0], split.pixels[:, 1])
        assert torch.equal(split.pixels[:, 0], split.pixels[:, 2])
    assert DATA.train.pixels.unique().numel() > 100  # shades, not black and white


def test_digits_are_those_of_biased_mnist_mini():
    """The same digits are tested on, whatever the seed.

    They are white there where they are not black here.
    """
    coloured = build("biased-mnist-mini", rho=1.0).test
    ours = {mask.numpy().tobytes() for mask in DATA.test.pixels[:, 0] > 0}
    theirs = {mask.numpy().tobytes() for mask in (coloured.pixels == 255).all(1)}
    assert len(ours) == 1000
    assert ours == theirs
    assert torch.equal(build("mnist-mini", seed=5).test.pixels, DATA.test.pixels)


def test_the_seed_draws_the_validation_split():
    again, other = build("mnist-mini"), build("mnist-mini", seed=1)
    assert torch.equal(again.valid.pixels, DATA.valid.pixels)
    assert not torch.equal(other.valid.pixels, DATA.valid.pixels)
    assert len(build("mnist-mini", valid_fraction=0.0).train) == 4000


def test_missing_files_are_one_clear_message(tmp_path):
    with pytest.raises(MissingData, match="fairmargin data get mnist"):
        build("mnist", tmp_path)


def test_real_files():
    root = data_root()
    try:
        locate("mnist", root)
    except MissingData:
        pytest.skip(f"needs MNIST under ${VARIABLE}")
    data = build("mnist", root, valid_fraction=0.0)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.train.labels.bincount()[1] == 6742
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
