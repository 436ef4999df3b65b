"""Control: digits on tinted ground, where the tint says nothing. A method should not harm here."""

from pathlib import Path

import numpy as np

from fairmargin.data.datasets.suite.compose import Pool, Regime, Sizes, compose, on_color, tied
from fairmargin.data.split import Data

SIZES = Sizes(train=90, valid=20, unbiased=12, test=50, copies=2)
TINTS = ("warm", "cold")
_RGB = np.array([(130, 70, 40), (40, 70, 130)], np.float64)
# Each pixel of these small digits becomes a square of so many pixels.
LARGER = 2
NOISE = 55


def small_digits() -> Pool:
    """Return the 1,797 digits inside scikit-learn, enlarged to 16 × 16 pixels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    grey = (found.images * 255 / 16).astype(np.uint8)
    large = grey.repeat(LARGER, 1).repeat(LARGER, 2)
    return Pool(large, found.target.astype(np.int64), tuple("0123456789"))


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Put digits on a tint, in noise.

    Args:
        images: uint8 [N, H, W].
        bias: [N] numbers of tints.
        random: the stream to draw from.
    """
    color = _RGB[bias] + random.normal(0, 15, (len(bias), 3))
    painted = on_color(images, color) + random.normal(0, NOISE, (*images.shape, 3))
    return painted.round().clip(0, 255).astype(np.uint8)


def build(root: Path, *, rho: float = 0.5, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 9: ten small digits without a shortcut, an honest control; no download.

    Args:
        root: not needed.
        rho: share of each class with tint k mod 2; ½ leaves no shortcut.
        seed: which sample has which tint.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    notes = {"source": "digits inside scikit-learn", "bias": "tint that says nothing"}
    return compose(
        "suite-control",
        small_digits(),
        SIZES,
        tied(len(TINTS)),
        paint,
        TINTS,
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
    )
