"""From uint8 batches to normalized float inputs: augmentation of whole batches, on the device that holds them.

Steps follow torchvision's definitions. Each draws its parameters, one row per image, on the CPU and moves them, so the
same generator gives the same views on every device. The functions that take drawn parameters stand below the steps.

Note: between steps values stay floats; codes that augment PIL images round to 8 bits after every operation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

Channels = tuple[float, ...]

HALF: tuple[Channels, Channels] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # Biased-MNIST: to [−1, 1]
# Note: the customary deviations are means of each image's own; over all pixels it is about 0.25.
CIFAR10: tuple[Channels, Channels] = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR100: tuple[Channels, Channels] = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class PartOf:
    """Randomness for rows `start`, `start + 1`, … of a batch of `total`: the numbers they would get inside that batch.

    Processes that share a batch augment their parts exactly as one process augments the whole.
    """

    generator: torch.Generator
    start: int
    total: int


Randomness = torch.Generator | PartOf | None  # None: torch's global generator


class Step(Protocol):
    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        """[n, C, H, W] in [0, 1] → the same, perhaps of another size."""
        ...


@dataclass(frozen=True)
class Views:
    """Apply `steps` in order, then normalize; `number` independent draws of each image."""

    steps: tuple[Step, ...]
    mean: Channels
    std: Channels
    number: int = 1

    def __call__(self, images: Tensor, generator: Randomness = None) -> Tensor:
        """uint8 [n, C, H, W] → float32 [n, C, H, W], or [n, number, C, H, W] with several views."""
        if images.dtype != torch.uint8:
            raise TypeError(
                f"views take uint8 images and these are {images.dtype}; give raw pixels in 0 … 255"
            )
        if self.number == 1:
            return self._view(images, generator)
        return torch.stack([self._view(images, generator) for _ in range(self.number)], 1)

    def _view(self, images: Tensor, generator: Randomness) -> Tensor:
        x = images
        for step in self.steps:
            if x.dtype == torch.uint8 and not isinstance(step, MOVES_PIXELS):
                x = x / 255
            x = step(x, generator)
        unit = 255 if x.dtype == torch.uint8 else 1
        scale, shift = _normalization(self.mean, self.std, unit, x.device)
        return (x.float().mul_(scale) if unit == 255 else x * scale).sub_(shift)


@lru_cache(maxsize=64)
def _normalization(
    mean: Channels, std: Channels, unit: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(x/unit − mean)/std as x·scale − shift; each [C, 1, 1]."""
    m, s = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return (1 / (unit * s)).to(device), (m / s).to(device)


@dataclass(frozen=True)
class PaddedCrop:
    """Zero padding on all sides, then a square of `size` at a uniform integer offset."""

    size: int
    padding: int

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        n, _, *sides = x.shape
        room = [side + 2 * self.padding - self.size + 1 for side in sides]
        if min(room) < 1:
            raise ValueError(
                f"no crop of {self.size} fits in {sides[0]}×{sides[1]} padded by {self.padding}; pad more or crop less"
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
    """By an angle uniform in ±`degrees`, nearest pixel, black where nothing was."""

    degrees: float

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        angle = (2 * uniform(len(x), 1, generator)[:, 0] - 1) * self.degrees
        return rotate(x, angle.to(x.device))


MOVES_PIXELS = (
    PaddedCrop,
    Flip,
    Rotate,
)  # these create no new values: at the front they work on uint8, a quarter of the bytes


@dataclass(frozen=True)
class ResizedCrop:
    """A box whose area is a share uniform in `scale` of the image and whose shape is log-uniform in `ratio`, resized to
    `size`. Ten tries, then the largest central box whose shape `ratio` allows."""

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        full_height, full_width = x.shape[2:]
        u = uniform(len(x), 22, generator)
        area = (
            full_height * full_width * (self.scale[0] + (self.scale[1] - self.scale[0]) * u[:, :10])
        )
        low, high = map(math.log, self.ratio)
        ratio = (low + (high - low) * u[:, 10:20]).exp()  # width / height
        tries = torch.stack(
            [(area / ratio).sqrt().round(), (area * ratio).sqrt().round()]
        ).long()  # [2, n, 10]
        last = (
            torch.tensor(self._central(full_height, full_width)).view(2, 1, 1).expand(2, len(x), 1)
        )
        sides = torch.cat([tries, last], 2)  # [2, n, 11]
        limit = torch.tensor([full_height, full_width]).view(2, 1, 1)
        fits = ((sides > 0) & (sides <= limit)).all(0)  # [n, 11], the last always
        first = fits.int().argmax(1)
        box = sides[:, torch.arange(len(x)), first]  # [2, n]
        room = limit[:, 0] - box
        corner = torch.where(first < 10, _integers(u[:, 20:].T, room + 1), room // 2)
        (top, left), (height, width) = corner.to(x.device), box.to(x.device)
        return resized_crop(x, top, left, height, width, self.size)

    def _central(self, height: int, width: int) -> tuple[int, int]:
        low, high = self.ratio
        return min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))


