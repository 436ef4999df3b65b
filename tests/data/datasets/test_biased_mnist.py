import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmargin.data import raw, sources
from fairmargin.data.bias import assign_by_count
from fairmargin.data.datasets import biased_mnist

# seed, ρ → first sources of train, then sha256[:16] of its sources and of its bias
TRAIN_HASHES = {
    (0, 0.999): ((3278, 25913, 50489, 57770), "cebf289d014d7fb3", "7c79cb70c83bc43b"),
    (0, 0.997): ((21655, 48800, 25189, 14768), "e3a53623140eab3e", "00b8490beac3cb14"),
    (0, 0.995): ((21107, 26972, 56910, 54823), "b4cac0e52678ca28", "fe96e06a4ae2b965"),
    (0, 0.99): ((53426, 58592, 4972, 46013), "1aafe725d37d55ba", "6179c097aebe6fd4"),
    (1, 0.999): ((2863, 3402, 51424, 2282), "fa42910f3698ff14", "33352792fd3dccd1"),
    (1, 0.997): ((36184, 47643, 9408, 54604), "106898f6e51120d0", "37334053df13c3bd"),
    (1, 0.995): ((8121, 3402, 32591, 5489), "155f62d48d843536", "544ca2fd3e4d3c78"),
    (1, 0.99): ((22869, 4581, 8310, 5423), "2aea0096c653b3ca", "a776c5425df1d2b3"),
    (2, 0.999): ((19029, 5950, 5769, 9468), "f6d772b188906f36", "e7a745723b4d6a7d"),
    (2, 0.997): ((36071, 51397, 43956, 2212), "8f064b7d6c88e3c5", "e911dae059b9c69e"),
    (2, 0.995): ((1734, 37862, 4255, 36725), "4daf75bf1d56dd65", "f0d410bd65783d66"),
    (2, 0.99): ((51603, 10239, 57285, 10375), "f113ef2380e6aedc", "537f74636d8bc8d0"),
}
# seed → sha256[:16] of the test sources and of the test bias
TEST_HASHES = {
    0: ("f8f7331b2301a5b4", "178baaae6580ab71"),
    1: ("8fa6727feee19061", "faebf1284bbfbdd1"),
    2: ("f2c6d145b3896142", "7f67dbe2002710e4"),
}
PIXELS = {
    0.999: "2633405235fb4be2ceea3e066b7b4b99a4446a881dd7f95915e6774b2d752ff4",
    0.99: "2caaa348f035671696095bfaa065f1fa8862e3ba31e039dda228fbd7b8c05e59",
}
TEST_PIXELS = "336ec3c1da02e798260a7278e6ed62d6b9ff50491f30a7429dad6b5fed699d31"


@pytest.fixture(scope="module")
def mnist():
    root = Path(os.environ.get("FAIRMARGIN_DATA", "no-such-folder"))
    try:
        files = sources.locate("mnist", root)
    except sources.MissingData:
        pytest.skip("needs the MNIST files under $FAIRMARGIN_DATA")
    return root, raw.mnist(files)


