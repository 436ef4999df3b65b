"""Figures 1, 3 and 4: nothing in them is measured. Positions are chosen so that what the paper says about them is true."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Annulus, Circle
from scipy.stats import norm

from fairmargin.reproduce.figures.picture import (
    FAINT,
    INK,
    Drawn,
    open_frame,
    page,
    save,
)
from fairmargin.reproduce.figures.toy import ALIGNED, ANCHOR, CONFLICTING, Toy, toy

DARK = {ALIGNED: "#1d4a80", CONFLICTING: "#a1540e"}
HALO = {ALIGNED: "#dbe7f5", CONFLICTING: "#fbe6d2"}
DOTTED = (0, (1, 1.6))
RING = "#e9ebee"
APART = 0.36  # at least, so that no point covers another
NO_MARGIN = 0.1  # too thin a ring to be drawn


@dataclass(frozen=True)
class Point:
    """A sample around the anchor, which stands at the origin. Positive: of its class; aligned: with its bias."""

    angle: float  # degrees
    distance: float
    positive: bool
    aligned: bool

    @property
    def place(self) -> tuple[float, float]:
        return _at(self.angle, self.distance)

    @property
    def colour(self) -> str:
        return ALIGNED if self.aligned else CONFLICTING


def _at(angle: float, distance: float) -> tuple[float, float]:
    turn = math.radians(angle)
    return distance * math.cos(turn), distance * math.sin(turn)


def figure_1(folder: Path) -> Drawn:
    """What the margin is (a), and two biases without (b) and with it (c)."""
    panels = {"a": _definition(), "b": _biased_clusters(), "c": _separated()}
    titles = {"a": "the margin ε", "b": "without a margin", "c": "with a margin ε"}
    with page(2.75) as figure:
        axes = dict(zip(panels, figure.subplots(1, 3), strict=True))
        for name, points in panels.items():
            _ring(axes[name], points)
            _samples(axes[name], points, plain=name == "a")
            axes[name].set(
                aspect="equal", xlim=(-2.8, 2.8), ylim=(-2.6, 2.6), title=f"({name}) {titles[name]}"
            )
            axes[name].set_axis_off()
        _arrows(axes["a"], panels["a"])
        _halos(axes["b"], panels["b"])
        for place, colour in (((1.75, -2.05), ALIGNED), ((-1.75, -2.05), CONFLICTING)):
            axes["b"].text(*place, "biased cluster", color=DARK[colour], ha="center", fontsize=7.5)
        axes["c"].text(*_at(90, 1.45), r"$\epsilon$", ha="center", va="center", fontsize=10)
        _key(figure)
        return save(
            figure, folder, "figure1", {name: _facts(points) for name, points in panels.items()}
        )


def figure_3(folder: Path) -> Drawn:
    """Equal mean distances (a), with a margin too (b), and equal deviations too (c)."""
    mixed = _positives(aligned=(2, 2, 2, 2), conflicting=(1, 3, 1, 3))
    even = _positives(aligned=(2, 2, 2, 2), conflicting=(2, 2, 2, 2))
    panels = {
        "a": mixed + _negatives(3.02),
        "b": mixed + _negatives(3.7),
        "c": even + _negatives(2.75),
    }
    titles = {
        "a": "equal means (EnD)",
        "b": "equal means, margin ε",
        "c": "equal means and σ (FairKL)",
    }
    with page(3.35) as figure:
        for ax, (name, points) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            _ring(ax, points)
            low, high = _reach(points)
            for d in sorted({p.distance for p in points if p.positive}):
                if d < low:
                    ax.add_patch(
                        Circle(
                            (0, 0), d, fill=False, edgecolor=FAINT, linewidth=0.7, linestyle=DOTTED
                        )
                    )
                ax.text(*_at(254, d - 0.27), f"{d:g}", fontsize=7, ha="center", va="center")
            _samples(ax, points)
            if high - low > NO_MARGIN:
                ax.text(
                    *_at(67.5, (low + high) / 2),
                    r"$\epsilon$",
                    ha="center",
                    va="center",
                    fontsize=10,
                )
            for k, (kind, colour) in enumerate(
                (("aligned", ALIGNED), ("conflicting", CONFLICTING))
            ):
                mean, deviation = _moments(points, kind == "aligned")
                said = f"{kind}:  μ = {mean:g},  σ = {deviation:g}"
                ax.text(
                    0,
                    -4.75 - 0.7 * k,
                    said,
                    color=DARK[colour],
                    ha="center",
                    va="center",
                    fontsize=8,
                )
            ax.set(aspect="equal", xlim=(-4.15, 4.15), ylim=(-5.7, 4.15))
            ax.set_title(f"({name}) {titles[name]}")
            ax.set_axis_off()
        _key(figure, {"distance": Line2D([], [], color=FAINT, linewidth=0.9, linestyle=DOTTED)})
        return save(
            figure, folder, "figure3", {name: _facts(points) for name, points in panels.items()}
        )


def figure_4(folder: Path) -> Drawn:
    """Two sets of positives with one mean distance to the anchor, with unlike and with like deviations.

    Note: the paper does not print its values. Here N(2, 0.15²) and N(2, 0.5²), then N(2, 0.3²) twice, a thousand points
    each, shifted and scaled so that they have these moments exactly.
    """
    pair = [
        toy("equal means, unlike deviations", 0.15, 0.5, n=1000),
        toy("equal means and deviations", 0.3, 0.3, n=1000),
    ]
    with page(5.3) as figure:
        axes = figure.subplots(2, 2, height_ratios=[1.55, 1], sharey="row")
        for k, (column, t) in enumerate(zip(axes.T, pair, strict=True)):
            _around(column[0], t)
            _densities(column[1], t)
            column[0].set_title(f"({'ab'[k]}) {t.title}")
        axes[0, 0].set_ylabel("second coordinate")
        axes[1, 0].set_ylabel("density")
        dots = {
            "bias-aligned positives": _dot(ALIGNED),
            "bias-conflicting positives": _dot(CONFLICTING),
        }
        _legend(figure, {"anchor": _star(), **dots})
        return save(figure, folder, "figure4", {"ab"[k]: _toy_facts(t) for k, t in enumerate(pair)})


def _definition() -> list[Point]:
    positives = [(35, 1.0), (105, 0.72), (172, 0.92), (238, 0.66), (305, 0.9)]
    negatives = [
        (338, 1.9),
        (12, 2.3),
        (82, 2.2),
        (128, 2.42),
        (186, 2.25),
        (226, 2.05),
        (282, 2.35),
    ]
    return [Point(a, d, True, True) for a, d in positives] + [
        Point(a, d, False, True) for a, d in negatives
    ]


def _biased_clusters() -> list[Point]:
    """Every positive is closer than every negative, by a hair: two clusters, one for each bias, hold both."""
    points: list[Point] = []
    for aligned, towards in ((True, 6), (False, 174)):
        for positive, (low, high) in ((True, (1.05, 1.68)), (False, (1.72, 2.35))):
            points = _scattered(
                points, 6, (towards - 36, towards + 36), (low, high), positive, aligned
            )
    return points


def _separated() -> list[Point]:
    """Positives of both biases around the anchor, negatives beyond the margin."""
    points: list[Point] = []
    for aligned, towards in ((True, 6), (False, 174)):
        points = _scattered(points, 6, (towards - 95, towards + 95), (0.45, 1.0), True, aligned)
        points = _scattered(points, 6, (towards - 42, towards + 42), (1.9, 2.45), False, aligned)
    return points


def _scattered(
    others: list[Point],
    number: int,
    angles: tuple[float, float],
    distances: tuple[float, float],
    positive: bool,
    aligned: bool,
) -> list[Point]:
    """`number` more points, none on another; the first at the distance nearest to the other class."""
    random = np.random.default_rng(len(others) + 1)
    points = list(others)
    while len(points) < len(others) + number:
        distance = random.uniform(*distances) if len(points) > len(others) else distances[positive]
        point = Point(
            round(random.uniform(*angles), 1), round(float(distance), 3), positive, aligned
        )
        if all(math.dist(point.place, other.place) > APART for other in points):
            points.append(point)
    return points


def _positives(aligned: Sequence[float], conflicting: Sequence[float]) -> list[Point]:
    turned = [Point(45 * 2 * k + 45, d, True, False) for k, d in enumerate(conflicting)]
    return [Point(90 * k + 90, d, True, True) for k, d in enumerate(aligned)] + turned


def _negatives(closest: float) -> list[Point]:
    return [
        Point(22.5 + 45 * k, closest + (0, 0.35, 0.15, 0.3)[k % 4], False, aligned=k % 2 == 0)
        for k in range(8)
    ]


def _ring(ax: Axes, points: Sequence[Point]) -> None:
    """The empty ring between the farthest positive and the closest negative."""
    low, high = _reach(points)
    if high - low > NO_MARGIN:
        ax.add_patch(Annulus((0, 0), high, high - low, facecolor=RING, edgecolor="none"))
    for radius in (low, high) if high - low > NO_MARGIN else ((low + high) / 2,):
        ax.add_patch(
            Circle(
                (0, 0), radius, fill=False, edgecolor=FAINT, linewidth=0.8, linestyle=(0, (4, 3))
            )
        )


def _halos(ax: Axes, points: Sequence[Point]) -> None:
    for colour in (ALIGNED, CONFLICTING):
        x, y = zip(*(p.place for p in points if p.colour == colour), strict=True)
        ax.scatter(x, y, s=560, color=HALO[colour], linewidths=0, zorder=0.5, clip_on=False)


def _samples(ax: Axes, points: Sequence[Point], *, plain: bool = False) -> None:
    ax.scatter([0], [0], s=120, marker="*", color=ANCHOR, linewidths=0, zorder=4)
    for p in points:
        fill, ink = ("white", INK) if plain else (p.colour, "white")
        ax.scatter(
            *p.place,
            s=74,
            color=fill,
            edgecolors=INK if plain else DARK[p.colour],
            linewidths=0.7,
            zorder=3,
        )
        ax.scatter(
            *p.place, s=30, marker="+" if p.positive else "_", color=ink, linewidths=1.3, zorder=3.5
        )


def _arrows(ax: Axes, points: Sequence[Point]) -> None:
    """d⁺, d⁻ and ε of panel (a)."""
    farthest = max((p for p in points if p.positive), key=lambda p: p.distance)
    closest = min((p for p in points if not p.positive), key=lambda p: p.distance)
    low, high = _reach(points)
    for start, end, ends, gaps in (
        ((0.0, 0.0), farthest.place, "-|>", (4, 4.5)),
        ((0.0, 0.0), closest.place, "-|>", (4, 4.5)),
        (_at(62, low), _at(62, high), "<|-|>", (0, 0)),
    ):
        style = {"arrowstyle": ends, "shrinkA": gaps[0], "shrinkB": gaps[1], "mutation_scale": 8}
        ax.annotate("", end, start, arrowprops=style | {"color": INK, "linewidth": 0.8}, zorder=2.5)
    words = {
        r"$d^+$": (0.28, 0.42),
        r"$d^-$": (1.12, -0.72),
        r"$\epsilon$": (0.86, 1.3),
        r"$x^+$": (1.3, 0.66),
        r"$x^-$": (2.26, -0.86),
        r"$x$": (-0.26, -0.05),
    }
    for text, place in words.items():
        ax.text(*place, text, ha="center", va="center", fontsize=9)


def _key(figure: Figure, further: dict[str, Any] | None = None) -> None:
    ring = Line2D(
        [],
        [],
        marker="o",
        linestyle="none",
        markersize=7,
        markerfacecolor="white",
        markeredgecolor=INK,
    )
    sign: dict[str, Any] = {
        "linestyle": "none",
        "markersize": 4.5,
        "markeredgecolor": INK,
        "markeredgewidth": 1.1,
    }
    handles = {
        "anchor": _star(),
        "same class": (ring, Line2D([], [], marker="+", **sign)),
        "another class": (ring, Line2D([], [], marker="_", **sign)),
        "bias of the anchor": _dot(ALIGNED),
        "another bias": _dot(CONFLICTING),
    }
    _legend(figure, handles | (further or {}))


def _legend(figure: Figure, handles: dict[str, Any]) -> None:
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        handler_map={tuple: HandlerTuple(ndivide=1)},
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.6,
    )


def _star() -> Line2D:
    return Line2D(
        [], [], marker="*", color=ANCHOR, linestyle="none", markersize=10, markeredgewidth=0
    )


def _dot(colour: str) -> Line2D:
    return Line2D(
        [], [], marker="o", color=colour, linestyle="none", markersize=7, markeredgewidth=0
    )


def _reach(points: Sequence[Point]) -> tuple[float, float]:
    """(distance of the farthest positive, of the closest negative)."""
    return max(p.distance for p in points if p.positive), min(
        p.distance for p in points if not p.positive
    )


def _moments(points: Sequence[Point], aligned: bool) -> tuple[float, float]:
    distances = [p.distance for p in points if p.positive and p.aligned == aligned]
    return statistics.fmean(distances), statistics.pstdev(distances)


def _facts(points: Sequence[Point]) -> dict[str, Any]:
    low, high = _reach(points)
    facts: dict[str, Any] = {
        "farthest positive": low,
        "closest negative": high,
        "margin": round(high - low, 6),
    }
    if len({p.aligned for p in points}) == 2:
        for name, aligned in (("aligned", True), ("conflicting", False)):
            mean, deviation = _moments(points, aligned)
            facts[f"positive-{name}"] = {"mean": mean, "deviation": deviation}
    return facts | {"points": [vars(p) for p in points]}


def _around(ax: Axes, t: Toy) -> None:
    random = np.random.default_rng(1)
    places, colours = [], []
    for distances, colour in ((t.conflicting, CONFLICTING), (t.aligned, ALIGNED)):
        turn = random.uniform(0, 2 * math.pi, len(distances))
        places.append(
            np.stack([distances.numpy() * np.cos(turn), distances.numpy() * np.sin(turn)], 1)
        )
        colours += [colour] * len(distances)
    mixed = random.permutation(len(colours))  # neither set covers the other
    x, y = np.concatenate(places)[mixed].T
    ax.scatter(x, y, s=6, c=[colours[i] for i in mixed], alpha=0.75, linewidths=0, rasterized=True)
    ax.scatter([0], [0], s=150, marker="*", color=ANCHOR, linewidths=0, zorder=3)
    ax.set(aspect="equal", xlim=(-4, 4), ylim=(-4, 4), xlabel="first coordinate")


def _densities(ax: Axes, t: Toy) -> None:
    x = np.linspace(0, 4.6, 460)
    kl = abs(t.divergence["kl"])
    said = {INK: f"KL(aligned ‖ conflicting) = {f'{kl:.3f}' if kl > 5e-4 else '0'}"}
    for name, distances, colour, dash in (
        ("aligned", t.aligned, ALIGNED, "-"),
        ("conflicting", t.conflicting, CONFLICTING, "--"),
    ):
        ax.hist(distances.numpy(), bins=50, range=(0, 4), density=True, color=colour, alpha=0.35)
        mean, deviation = float(distances.mean()), float(distances.std(correction=0))
        ax.plot(x, norm.pdf(x, mean, deviation), color=colour, linewidth=1.6, linestyle=dash)
        said[DARK[colour]] = f"{name}: μ = {mean:.2g}, σ = {deviation:.2g}"
    for k, (colour, text) in enumerate(said.items()):
        ax.text(
            0.99, 0.98 - 0.13 * k, text, color=colour, transform=ax.transAxes, ha="right", va="top"
        )
    open_frame(ax)
    ax.set(xlim=(0, 4.6), ylim=(0, 3.3), xlabel="distance to the anchor")


def _toy_facts(t: Toy) -> dict[str, Any]:
    """The KL is that of the aligned distances from the conflicting ones, in closed form from the two moments."""
    sets = {"aligned": t.aligned, "conflicting": t.conflicting}
    moments = {
        name: {
            "n": len(d),
            "mean": round(float(d.mean()), 6),
            "deviation": round(float(d.std(correction=0)), 6),
        }
        for name, d in sets.items()
    }
    return moments | {"kl": round(abs(t.divergence["kl"]), 6), "title": t.title}
