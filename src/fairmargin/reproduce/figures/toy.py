"""The paper's toy example, for the documentation: equal mean distances do not remove a bias.

Two sets of positives with equal mean distance to the anchor can still be told apart. A constraint
on means alone (EnD, or FairKL's "mean") is satisfied on the left; the full FairKL only on the
right.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from fairmargin.losses._fairkl import DIVERGENCES, Moments
from fairmargin.reproduce.figures.symbols import ALIGNED, ANCHOR, CONFLICTING

SHOWN_DIVERGENCES = ("mean", "moments", "kl", "jeffreys")


@dataclass(frozen=True)
class Toy:
    """Distances of an anchor's positives, and the divergences between the two sets.

    Args:
        aligned, conflicting: [N] distances.
        divergence: value by name.
    """

    title: str
    aligned: Tensor
    conflicting: Tensor
    divergence: dict[str, float]


def toy(
    title: str,
    spread_aligned: float,
    spread_conflicting: float,
    *,
    mean: float = 2.0,
    n: int = 250,
    seed: int = 0,
) -> Toy:
    """Return normal distances that have the mean and the two deviations exactly.

    Args:
        n: number of distances in each set.
    """
    generator = torch.Generator().manual_seed(seed)

    def sample(spread: float) -> Tensor:
        x = torch.randn(n, generator=generator, dtype=torch.float64)
        return mean + spread * (x - x.mean()) / x.std(correction=0)

    aligned = sample(spread_aligned)
    conflicting = sample(spread_conflicting)
    divergence = {}
    for name in SHOWN_DIVERGENCES:
        value = DIVERGENCES[name](_moments(aligned), _moments(conflicting), 0.0)
        divergence[name] = value.item()
    return Toy(title, aligned, conflicting, divergence)


def _moments(distances: Tensor) -> Moments:
    return Moments(distances.mean(), distances.var(correction=0))


def toy_pair(seed: int = 0) -> tuple[Toy, Toy]:
    """Return the two examples of the figure: with different spreads, and with equal ones."""
    return (
        toy("Equal means, different spreads: still biased", 0.12, 0.5, seed=seed),
        toy("Equal means, equal spreads: bias removed", 0.3, 0.3, seed=seed),
    )


def draw(toys: tuple[Toy, ...], path: Path) -> Path:
    """Draw a column for each example: the positives around their anchor, and their distances.

    Args:
        toys: the examples, from left to right.
        path: of the picture, with its ending.
    """
    size = (5.2 * len(toys), 7.4)
    ratios = [1.25, 1]
    figure, axes = plt.subplots(
        2, len(toys), figsize=size, height_ratios=ratios, layout="constrained"
    )
    for column, example in zip(axes.T, toys, strict=True):
        _around(column[0], example)
        _histogram(column[1], example)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _around(ax: Axes, example: Toy) -> None:
    generator = torch.Generator().manual_seed(1)
    for distances, colour, name in (
        (example.conflicting, CONFLICTING, "bias-conflicting"),
        (example.aligned, ALIGNED, "bias-aligned"),
    ):
        turn = torch.rand(len(distances), generator=generator, dtype=torch.float64)
        angle = 2 * math.pi * turn
        x, y = distances * angle.cos(), distances * angle.sin()
        ax.scatter(x, y, s=13, color=colour, alpha=0.65, linewidths=0, label=name)
    ax.scatter([0], [0], s=130, color=ANCHOR, marker="*", label="anchor", zorder=3)
    ax.set(title=example.title, aspect="equal", xlim=(-4, 4), ylim=(-4, 4), xticks=[], yticks=[])
    ax.legend(loc="upper right", fontsize=8, frameon=False)


def _histogram(ax: Axes, example: Toy) -> None:
    x = torch.linspace(0, 4, 400, dtype=torch.float64)
    for distances, colour in ((example.aligned, ALIGNED), (example.conflicting, CONFLICTING)):
        ax.hist(distances, bins=40, range=(0, 4), density=True, color=colour, alpha=0.35)
        mean, spread = distances.mean(), distances.std(correction=0)
        density = (-(((x - mean) / spread) ** 2) / 2).exp() / (spread * math.sqrt(2 * math.pi))
        ax.plot(x, density, color=colour, lw=1.8)
    mean_gap, kl = abs(example.divergence["mean"]), abs(example.divergence["kl"])
    text = f"(μ gap)² = {mean_gap:.2f}\nKL = {kl:.2f}"
    ax.text(0.97, 0.94, text, transform=ax.transAxes, ha="right", va="top", fontsize=11)
    ax.set(xlabel="distance to the anchor", xlim=(0, 4), yticks=[])
    ax.spines[["top", "right", "left"]].set_visible(False)
