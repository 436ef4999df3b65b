"""What estimators are given: bias values of any kind, vectors of any scale, images of two layouts.

values, cue = coded(["red", None, "blue"])       # (["blue", "red"], [1, −1, 0])
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.data import views
from fairmargin.data.views import Randomness, Views

UNKNOWN = -1
# Values that mean an unknown bias, besides None and NaN.
UNKNOWN_VALUES = (UNKNOWN, "", "-1", b"", b"-1")
# Deviation/|mean| below which a feature varies by rounding only.
CONSTANT = 1e-7

Float = NDArray[np.floating]
ViewsName = Literal["plain", "crop-flip", "supcon"]


def coded(bias: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """(values, position of each sample's value or −1).

    Args:
        bias: [N] of any kind; None, NaN, −1 and an empty text are unknown.
    """
    given = column_or_1d(bias, dtype=None)
    # Among objects, NumPy has not turned a NaN that stands beside texts into a text.
    objects = np.asarray(bias, dtype=object).ravel()
    known = np.array([_is_known(value) for value in objects], bool)
    try:
        values, place = np.unique(given[known], return_inverse=True)
    except TypeError:  # numbers and texts, which have no order
        values, place = np.unique(given[known].astype(str), return_inverse=True)
    cue = np.full(len(given), UNKNOWN)
    cue[known] = place
    return values, cue


def _is_known(value: Any) -> bool:
    # NaN does not equal itself, and pandas' NA does not say.
    equal = value == value
    if not isinstance(equal, bool | np.bool_) or not bool(equal):
        return False
    return value is not None and value not in UNKNOWN_VALUES


def standard(x: Float) -> tuple[Float, Float]:
    """(mean, deviation) of each feature; 1 instead of the deviation of a constant one.

    Args:
        x: [N, D].
    """
    mean, deviation = x.mean(0), x.std(0)
    return mean, np.where(deviation > CONSTANT * np.abs(mean), deviation, 1.0)


@dataclass(frozen=True)
class AsTheyAre(Views):
    """Views of vectors, which are standardised before they become a split."""

    def __call__(self, images: Tensor, generator: Randomness = None) -> Tensor:
        """Return the vectors [n, D] unchanged."""
        return images


@dataclass(frozen=True)
class Vectors:
    """How vectors become inputs of a network: each feature with mean 0 and deviation 1.

    Args:
        mean: [D], of the training data.
        scale: [D], their deviation.
    """

    mean: Float
    scale: Float

    @property
    def shape(self) -> tuple[int, int, int]:
        """What `DataInfo.image_shape` says of them."""
        return 1, 1, len(self.mean)

    def blank(self) -> Float:
        """One sample, [1, D]."""
        return self.mean[None]

    def tensor(self, x: Float) -> Tensor:
        """Standardised vectors, float64 [N, D].

        Args:
            x: [N, D].
        """
        return torch.from_numpy(np.ascontiguousarray((x - self.mean) / self.scale))

    def views(self, name: ViewsName = "plain") -> Views:
        """Vectors have no other views than themselves.

        Args:
            name: only "plain".
        """
        if name != "plain":
            raise ValueError(
                f'views={name!r} are crops of images and X holds vectors; leave views="plain"'
            )
        return AsTheyAre((), (0.0,), (1.0,))


@dataclass(frozen=True)
class Images:
    """How images become inputs of a network: each channel with mean 0 and deviation 1.

    Args:
        shape: 3, height, width.
        mean: of each channel in the training data, in [0, 1].
        std: its deviation.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def blank(self) -> NDArray[np.uint8]:
        """One sample, [1, 3, H, W]."""
        return np.zeros((1, *self.shape), np.uint8)

    def tensor(self, x: NDArray[np.uint8]) -> Tensor:
        """Pixels as they are, uint8 [N, 3, H, W].

        Args:
            x: uint8 [N, 3, H, W].
        """
        return torch.from_numpy(x)

    def views(self, name: ViewsName = "plain") -> Views:
        """Normalized images, augmented if asked for.

        Args:
            name: "plain"; "crop-flip" for random crops of the padded image; "supcon" for two views
                with crops, flips and colours.
        """
        check_choice(name, "views", get_args(ViewsName))
        if name == "plain":
            return views.plain(self.mean, self.std)
        _, height, width = self.shape
        if height != width:
            raise ValueError(
                f"views={name!r} cut squares and these images are {height}×{width}; "
                'make them square, or leave views="plain"'
            )
        if name == "crop-flip":
            return views.crop_flip(height, max(1, height // 8), self.mean, self.std)
        return views.supcon(height, self.mean, self.std)


def pixels(x: ArrayLike) -> NDArray[np.uint8]:
    """Images as uint8 [N, 3, H, W], in memory order; an error says what else was given.

    Args:
        x: uint8 [N, H, W, 3] or [N, 3, H, W].
    """
    images = np.asarray(x)
    found = f"got {images.dtype} {list(images.shape)}"
    if images.ndim != 4 or 3 not in (images.shape[1], images.shape[3]):
        raise ValueError(
            "X must be vectors [N, D], or colour images [N, H, W, 3] or [N, 3, H, W]; "
            f"{found}. Grey images become colour images by "
            "np.repeat(X[..., None], 3, axis=-1)"
        )
    if images.dtype != np.uint8:
        raise ValueError(
            f"images must be uint8 pixels from 0 to 255; {found}. "
            "Of floats from 0 to 1 they are made by (255 * X).round().astype(np.uint8)"
        )
    if images.shape[3] == 3:
        images = images.transpose(0, 3, 1, 2)
    # A copy where the array may not be written to, which torch would warn of.
    return np.require(images, requirements=["C", "W"])


def images_of(x: NDArray[np.uint8]) -> Images:
    """Measure mean and deviation of each channel.

    Args:
        x: uint8 [N, 3, H, W].
    """
    counts = [np.bincount(x[:, channel].ravel(), minlength=256) for channel in range(3)]
    level = np.arange(256) / 255
    mean = [float(c @ level / c.sum()) for c in counts]
    square = [float(c @ level**2 / c.sum()) for c in counts]
    deviation = [max(s - m * m, 0.0) ** 0.5 for m, s in zip(mean, square, strict=True)]
    std = tuple(d if d > CONSTANT else 1.0 for d in deviation)
    return Images((3, x.shape[2], x.shape[3]), tuple(mean), std)
