"""Figures 2 and 5 of the paper, from measured runs: each as SVG, PNG and the numbers it shows."""

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
from fairmargin.report.runs import method_name
from fairmargin.reproduce.figures.picture import (
    FAINT,
    INK,
    Drawn,
    caption,
    open_frame,
    page,
    save,
)
from fairmargin.runs.record import RunRecord

METHODS: dict[str, tuple[str, str, Any]] = {  # colour, marker, line
    "eps-supcon": ("#0072b2", "o", "--"),
    "eps-supinfonce": ("#d55e00", "s", "-"),
}
LEAST_SPAN = 4.0  # per cent on an axis of accuracies, so that noise does not look like an effect
SETS = {
    "positive-aligned": "bias-aligned positives",
    "positive-conflicting": "bias-conflicting positives",
}
INKS = {  # from few pairs to many
    "positive-aligned": LinearSegmentedColormap.from_list(
        "aligned", ["#f1f6fc", "#6a9fd8", "#2f6db5", "#0d2748"]
    ),
    "positive-conflicting": LinearSegmentedColormap.from_list(
        "conflict", ["#fff5ea", "#f3a65c", "#c8620f", "#4d2203"]
    ),
}
FEWEST = 1e-3  # share of an epoch's pairs that is still coloured


@dataclass(frozen=True)
class Row:
    """A point of Figure 2: the accuracies of a method's seeds, as fractions; none: not run."""

    method: str
    rho: float
    epsilon: float
    accuracies: Sequence[float]


@dataclass(frozen=True)
class _Point:
    """In per cent. The deviation is that of a sample, n − 1, and needs two seeds."""

    method: str
    rho: float
    epsilon: float
    accuracies: list[float]
    mean: float | None
    deviation: float | None

    @staticmethod
    def of(row: Row) -> "_Point":
        if bad := [a for a in row.accuracies if not 0 <= a <= 1]:
            raise ValueError(
                f"accuracies are fractions from 0 to 1; {row.method} at ρ = {row.rho:g}, ε = {row.epsilon:g} has {bad[0]:g}"
            )
        percent = [100 * a for a in row.accuracies]
        mean = statistics.fmean(percent) if percent else None
        deviation = statistics.stdev(percent) if len(percent) > 1 else None
        return _Point(row.method, row.rho, row.epsilon, percent, mean, deviation)


def figure_2(rows: Sequence[Row], folder: Path, *, budget: str) -> Drawn:
    """Accuracy against ε for ε-SupCon and ε-SupInfoNCE, a panel for each ρ: mean and sample deviation over seeds.

    `budget` says under the picture how the runs were trained and with which seeds. A point without accuracies is left out
    of its line and marked at the foot of the panel.
    """
    points = [_Point.of(row) for row in rows]
    if not any(point.accuracies for point in points):
        raise ValueError(
            "Figure 2 has no finished run to draw; make them with: fairmargin reproduce figure2"
        )
    at = {(point.method, point.rho, point.epsilon): point for point in points}
    if len(at) < len(points):
        raise ValueError(
            "a method has two rows of the same ρ and ε; put the accuracies of all its seeds into one"
        )
    for point in points:
        check_choice(point.method, "method of Figure 2", METHODS)
    rhos, epsilons = (
        sorted({point.rho for point in points}),
        sorted({point.epsilon for point in points}),
    )
    with page(2.75) as figure:
        axes = figure.subplots(1, len(rhos), squeeze=False)[0]
        missing = False
        for ax, rho in zip(axes, rhos, strict=True):
            for method, shift in zip(
                METHODS, (-0.008, 0.008), strict=True
            ):  # bars stand beside each other
                found = [at.get((method, rho, epsilon)) for epsilon in epsilons]
                places = [
                    epsilon + shift * (epsilons[-1] - epsilons[0] or 1) for epsilon in epsilons
                ]
                missing |= _curve(ax, method, places, found)
            _scale(ax, [point for point in points if point.rho == rho])
            ax.set(
                title=f"ρ = {rho:g}",
                xlabel="margin ε",
                xticks=epsilons,
                xticklabels=[f"{e:g}" for e in epsilons],
            )
            open_frame(ax)
        axes[0].set_ylabel("unbiased accuracy (%)")
        _methods_key(figure, missing)
        caption(figure, budget)
        return save(
            figure,
            folder,
            "figure2",
            {"budget": budget, "points": [vars(point) for point in points]},
        )


