"""Embeddings: fixed vectors, in which a direction for the source is easier than the digit."""

from functools import cache
from pathlib import Path

import numpy as np

from fairmargin.data.datasets.suite.compose import Pool, Regime, Sizes, compose, digits, tied
from fairmargin.data.split import Data

SIZES = Sizes(train=280, valid=40, unbiased=30, test=150)
SOURCES = ("source A", "source B", "source C", "source D", "source E")
# Principal components of the digits, further dimensions for the source, and what it is worth.
COMPONENTS, FURTHER, STRENGTH, NOISE = 40, 24, 2.0, 0.5


@cache
def components() -> Pool:
    """Return principal components of the embedded digits, each with deviation 1, [N, 40]."""
    pool = digits(range(10))
    x = pool.images.reshape(len(pool.images), -1) / 255
    x = x - x.mean(0)
    _, vectors = np.linalg.eigh(x.T @ x)
    # The sign of a component is no matter of fact; its largest entry is made positive.
    top = vectors[:, ::-1][:, :COMPONENTS]
    top = top * np.sign(top[np.abs(top).argmax(0), np.arange(COMPONENTS)])
    y = x @ top
    return Pool(y / y.std(0), pool.labels, pool.class_names)


def paint(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Add the direction of the source and noise, and turn everything by a fixed rotation.

    Args:
        images: vectors [N, 40].
        bias: [N] numbers of sources.
        random: the stream to draw from.
    """
    fixed = np.random.default_rng(0)
    directions = fixed.normal(0, 1, (len(SOURCES), FURTHER))
    rotation, _ = np.linalg.qr(fixed.normal(0, 1, (COMPONENTS + FURTHER,) * 2))
    told = STRENGTH * directions[bias]
    whole = np.concatenate([images, told], 1)
    whole = whole + random.normal(0, NOISE, whole.shape)
    return np.ascontiguousarray((whole @ rotation).astype(np.float32))


def build(root: Path, *, rho: float = 0.97, seed: int = 0, regime: Regime = "known") -> Data:
    """Suite, task 10: vectors of ten digits from five sources, no images; no download.

    Source k mod 5 goes with class k, so two classes share a source.

    Args:
        root: not needed.
        rho: share of each class from the source of the class.
        seed: which sample has which source.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    notes = {"source": "principal components of MNIST digits", "bias": "source of the vector"}
    return compose(
        "suite-embeddings",
        components(),
        SIZES,
        tied(len(SOURCES)),
        paint,
        SOURCES,
        rho=rho,
        seed=seed,
        regime=regime,
        notes=notes,
    )
