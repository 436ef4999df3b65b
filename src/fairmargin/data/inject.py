"""A known shortcut planted in any dataset, as a positive control: does an audit find it, does a method remove it?

In training and validation a share ρ of each class carries the planted value of the class, the others any other value; in the
tests every value is as likely as any other. The planted value becomes the bias label.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.data.bias import assign_by_count, count_cells
from fairmargin.data.datasets.biased_mnist import COLOURS, PALETTES, TENTH
from fairmargin.data.split import ArraySplit, Data, FileSplit, Split

MOST_VALUES = 10  # of the planted attribute; with more classes several share one
AT_ONCE = 1 << 20  # values painted at a time
LIGHT = 0.5  # strength of coloured light
MAGENTA = (255, 0, 255)  # of the patch: rare in pictures, and of no class

Paint = Callable[
    [Tensor, Tensor, int], Tensor
]  # (uint8 [n, 3, H, W], value [n], number of values) → the same, painted


def coloured_light(images: Tensor, value: Tensor, values: int) -> Tensor:
    """1 − (1 − x)(1 − ½c): black becomes half the colour c and white stays, so digits and objects remain what they were."""
    colours = torch.from_numpy(PALETTES["paper"][:values].astype(np.float32)) / 255
    c = colours[value][:, :, None, None]
    return _to_bytes(1 - (1 - images.float() / 255) * (1 - LIGHT * c))


def patch(images: Tensor, value: Tensor, values: int) -> Tensor:
    """A magenta square, an eighth of the shorter side, at a place on the edge that tells the value."""
    height, width = images.shape[2:]
    side = max(2, min(height, width) // 8)
    painted = images.clone()
    for v in range(values):
        top, left = _on_the_edge(v / values, height - side, width - side)
        rows = (value == v).nonzero()[:, 0]
        square = torch.tensor(MAGENTA, dtype=torch.uint8).view(1, 3, 1, 1)
        painted[rows, :, top : top + side, left : left + side] = square
    return painted


def _on_the_edge(share: float, height: int, width: int) -> tuple[int, int]:
    """(down, right) after this share of the way around a rectangle, clockwise from its top left corner."""
    along = share * 2 * (height + width)
    if along < width:
        return 0, round(along)
    if along < width + height:
        return round(along - width), width
    if along < 2 * width + height:
        return height, round(2 * width + height - along)
    return round(2 * (width + height) - along), 0


def brightness(images: Tensor, value: Tensor, values: int) -> Tensor:
    """½x + level: the picture with half its contrast, from its darkest for value 0 to its lightest for the last."""
    level = 0.5 * value.float() / max(values - 1, 1)
    return _to_bytes(0.5 * images.float() / 255 + level[:, None, None, None])


def _to_bytes(x: Tensor) -> Tensor:
    return (255 * x).round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Injection:
    paint: Paint
    names: Callable[[int], tuple[str, ...]]  # of so many values


def _numbered(what: str, values: int) -> tuple[str, ...]:
    return tuple(f"{what} {v + 1}" for v in range(values))


INJECTIONS: dict[str, Injection] = {
    "colour": Injection(coloured_light, lambda values: (*COLOURS, TENTH["paper"])[:values]),
    "patch": Injection(patch, partial(_numbered, "place")),
    "brightness": Injection(brightness, partial(_numbered, "level")),
}


def parse(text: str) -> tuple[str, float]:
    """("colour", 0.95) from "colour:0.95"."""
    kind, colon, number = text.partition(":")
    check_choice(kind, "kind of shortcut", INJECTIONS)
    try:
        rho = float(number)
    except ValueError:
        rho = math.nan
    if not colon or not 0 <= rho <= 1:
        raise ValueError(
            f'a shortcut is planted as KIND:RHO with RHO from 0 to 1, such as "{kind}:0.95"; got "{text}"'
        )
    return kind, rho


def inject(data: Data, text: str, seed: int = 0) -> Data:
    """The same dataset with the shortcut `text`, such as "colour:0.95", in it. Bias labels it had are replaced.

    Args:
        text: KIND:RHO. Of each class floor(n·ρ) samples get the value of their class.
        seed: of which samples those are.
    """
    kind, rho = parse(text)
    classes = data.info.num_classes
    if classes < 2:
        raise ValueError(f"a shortcut tells classes apart and {data.info.name} has {classes}")
    if data.info.image_shape[0] != 3:
        raise ValueError(
            f"shortcuts are painted on pictures of 3 channels and these have {data.info.image_shape[0]}"
        )
    values = min(classes, MOST_VALUES)
    random = np.random.RandomState(seed)

    def plant(split: Split, strength: float) -> Split:
        bias = _draw(split.labels, strength, values, random)
        return _painted(split, bias, INJECTIONS[kind].paint, values)

    train, valid = plant(data.train, rho), plant(data.valid, rho)  # in this order: one stream
    test = plant(data.test, 1 / values)
    others = {name: plant(split, 1 / values) for name, split in data.extra_tests.items()}
    info = replace(
        data.info,
        bias_names=INJECTIONS[kind].names(values),
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
                f"{len(split) - len(planted)} files are in the split more than once and cannot be told apart; "
                "name each file once"
            )
        painted = lambda decode: decode and PaintingDecoder(decode, planted, paint, values)
        return replace(split, decode=painted(split.decode), still=painted(split.still), bias=bias)
    raise TypeError(
        f"a shortcut can be planted in an ArraySplit or a FileSplit; got {type(split).__name__}"
    )


@dataclass(frozen=True)
class PaintingDecoder:
    """path → uint8 [3, H, W] with the planted value of that file; a value, so that worker processes can have it."""

    decode: Callable[[Path], Tensor]
    planted: Mapping[Path, int]
    paint: Paint
    values: int

    def __call__(self, path: Path) -> Tensor:
        return self.paint(self.decode(path)[None], torch.tensor([self.planted[path]]), self.values)[
            0
        ]