@dataclass(frozen=True)
class ColourJitter:
    """With probability `p`: brightness, contrast and saturation by factors uniform in 1 ± their strength, hue by a
    shift uniform in ±`hue` of the circle, the four in random order.

    Note: every image has its own order, as when images are augmented one by one. At each of the four places, the images
    that take the same operation go through it together.
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
    """[n, columns] in [0, 1), on the CPU."""
    if isinstance(generator, PartOf):
        whole = torch.rand(generator.total, columns, generator=generator.generator)
        return whole[generator.start : generator.start + n]
    return torch.rand(n, columns, generator=generator)


def _chosen(n: int, p: float, generator: Randomness) -> Tensor:
    """The rows, each taken with probability p."""
    return (uniform(n, 1, generator)[:, 0] < p).nonzero()[:, 0]


def _integers(u: Tensor, count: Tensor) -> Tensor:
    """0 … count − 1. In float32 the largest u times count rounds to count, hence the minimum."""
    return torch.minimum((u * count).long(), count - 1)


def crop(x: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Each image's square of `size` at its own corner."""
    windows = x.unfold(2, size, 1).unfold(3, size, 1)  # [n, C, tops, lefts, size, size], no copy
    return windows[torch.arange(len(x), device=x.device), :, top, left]


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Counter-clockwise about the centre: each output pixel looks up where it came from."""
    channels, height, width = x.shape[1:]
    right = torch.arange(width, device=x.device) + 0.5 - width / 2
    down = torch.arange(height, device=x.device)[:, None] + 0.5 - height / 2
    cos, sin = (f(torch.deg2rad(degrees))[:, None, None] for f in (torch.cos, torch.sin))
    column = (cos * right - sin * down + width / 2).floor().long()  # [n, H, W]
    row = (sin * right + cos * down + height / 2).floor().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (
        torch.where(inside, row * width + column, 0).flatten(1)[:, None].expand(-1, channels, -1)
    )
    return x.flatten(2).gather(2, source).view_as(x) * inside[:, None]


def resized_crop(
    x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int
) -> Tensor:
    """Each image's box, bilinear with anti-aliasing. Resizing is linear and separable: one matrix for the rows and one
    for the columns of each image."""
    rows = _bilinear(top, height, size, x.shape[2])  # [n, size, H]
    columns = _bilinear(left, width, size, x.shape[3])  # [n, size, W]
    narrow = (x.flatten(1, 2) @ columns.mT).view(*x.shape[:3], size)
    return rows[:, None] @ narrow


def _bilinear(start: Tensor, length: Tensor, size: int, full: int) -> Tensor:
    """Weights [n, size, full] of the input pixels in each output pixel, for boxes from `start` of `length`.

    A triangle around the output pixel's centre, as wide as one input pixel or, when shrinking, as one output pixel,
    cut at the box and normalized: Pillow's definition.
    """
    start, length = start[:, None].float(), length[:, None].float()
    step = length / size
    centre = start + (torch.arange(size, device=start.device) + 0.5) * step  # [n, size]
    pixel = torch.arange(full, device=start.device) + 0.5
    weight = (1 - (pixel - centre[..., None]).abs() / step.clamp(min=1)[..., None]).clamp(min=0)
    weight = weight * ((pixel > start) & (pixel < start + length))[:, None]
    return weight / weight.sum(2, keepdim=True)


def luma(x: Tensor) -> Tensor:
    """ITU-R 601 [n, 1, H, W]."""
    if x.shape[1] != 3:
        raise ValueError(
            f"colour operations need 3 channels and these images have {x.shape[1]}; leave them out"
        )
    red, green, blue = x.split(1, 1)
    return (0.299 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return (x * factor[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean of the grey image. Note: not rounded to 8 bits, as PIL does."""
    return _blend(luma(x).mean((2, 3), keepdim=True), x, factor)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image."""
    return _blend(luma(x), x, factor)


def _blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (x * factor).add_(base * (1 - factor)).clamp_(0, 1)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the colour circle by `shift` turns: hue in sixths, then value − chroma · clamp(2 − |k − 2|, 0, 1) with
    k = hue + (5, 3, 1) mod 6 for red, green, blue. Note: the hue is continuous; PIL has 256."""
    red, green, blue = x.split(1, 1)
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - least
    # Masks as numbers: on the CPU several times as fast as `where`, whose branches random pixels make unpredictable.
    is_red = (value == red).float()
    is_green = (value == green).float() * (1 - is_red)
    is_blue = 1 - is_red - is_green
    slope = (
        is_red * (green - blue) + is_green * (blue - red) + is_blue * (red - green)
    )  # 0 where the chroma is 0
    hue = slope / chroma.clamp(min=torch.finfo(x.dtype).tiny) + 2 * is_green + 4 * is_blue
    k = (
        hue
        + 6 * shift[:, None, None, None]
        + torch.tensor([5.0, 3.0, 1.0], device=x.device).view(3, 1, 1)
    )
    k -= 6 * (k / 6).floor_()
    return (2 - (k - 2).abs_()).clamp_(0, 1).mul_(-chroma).add_(value)


