"""Figures 2 and 5 of the paper, from measured runs."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fairmargin.checks import check_choice
from fairmargin.report.runs import Run, method_name
from fairmargin.reproduce.figures.picture import FAINT, INK, Drawn, caption, open_frame, page, save

# Colour, marker and line of each method.
METHODS: dict[str, tuple[str, str, Any]] = {
    "eps-supcon": ("#0072b2", "o", "--"),
    "eps-supinfonce": ("#d55e00", "s", "-"),
}
# An axis of accuracies shows at least so many points, so that noise does not look like an effect.
LEAST_SPAN = 4.0
# The methods' points are shifted by this share of the axis, so that their bars do not overlap.
SHIFTS = (-0.008, 0.008)
SETS = {
    "positive-aligned": "bias-aligned positives",
    "positive-conflicting": "bias-conflicting positives",
}
# From few pairs to many.
BLUES = ["#f1f6fc", "#6a9fd8", "#2f6db5", "#0d2748"]
ORANGES = ["#fff5ea", "#f3a65c", "#c8620f", "#4d2203"]
INKS = {
    "positive-aligned": LinearSegmentedColormap.from_list("aligned", BLUES),
    "positive-conflicting": LinearSegmentedColormap.from_list("conflict", ORANGES),
}
# The least share of an epoch's pairs that is coloured.
FEWEST = 1e-3


@dataclass(frozen=True)
class Row:
    """A point of Figure 2.

    Args:
        accuracies: of the method's seeds, as fractions; empty if it was not run.
    """

    method: str
    rho: float
    epsilon: float
    accuracies: Sequence[float]


@dataclass(frozen=True)
class _Point:
    """In percent. The deviation is that of a sample, n − 1, and needs two seeds."""

    method: str
    rho: float
    epsilon: float
    accuracies: list[float]
    mean: float | None
    deviation: float | None

    @staticmethod
    def of(row: Row) -> "_Point":
        wrong = [accuracy for accuracy in row.accuracies if not 0 <= accuracy <= 1]
        if wrong:
            raise ValueError(
                f"accuracies are fractions from 0 to 1; {row.method} at ρ = {row.rho:g}, "
                f"ε = {row.epsilon:g} has {wrong[0]:g}"
            )
        percent = [100 * accuracy for accuracy in row.accuracies]
        mean = statistics.fmean(percent) if percent else None
        deviation = statistics.stdev(percent) if len(percent) > 1 else None
        return _Point(row.method, row.rho, row.epsilon, percent, mean, deviation)


def figure_2(rows: Sequence[Row], folder: Path, *, budget: str) -> Drawn:
    """Draw accuracy against ε for ε-SupCon and ε-SupInfoNCE, with a panel for each ρ.

    Points are means over seeds, with the sample deviation as a bar. A point without accuracies is
    left out of its line and marked at the foot of the panel.

    Args:
        budget: written below the picture: how the runs were trained and with how many seeds.
    """
    points = [_Point.of(row) for row in rows]
    _check_points(points)
    by_place = {(point.method, point.rho, point.epsilon): point for point in points}
    rhos = sorted({point.rho for point in points})
    epsilons = sorted({point.epsilon for point in points})
    width = epsilons[-1] - epsilons[0] or 1
    with page(2.75) as figure:
        axes = figure.subplots(1, len(rhos), squeeze=False)[0]
        missing = False
        for ax, rho in zip(axes, rhos, strict=True):
            for method, shift in zip(METHODS, SHIFTS, strict=True):
                line = [by_place.get((method, rho, epsilon)) for epsilon in epsilons]
                places = [epsilon + shift * width for epsilon in epsilons]
                missing |= _curve(ax, method, places, line)
            _scale(ax, [point for point in points if point.rho == rho])
            ax.set(title=f"ρ = {rho:g}", xlabel="margin ε")
            ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
            open_frame(ax)
        axes[0].set_ylabel("unbiased accuracy (%)")
        _methods_key(figure, missing)
        caption(figure, budget)
        numbers = {"budget": budget, "points": [vars(point) for point in points]}
        return save(figure, folder, "figure2", numbers)


def _check_points(points: Sequence[_Point]) -> None:
    if not any(point.accuracies for point in points):
        raise ValueError(
            "Figure 2 has no finished run to draw; make them with: fairmargin reproduce figure2"
        )
    places = {(point.method, point.rho, point.epsilon) for point in points}
    if len(places) < len(points):
        raise ValueError(
            "a method has two rows of the same ρ and ε; "
            "put the accuracies of all its seeds into one row"
        )
    for point in points:
        check_choice(point.method, "method of Figure 2", METHODS)


def _curve(ax: Axes, method: str, places: Sequence[float], points: Sequence[_Point | None]) -> bool:
    """Draw one method's line; return True if a point is missing in it."""
    colour, marker, dash = METHODS[method]
    means = [np.nan if p is None or p.mean is None else p.mean for p in points]
    bars = [0.0 if p is None or p.deviation is None else p.deviation for p in points]
    line = {"color": colour, "marker": marker, "linestyle": dash, "linewidth": 1.2, "markersize": 4}
    ax.errorbar(places, means, bars, capsize=2.5, elinewidth=0.9, **line)
    absent = [place for place, mean in zip(places, means, strict=True) if np.isnan(mean)]
    if absent:
        # x as data, y as a share of the panel.
        foot = ax.get_xaxis_transform()
        ax.plot(absent, [0.03] * len(absent), "x", color=colour, markersize=5, transform=foot)
    return bool(absent)