def _curve(ax: Axes, method: str, places: Sequence[float], points: Sequence[_Point | None]) -> bool:
    """One method's line; True if a point is missing in it."""
    colour, marker, dash = METHODS[method]
    means = [np.nan if p is None or p.mean is None else p.mean for p in points]
    bars = [0.0 if p is None or p.deviation is None else p.deviation for p in points]
    ax.errorbar(
        places,
        means,
        bars,
        color=colour,
        marker=marker,
        linestyle=dash,
        linewidth=1.2,
        markersize=4,
        capsize=2.5,
        elinewidth=0.9,
    )
    absent = [place for place, mean in zip(places, means, strict=True) if np.isnan(mean)]
    if absent:
        foot = ax.get_xaxis_transform()  # x as data, y as a share of the panel
        ax.plot(absent, [0.03] * len(absent), "x", color=colour, markersize=5, transform=foot)
    return bool(absent)


def _scale(ax: Axes, points: Sequence[_Point]) -> None:
    """Limits around all bars, at least LEAST_SPAN apart, with room at the foot for missing points."""
    known = [(p.mean, p.deviation or 0.0) for p in points if p.mean is not None]
    low = min((mean - bar for mean, bar in known), default=0.0)
    high = max((mean + bar for mean, bar in known), default=100.0)
    spare = max(LEAST_SPAN - (high - low), 0) / 2 + 0.08 * (high - low)
    ax.set_ylim(low - spare - 0.1 * (high - low), high + spare)
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _methods_key(figure: Figure, missing: bool) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=colour,
            marker=marker,
            linestyle=dash,
            linewidth=1.2,
            markersize=4.5,
            label=method_name(name),
        )
        for name, (colour, marker, dash) in METHODS.items()
    ]
    if missing:
        handles.append(
            Line2D([], [], color=FAINT, marker="x", linestyle="none", markersize=5, label="not run")
        )
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, frameon=False, handlelength=2.6
    )


@dataclass(frozen=True)
class _History:
    """Cosines of a set of pairs of the test set, epoch by epoch. A sample is no pair with itself."""

    epochs: list[int]
    edges: NDArray[np.float64]  # [bins + 1]
    counts: NDArray[np.int64]  # [epochs, bins]
    mean: list[float | None]

    @property
    def shares(self) -> NDArray[np.float64]:
        total: NDArray[np.int64] = self.counts.sum(1, keepdims=True)
        return self.counts / np.maximum(total, 1)

    @property
    def between(self) -> NDArray[np.float64]:
        """Edges of the epochs: half way to the next."""
        epochs = np.array(self.epochs, float)
        steps = np.diff(epochs) if len(epochs) > 1 else np.ones(1)
        return np.concatenate(
            [
                [epochs[0] - steps[0] / 2],
                epochs[:-1] + np.diff(epochs) / 2,
                [epochs[-1] + steps[-1] / 2],
            ]
        )


