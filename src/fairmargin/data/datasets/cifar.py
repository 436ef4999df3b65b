"""CIFAR-10 and CIFAR-100, from any of the layouts `raw` reads."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data import raw, sources
from fairmargin.data.bias import count_cells
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import (
    CIFAR10,
    CIFAR100,
    Views,
    crop_flip,
    plain,
    resized_crop_flip,
    supcon,
)

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

VIEWS: dict[str, Callable[..., Views]] = {
    "crop-flip": partial(crop_flip, 32, 4),
    "resized-crop-flip": partial(resized_crop_flip, 32, (0.2, 1.0)),
    "supcon": partial(supcon, 32),
}


def build_10(
    root: Path, *, views: str = "crop-flip", valid_fraction: float = 0.1, seed: int = 0
) -> Data:
    """CIFAR-10.

    Args:
        views: "crop-flip" (a crop of the padded image), "resized-crop-flip" (a crop of 20 to 100 %, as SupContrast trains
            cross-entropy), or "supcon" (two of these, with colour jitter and greyscale).
    """
    images = raw.cifar10(sources.locate("cifar10", root))
    return _build("cifar10", images, CLASSES, CIFAR10, views, valid_fraction, seed)


def build_100(
    root: Path, *, views: str = "crop-flip", valid_fraction: float = 0.1, seed: int = 0
) -> Data:
    """CIFAR-100 with its fine labels; `views` as in `build_10`."""
    images = raw.cifar100(sources.locate("cifar100", root))
    return _build(
        "cifar100", images, tuple(map(str, range(100))), CIFAR100, views, valid_fraction, seed
    )


def _build(
    name: str,
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    class_names: tuple[str, ...],
    statistics: tuple[tuple[float, ...], tuple[float, ...]],
    views: str,
    valid_fraction: float,
    seed: int,
) -> Data:
    check_choice(views, "views", VIEWS)
    whole, test = (in_memory(*arrays[i : i + 2]) for i in (0, 2))
    train, valid = whole.hold_out(valid_fraction, seed=seed)
    info = DataInfo(
        name, class_names, (), (3, 32, 32), count_cells(whole.labels, None, len(class_names), 0)
    )
    return Data(train, valid, test, info, VIEWS[views](*statistics), plain(*statistics))


def in_memory(images: np.ndarray, labels: np.ndarray, bias: np.ndarray | None = None) -> ArraySplit:
    """From [N, H, W, 3] arrays."""
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    known = None if bias is None else torch.from_numpy(bias.astype(np.int64))
    return ArraySplit(pixels, torch.from_numpy(labels.astype(np.int64)), known)
