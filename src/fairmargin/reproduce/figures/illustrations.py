"""Figures 1 and 3: samples around an anchor. Nothing in them is measured.

Positions are chosen so that what the paper says about them is true.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Annulus, Circle

from fairmargin.reproduce.figures.picture import FAINT, INK, Drawn, page, save
from fairmargin.reproduce.figures.symbols import (
    ALIGNED,
    ANCHOR,
    CONFLICTING,
    DARK,
    dot,
    legend,
    ring,
    sign,
    star,
)

HALO = {ALIGNED: "#dbe7f5", CONFLICTING: "#fbe6d2"}
DOTTED = (0, (1, 1.6))
DASHED = (0, (4, 3))
RING = "#e9ebee"
# The least distance between two points, so that none covers another.
APART = 0.36
# A thinner ring than this is not drawn.
NO_MARGIN = 0.1
CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}


@dataclass(frozen=True)
class Point:
    """A sample around the anchor, which stands at the origin.

    Args:
        angle: in degrees.
        positive: True if it is of the anchor's class.
        aligned: True if it has the anchor's bias.
    """

    angle: float
    distance: float
    positive: bool
    aligned: bool

    @property
    def place(self) -> tuple[float, float]:
        """Its coordinates."""
        return _at(self.angle, self.distance)

    @property
    def colour(self) -> str:
        """The colour of its bias."""
        return ALIGNED if self.aligned else CONFLICTING


def _at(angle: float, distance: float) -> tuple[float, float]:
    turn = math.radians(angle)
    return distance * math.cos(turn), distance * math.sin(turn)


def figure_1(folder: Path) -> Drawn:
    """Draw what the margin is (a), and samples of two biases without (b) and with it (c)."""
    panels = {"a": _definition(), "b": _biased_clusters(), "c": _separated()}
    titles = {"a": "the margin ε", "b": "without a margin", "c": "with a margin ε"}
    with page(2.75) as figure:
        axes = dict(zip(panels, figure.subplots(1, 3), strict=True))
        for name, points in panels.items():
            ax = axes[name]
            _draw_ring(ax, points)
            _draw_samples(ax, points, plain=name == "a")
            ax.set(aspect="equal", xlim=(-2.8, 2.8), ylim=(-2.6, 2.6))
            ax.set_title(f"({name}) {titles[name]}")
            ax.set_axis_off()
        _draw_arrows(axes["a"], panels["a"])
        _draw_halos(axes["b"], panels["b"])
        for place, colour in (((1.75, -2.05), ALIGNED), ((-1.75, -2.05), CONFLICTING)):
            axes["b"].text(*place, "biased cluster", color=DARK[colour], ha="center", fontsize=7.5)
        axes["c"].text(*_at(90, 1.45), r"$\epsilon$", fontsize=10, **CENTRED)
        _draw_legend(figure)
        return save(figure, folder, "figure1", _facts_by_panel(panels))


def figure_3(folder: Path) -> Drawn:
    """Draw equal mean distances (a), with a margin too (b), and with equal deviations too (c)."""
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
            _draw_ring(ax, points)
            _draw_distances(ax, points)
            _draw_samples(ax, points)
            low, high = _reach(points)
            if high - low > NO_MARGIN:
                ax.text(*_at(67.5, (low + high) / 2), r"$\epsilon$", fontsize=10, **CENTRED)
            _write_moments(ax, points)
            ax.set(aspect="equal", xlim=(-4.15, 4.15), ylim=(-5.7, 4.15))
            ax.set_title(f"({name}) {titles[name]}")
            ax.set_axis_off()
        distance = Line2D([], [], color=FAINT, linewidth=0.9, linestyle=DOTTED)
        _draw_legend(figure, {"distance": distance})
        return save(figure, folder, "figure3", _facts_by_panel(panels))


# Where the points are


def _definition() -> list[Point]:
    positives = {35: 1.0, 105: 0.72, 172: 0.92, 238: 0.66, 305: 0.9}
    negatives = {338: 1.9, 12: 2.3, 82: 2.2, 128: 2.42, 186: 2.25, 226: 2.05, 282: 2.35}
    points = [Point(angle, distance, True, True) for angle, distance in positives.items()]
    points += [Point(angle, distance, False, True) for angle, distance in negatives.items()]
    return points


def _biased_clusters() -> list[Point]:
    """Two clusters, one for each bias, that hold both classes.

    Every positive is closer than every negative, but only just.
    """
    points: list[Point] = []
    for aligned, towards in ((True, 6), (False, 174)):
        angles = (towards - 36, towards + 36)
        points = _scattered(points, 6, angles, (1.05, 1.68), positive=True, aligned=aligned)
        points = _scattered(points, 6, angles, (1.72, 2.35), positive=False, aligned=aligned)
    return points


def _separated() -> list[Point]:
    """Positives of both biases around the anchor, negatives beyond the margin."""
    points: list[Point] = []
    for aligned, towards in ((True, 6), (False, 174)):
        around = (towards - 95, towards + 95)
        points = _scattered(points, 6, around, (0.45, 1.0), positive=True, aligned=aligned)
        beyond = (towards - 42, towards + 42)
        points = _scattered(points, 6, beyond, (1.9, 2.45), positive=False, aligned=aligned)
    return points


def _scattered(
    others: list[Point],
    number: int,
    angles: tuple[float, float],
    distances: tuple[float, float],
    *,
    positive: bool,
    aligned: bool,
) -> list[Point]:
    """Add `number` points, none on another; the first is as near to the other class as allowed."""
    random = np.random.default_rng(len(others) + 1)
    points = list(others)
    while len(points) < len(others) + number:
        if len(points) > len(others):
            distance = random.uniform(*distances)
        else:
            distance = distances[positive]
        angle = round(random.uniform(*angles), 1)
        point = Point(angle, round(float(distance), 3), positive, aligned)
        if all(math.dist(point.place, other.place) > APART for other in points):
            points.append(point)
    return points


def _positives(aligned: Sequence[float], conflicting: Sequence[float]) -> list[Point]:
    """Positives at these distances, the two kinds in turn around the anchor."""
    points = [Point(90 * k + 90, d, True, True) for k, d in enumerate(aligned)]
    points += [Point(90 * k + 45, d, True, False) for k, d in enumerate(conflicting)]
    return points


def _negatives(closest: float) -> list[Point]:
    farther = (0, 0.35, 0.15, 0.3)
    points = []
    for k in range(8):
        distance = closest + farther[k % 4]
        points.append(Point(22.5 + 45 * k, distance, False, aligned=k % 2 == 0))
    return points


# What is drawn


def _draw_ring(ax: Axes, points: Sequence[Point]) -> None:
    """The empty ring between the farthest positive and the closest negative."""
    low, high = _reach(points)
    edges = [(low + high) / 2]
    if high - low > NO_MARGIN:
        ax.add_patch(Annulus((0, 0), high, high - low, facecolor=RING, edgecolor="none"))
        edges = [low, high]
    for radius in edges:
        _draw_circle(ax, radius, linewidth=0.8, linestyle=DASHED)


def _draw_distances(ax: Axes, points: Sequence[Point]) -> None:
    """A circle and a number for each distance of a positive."""
    low, _ = _reach(points)
    for distance in sorted({point.distance for point in points if point.positive}):
        if distance < low:
            _draw_circle(ax, distance, linewidth=0.7, linestyle=DOTTED)
        ax.text(*_at(254, distance - 0.27), f"{distance:g}", fontsize=7, **CENTRED)


def _draw_circle(ax: Axes, radius: float, **style: Any) -> None:
    ax.add_patch(Circle((0, 0), radius, fill=False, edgecolor=FAINT, **style))


def _draw_halos(ax: Axes, points: Sequence[Point]) -> None:
    for colour in (ALIGNED, CONFLICTING):
        x, y = zip(*(point.place for point in points if point.colour == colour), strict=True)
        ax.scatter(x, y, s=560, color=HALO[colour], linewidths=0, zorder=0.5, clip_on=False)


def _draw_samples(ax: Axes, points: Sequence[Point], *, plain: bool = False) -> None:
    """The anchor and its samples; `plain` leaves the colours of the biases out."""
    ax.scatter([0], [0], s=120, marker="*", color=ANCHOR, linewidths=0, zorder=4)
    for point in points:
        fill, edge, ink = point.colour, DARK[point.colour], "white"
        if plain:
            fill, edge, ink = "white", INK, INK
        marker = "+" if point.positive else "_"
        ax.scatter(*point.place, s=74, color=fill, edgecolors=edge, linewidths=0.7, zorder=3)
        ax.scatter(*point.place, s=30, marker=marker, color=ink, linewidths=1.3, zorder=3.5)


def _draw_arrows(ax: Axes, points: Sequence[Point]) -> None:
    """d⁺, d⁻ and ε of panel (a)."""
    positives = [point for point in points if point.positive]
    negatives = [point for point in points if not point.positive]
    farthest = max(positives, key=lambda point: point.distance)
    closest = min(negatives, key=lambda point: point.distance)
    low, high = _reach(points)
    origin = (0.0, 0.0)
    for start, end, ends, gaps in (
        (origin, farthest.place, "-|>", (4, 4.5)),
        (origin, closest.place, "-|>", (4, 4.5)),
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
        ax.text(*place, text, fontsize=9, **CENTRED)


def _write_moments(ax: Axes, points: Sequence[Point]) -> None:
    """Mean and deviation of the distances of aligned and of conflicting positives."""
    for k, kind in enumerate(("aligned", "conflicting")):
        aligned = kind == "aligned"
        colour = DARK[ALIGNED if aligned else CONFLICTING]
        mean, deviation = _moments(points, aligned)
        text = f"{kind}:  μ = {mean:g},  σ = {deviation:g}"
        ax.text(0, -4.75 - 0.7 * k, text, color=colour, fontsize=8, **CENTRED)


def _draw_legend(figure: Figure, further: dict[str, Any] | None = None) -> None:
    outline = ring(INK)
    handles = {
        "anchor": star(),
        "same class": (outline, sign("+", INK)),
        "another class": (outline, sign("_", INK)),
        "bias of the anchor": dot(ALIGNED),
        "another bias": dot(CONFLICTING),
    }
    legend(figure, handles | (further or {}))


# What the points say


def _reach(points: Sequence[Point]) -> tuple[float, float]:
    """(distance of the farthest positive, distance of the closest negative)."""
    farthest = max(point.distance for point in points if point.positive)
    closest = min(point.distance for point in points if not point.positive)
    return farthest, closest


def _moments(points: Sequence[Point], aligned: bool) -> tuple[float, float]:
    """Mean and deviation of the distances of aligned or of conflicting positives."""
    positives = [point for point in points if point.positive]
    distances = [point.distance for point in positives if point.aligned == aligned]
    return statistics.fmean(distances), statistics.pstdev(distances)


def _facts_by_panel(panels: dict[str, list[Point]]) -> dict[str, Any]:
    return {name: _facts(points) for name, points in panels.items()}


def _facts(points: Sequence[Point]) -> dict[str, Any]:
    low, high = _reach(points)
    facts: dict[str, Any] = {
        "farthest positive": low,
        "closest negative": high,
        "margin": round(high - low, 6),
    }
    if len({point.aligned for point in points}) == 2:
        for name, aligned in (("aligned", True), ("conflicting", False)):
            mean, deviation = _moments(points, aligned)
            facts[f"positive-{name}"] = {"mean": mean, "deviation": deviation}
    facts["points"] = [vars(point) for point in points]
    return facts
