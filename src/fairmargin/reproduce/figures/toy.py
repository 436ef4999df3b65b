"""The paper's toy figure: two sets of positives with equal mean distance to the anchor can still be told apart by bias.

A constraint on means alone (EnD, or FairKL's "mean") is satisfied on the left; the full FairKL only on the right.
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

from fairmargin.losses.divergences import DIVERGENCES, Moments

ALIGNED, CONFLICTING, ANCHOR = "#2f6db5", "#e8862e", "#1f7a3a"


@dataclass(frozen=True)
class Toy:
    """Distances of an anchor's positives, and what each divergence says of the two sets."""

    title: str
    aligned: Tensor  # [N] distances
    conflicting: Tensor  # [N]
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
    """Normal distances with one mean and the two spreads, exactly."""
    g = torch.Generator().manual_seed(seed)

    def sample(spread: float) -> Tensor:
        x = torch.randn(n, generator=g, dtype=torch.float64)
        return mean + spread * (x - x.mean()) / x.std(correction=0)

    a, c = sample(spread_aligned), sample(spread_conflicting)
    of_a, of_c = (Moments(d.mean(), d.var(correction=0)) for d in (a, c))
    return Toy(
        title,
        a,
        c,
        {
            name: DIVERGENCES[name](of_a, of_c, 0.0).item()
            for name in ("mean", "moments", "kl", "jeffreys")
        },
    )


def toy_pair(seed: int = 0) -> tuple[Toy, Toy]:
    return (
        toy("Equal means, different spreads: still biased", 0.12, 0.5, seed=seed),
        toy("Equal means, equal spreads: bias removed", 0.3, 0.3, seed=seed),
    )


def draw(toys: tuple[Toy, ...], path: Path) -> Path:
    """One column for each toy: the positives around their anchor, and their distances."""
    figure, axes = plt.subplots(
        2, len(toys), figsize=(5.2 * len(toys), 7.4), height_ratios=[1.25, 1], layout="constrained"
    )
    for column, t in zip(axes.T, toys, strict=True):
        _around(column[0], t)
        _histogram(column[1], t)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _around(ax: Axes, t: Toy) -> None:
    g = torch.Generator().manual_seed(1)
    for d, colour, name in (
        (t.conflicting, CONFLICTING, "bias-conflicting"),
        (t.aligned, ALIGNED, "bias-aligned"),
    ):
        angle = 2 * math.pi * torch.rand(len(d), generator=g, dtype=torch.float64)
        ax.scatter(
            d * angle.cos(),
            d * angle.sin(),
            s=13,
            color=colour,
            alpha=0.65,
            linewidths=0,
            label=name,
        )
    ax.scatter([0], [0], s=130, color=ANCHOR, marker="*", label="anchor", zorder=3)
    ax.set(title=t.title, aspect="equal", xlim=(-4, 4), ylim=(-4, 4), xticks=[], yticks=[])
    ax.legend(loc="upper right", fontsize=8, frameon=False)


def _histogram(ax: Axes, t: Toy) -> None:
    x = torch.linspace(0, 4, 400, dtype=torch.float64)
    for d, colour in ((t.aligned, ALIGNED), (t.conflicting, CONFLICTING)):
        ax.hist(d, bins=40, range=(0, 4), density=True, color=colour, alpha=0.35)
        mean, spread = d.mean(), d.std(correction=0)
        ax.plot(
            x,
            (-(((x - mean) / spread) ** 2) / 2).exp() / (spread * math.sqrt(2 * math.pi)),
            color=colour,
            lw=1.8,
        )
    said = f"(μ gap)² = {abs(t.divergence['mean']):.2f}\nKL = {abs(t.divergence['kl']):.2f}"
    ax.text(0.97, 0.94, said, transform=ax.transAxes, ha="right", va="top", fontsize=11)
    ax.set(xlabel="distance to the anchor", xlim=(0, 4), yticks=[])
    ax.spines[["top", "right", "left"]].set_visible(False)
