"""Raw files as arrays, in the official order: MNIST's idx files; CIFAR as pickles, binary records or PNG strips."""

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

Arrays = tuple[
    np.ndarray, np.ndarray, np.ndarray, np.ndarray
]  # train images, labels, test images, labels
IMAGES_PER_FILE = 10_000
_LARGEST = 256 << 20  # bytes; CIFAR-100's training pickle is the largest file here, 155 MB


def read_idx(path: Path) -> np.ndarray:
    """uint8 array of an idx file, bare or gzipped. Header: 0, 0, type 8 (uint8), number of axes, then int32 sizes."""
    content = b"".join(read_bare(path, max_bytes=_LARGEST))
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        raise ValueError(
            f"{path} is not an idx file of bytes: it starts with {content[:4].hex(' ') or 'nothing'}"
        )
    axes = content[3]
    start = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise ValueError(
            f"{path} says it holds {' × '.join(map(str, shape))} bytes but holds {max(len(content) - start, 0):,}; "
            "it is cut short or damaged, get it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def mnist(files: dict[str, Path]) -> Arrays:
    """Images uint8 [N, 28, 28] and labels int64 [N], of the files that `sources.locate("mnist", root)` found."""
    parts: list[np.ndarray] = []
    for split in ("train", "t10k"):
        where = files[f"{split}-images-idx3-ubyte"]
        images, labels = read_idx(where), read_idx(files[f"{split}-labels-idx1-ubyte"])
        if images.ndim != 3 or images.shape[1:] != (28, 28):
            raise ValueError(f"{where} holds {images.shape}, not images of 28 × 28")
        parts += _checked(images, labels, 10, where)
    return parts[0], parts[1], parts[2], parts[3]


def cifar10(files: dict[str, Path]) -> Arrays:
    """Images uint8 [N, 32, 32, 3] and labels int64 [N], from any layout `sources.locate("cifar10", root)` finds."""
    train = [f"data_batch_{k}" for k in range(1, 6)]
    if "data_batch_1.png" in files:
        return _from_strips(files, train)
    if "data_batch_1.bin" in files:
        batches = [_from_records(files[f"{name}.bin"], 1, 10) for name in [*train, "test_batch"]]
    else:
        batches = [
            _from_pickle(files[name], "cifar10", name, "labels", 10)
            for name in [*train, "test_batch"]
        ]
    images, labels = ([batch[i] for batch in batches] for i in (0, 1))
    return np.concatenate(images[:-1]), np.concatenate(labels[:-1]), images[-1], labels[-1]


def cifar100(files: dict[str, Path]) -> Arrays:
    """As `cifar10`, with the 100 fine labels."""
    if "train.bin" in files:
        return *_from_records(files["train.bin"], 2, 100), *_from_records(files["test.bin"], 2, 100)
    train, test = (
        _from_pickle(files[name], "cifar100", name, "fine_labels", 100)
        for name in ("train", "test")
    )
    return *train, *test


def _from_records(path: Path, label_bytes: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Records of label bytes, of which the last counts (CIFAR-100's first is the coarse label), and 3 × 1024 bytes of
    red, green and blue."""
    content = np.frombuffer(b"".join(read_bare(path, max_bytes=_LARGEST)), np.uint8)
    length = label_bytes + 3072
    if len(content) == 0 or len(content) % length:
        raise ValueError(
            f"{path} holds {len(content):,} bytes, not a whole number of records of {length:,}; get it again"
        )
    records = content.reshape(-1, length)
    return _checked(
        _from_planes(records[:, label_bytes:]), records[:, label_bytes - 1], classes, path
    )


def _from_pickle(
    path: Path, source: str, name: str, key: str, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    content = b"".join(read_bare(path, max_bytes=_LARGEST))
    algorithm, expected = checksum_of(source, name).split(":")
    # md5 is what the authors published. Its weakness, collisions, does not help against a sum fixed in advance.
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} is a pickle with {algorithm} {found}, not the published {expected}: it is not opened, because a "
            f"pickle can run code. Delete it and run: fairmargin data get {source}"
        )
    batch: Any = ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    return _checked(_from_planes(batch["data"]), np.array(batch[key]), classes, path)


class ArrayUnpickler(pickle.Unpickler):
    """Builds NumPy arrays and plain values, and nothing else."""

    _ALLOWED = {  # noqa: RUF012  (a constant table)
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[
            0
        ],  # the module has moved in NumPy 2
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(
                f"refused: the pickle asks for {module}.{name}, which no array needs"
            )
        return self._ALLOWED[module, name]


def _from_strips(files: dict[str, Path], train: list[str]) -> Arrays:
    """PNG strips: row i is image i, its 1024 pixels in reading order. Labels are JSON lists, named "lables"."""
    strips = [_strip(files[f"{name}.png"]) for name in train]
    labels, test_labels = (
        np.array(json.loads(files[f"{s}_lables.json"].read_bytes())) for s in ("train", "test")
    )
    where, test_where = files["data_batch_1.png"], files["test_batch.png"]
    return (
        *_checked(np.concatenate(strips), labels, 10, where),
        *_checked(_strip(test_where), test_labels, 10, test_where),
    )


def _strip(path: Path) -> np.ndarray:
    with Image.open(path, formats=("PNG",)) as image:
        if (
            image.mode != "RGB" or image.width != 1024 or image.height > IMAGES_PER_FILE
        ):  # before anything is decoded
            size = f"{image.width} × {image.height} {image.mode}"
            raise ValueError(
                f"{path} is {size}; a strip of CIFAR images is 1024 × {IMAGES_PER_FILE} RGB"
            )
        return np.asarray(image).reshape(-1, 32, 32, 3)


def _from_planes(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(
        planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    )  # [N, 32, 32, 3]


def _checked(
    images: np.ndarray, labels: np.ndarray, classes: int, where: Path
) -> tuple[np.ndarray, np.ndarray]:
    if labels.shape != (len(images),):
        raise ValueError(
            f"{where} holds {len(images):,} images, but its labels are of shape {labels.shape}"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(
            f"{where}: labels run from {labels.min()} to {labels.max()}, not within 0 … {classes - 1}"
        )
    return images, labels.astype(np.int64)
