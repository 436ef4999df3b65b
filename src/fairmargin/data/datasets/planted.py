"""Planted: small pictures whose shortcut and core are both known, for lessons and for tests.

x = ½ + shortcut·tint(b) + core·bar(y) + noise·N(0, 1),   clipped to [0, 1]

The bar's angle always tells the class; the background's tint, which is easier to see, tells it only
in training.
"""

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import assign_by_count, count_cells
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, JITTER, Views, plain
from fairmargin.runtime import memory

# More angles than these can hardly be told apart on so few pixels.
MOST_CLASSES = 8
# Pixels from a bar's middle at which it has faded to 1/√e.
THICKNESS = 0.9
ViewsName = Literal["plain", "jitter"]
VIEWS: dict[ViewsName, Views] = {"plain": plain(*HALF), "jitter": Views((JITTER,), *HALF, 2)}


def tint(bias: np.ndarray, classes: int) -> np.ndarray:
    """Return colours around the wheel, [N, 3].

    Red, green and blue add up to 0, so in grey there is no shortcut.

    Args:
        bias: position of each colour, 0 … classes − 1, [N].
    """
    hue = 2 * math.pi * bias[:, None] / classes
    return np.cos(hue - 2 * math.pi / 3 * np.arange(3))


def bar(labels: np.ndarray, classes: int, side: int, random: np.random.RandomState) -> np.ndarray:
    """Return bright bars across the picture, [N, side, side] from 0 to 1.

    A bar is at angle π·y/classes, somewhere near the middle.

    Args:
        random: the stream to draw from; the call advances it.
    """
    angle = (math.pi * labels / classes)[:, None, None]
    offset = random.uniform(-side / 4, side / 4, len(labels))[:, None, None]
    down, right = np.indices((side, side)) - (side - 1) / 2
    distance = right * np.sin(angle) - down * np.cos(angle) - offset
    return np.exp(-0.5 * (distance / THICKNESS) ** 2)


def build(
    root: Path,
    *,
    rho: float = 0.9,
    seed: int = 0,
    classes: int = 4,
    train: int = 2000,
    test: int = 1000,
    side: int = 12,
    shortcut: float = 0.17,
    core: float = 0.25,
    noise: float = 0.2,
    valid_fraction: float = 0.2,
    views: ViewsName = "plain",
) -> Data:
    """Draw bars in noise on a tinted background; no download.

    The tint gives the label away in training, the bar's angle always.

    Args:
        root: not needed: the pictures are drawn.
        rho: share of the training samples with the tint of their class; 1/classes leaves no
            shortcut.
        seed: random seed of the pictures and of the validation split.
        classes: number of angles, and of tints.
        train: number of samples, of which `valid_fraction` are held out.
        test: number of samples; every class meets every tint equally often.
        side: of the pictures, in pixels.
        shortcut: strength of the tint; 0 leaves the core alone.
        core: strength of the bar; 0 leaves the shortcut alone.
        noise: standard deviation of every pixel and channel.
        valid_fraction: share of every (class, tint) cell of the training samples to hold out.
        views: "plain", or "jitter": two views of each training picture with shifted colours, for
            SimCLR and similar methods.
    """
    check_choice(views, "views", VIEWS)
    if not 2 <= classes <= MOST_CLASSES:
        raise ValueError(f"classes must be from 2 to {MOST_CLASSES}; got {classes}")
    least_of = (("train", train, 10 * classes), ("test", test, classes**2), ("side", side, 4))
    for name, number, least in least_of:
        if number < least:
            raise ValueError(
                f"{name} must be at least {least} with {classes} classes; got {number}"
            )
    for name, strength in (("shortcut", shortcut), ("core", core), ("noise", noise)):
        if not 0 <= strength <= 1:
            raise ValueError(f"{name} must lie in [0, 1], black to white; got {strength}")
    # Pixels as doubles: the pictures, their noise and the sum are there at once.
    one = 3 * 3 * side**2 * 8
    number = max(train, test)
    fits = (memory.free_memory() or 0) // one
    memory.check_fits(
        number * one,
        f"{number:,} pictures of {side} × {side} pixels need",
        f"lower data.train, data.test or data.side; {fits:,} would fit",
    )
    random = np.random.RandomState(seed)

    def split(n: int, strength: float) -> ArraySplit:
        source, bias = assign_by_count(np.arange(n) % classes, strength, random, classes=classes)
        labels = source % classes
        colour = shortcut * tint(bias, classes)[:, :, None, None]
        x = 0.5 + colour + core * bar(labels, classes, side, random)[:, None]  # [N, 3, side, side]
        bright = 255 * (x + noise * random.standard_normal(x.shape)).clip(0, 1)
        pixels = torch.from_numpy(bright.round().astype(np.uint8))
        return ArraySplit(pixels, torch.from_numpy(labels), torch.from_numpy(bias))

    # The order matters: both draw from one stream.
    whole = split(train, rho)
    tested = split(test, 1 / classes)
    trained, valid = whole.hold_out(valid_fraction, seed=seed)
    info = DataInfo(
        name="planted",
        class_names=tuple(f"{180 * y / classes:g}°" for y in range(classes)),
        bias_names=tuple(f"hue {360 * b / classes:g}°" for b in range(classes)),
        image_shape=(3, side, side),
        counts=count_cells(trained.labels, trained.bias, classes, classes),
        notes={"source": "drawn by FairMargin", "rho": str(rho), "seed": str(seed)},
    )
    return Data(trained, valid, tested, info, VIEWS[views], VIEWS["plain"])
