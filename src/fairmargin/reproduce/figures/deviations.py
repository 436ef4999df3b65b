"""Figure 4: two sets of distances with equal means can still differ. Nothing in it is measured."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import norm
from torch import Tensor

from fairmargin.reproduce.figures.picture import INK, Drawn, open_frame, page, save
from fairmargin.reproduce.figures.symbols import (
    ALIGNED,
    ANCHOR,
    CONFLICTING,
    DARK,
    dot,
    legend,
    star,
)
from fairmargin.reproduce.figures.toy import Toy, toy


def figure_4(folder: Path) -> Drawn:
    """Draw two sets of positives with one mean distance, with different and with equal deviations.

    Note: the paper does not print its values. Here they are N(2, 0.15²) and N(2, 0.5²), then
    N(2, 0.3²) twice, a thousand points each, shifted and scaled to have these moments exactly.
    """
    pair = {
        "a": toy("equal means, unlike deviations", 0.15, 0.5, n=1000),
        "b": toy("equal means and deviations", 0.3, 0.3, n=1000),
    }
    with page(5.3) as figure:
        axes = figure.subplots(2, 2, height_ratios=[1.55, 1], sharey="row")
        for column, (name, example) in zip(axes.T, pair.items(), strict=True):
            _around(column[0], example)
            _densities(column[1], example)
            column[0].set_title(f"({name}) {example.title}")
        axes[0, 0].set_ylabel("second coordinate")
        axes[1, 0].set_ylabel("density")
        handles = {
            "anchor": star(),
            "bias-aligned positives": dot(ALIGNED),
            "bias-conflicting positives": dot(CONFLICTING),
        }
        legend(figure, handles)
        numbers = {name: _facts(example) for name, example in pair.items()}
        return save(figure, folder, "figure4", numbers)


def _around(ax: Axes, example: Toy) -> None:
    """The positives at random angles around their anchor."""
    random = np.random.default_rng(1)
    places = []
    colours = []
    sets = ((example.conflicting, CONFLICTING), (example.aligned, ALIGNED))
    for distances, colour in sets:
        turn = random.uniform(0, 2 * math.pi, len(distances))
        d = distances.numpy()
        places.append(np.stack([d * np.cos(turn), d * np.sin(turn)], 1))
        colours += [colour] * len(distances)
    # In random order, so that neither set covers the other.
    mixed = random.permutation(len(colours))
    x, y = np.concatenate(places)[mixed].T
    ax.scatter(x, y, s=6, c=[colours[i] for i in mixed], alpha=0.75, linewidths=0, rasterized=True)
    ax.scatter([0], [0], s=150, marker="*", color=ANCHOR, linewidths=0, zorder=3)
    ax.set(aspect="equal", xlim=(-4, 4), ylim=(-4, 4), xlabel="first coordinate")


def _densities(ax: Axes, example: Toy) -> None:
    """Histograms of the distances, the normal densities, and their divergence."""
    x = np.linspace(0, 4.6, 460)
    kl = abs(example.divergence["kl"])
    shown_kl = f"{kl:.3f}" if kl > 5e-4 else "0"
    captions = {INK: f"KL(aligned ‖ conflicting) = {shown_kl}"}
    for name, distances, colour, dash in (
        ("aligned", example.aligned, ALIGNED, "-"),
        ("conflicting", example.conflicting, CONFLICTING, "--"),
    ):
        ax.hist(distances.numpy(), bins=50, range=(0, 4), density=True, color=colour, alpha=0.35)
        mean = float(distances.mean())
        deviation = float(distances.std(correction=0))
        ax.plot(x, norm.pdf(x, mean, deviation), color=colour, linewidth=1.6, linestyle=dash)
        captions[DARK[colour]] = f"{name}: μ = {mean:.2g}, σ = {deviation:.2g}"
    corner: dict[str, Any] = {"transform": ax.transAxes, "ha": "right", "va": "top"}
    for k, (colour, text) in enumerate(captions.items()):
        ax.text(0.99, 0.98 - 0.13 * k, text, color=colour, **corner)
    open_frame(ax)
    ax.set(xlim=(0, 4.6), ylim=(0, 3.3), xlabel="distance to the anchor")


def _facts(example: Toy) -> dict[str, Any]:
    """The moments, and the KL of the aligned from the conflicting distances in closed form."""
    return {
        "aligned": _moments(example.aligned),
        "conflicting": _moments(example.conflicting),
        "kl": round(abs(example.divergence["kl"]), 6),
        "title": example.title,
    }


def _moments(distances: Tensor) -> dict[str, Any]:
    return {
        "n": len(distances),
        "mean": round(float(distances.mean()), 6),
        "deviation": round(float(distances.std(correction=0)), 6),
    }