def digest(x):
    return hashlib.sha256(np.ascontiguousarray(x, dtype="<i8").tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(("seed", "rho"), TRAIN_HASHES)
def test_assignment_is_the_public_codes_bit_by_bit(mnist, seed, rho):
    _, (_, train, _, test) = mnist
    random = np.random.RandomState(seed)
    source, bias = assign_by_count(train, rho, random)
    test_source, test_bias = assign_by_count(test, 0.1, random)
    first, *expected = (*TRAIN_HASHES[seed, rho], *TEST_HASHES[seed])
    assert tuple(source[:4]) == first
    assert [digest(x) for x in (source, bias, test_source, test_bias)] == expected


@pytest.mark.parametrize("rho", PIXELS)
def test_pixels_are_the_papers(mnist, rho):
    root, _ = mnist
    data = biased_mnist.build(root, rho=rho, valid_fraction=0.0)
    for split, expected in ((data.train, PIXELS[rho]), (data.test, TEST_PIXELS)):
        pixels = split.pixels.permute(0, 2, 3, 1).contiguous().numpy()
        assert hashlib.sha256(pixels.tobytes()).hexdigest() == expected
    assert len(data.valid) == 0


def test_validation_is_taken_from_train_in_proportion(mnist):
    root, _ = mnist
    data = biased_mnist.build(root, rho=0.99, seed=1)
    assert (len(data.train), len(data.valid), len(data.test)) == (54000, 6000, 10000)
    conflicting = [int((s.labels != s.bias).sum()) for s in (data.train, data.valid)]
    assert sum(conflicting) == 606
    assert 55 <= conflicting[1] <= 66


class TestMini:
    data = biased_mnist.build_mini(Path("unused"), rho=0.9)

    def test_sizes_and_info(self):
        data = self.data
        assert (len(data.train), len(data.valid), len(data.test)) == (3600, 400, 1000)
        assert data.info.counts.sum() == 3600
        assert data.info.image_shape == (3, 28, 28)
        assert data.info.num_classes == data.info.num_biases == 10
        assert data.train.pixels.dtype == torch.uint8
        assert data.test.labels.bincount().tolist() == [100] * 10
        assert data.info.counts.diagonal().sum().item() / 3600 == pytest.approx(0.9, abs=0.01)

    def test_unbiased_test_set(self):
        assert (
            self.data.test.labels == self.data.test.bias
        ).float().mean().item() == pytest.approx(0.1, abs=0.005)

    def test_test_digits_do_not_depend_on_seed_or_rho(self):
        other = biased_mnist.build_mini(Path("unused"), rho=0.99, seed=5)
        shape = lambda split: sorted(
            hashlib.md5((x[0] == 255).numpy().tobytes()).hexdigest() for x in digits(split)
        )
        assert shape(self.data.test) == shape(other.test)

    def test_background_has_the_colour_of_the_bias(self):
        palette = torch.from_numpy(biased_mnist.PALETTES["paper"])
        for split in (self.data.train, self.data.test):
            assert torch.equal(split.pixels[:, :, 0, 0], palette[split.bias])

    def test_batches_are_in_minus_one_to_one(self):
        x = self.data.eval_views(self.data.train.images(torch.arange(8)))
        assert x.shape == (8, 3, 28, 28)
        assert x.dtype == torch.float32
        assert (x.min().item(), x.max().item()) == (-1, 1)


def digits(split):
    """1 where all channels are 255: the digit, because no palette colour is white."""
    return (split.pixels == 255).all(1, keepdim=True).to(torch.uint8) * 255


def test_palettes_and_digit_colour():
    grey = np.zeros((2, 28, 28), np.uint8)
    grey[0, 5:9, 5:9] = 30  # faint pixels count as digit; image 1 is empty
    bias = np.array([9, 9])
    assert biased_mnist.colour(grey, bias)[0, 0, 0].tolist() == [50, 255, 128]
    assert biased_mnist.colour(grey, bias, palette="rebias")[0, 0, 0].tolist() == [128, 128, 128]
    painted = biased_mnist.colour(
        grey, bias, background=False
    )  # the paper's own tenth colour is for backgrounds only
    assert painted[0, 6, 6].tolist() == [128, 128, 128]
    assert biased_mnist.build_mini(Path("unused"), background=False).info.bias_names[9] == "grey"
    assert biased_mnist.build_mini(Path("unused")).info.bias_names[9] == "spring green"
    assert painted[0, 0, 0].tolist() == [0, 0, 0]
    assert (painted[1] == 255).all()
    with pytest.raises(ValueError, match="unknown palette 'papre': did you mean 'paper'"):
        biased_mnist.build_mini(Path("unused"), palette="papre")


def test_fewer_digits_to_test_on_are_a_part_of_them_by_class():
    whole, part = (biased_mnist.build_mini(Path("unused"), train=500, test=n) for n in (None, 200))
    assert (len(whole.test), len(part.test)) == (4500, 200)
    assert torch.bincount(part.test.labels).tolist() == [20] * 10
    with pytest.raises(ValueError, match="4500 digits that are not trained on"):
        biased_mnist.build_mini(Path("unused"), train=500, test=4501)