def figure_5(
    runs: Mapping[tuple[str, float], RunRecord], folder: Path, *, budget: str = ""
) -> Drawn:
    """Similarity of positives epoch by epoch, bias-aligned and bias-conflicting, of ε-SupCon and ε-SupInfoNCE.

    `runs` by method and ε, trained with evaluate.similarities=true; a row for each ε, "not run" where there is none.
    """
    if not runs:
        raise ValueError(
            "Figure 5 has no runs to draw; make them with: fairmargin reproduce figure5"
        )
    for method, _ in runs:
        check_choice(method, "method of Figure 5", METHODS)
    histories = {(*key, name): _history(run, name) for key, run in runs.items() for name in SETS}
    epsilons = sorted({epsilon for _, epsilon in runs})
    lowest = min(
        float(h.edges[:-1][(h.shares >= FEWEST).any(0)].min(initial=0.0))
        for h in histories.values()
    )
    with page(1.2 * len(epsilons) + 1.35) as figure:
        caption(figure, budget)
        parts: Any = figure.subfigures(1, 2, width_ratios=[1.08, 1])
        for part, name in zip(parts, SETS, strict=True):
            part.suptitle(SETS[name], fontsize=9)
            axes = part.subplots(len(epsilons), 2, sharex=True, sharey=True, squeeze=False)
            for row, epsilon in zip(axes, epsilons, strict=True):
                for ax, method in zip(row, METHODS, strict=True):
                    _heat(ax, histories.get((method, epsilon, name)), name)
            for ax, method in zip(axes[0], METHODS, strict=True):
                ax.set_title(method_name(method))
            for ax in axes[-1]:
                ax.set_xlabel("epoch")
            axes[0, 0].set_ylim(np.floor(lowest * 4) / 4, 1)
            if part is parts[0]:
                for ax, epsilon in zip(axes[:, 0], epsilons, strict=True):
                    ax.set_ylabel(f"ε = {epsilon:g}\ncosine similarity")
            scale = ScalarMappable(LogNorm(FEWEST, 1), INKS[name])
            bar = part.colorbar(scale, ax=axes, location="bottom", aspect=34, shrink=0.8, pad=0.02)
            bar.set_ticks([1e-3, 1e-2, 1e-1, 1], labels=["0.1 %", "1 %", "10 %", "100 %"])
            bar.set_label("share of the epoch's pairs; line: their mean")
            bar.outline.set_visible(False)
        return save(
            figure, folder, "figure5", {"budget": budget, "panels": _panels(histories, runs)}
        )


def _history(run: RunRecord, name: str) -> _History:
    events = [event for event in run.evaluations() if event.get("similarity")]
    if not events:
        raise ValueError(
            f"{run.path} holds no similarities by epoch. Train it with --set evaluate.similarities=true on data with bias "
            "labels, or make all runs of the figure with: fairmargin reproduce figure5"
        )
    sets = [event["similarity"]["sets"][name] for event in events]
    edges = np.array(events[0]["similarity"]["edges"])
    counts = np.array([one["counts"] for one in sets])
    return _History(
        [event["epoch"] for event in events], edges, counts, [one["mean"] for one in sets]
    )


def _heat(ax: Axes, history: _History | None, name: str) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    if history is None:
        ax.set_facecolor("#eceef0")
        ax.text(0.5, 0.5, "not run", transform=ax.transAxes, ha="center", va="center", color=INK)
        return
    shares = np.ma.masked_less(history.shares.T, FEWEST)  # [bins, epochs]
    ax.pcolormesh(
        history.between,
        history.edges,
        shares,
        norm=LogNorm(FEWEST, 1),
        cmap=INKS[name],
        rasterized=True,
    )
    known = [
        (epoch, mean)
        for epoch, mean in zip(history.epochs, history.mean, strict=True)
        if mean is not None
    ]
    outline = [withStroke(linewidth=2.4, foreground="white")]
    ax.plot(*zip(*known, strict=True), color="black", linewidth=0.9, path_effects=outline)


def _panels(
    histories: Mapping[tuple[str, float, str], _History],
    runs: Mapping[tuple[str, float], RunRecord],
) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "epsilon": epsilon,
            "set": name,
            "run": runs[method, epsilon].path.name,
            "epochs": history.epochs,
            "mean": history.mean,
            "edges": history.edges.round(6).tolist(),
            "counts": history.counts.tolist(),
        }
        for (method, epsilon, name), history in histories.items()
    ]
