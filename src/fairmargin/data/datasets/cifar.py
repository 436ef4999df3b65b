"""CIFAR-10 and CIFAR-100, from any of the layouts `raw` reads."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

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
    Channels,
    Views,
    crop_flip,
    plain,
    resized_crop_flip,
    supcon,
)

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

ViewsName = Literal["crop-flip", "resized-crop-flip", "supcon"]
VIEWS: dict[ViewsName, Callable[..., Views]] = {
    "crop-flip": partial(crop_flip, 32, 4),
    "resized-crop-flip": partial(resized_crop_flip, 32, (0.2, 1.0)),
    "supcon": partial(supcon, 32),
}


def build_10(
    root: Path, *, views: ViewsName = "crop-flip", valid_fraction: float = 0.1, seed: int = 0
) -> Data:
    """Build CIFAR-10.

    Args:
        views: "crop-flip" (a crop of the padded image), "resized-crop-flip" (a crop of 20 to 100 %,
            as SupContrast trains cross-entropy), or "supcon" (two of these, with colour jitter and
            greyscale).
        valid_fraction: share of the training images of each class to hold out.
        seed: of the validation split.
    """
    arrays = raw.cifar10(sources.locate("cifar10", root))
    return _build("cifar10", arrays, CLASSES, CIFAR10, views, valid_fraction, seed)


def build_100(
    root: Path, *, views: ViewsName = "crop-flip", valid_fraction: float = 0.1, seed: int = 0
) -> Data:
    """Build CIFAR-100 with its fine labels. Arguments as in `build_10`."""
    arrays = raw.cifar100(sources.locate("cifar100", root))
    classes = tuple(map(str, range(100)))
    return _build("cifar100", arrays, classes, CIFAR100, views, valid_fraction, seed)


def _build(
    name: str,
    arrays: raw.Arrays,
    class_names: tuple[str, ...],
    statistics: tuple[Channels, Channels],
    views: ViewsName,
    valid_fraction: float,
    seed: int,
) -> Data:
    check_choice(views, "views", VIEWS)
    images, labels, test_images, test_labels = arrays
    whole = in_memory(images, labels)
    test = in_memory(test_images, test_labels)
    train, valid = whole.hold_out(valid_fraction, seed=seed)
    counts = count_cells(whole.labels, None, len(class_names), 0)
    info = DataInfo(name, class_names, (), (3, 32, 32), counts)
    return Data(train, valid, test, info, VIEWS[views](*statistics), plain(*statistics))


def in_memory(images: np.ndarray, labels: np.ndarray, bias: np.ndarray | None = None) -> ArraySplit:
    """Make a split of images [N, H, W, 3], labels [N] and bias [N].

    Args:
        images: uint8 [N, H, W, 3].
        labels: [N].
        bias: [N]; None if there is none.
    """
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    known = None if bias is None else torch.from_numpy(bias.astype(np.int64))
    return ArraySplit(pixels, torch.from_numpy(labels.astype(np.int64)), known)