def _scale(ax: Axes, points: Sequence[_Point]) -> None:
    """Set limits around all bars, with room at the foot for the marks of missing points."""
    known = [(point.mean, point.deviation or 0.0) for point in points if point.mean is not None]
    low = min((mean - bar for mean, bar in known), default=0.0)
    high = max((mean + bar for mean, bar in known), default=100.0)
    spare = max(LEAST_SPAN - (high - low), 0) / 2 + 0.08 * (high - low)
    ax.set_ylim(low - spare - 0.1 * (high - low), high + spare)
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _methods_key(figure: Figure, missing: bool) -> None:
    handles = []
    for name, (colour, marker, dash) in METHODS.items():
        style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": dash}
        label = method_name(name)
        handles.append(Line2D([], [], linewidth=1.2, markersize=4.5, label=label, **style))
    if missing:
        style = {"color": FAINT, "marker": "x", "linestyle": "none"}
        handles.append(Line2D([], [], markersize=5, label="not run", **style))
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, frameon=False, handlelength=2.6
    )


@dataclass(frozen=True)
class _History:
    """Cosines of pairs of the test set, epoch by epoch. A sample is no pair with itself.

    Args:
        edges: [bins + 1]
        counts: [epochs, bins]
    """

    epochs: list[int]
    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    mean: list[float | None]

    @property
    def shares(self) -> NDArray[np.float64]:
        """[epochs, bins] of an epoch's pairs."""
        total: NDArray[np.int64] = self.counts.sum(1, keepdims=True)
        return self.counts / np.maximum(total, 1)

    @property
    def borders(self) -> NDArray[np.float64]:
        """[epochs + 1] borders between the epochs on the axis: half way to the next."""
        epochs = np.array(self.epochs, float)
        steps = np.diff(epochs) if len(epochs) > 1 else np.ones(1)
        first = epochs[0] - steps[0] / 2
        last = epochs[-1] + steps[-1] / 2
        between = epochs[:-1] + np.diff(epochs) / 2
        return np.concatenate([[first], between, [last]])


def figure_5(runs: Mapping[tuple[str, float], Run], folder: Path, *, budget: str = "") -> Drawn:
    """Draw the similarities of positives epoch by epoch, of ε-SupCon and ε-SupInfoNCE.

    There is a row for each ε, with bias-aligned positives left and bias-conflicting ones right.

    Args:
        runs: by method and ε, trained with evaluate.similarities=true. Where one is missing, the
            figure says "not run".
        budget: written below the picture: how the runs were trained.
    """
    if not runs:
        raise ValueError(
            "Figure 5 has no runs to draw; make them with: fairmargin reproduce figure5"
        )
    for method, _ in runs:
        check_choice(method, "method of Figure 5", METHODS)
    histories: dict[tuple[str, float, str], _History] = {}
    for (method, epsilon), run in runs.items():
        for name in SETS:
            histories[method, epsilon, name] = _history(run, name)
    epsilons = sorted({epsilon for _, epsilon in runs})
    lowest = min(_lowest_shown(history) for history in histories.values())
    with page(1.2 * len(epsilons) + 1.35) as figure:
        caption(figure, budget)
        parts: Any = figure.subfigures(1, 2, width_ratios=[1.08, 1])
        for part, name in zip(parts, SETS, strict=True):
            axes = part.subplots(len(epsilons), 2, sharex=True, sharey=True, squeeze=False)
            _similarity_panels(axes, epsilons, name, histories)
            axes[0, 0].set_ylim(np.floor(lowest * 4) / 4, 1)
            if part is parts[0]:
                for ax, epsilon in zip(axes[:, 0], epsilons, strict=True):
                    ax.set_ylabel(f"ε = {epsilon:g}\ncosine similarity")
            part.suptitle(SETS[name], fontsize=9)
            _colour_bar(part, axes, name)
        numbers = {"budget": budget, "panels": _panel_numbers(histories, runs)}
        return save(figure, folder, "figure5", numbers)


