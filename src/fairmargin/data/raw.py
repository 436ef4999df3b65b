"""Read raw files as arrays, in the official order.

MNIST comes as idx files; CIFAR as pickles, binary records or PNG strips.
"""

import hashlib
import io
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fairmargin.data.archives import read_bare
from fairmargin.data.sources import checksum_of

# Training images and labels, test images and labels.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
IMAGES_PER_FILE = 10_000
# Bytes; the largest file read here is CIFAR-100's training pickle, 155 MB.
_LARGEST = 256 << 20


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file, bare or gzipped, as a uint8 array.

    Its header holds 0, 0, the type 8 (uint8), the number of axes, and the sizes as int32.
    """
    content = b"".join(read_bare(path, max_bytes=_LARGEST))
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        start = content[:4].hex(" ") or "nothing"
        raise ValueError(f"{path} is not an idx file of bytes: it starts with {start}")
    axes = content[3]
    first = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, first, 4))
    if len(content) != first + math.prod(shape):
        sizes = " × ".join(map(str, shape))
        held = max(len(content) - first, 0)
        raise ValueError(
            f"{path} says it holds {sizes} bytes but holds {held:,}; "
            "it is cut short or damaged, get it again"
        )
    return np.frombuffer(content, np.uint8, offset=first).reshape(shape).copy()


def mnist(files: dict[str, Path]) -> Arrays:
    """Read MNIST: images uint8 [N, 28, 28] and labels int64 [N].

    Args:
        files: what `sources.locate("mnist", root)` found.
    """
    parts: list[np.ndarray] = []
    for split in ("train", "t10k"):
        path = files[f"{split}-images-idx3-ubyte"]
        images = read_idx(path)
        labels = read_idx(files[f"{split}-labels-idx1-ubyte"])
        if images.ndim != 3 or images.shape[1:] != (28, 28):
            raise ValueError(f"{path} holds {images.shape}, not images of 28 × 28")
        parts += _checked(images, labels, 10, path)
    return parts[0], parts[1], parts[2], parts[3]


def cifar10(files: dict[str, Path]) -> Arrays:
    """Read CIFAR-10: images uint8 [N, 32, 32, 3] and labels int64 [N].

    Args:
        files: what `sources.locate("cifar10", root)` found, in any of its layouts.
    """
    train = [f"data_batch_{k}" for k in range(1, 6)]
    if "data_batch_1.png" in files:
        return _from_strips(files, train)
    images, labels = [], []
    for name in [*train, "test_batch"]:
        if "data_batch_1.bin" in files:
            batch = _from_records(files[f"{name}.bin"], 1, 10)
        else:
            batch = _from_pickle(files[name], "cifar10", name, "labels", 10)
        images.append(batch[0])
        labels.append(batch[1])
    return np.concatenate(images[:-1]), np.concatenate(labels[:-1]), images[-1], labels[-1]


def cifar100(files: dict[str, Path]) -> Arrays:
    """Read CIFAR-100 with its 100 fine labels, as `cifar10` reads CIFAR-10.

    Args:
        files: what `sources.locate("cifar100", root)` found, in either layout.
    """
    if "train.bin" in files:
        return *_from_records(files["train.bin"], 2, 100), *_from_records(files["test.bin"], 2, 100)
    train = _from_pickle(files["train"], "cifar100", "train", "fine_labels", 100)
    test = _from_pickle(files["test"], "cifar100", "test", "fine_labels", 100)
    return *train, *test


def _from_records(path: Path, label_bytes: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read records of label bytes followed by 3 × 1024 bytes of red, green and blue.

    The last label byte counts: CIFAR-100's first is the coarse label.
    """
    content = np.frombuffer(b"".join(read_bare(path, max_bytes=_LARGEST)), np.uint8)
    length = label_bytes + 3072
    if len(content) == 0 or len(content) % length:
        raise ValueError(
            f"{path} holds {len(content):,} bytes, not a whole number of records of {length:,}; "
            "get it again"
        )
    records = content.reshape(-1, length)
    images = _from_planes(records[:, label_bytes:])
    return _checked(images, records[:, label_bytes - 1], classes, path)


def _from_pickle(
    path: Path, source: str, name: str, key: str, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    content = b"".join(read_bare(path, max_bytes=_LARGEST))
    algorithm, expected = checksum_of(source, name).split(":")
    # md5 is what the authors published. Its weakness, collisions, does not help against a sum
    # fixed in advance.
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} is a pickle with {algorithm} {found}, not the published {expected}: "
            "it is not opened, because a pickle can run code. "
            f"Delete it and run: fairmargin data get {source}"
        )
    batch: Any = ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    return _checked(_from_planes(batch["data"]), np.array(batch[key]), classes, path)


class ArrayUnpickler(pickle.Unpickler):
    """Builds NumPy arrays and plain values, and nothing else."""

    _ALLOWED = {  # noqa: RUF012  (a constant table)
        # Taken from an array, because NumPy 2 has moved the module.
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that arrays are made of, and refuse any other."""
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(
                f"refused: the pickle asks for {module}.{name}, which no array needs"
            )
        return self._ALLOWED[module, name]


def _from_strips(files: dict[str, Path], train: list[str]) -> Arrays:
    """Read PNG strips: row i is image i, its 1024 pixels in reading order.

    Labels are JSON lists, in files named "lables".
    """
    images = np.concatenate([_strip(files[f"{name}.png"]) for name in train])
    labels = np.array(json.loads(files["train_lables.json"].read_bytes()))
    test_labels = np.array(json.loads(files["test_lables.json"].read_bytes()))
    test_path = files["test_batch.png"]
    return (
        *_checked(images, labels, 10, files["data_batch_1.png"]),
        *_checked(_strip(test_path), test_labels, 10, test_path),
    )


def _strip(path: Path) -> np.ndarray:
    with Image.open(path, formats=("PNG",)) as image:
        # Checked before anything is decoded.
        if image.mode != "RGB" or image.width != 1024 or image.height > IMAGES_PER_FILE:
            size = f"{image.width} × {image.height} {image.mode}"
            raise ValueError(
                f"{path} is {size}; a strip of CIFAR images is 1024 × {IMAGES_PER_FILE} RGB"
            )
        return np.asarray(image).reshape(-1, 32, 32, 3)


def _from_planes(planes: np.ndarray) -> np.ndarray:
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # [N, 32, 32, 3]
    return np.ascontiguousarray(images)


def _checked(
    images: np.ndarray, labels: np.ndarray, classes: int, path: Path
) -> tuple[np.ndarray, np.ndarray]:
    if labels.shape != (len(images),):
        raise ValueError(
            f"{path} holds {len(images):,} images, but its labels are of shape {labels.shape}"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(
            f"{path}: labels run from {labels.min()} to {labels.max()}, "
            f"not within 0 … {classes - 1}"
        )
    return images, labels.astype(np.int64)
