"""Planted: small pictures with a shortcut and a core that are both known, for lessons and for tests of learning.

x = ½ + shortcut·tint(b) + core·bar(y) + noise·N(0, 1),   clipped to [0, 1]

The bar's angle always tells the class; the background's tint, which is easier to see, tells it only in training.
"""

import math
from pathlib import Path

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import assign_by_count, count_cells
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, JITTER, Views, plain

MOST_CLASSES = 8  # more angles than these can hardly be told apart on so few pixels
THICKNESS = 0.9  # pixels from a bar's middle at which it has faded to 1/√e
VIEWS = {"plain": plain(*HALF), "jitter": Views((JITTER,), *HALF, 2)}


def tint(bias: np.ndarray, classes: int) -> np.ndarray:
    """[N, 3] colours around the wheel. Red, green and blue add up to 0: in grey there is no shortcut."""
    hue = 2 * math.pi * bias[:, None] / classes
    return np.cos(hue - 2 * math.pi / 3 * np.arange(3))


def bar(labels: np.ndarray, classes: int, side: int, random: np.random.RandomState) -> np.ndarray:
    """[N, side, side] from 0 to 1: a bright bar across the picture at angle π·y/classes, somewhere near the middle."""
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
    views: str = "plain",
) -> Data:
    """Bars in noise on a tinted background: the tint gives the label away in training, the bar's angle always. No download.

    Args:
        root: not needed: the pictures are drawn.
        rho: share of the training samples with the tint of their class; 1/classes leaves no shortcut.
        seed: of everything drawn.
        classes: angles, and as many tints.
        train: samples, `valid_fraction` of which are held out.
        test: samples; every class meets every tint equally often.
        side: of the pictures, in pixels.
        shortcut: strength of the tint; 0 leaves the core alone.
        core: strength of the bar; 0 leaves the shortcut alone.
        noise: standard deviation of every pixel and channel.
        valid_fraction: of every (class, tint) cell of the training samples.
        views: "plain", or "jitter": two views of each training picture with their colours shifted, for SimCLR and its kin.
    """
    check_choice(views, "views", VIEWS)
    if not 2 <= classes <= MOST_CLASSES:
        raise ValueError(f"classes must be from 2 to {MOST_CLASSES}; got {classes}")
    for name, number, least in (
        ("train", train, 10 * classes),
        ("test", test, classes**2),
        ("side", side, 4),
    ):
        if number < least:
            raise ValueError(
                f"{name} must be at least {least} with {classes} classes; got {number}"
            )
    for name, strength in (("shortcut", shortcut), ("core", core), ("noise", noise)):
        if not 0 <= strength <= 1:
            raise ValueError(f"{name} must lie in [0, 1], black to white; got {strength}")
    random = np.random.RandomState(seed)

    def split(n: int, strength: float) -> ArraySplit:
        source, bias = assign_by_count(np.arange(n) % classes, strength, random, classes=classes)
        labels = source % classes
        colour = shortcut * tint(bias, classes)[:, :, None, None]
        x = 0.5 + colour + core * bar(labels, classes, side, random)[:, None]  # [N, 3, side, side]
        pixels = 255 * (x + noise * random.standard_normal(x.shape)).clip(0, 1)
        return ArraySplit(
            torch.from_numpy(pixels.round().astype(np.uint8)),
            torch.from_numpy(labels),
            torch.from_numpy(bias),
        )

    whole, tested = split(train, rho), split(test, 1 / classes)
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
