"""Divergences between two sets of numbers, from their means and variances.

`losses.fairkl` takes them between the distances of bias-aligned pairs (A) and those of
bias-conflicting pairs (C). To add one, write a function of two `Moments`, and add its name to
`choices.Divergence` and to `DIVERGENCES`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fairmargin.losses.choices import Divergence

# Added to the variance of d. With a tiny floor the KL is minimised by collapse (docs/losses.md).
VARIANCE_FLOOR = 0.1
# Smallest variance in a KL: without any floor, two sets without spread are equal and not 0/0.
LEAST_VARIANCE = 1e-12
# Smallest distance whose logarithm is taken: duplicates have d = 0.
DISTANCE_FLOOR = 1e-4


@dataclass(frozen=True)
class Moments:
    """Mean and population variance of a set of numbers; both tensors have one shape."""

    mean: Tensor
    variance: Tensor


# (moments of A, moments of C, variance floor) → divergence, in the shape of the moments.
DivergenceFunction = Callable[[Moments, Moments, float], Tensor]
# A function of the distances d whose moments are taken in place of those of d.
Measure = Callable[[Tensor], Tensor]


def gaussian_kl(a: Moments, c: Moments, variance_floor: float = VARIANCE_FLOOR) -> Tensor:
    """Return the KL divergence of two normal distributions (Barbano et al., ICLR 2023, Eq. 10).

    KL(N_A ‖ N_C) = ½[ (σ_A² + (μ_A−μ_C)²)/σ_C² − log(σ_A²/σ_C²) − 1 ]

    Args:
        a: moments of A.
        c: moments of C.
        variance_floor: added to both variances, ≥ 0.
    """
    variance_a = (a.variance + variance_floor).clamp_min(LEAST_VARIANCE)
    variance_c = (c.variance + variance_floor).clamp_min(LEAST_VARIANCE)
    ratio = variance_a / variance_c
    return 0.5 * ((variance_a + (a.mean - c.mean) ** 2) / variance_c - ratio.log() - 1)


def jeffreys(a: Moments, c: Moments, variance_floor: float = VARIANCE_FLOOR) -> Tensor:
    """Return KL(N_A ‖ N_C) + KL(N_C ‖ N_A); see `gaussian_kl`.

    Args:
        a: moments of A.
        c: moments of C.
        variance_floor: added to both variances, ≥ 0.
    """
    return gaussian_kl(a, c, variance_floor) + gaussian_kl(c, a, variance_floor)


def moment_gap(a: Moments, c: Moments, variance_floor: float = 0.0) -> Tensor:
    """Return (μ_A−μ_C)² + (σ_A−σ_C)²; it needs no floor and ignores it.

    Args:
        a: moments of A.
        c: moments of C.
        variance_floor: ignored.
    """
    return mean_gap(a, c) + (square_root(a.variance) - square_root(c.variance)) ** 2


def mean_gap(a: Moments, c: Moments, variance_floor: float = 0.0) -> Tensor:
    """Return (μ_A−μ_C)², the left side of Eq. 9; it needs no floor and ignores it.

    Taken of |s| instead of d (`"absolute-mean"`) it is the right side of Eq. 9.

    Args:
        a: moments of A.
        c: moments of C.
        variance_floor: ignored.
    """
    return (a.mean - c.mean) ** 2


def square_root(variance: Tensor) -> Tensor:
    """Return √variance, with a zero gradient at 0."""
    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1).sqrt(), 0)


def log_distance(d: Tensor) -> Tensor:
    """Return log d, with distances below `DISTANCE_FLOOR` raised to it.

    Args:
        d: distances, of any shape.
    """
    return d.clamp_min(DISTANCE_FLOOR).log()


def absolute_similarity(d: Tensor) -> Tensor:
    """Return |s|, from d = 2 − 2s.

    Args:
        d: distances, of any shape.
    """
    return (1 - d / 2).abs()


DIVERGENCES: dict[Divergence, DivergenceFunction] = {
    "kl": gaussian_kl,
    "jeffreys": jeffreys,
    "moments": moment_gap,
    "mean": mean_gap,
    "lognormal": gaussian_kl,
    "absolute-mean": mean_gap,
}
# The divergences that take the moments of something other than d.
MEASURES: dict[Divergence, Measure] = {
    "lognormal": log_distance,
    "absolute-mean": absolute_similarity,
}
# The divergences that need only one pair in each set, because they compare means alone.
OF_MEANS: tuple[Divergence, ...] = ("mean", "absolute-mean")
