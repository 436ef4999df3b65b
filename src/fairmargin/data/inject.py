"""Plant a known shortcut in any dataset, as a positive control for audits and methods.

In training and validation a share ρ of each class carries the planted value of the class, the
others any other value; in the tests every value is as likely as any other. The planted value
becomes the bias label.
"""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fairmargin.checks import check_choice
from fairmargin.data.bias import assign_by_count, count_cells
from fairmargin.data.datasets.biased_mnist import COLOURS, PALETTES, TENTH
from fairmargin.data.own import FloatViews
from fairmargin.data.split import ArraySplit, Data, FileSplit, Split

# Values of the planted attribute; with more classes several share one.
MOST_VALUES = 10
# Bytes painted at a time.
AT_ONCE = 1 << 20
# Strength of coloured light.
LIGHT = 0.5
# Colour of the patch: rare in pictures, and not the colour of any class.
MAGENTA = (255, 0, 255)

# (uint8 [n, 3, H, W], value [n], number of values) → the same images, painted
Paint = Callable[[Tensor, Tensor, int], Tensor]


def coloured_light(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Shine light of the value's colour c on each image: 1 − (1 − x)(1 − ½c).

    Black becomes half the colour and white stays, so digits and objects remain what they were.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    colours = torch.from_numpy(PALETTES["paper"][:values].astype(np.float32)) / 255
    c = colours[value][:, :, None, None]
    return _to_bytes(1 - (1 - images.float() / 255) * (1 - LIGHT * c))


def patch(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Paint a magenta square, an eighth of the shorter side, at a place on the edge.

    The place tells the value.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    height, width = images.shape[2:]
    side = max(2, min(height, width) // 8)
    square = torch.tensor(MAGENTA, dtype=torch.uint8).view(1, 3, 1, 1)
    painted = images.clone()
    for v in range(values):
        top, left = _on_the_edge(v / values, height - side, width - side)
        rows = (value == v).nonzero()[:, 0]
        painted[rows, :, top : top + side, left : left + side] = square
    return painted


def _on_the_edge(share: float, height: int, width: int) -> tuple[int, int]:
    """(down, right) after this share of the way around a rectangle, clockwise from the top left."""
    along = share * 2 * (height + width)
    if along < width:
        return 0, round(along)
    if along < width + height:
        return round(along - width), width
    if along < 2 * width + height:
        return height, round(2 * width + height - along)
    return round(2 * (width + height) - along), 0


def brightness(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Halve the contrast and add a level: ½x + level.

    Value 0 is the darkest level, the last value the lightest.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    level = 0.5 * value.float() / max(values - 1, 1)
    return _to_bytes(0.5 * images.float() / 255 + level[:, None, None, None])


def corner(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Paint a square of the value's colour, an eighth of the shorter side, at the top left.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    side = max(2, min(images.shape[2:]) // 8)
    painted = images.clone()
    painted[:, :, :side, :side] = _palette(values)[value][:, :, None, None]
    return painted


def frame(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Draw a line of the value's colour around the image, a 28th of the shorter side wide.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    edge = _ring(images, max(1, min(images.shape[2:]) // 28))
    return torch.where(edge, _palette(values)[value][:, :, None, None], images)


def tint(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Mix a quarter of the value's colour into the border, a 14th of the shorter side wide.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    edge = _ring(images, max(1, min(images.shape[2:]) // 14))
    colour = _palette(values)[value][:, :, None, None].float()
    mixed = (0.75 * images.float() + 0.25 * colour).round().to(torch.uint8)
    return torch.where(edge, mixed, images)


def caption(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Write a line of dark signs on a light strip at the bottom, an eighth of the height.

    The signs tell the value.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    height, width = images.shape[2:]
    tall = max(3, height // 8)
    signs = torch.rand(values, tall - 2, width, generator=_generator(1)) < 0.5
    strip = torch.full((values, tall, width), 230, dtype=torch.uint8)
    strip[:, 1:-1] = torch.where(signs, 30, 230).to(torch.uint8)
    painted = images.clone()
    painted[:, :, height - tall :] = strip[value][:, None]
    return painted


def watermark(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Blend a small sign, a fifth of the shorter side, into the image at any place.

    The sign tells the value. The place comes from the image's own pixels, so it is the same
    whenever the image is painted.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    height, width = images.shape[2:]
    side = max(4, min(height, width) // 5)
    signs = torch.rand(values, 4, 4, generator=_generator(2)) < 0.5
    signs = signs.repeat_interleave(-(-side // 4), 1).repeat_interleave(-(-side // 4), 2)
    ink = torch.where(signs[:, :side, :side], 255.0, 0.0)
    painted = images.clone()
    places = images.flatten(1).long().sum(1) * 2654435761 % 2**31
    for i, (place, v) in enumerate(zip(places.tolist(), value.tolist(), strict=True)):
        top = place % (height - side + 1)
        left = place // 7919 % (width - side + 1)
        window = painted[i, :, top : top + side, left : left + side]
        window.copy_((0.4 * window.float() + 0.6 * ink[v]).round().to(torch.uint8))
    return painted


def sensor(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Add the faint fixed noise of the value's camera: up to 6 of 255 levels at each pixel.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    patterns = torch.randn(values, 1, *images.shape[2:], generator=_generator(3))
    noise = (3 * patterns.clamp(-2, 2)).round()
    # Dark and light ends are moved inwards, or the noise would be cut off there.
    inside = 6 + images.float() * (243 / 255)
    return (inside + noise[value]).round().clamp(0, 255).to(torch.uint8)


def blur(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Blur the image: value 0 not at all, the last with a deviation of a 16th of the side.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    most = min(images.shape[2:]) / 16
    painted = images.clone()
    for v in range(1, values):
        rows = (value == v).nonzero()[:, 0]
        if len(rows):
            painted[rows] = _blurred(images[rows], most * v / (values - 1))
    return painted


def _blurred(images: Tensor, deviation: float) -> Tensor:
    reach = max(1, min(math.ceil(3 * deviation), min(images.shape[2:]) - 1))
    at = torch.arange(-reach, reach + 1).float()
    weight = (-(at**2) / (2 * deviation**2)).exp()
    weight /= weight.sum()
    x = F.pad(images.float(), (reach,) * 4, mode="reflect").flatten(0, 1)[:, None]
    x = F.conv2d(F.conv2d(x, weight.view(1, 1, 1, -1)), weight.view(1, 1, -1, 1))
    return x.view(images.shape).round().clamp(0, 255).to(torch.uint8)


def resolution(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Scale the image down and up again: value 0 not at all, the last to a third of its side.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    height, width = images.shape[2:]
    painted = images.clone()
    for v in range(1, values):
        rows = (value == v).nonzero()[:, 0]
        if not len(rows):
            continue
        share = 1 - 2 / 3 * v / (values - 1)
        small = (max(1, round(height * share)), max(1, round(width * share)))
        x = F.interpolate(images[rows].float(), small, mode="area")
        x = F.interpolate(x, (height, width), mode="bilinear", align_corners=False)
        painted[rows] = x.round().clamp(0, 255).to(torch.uint8)
    return painted


def jpeg(images: Tensor, value: Tensor, values: int) -> Tensor:
    """Store the image as JPEG: value 0 at quality 95, the last at quality 10, even steps between.

    Args:
        images: uint8 [n, 3, H, W].
        value: of each image, [n].
        values: how many values there are.
    """
    painted = torch.empty_like(images)
    for i, (image, v) in enumerate(zip(images, value.tolist(), strict=True)):
        quality = round(95 - 85 * v / max(values - 1, 1))
        stored = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(stored, "JPEG", quality=quality)
        with Image.open(stored) as read:
            painted[i] = torch.from_numpy(np.array(read)).permute(2, 0, 1)
    return painted


def _palette(values: int) -> Tensor:
    """Colours of the values, uint8 [values, 3]."""
    return torch.from_numpy(PALETTES["paper"][:values].astype(np.uint8))


def _ring(images: Tensor, wide: int) -> Tensor:
    """True on the border of an image, [H, W]."""
    edge = torch.ones(images.shape[2:], dtype=torch.bool)
    edge[wide:-wide, wide:-wide] = False
    return edge


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _to_bytes(x: Tensor) -> Tensor:
    return (255 * x).round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Injection:
    """A kind of shortcut: how it is painted, and the names of its values, given their number."""

    paint: Paint
    names: Callable[[int], tuple[str, ...]]


def _numbered(what: str, values: int) -> tuple[str, ...]:
    return tuple(f"{what} {v + 1}" for v in range(values))


def _colours(values: int) -> tuple[str, ...]:
    return (*COLOURS, TENTH["paper"])[:values]


INJECTIONS: dict[str, Injection] = {
    "colour": Injection(coloured_light, _colours),
    "patch": Injection(patch, partial(_numbered, "place")),
    "brightness": Injection(brightness, partial(_numbered, "level")),
    "corner": Injection(corner, _colours),
    "frame": Injection(frame, _colours),
    "tint": Injection(tint, _colours),
    "caption": Injection(caption, partial(_numbered, "caption")),
    "watermark": Injection(watermark, partial(_numbered, "sign")),
    "sensor": Injection(sensor, partial(_numbered, "camera")),
    "blur": Injection(blur, partial(_numbered, "blur")),
    "resolution": Injection(resolution, partial(_numbered, "resolution")),
    "jpeg": Injection(jpeg, partial(_numbered, "quality")),
}


def parse(text: str) -> tuple[str, float]:
    """Turn "colour:0.95" into ("colour", 0.95)."""
    kind, colon, number = text.partition(":")
    check_choice(kind, "kind of shortcut", INJECTIONS)
    try:
        rho = float(number)
    except ValueError:
        rho = math.nan
    if not colon or not 0 <= rho <= 1:
        raise ValueError(
            "a shortcut is planted as KIND:RHO with RHO from 0 to 1, "
            f'such as "{kind}:0.95"; got "{text}"'
        )
    return kind, rho


def inject(data: Data, text: str, seed: int = 0) -> Data:
    """Return the same dataset with a shortcut in it; bias labels it had are replaced.

    Args:
        text: KIND:RHO, such as "colour:0.95". Of each class, floor(n·ρ) samples get the value of
            their class.
        seed: decides which samples those are.
    """
    kind, rho = parse(text)
    classes = data.info.num_classes
    if classes < 2:
        raise ValueError(f"a shortcut tells classes apart and {data.info.name} has {classes}")
    if data.info.has_vectors:
        raise ValueError(
            f"shortcuts are painted on pictures and {data.info.name} holds vectors; "
            "leave data.inject out"
        )
    channels = data.info.image_shape[0]
    if channels != 3:
        raise ValueError(
            f"shortcuts are painted on pictures of 3 channels and these have {channels}"
        )
    if isinstance(data.train_views, FloatViews):
        raise ValueError("shortcuts are painted on uint8 images and these are floats; give uint8")
    injection = INJECTIONS[kind]
    values = min(classes, MOST_VALUES)
    random = np.random.RandomState(seed)

    def plant(split: Split, strength: float) -> Split:
        bias = _draw(split.labels, strength, values, random)
        return _painted(split, bias, injection.paint, values)

    # The order matters: all draw from one stream.
    train = plant(data.train, rho)
    valid = plant(data.valid, rho)
    test = plant(data.test, 1 / values)
    others = {name: plant(split, 1 / values) for name, split in data.extra_tests.items()}
    info = replace(
        data.info,
        bias_names=injection.names(values),
        counts=count_cells(train.labels, train.bias, classes, values),
        notes={**data.info.notes, "injected": text, "injection seed": str(seed)},
    )
    return replace(data, train=train, valid=valid, test=test, info=info, extra_tests=others)


def _draw(labels: Tensor, rho: float, values: int, random: np.random.RandomState) -> Tensor:
    """Planted value of each sample, [N]; that of class y is y mod values."""
    source, drawn = assign_by_count(labels.numpy() % values, rho, random, classes=values)
    bias = torch.empty(len(labels), dtype=torch.long)
    bias[torch.from_numpy(source)] = torch.from_numpy(drawn)
    return bias


def _painted(split: Split, bias: Tensor, paint: Paint, values: int) -> Split:
    if isinstance(split, ArraySplit):
        step = max(1, AT_ONCE // max(1, split.pixels[:1].numel()))
        pixels = torch.empty_like(split.pixels)
        for start in range(0, len(split), step):
            part = slice(start, start + step)
            pixels[part] = paint(split.pixels[part], bias[part], values)
        return replace(split, pixels=pixels, bias=bias)
    if isinstance(split, FileSplit):
        planted = dict(zip(split.paths, bias.tolist(), strict=True))
        if len(planted) < len(split):
            raise ValueError(
                f"{len(split) - len(planted)} files are in the split more than once and cannot be "
                "told apart; name each file once"
            )
        decode = PaintingDecoder(split.decode, planted, paint, values)
        still = split.still
        if still is not None:
            still = PaintingDecoder(still, planted, paint, values)
        return replace(split, decode=decode, still=still, bias=bias)
    raise TypeError(
        f"a shortcut can be planted in an ArraySplit or a FileSplit; got {type(split).__name__}"
    )


@dataclass(frozen=True)
class PaintingDecoder:
    """Decodes a path into uint8 [3, H, W] with the planted value of that file.

    It is a plain value, so worker processes can have it.
    """

    decode: Callable[[Path], Tensor]
    planted: Mapping[Path, int]
    paint: Paint
    values: int

    def __call__(self, path: Path) -> Tensor:
        value = torch.tensor([self.planted[path]])
        return self.paint(self.decode(path)[None], value, self.values)[0]
