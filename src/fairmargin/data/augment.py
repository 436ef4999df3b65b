"""Augmentations of people's own images by name: `data.augment`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from fairmargin.checks import check_choice
from fairmargin.data.image_ops import ADJUSTMENTS, crop, rotate
from fairmargin.data.views import (
    Channels,
    Flip,
    PaddedCrop,
    Randomness,
    Step,
    Views,
    crop_flip,
    plain,
    supcon,
    uniform,
)

Augment = Literal["crop-flip", "crop", "none", "supcon", "randaugment"]
MEANINGS: dict[str, str] = {
    "crop-flip": "shifted by up to an eighth, mirrored half of the time",
    "crop": "shifted by up to an eighth, never mirrored: for digits, text, left and right",
    "none": "as they are",
    "supcon": "two views of each: crops of 20 to 100 %, mirrored, colors changed, sometimes grey",
    "randaugment": "shifted and mirrored, then two changes of shape, color or light at random",
}


def augment_named(given: str | bool) -> Augment:
    """Return the augmentation that a setting names; true and false are "crop-flip" and "none"."""
    if isinstance(given, bool):
        return "crop-flip" if given else "none"
    check_choice(given, "augment", get_args(Augment))
    chosen: Augment = given  # type: ignore[assignment]
    return chosen


def augmented(given: str | bool, size: int, mean: Channels, std: Channels) -> Views:
    """Return the training views of an augmentation.

    Args:
        given: a name, or true or false; see `augment_named`.
        size: side of the square images.
        mean: of each channel, in [0, 1].
        std: of each channel.
    """
    name = augment_named(given)
    padding = size // 8
    if name == "none":
        return plain(mean, std)
    if name == "crop":
        return Views((PaddedCrop(size, padding),), mean, std)
    usual = crop_flip(size, padding, mean, std)
    if name == "crop-flip":
        return usual
    if len(mean) != 3:
        raise ValueError(
            f"augment={name!r} changes colors and these images have {len(mean)} channels; "
            "choose crop-flip, crop or none"
        )
    if name == "supcon":
        return supcon(size, mean, std)
    return replace(usual, steps=(*usual.steps, RandAugment()))


@dataclass(frozen=True)
class RandAugment:
    """Some changes of each image, drawn from a list, all of one strength.

    Note: after Cubuk et al. (NeurIPS 2020), without shear, sharpness and equalization, and with
    strengths uniform up to the magnitude instead of equal to it.

    Args:
        changes: of each image.
        magnitude: from 0 to 1.
    """

    changes: int = 2
    magnitude: float = 0.3

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        """Turn [n, 3, H, W] in [0, 1] into the same."""
        x = x.clone()
        drawn = uniform(len(x), 2 * self.changes, generator)
        for k in range(self.changes):
            kind = (drawn[:, 2 * k] * len(CHANGES)).long().clamp(max=len(CHANGES) - 1)
            # From −magnitude to magnitude.
            strength = (2 * drawn[:, 2 * k + 1] - 1) * self.magnitude
            for number, change in enumerate(CHANGES):
                rows = (kind == number).nonzero()[:, 0].to(x.device)
                if len(rows):
                    by = strength.to(x.device)[rows]
                    x.index_copy_(0, rows, change(x.index_select(0, rows), by).clamp(0, 1))
        return x


def _same(x: Tensor, by: Tensor) -> Tensor:
    return x


def _turned(x: Tensor, by: Tensor) -> Tensor:
    return rotate(x, 45 * by)


def _shifted(x: Tensor, by: Tensor, down: bool) -> Tensor:
    side = x.shape[-1]
    most = max(side // 3, 1)
    padded = F.pad(x, [most] * 4)
    by_pixels = (by * most).round().long() + most
    still = torch.full_like(by_pixels, most)
    top, left = (by_pixels, still) if down else (still, by_pixels)
    return crop(padded, top, left, side)


def _adjusted(kind: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, by: ADJUSTMENTS[kind](x, 1 + 2 * by)


def _solarized(x: Tensor, by: Tensor) -> Tensor:
    """Invert what is brighter than a threshold."""
    threshold = (1 - by.abs()).view(-1, 1, 1, 1)
    return torch.where(x < threshold, x, 1 - x)


def _posterized(x: Tensor, by: Tensor) -> Tensor:
    """Keep fewer levels of each color."""
    levels = 2 ** (8 - 5 * by.abs()).round().view(-1, 1, 1, 1)
    return (x * (levels - 1)).round() / (levels - 1)


def _stretched(x: Tensor, by: Tensor) -> Tensor:
    """Stretch each color over the whole range."""
    low = x.amin((2, 3), keepdim=True)
    high = x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-6), x)


# [n, 3, H, W] in [0, 1] and strengths [n] in [−1, 1] → the same, perhaps beyond [0, 1].
CHANGES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _same,
    _turned,
    lambda x, by: _shifted(x, by, down=True),
    lambda x, by: _shifted(x, by, down=False),
    _adjusted(0),
    _adjusted(1),
    _adjusted(2),
    _solarized,
    _posterized,
    _stretched,
)

__all__ = ["MEANINGS", "Augment", "Flip", "RandAugment", "Step", "augment_named", "augmented"]
