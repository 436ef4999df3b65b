"""From uint8 batches to normalized float inputs: augmentation of whole batches on their device.

Steps follow torchvision's definitions. Each draws its parameters, one row per image, on the CPU and
moves them to the device, so the same generator gives the same views on every device. The operations
themselves are in `image_ops`.

Note: between steps values stay floats; codes that augment PIL images round to 8 bits after every
operation.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fairmargin.data.image_ops import ADJUSTMENTS, crop, luma, resized_crop, rotate

Channels = tuple[float, ...]

# Biased-MNIST: to [−1, 1].
HALF: tuple[Channels, Channels] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
# Note: the customary deviations are means of each image's own; over all pixels it is about 0.25.
CIFAR10: tuple[Channels, Channels] = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR100: tuple[Channels, Channels] = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class PartOf:
    """Randomness for a part of a batch: the numbers its rows would get inside the whole batch.

    Processes that share a batch thus augment their parts exactly as one process augments the whole.

    Args:
        start: position of the part's first row in the batch.
        total: rows of the batch.
    """

    generator: torch.Generator
    start: int
    total: int


# None: torch's global generator.
Randomness = torch.Generator | PartOf | None


class Step(Protocol):
    """One augmentation."""

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        """Turn [n, C, H, W] in [0, 1] into the same, perhaps of another size."""
        ...


@dataclass(frozen=True)
class Views:
    """Apply `steps` in order, then normalize.

    Args:
        number: independent draws of each image.
    """

    steps: tuple[Step, ...]
    mean: Channels
    std: Channels
    number: int = 1

    def __call__(self, images: Tensor, generator: Randomness = None) -> Tensor:
        """Turn uint8 [n, C, H, W] into float32, [n, C, H, W] or [n, number, C, H, W].

        Vectors, float32 [n, D], are standardized by the `mean` and `std` of their columns.
        """
        if images.dtype == torch.float32 and images.ndim == 2:
            return self._standardized(images)
        if images.dtype != torch.uint8:
            raise TypeError(
                f"views take uint8 images and these are {images.dtype}; give raw pixels in 0 … 255"
            )
        if self.number == 1:
            return self._view(images, generator)
        return torch.stack([self._view(images, generator) for _ in range(self.number)], 1)

    def _standardized(self, vectors: Tensor) -> Tensor:
        if self.steps or self.number > 1:
            raise ValueError(
                "vectors cannot be augmented like images, and these views do; choose a method "
                "that takes one view of each sample"
            )
        scale, shift = _normalization(self.mean, self.std, 1, vectors.device)
        return (vectors * scale.flatten()).sub_(shift.flatten())

    def _view(self, images: Tensor, generator: Randomness) -> Tensor:
        x = images
        for step in self.steps:
            if x.dtype == torch.uint8 and not isinstance(step, MOVES_PIXELS):
                x = x / 255
            x = step(x, generator)
        if x.dtype == torch.uint8:
            scale, shift = _normalization(self.mean, self.std, 255, x.device)
            return x.float().mul_(scale).sub_(shift)
        scale, shift = _normalization(self.mean, self.std, 1, x.device)
        return (x * scale).sub_(shift)


@lru_cache(maxsize=64)
def _normalization(
    mean: Channels, std: Channels, unit: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(x/unit − mean)/std as x·scale − shift; each [C, 1, 1]."""
    m = torch.tensor(mean).view(-1, 1, 1)
    s = torch.tensor(std).view(-1, 1, 1)
    return (1 / (unit * s)).to(device), (m / s).to(device)


@dataclass(frozen=True)
class PaddedCrop:
    """Zero padding on all sides, then a square of `size` at a uniform integer offset."""

    size: int
    padding: int

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        n, _, height, width = x.shape
        room = [side + 2 * self.padding - self.size + 1 for side in (height, width)]
        if min(room) < 1:
            raise ValueError(
                f"no crop of {self.size} fits in {height}×{width} padded by {self.padding}; "
                "pad more or crop less"
            )
        corner = _integers(uniform(n, 2, generator), torch.tensor(room)).to(x.device)
        return crop(F.pad(x, [self.padding] * 4), corner[:, 0], corner[:, 1], self.size)


@dataclass(frozen=True)
class Flip:
    """Mirror left and right with probability `p`."""

    p: float = 0.5

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        rows = _chosen(len(x), self.p, generator).to(x.device)
        return x.index_copy(0, rows, x.index_select(0, rows).flip(3))


@dataclass(frozen=True)
class Rotate:
    """Rotate by an angle uniform in ±`degrees`, nearest pixel, black where nothing was."""

    degrees: float

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        angle = (2 * uniform(len(x), 1, generator)[:, 0] - 1) * self.degrees
        return rotate(x, angle.to(x.device))


# These create no new values: as first steps they work on uint8, a quarter of the bytes.
MOVES_PIXELS = (PaddedCrop, Flip, Rotate)


