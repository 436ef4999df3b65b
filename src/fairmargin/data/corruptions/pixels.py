"""What every corruption shares: bytes to the unit interval and back, and its parameters by level."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Streams = Sequence[np.random.Generator]  # one for each image


def to_unit(images: np.ndarray) -> np.ndarray:
    """Double precision, because `to_bytes` truncates: k/255 comes back as k, in single precision not always."""
    x: np.ndarray = images / 255.0
    return x


def to_bytes(x: np.ndarray) -> np.ndarray:
    """Clipped to [0, 1] and truncated, not rounded, as the published sets are."""
    return (x.clip(0, 1) * 255).astype(np.uint8)


def published_size(images: np.ndarray) -> int:
    """32 (CIFAR-10-C) or 224 (ImageNet-C): of the sizes with published parameters the nearer one in ratio."""
    return 32 if min(images.shape[1:3]) < np.sqrt(32 * 224) else 224


def at_level(table: Mapping[int, tuple[T, ...]], images: np.ndarray, level: int) -> T:
    check_level(level)
    return table[published_size(images)][int(level) - 1]


def check_level(level: int) -> None:
    if level not in range(1, 6):
        raise ValueError(f"a corruption's level is 1, 2, 3, 4 or 5 (strongest); got {level!r}")
