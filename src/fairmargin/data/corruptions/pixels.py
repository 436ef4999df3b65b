"""What corruptions share: bytes to the unit interval and back, and parameters by level."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
# One for each image.
Streams = Sequence[np.random.Generator]


def to_unit(images: np.ndarray) -> np.ndarray:
    """Turn bytes into numbers in [0, 1], in double precision.

    `to_bytes` truncates: in double precision k/255 comes back as k, in single not always.
    """
    x: np.ndarray = images / 255.0
    return x


def to_bytes(x: np.ndarray) -> np.ndarray:
    """Turn numbers into bytes: clipped to [0, 1] and truncated, not rounded, as published."""
    return (x.clip(0, 1) * 255).astype(np.uint8)


def published_size(images: np.ndarray) -> int:
    """Return the nearer, in ratio, of the sizes with published parameters.

    That is 32 (CIFAR-10-C) or 224 (ImageNet-C).
    """
    return 32 if min(images.shape[1:3]) < np.sqrt(32 * 224) else 224


def at_level(table: Mapping[int, tuple[T, ...]], images: np.ndarray, level: int) -> T:
    """Return the parameters of a level, from a table by published size.

    Args:
        table: published size → parameters of the five levels.
        images: [N, H, W, 3], whose size decides which parameters to take.
    """
    check_level(level)
    return table[published_size(images)][int(level) - 1]


def check_level(level: int) -> None:
    """Raise unless this is a level of a corruption."""
    if level not in range(1, 6):
        raise ValueError(f"a corruption's level is 1, 2, 3, 4 or 5 (strongest); got {level!r}")