ADJUSTMENTS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)

JITTER = ColourJitter(0.4, 0.4, 0.4, 0.1, p=0.8)  # SupCon's, BiasCon's


def plain(mean: Channels, std: Channels) -> Views:
    """Normalize only."""
    return Views((), mean, std)


def crop_flip(size: int, padding: int, mean: Channels, std: Channels) -> Views:
    """Zero padding, random crop, flip."""
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
    """Random resized crop and flip, then colour jitter and greyscale if asked for."""
    colour: tuple[Step, ...] = (*([JITTER] if jitter else []), *([Grey()] if grey else []))
    return Views((ResizedCrop(size, scale), Flip(), *colour), mean, std, number)


def supcon(size: int, mean: Channels, std: Channels, number: int = 2) -> Views:
    """The views of Khosla et al. (NeurIPS 2020)."""
    return resized_crop_flip(size, (0.2, 1.0), mean, std, jitter=True, grey=True, number=number)


def biascon_mnist(mean: Channels, std: Channels, number: int = 2) -> Views:
    """The contrastive views of Hong & Yang (NeurIPS 2021) on Biased-MNIST."""
    return Views((Rotate(20), JITTER), mean, std, number)


def without_colour(views: Views) -> Views:
    """One view of each image: the same crops, flips and rotations, with colours as they are.

    Of SupCon's views, a random resized crop and a flip; of views without augmentation, the same.
    """
    steps = tuple(step for step in views.steps if not isinstance(step, ColourJitter | Grey))
    return replace(views, steps=steps, number=1)
