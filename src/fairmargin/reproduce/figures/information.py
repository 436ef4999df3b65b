"""How ε moves ε-InfoNCE from a lower to an upper bound of the mutual information.

Shown on Gaussians, whose mutual information is known.
"""

import math
from functools import cache
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from fairmargin.losses._pairs import Block, masked_logsumexp
from fairmargin.losses.contrastive import FORMS
from fairmargin.reproduce.figures.margin import CURVES

DIMENSIONS = 4
# For each point of the figure, divided into batches.
PAIRS = 6000
# Batch size → colour.
SIZES = {8: "#f2b880", 64: "#e8862e", 512: "#9c4a0c"}
# Nats, in the left panel.
TRUTH = 4.0


def gaussian_scores(information: float, n: int, generator: torch.Generator) -> Tensor:
    """Return the [N, N] log density ratios of N pairs of Gaussian vectors.

    Args:
        information: that the vectors of a pair share, in nats.
    """
    # 1 − ρ², from −(D/2)·log(1 − ρ²) = I.
    left_over = math.exp(-2 * information / DIMENSIONS)
    rho = math.sqrt(1 - left_over)
    x, noise = torch.randn(2, n, DIMENSIONS, generator=generator, dtype=torch.float64)
    y = rho * x + math.sqrt(left_over) * noise
    # log N(y; ρx, 1 − ρ²) − log N(y; 0, 1), times 2, for each dimension.
    deviation = y[None] - rho * x[:, None]
    each = y[None].square() - deviation.square() / left_over - math.log(left_over)
    return each.sum(2) / 2


def estimate(scores: Tensor, epsilon: float) -> float:
    """Return log(N − 1 + e^{−ε}) − ε-InfoNCE, in nats.

    This is the InfoNCE bound of Poole et al. at ε = 0, and their leave-one-out bound at ε = ∞.

    Args:
        scores: [N, N] log density ratios; pairs are on the diagonal.
    """
    positive = torch.eye(len(scores), dtype=scores.dtype)
    negatives = masked_logsumexp(scores, 1 - positive)
    block = Block(scores, positive, 1 - positive, positive, negatives, positive.sum(1))
    loss, _ = FORMS["c"](block, epsilon=epsilon, positives="mean")
    return math.log(len(scores) - 1 + math.exp(-epsilon)) - loss.mean().item()


@cache
def _batches(information: float, n: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(gaussian_scores(information, n, generator) for _ in range(max(1, PAIRS // n)))


def mean_estimate(information: float, n: int, epsilon: float) -> float:
    """Return the mean of `estimate` over batches of n pairs, the same pairs for every ε.

    Args:
        information: that the vectors of a pair share, in nats.
        n: pairs in a batch.
        epsilon: the margin; may be infinite.
    """
    found = [estimate(scores, epsilon) for scores in _batches(information, n)]
    return sum(found) / len(found)


def draw(path: Path) -> Path:
    """Draw estimates against ε (left) and against the true information (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.4), layout="constrained")
    _along_epsilon(left)
    _along_information(right)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_ylabel("estimate (nats)")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    _batches.cache_clear()
    return path


def _along_epsilon(ax: Axes) -> None:
    most, infinity = 8.0, 9.2
    grid = torch.linspace(0, most, 33).tolist()
    for n, colour in SIZES.items():
        found = [mean_estimate(TRUTH, n, epsilon) for epsilon in grid]
        end = mean_estimate(TRUTH, n, math.inf)
        ax.plot(grid, found, color=colour, lw=2, label=f"N = {n}")
        ax.plot([most, infinity], [found[-1], end], color=colour, lw=0.8, ls=":")
        ax.plot([0], found[:1], "o", color=colour, ms=7, clip_on=False, zorder=3)
        ax.plot([infinity], [end], "s", color=colour, ms=7, zorder=3)
    ax.axhline(TRUTH, color="black", lw=1, ls="--")
    ax.text(infinity + 0.3, TRUTH - 0.1, "truth", ha="right", va="top")
    ax.set_title(f"{TRUTH:g} nats of information, from below and from above")
    ax.set(xlabel="ε", xlim=(0, infinity + 0.4), ylim=(0, 11))
    ax.set_xticks([0, 2, 4, 6, 8, infinity], ["0\nInfoNCE", "2", "4", "6", "8", "∞\nInfoL1O"])
    ax.legend(frameon=False, loc="upper left")


def _along_information(ax: Axes) -> None:
    n = 64
    grid = torch.linspace(0.05, 8, 33).tolist()
    for epsilon, colour in CURVES.items():
        name = "ε = ∞" if epsilon == math.inf else f"ε = {epsilon:g}"
        found = [mean_estimate(truth, n, epsilon) for truth in grid]
        ax.plot(grid, found, color=colour, lw=2, label=name)
    ax.plot([0, 8], [0, 8], color="black", lw=1, ls="--")
    ax.text(7.6, 7.75, "truth", ha="right", va="bottom")
    ax.axhline(math.log(n), color=CURVES[0.0], lw=0.8, ls=":")
    ax.text(0.1, math.log(n) + 0.1, f"log {n}", color="#6b7580")
    ax.set_title(f"The more there is, the further apart (N = {n})")
    ax.set(xlabel="truth (nats)", xlim=(0, 8), ylim=(0, 11))
    ax.legend(frameon=False, loc="upper left")
