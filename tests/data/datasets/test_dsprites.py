import math

import numpy as np
import pytest
import torch

from fairmargin.data.datasets import dsprites
from fairmargin.data.sources import MissingData

FACTORS = {"shape": 3, "scale": 6, "orientation": 8, "x": 8, "y": 8}
TOTAL = math.prod(FACTORS.values())
SMALL = {"train": 600, "test": 180}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The file with fewer positions; the first bytes of each picture spell its number in bits."""
    monkeypatch.setattr(dsprites, "FACTORS", FACTORS)
    monkeypatch.setattr(dsprites, "AT_ONCE", 100)
    write(tmp_path, pictures())
    return tmp_path


def pictures():
    images = np.zeros((TOTAL, 64, 64), np.uint8)
    images[:, 0, :16] = np.arange(TOTAL)[:, None] >> np.arange(16) & 1
    return images


def write(root, images):
    (root / "dsprites").mkdir(exist_ok=True)
    np.savez_compressed(root / "dsprites" / dsprites.FILE, imgs=images, latents_values=np.zeros(3))


def numbers(split):
    bits = (split.pixels[:, 0, 0, :16] == 255).long()
    return (bits << torch.arange(16)).sum(1).numpy()


def factors(split):
    return dict(
        zip(FACTORS, np.unravel_index(numbers(split), tuple(FACTORS.values())), strict=True)
    )


@pytest.mark.parametrize(
    ("target", "bias"), [("shape", "scale"), ("shape", "x"), ("scale", "orientation"), ("x", "y")]
)
def test_labels_and_bias_are_factors_of_the_picture(root, target, bias):
    data = dsprites.build(root, target=target, bias=bias, rho=0.5, **SMALL)
    classes = FACTORS[target]
    for split in (data.train, data.valid, data.test):
        found = factors(split)
        assert (found[target] == split.labels.numpy()).all()
        assert (found[bias] * classes // FACTORS[bias] == split.bias.numpy()).all()
        assert split.pixels.unique().tolist() == [0, 255]
        assert torch.equal(split.pixels[:, 0], split.pixels[:, 2])


def test_shares_and_no_picture_twice(root):
    data = dsprites.build(root, rho=0.9, valid_fraction=0, **SMALL)
    assert data.info.counts.tolist() == [[180, 10, 10], [10, 180, 10], [10, 10, 180]]
    assert torch.bincount(3 * data.test.labels + data.test.bias).tolist() == [20] * 9
    everyone = np.concatenate([numbers(data.train), numbers(data.test)])
    assert len(set(everyone.tolist())) == 780
    assert data.info.class_names == ("square", "ellipse", "heart")
    assert data.info.bias_names == ("scale 0–1", "scale 2–3", "scale 4–5")


def test_all_other_factors_are_uniform_and_the_seed_draws_them(root):
    one, other = (dsprites.build(root, seed=seed, **SMALL) for seed in (0, 1))
    for name in ("orientation", "x", "y"):
        counts = np.bincount(factors(one.train)[name], minlength=8)
        assert counts.min() > 0.6 * counts.mean()
    assert not torch.equal(one.test.pixels, other.test.pixels)
    assert torch.equal(one.train.pixels, dsprites.build(root, **SMALL).train.pixels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "shpe"}, "did you mean 'shape'"),
        (
            {"target": "scale", "bias": "shape"},
            "the bias must be another factor, with at least as many values",
        ),
        ({"bias": "shape"}, "another factor"),
        ({"rho": 2.0}, r"rho must lie in \[0, 1\]"),
        ({"train": 5}, "one for each cell"),
        ({"train": 4000}, "draw fewer"),
    ],
)
def test_nonsense_is_refused(root, options, message):
    with pytest.raises(ValueError, match=message):
        dsprites.build(root, **{**SMALL, **options})


def test_missing_and_damaged_files(root, tmp_path):
    with pytest.raises(MissingData, match="npz file of"):
        dsprites.build(tmp_path / "elsewhere", **SMALL)
    file = root / "dsprites" / dsprites.FILE
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(MissingData, match="is damaged"):
        dsprites.build(root, **SMALL)
    write(root, pictures()[:, :32])
    with pytest.raises(MissingData, match=r"expected \(9216, 64, 64\) of uint8"):
        dsprites.build(root, **SMALL)