@dataclass(frozen=True)
class ResizedCrop:
    """Cut out a random box and resize it to `size`.

    Up to ten boxes are tried; if none fits, the largest central box whose shape `ratio` allows is
    taken.

    Args:
        scale: the box's share of the image's area is uniform in this range.
        ratio: its width / height is log-uniform in this range.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        full_height, full_width = x.shape[2:]
        u = uniform(len(x), 22, generator)
        least, most = self.scale
        area = full_height * full_width * (least + (most - least) * u[:, :10])
        low, high = map(math.log, self.ratio)
        ratio = (low + (high - low) * u[:, 10:20]).exp()  # width / height
        heights = (area / ratio).sqrt().round()
        widths = (area * ratio).sqrt().round()
        tries = torch.stack([heights, widths]).long()  # [2, n, 10]
        central = torch.tensor(self._central(full_height, full_width))
        last = central.view(2, 1, 1).expand(2, len(x), 1)
        sides = torch.cat([tries, last], 2)  # [2, n, 11]
        limit = torch.tensor([full_height, full_width]).view(2, 1, 1)
        fits = ((sides > 0) & (sides <= limit)).all(0)  # [n, 11], the last always
        first = fits.int().argmax(1)
        box = sides[:, torch.arange(len(x)), first]  # [2, n]
        room = limit[:, 0] - box
        corner = torch.where(first < 10, _integers(u[:, 20:].T, room + 1), room // 2)
        top, left = corner.to(x.device)
        height, width = box.to(x.device)
        return resized_crop(x, top, left, height, width, self.size)

    def _central(self, height: int, width: int) -> tuple[int, int]:
        low, high = self.ratio
        return min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))


@dataclass(frozen=True)
class ColourJitter:
    """Change brightness, contrast, saturation and hue in random order, with probability `p`.

    The first three change by factors uniform in 1 ± their strength, the hue by a shift uniform in
    ±`hue` of the circle.

    Note: every image has its own order, as when images are augmented one by one. At each of the
    four places, the images that take the same operation go through it together.
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float
    p: float = 1.0

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        u = uniform(len(x), 9, generator)
        chosen = u[:, 8] < self.p
        order = u[:, 4:8].argsort(1)  # [n, 4]
        strength = torch.tensor([self.brightness, self.contrast, self.saturation, self.hue])
        low = torch.cat([(1 - strength[:3]).clamp(min=0), -strength[3:]])
        high = torch.cat([1 + strength[:3], strength[3:]])
        factor = (low + (high - low) * u[:, :4]).to(x.device)
        x = x.clone()
        for place in range(4):
            for kind, adjust in enumerate(ADJUSTMENTS):
                rows = (chosen & (order[:, place] == kind)).nonzero()[:, 0].to(x.device)
                if strength[kind] > 0 and len(rows):
                    x.index_copy_(0, rows, adjust(x.index_select(0, rows), factor[rows, kind]))
        return x


@dataclass(frozen=True)
class Grey:
    """Luma on all three channels, with probability `p`."""

    p: float = 0.2

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        rows = _chosen(len(x), self.p, generator).to(x.device)
        return x.index_copy(0, rows, luma(x.index_select(0, rows)).expand(-1, 3, -1, -1))


def uniform(n: int, columns: int, generator: Randomness) -> Tensor:
    """Draw [n, columns] numbers in [0, 1), on the CPU.

    Args:
        n: number of images.
        columns: numbers for each image.
    """
    if isinstance(generator, PartOf):
        whole = torch.rand(generator.total, columns, generator=generator.generator)
        return whole[generator.start : generator.start + n]
    return torch.rand(n, columns, generator=generator)


def _chosen(n: int, p: float, generator: Randomness) -> Tensor:
    """Choose rows, each with probability p."""
    return (uniform(n, 1, generator)[:, 0] < p).nonzero()[:, 0]


def _integers(u: Tensor, count: Tensor) -> Tensor:
    """0 … count − 1. In float32 the largest u times count rounds to count, hence the minimum."""
    return torch.minimum((u * count).long(), count - 1)


# SupCon's and BiasCon's.
JITTER = ColourJitter(0.4, 0.4, 0.4, 0.1, p=0.8)


def plain(mean: Channels, std: Channels) -> Views:
    """Normalize only.

    Args:
        mean: of each channel, in [0, 1].
        std: of each channel.
    """
    return Views((), mean, std)


def crop_flip(size: int, padding: int, mean: Channels, std: Channels) -> Views:
    """Zero padding, random crop, flip.

    Args:
        size: side of the crop.
        padding: pixels added on every side first.
    """
    return Views((PaddedCrop(size, padding), Flip()), mean, std)


def resized_crop_flip(
    size: int,
    scale: tuple[float, float],
    mean: Channels,
    std: Channels,
    jitter: bool = False,
    grey: bool = False,
    number: int = 1,
) -> Views:
    """Random resized crop and flip, then colour jitter and greyscale if asked for.

    Args:
        scale: range of the crop's share of the image's area.
        number: views of each image.
    """
    steps: list[Step] = [ResizedCrop(size, scale), Flip()]
    if jitter:
        steps.append(JITTER)
    if grey:
        steps.append(Grey())
    return Views(tuple(steps), mean, std, number)


def supcon(size: int, mean: Channels, std: Channels, number: int = 2) -> Views:
    """Return the views of Khosla et al. (NeurIPS 2020).

    Args:
        size: side of the crop.
        number: views of each image.
    """
    return resized_crop_flip(size, (0.2, 1.0), mean, std, jitter=True, grey=True, number=number)


def biascon_mnist(mean: Channels, std: Channels, number: int = 2) -> Views:
    """Return the contrastive views of Hong & Yang (NeurIPS 2021) on Biased-MNIST.

    Args:
        number: views of each image.
    """
    return Views((Rotate(20), JITTER), mean, std, number)


def without_colour(views: Views) -> Views:
    """Return the same crops, flips and rotations, one view of each image, without colour changes.

    Of SupCon's views, a random resized crop and a flip remain; views without augmentation stay the
    same.
    """
    steps = tuple(step for step in views.steps if not isinstance(step, ColourJitter | Grey))
    return replace(views, steps=steps, number=1)