def _similarity_panels(
    axes: Any,
    epsilons: Sequence[float],
    name: str,
    histories: Mapping[tuple[str, float, str], _History],
) -> None:
    """Draw the panels of one set of pairs: a row for each ε, a column for each method."""
    for row, epsilon in zip(axes, epsilons, strict=True):
        for ax, method in zip(row, METHODS, strict=True):
            _heat(ax, histories.get((method, epsilon, name)), name)
    for ax, method in zip(axes[0], METHODS, strict=True):
        ax.set_title(method_name(method))
    for ax in axes[-1]:
        ax.set_xlabel("epoch")


def _colour_bar(part: Any, axes: Any, name: str) -> None:
    scale = ScalarMappable(LogNorm(FEWEST, 1), INKS[name])
    bar = part.colorbar(scale, ax=axes, location="bottom", aspect=34, shrink=0.8, pad=0.02)
    bar.set_ticks([1e-3, 1e-2, 1e-1, 1], labels=["0.1 %", "1 %", "10 %", "100 %"])
    bar.set_label("share of the epoch's pairs; line: their mean")
    bar.outline.set_visible(False)


def _lowest_shown(history: _History) -> float:
    """The lowest cosine that is coloured in some epoch."""
    coloured = (history.shares >= FEWEST).any(0)
    return float(history.edges[:-1][coloured].min(initial=0.0))


def _history(run: Run, name: str) -> _History:
    events = [event for event in run.evaluations() if event.get("similarity")]
    if not events:
        raise ValueError(
            f"{run.folder} holds no similarities by epoch. Train it with "
            "--set evaluate.similarities=true on data with bias labels, or make all runs of the "
            "figure with: fairmargin reproduce figure5"
        )
    sets = [event["similarity"]["sets"][name] for event in events]
    return _History(
        epochs=[event["epoch"] for event in events],
        edges=np.array(events[0]["similarity"]["edges"]),
        counts=np.array([one["counts"] for one in sets]),
        mean=[one["mean"] for one in sets],
    )


def _heat(ax: Axes, history: _History | None, name: str) -> None:
    """Draw the shares of cosines by epoch as colours, and their mean as a line."""
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    if history is None:
        ax.set_facecolor("#eceef0")
        ax.text(0.5, 0.5, "not run", transform=ax.transAxes, ha="center", va="center", color=INK)
        return
    shares = np.ma.masked_less(history.shares.T, FEWEST)  # [bins, epochs]
    colours: dict[str, Any] = {"norm": LogNorm(FEWEST, 1), "cmap": INKS[name]}
    ax.pcolormesh(history.borders, history.edges, shares, rasterized=True, **colours)
    means = zip(history.epochs, history.mean, strict=True)
    known = [(epoch, mean) for epoch, mean in means if mean is not None]
    outline = [withStroke(linewidth=2.4, foreground="white")]
    ax.plot(*zip(*known, strict=True), color="black", linewidth=0.9, path_effects=outline)


def _panel_numbers(
    histories: Mapping[tuple[str, float, str], _History], runs: Mapping[tuple[str, float], Run]
) -> list[dict[str, Any]]:
    panels = []
    for (method, epsilon, name), history in histories.items():
        panel = {
            "method": method,
            "epsilon": epsilon,
            "set": name,
            "run": runs[method, epsilon].folder.name,
            "epochs": history.epochs,
            "mean": history.mean,
            "edges": history.edges.round(6).tolist(),
            "counts": history.counts.tolist(),
        }
        panels.append(panel)
    return panels
