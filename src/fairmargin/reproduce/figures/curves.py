"""Test accuracy by epoch of the runs at the published protocol, and its numbers, for the ledger.

Such a run takes hours and may continue later or on another machine: its curve is replaced when the
run is at hand and stays as it was when it is not.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fairmargin.report.runs import method_name
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.figures.picture import FAINT, Drawn, caption, open_frame, page, save
from fairmargin.reproduce.ledger import runs_as_planned
from fairmargin.reproduce.measures import evaluated, measured
from fairmargin.reproduce.published import as_printed
from fairmargin.runs.folder import RunRecord

NAME = "curves"
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
CAPTION = (
    "budget paper: the published protocol. Every evaluation is shown, and nothing was chosen by "
    "it. Dotted: the paper."
)
# Published numbers beside a panel are at least as far apart, in percent.
APART = 8.0


@dataclass(frozen=True)
class Curve:
    """Test accuracies of one run, in percent.

    Args:
        cell: its name.
        epochs: after which the run was evaluated.
        accuracies: one for each of them.
        of_epochs: that the run has when it is finished.
        published: the number that the paper prints.
    """

    cell: str
    seed: int
    epochs: list[int]
    accuracies: list[float]
    of_epochs: int
    published: float

    @property
    def run(self) -> tuple[str, int]:
        """What tells this run from others: cell and seed."""
        return self.cell, self.seed

    @property
    def panel(self) -> str:
        """The data and the setting: "biased-mnist, ρ = 0.99"."""
        dataset, setting, _, _ = _parts(self.cell)
        shown = setting.replace("rho=", "ρ = ").replace("ratio_pct=", "ratio in % = ")
        return f"{dataset}, {shown}" if shown else dataset

    @property
    def series(self) -> str:
        """The method, its reading and its seed: "ε-SupInfoNCE + FairKL, authors"."""
        _, _, method, reading = _parts(self.cell)
        seed = f"seed {self.seed}" if self.seed else ""
        return ", ".join(filter(None, (method_name(method), reading, seed)))


def _parts(cell: str) -> tuple[str, str, str, str]:
    """Dataset, setting, method and reading of a cell's name; what it does not have is empty."""
    dataset, _, rest = cell.partition("/")
    name, _, reading = rest.partition("@")
    method, _, setting = name.partition(":")
    return dataset, setting, method, reading


def collect(out: Path) -> list[Curve]:
    """Return the curve of each run under `out` at the published protocol.

    Cells without a published number and runs before their first evaluation have none.

    Args:
        out: the folder of all runs.
    """
    found = []
    for cell in cells("all"):
        if not cell.published:
            continue
        for record in runs_as_planned(cell, out, "paper"):
            curve = _curve(cell, record)
            if curve.epochs:
                found.append(curve)
    return found


def _curve(cell: Cell, record: RunRecord) -> Curve:
    found = evaluated(record)
    run = measured(record)
    return Curve(
        cell=cell.name,
        seed=int(record.config["seed"]),
        epochs=[epoch for epoch, _ in found],
        accuracies=[round(100 * value, 2) for _, value in found],
        of_epochs=run.of_epochs if run else 0,
        published=cell.published[0].mean,
    )


def merged(old: Sequence[Curve], new: Sequence[Curve]) -> list[Curve]:
    """Return all curves, sorted by run. New ones replace old ones of the same run.

    Args:
        old: as they were read from a file.
        new: of the runs at hand.
    """
    known = {curve.run: curve for curve in (*old, *new)}
    return [known[run] for run in sorted(known)]


def read(folder: Path) -> list[Curve]:
    """Return the curves whose numbers are in a folder; none if there is no file."""
    file = folder / f"{NAME}.json"
    if not file.is_file():
        return []
    return [Curve(**curve) for curve in json.loads(file.read_text("utf-8"))]


def draw(curves: Sequence[Curve], folder: Path) -> Drawn:
    """Draw a line for each run over all its planned epochs, and one at the published number.

    Data and settings, such as ρ, have a panel each.

    Args:
        folder: for the three files of the figure.
    """
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.panel, []).append(curve)
    names = dict.fromkeys(curve.series for curve in curves)
    colours = dict(zip(names, itertools.cycle(COLOURS)))
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    with page(0.6 + 2.3 * rows) as figure:
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for ax, title in itertools.zip_longest(axes, sorted(panels)):
            if title is None:
                ax.set_axis_off()
                continue
            for curve in panels[title]:
                _draw_curve(ax, curve, colours[curve.series])
            _draw_published(ax, panels[title], colours)
            _finish_panel(ax, title, max(curve.of_epochs for curve in panels[title]))
        lines = [Line2D([], [], color=colours[name], marker="o", markersize=3) for name in names]
        figure.legend(lines, names, loc="outside upper center", ncols=2, frameon=False)
        caption(figure, CAPTION)
        return save(figure, folder, NAME, [asdict(curve) for curve in curves])


def _draw_curve(ax: Axes, curve: Curve, colour: str) -> None:
    latest = f"{curve.accuracies[-1]:.1f} after {curve.epochs[-1]} of {curve.of_epochs}"
    line: dict[str, Any] = {"color": colour, "markersize": 1.8, "linewidth": 1.0}
    ax.plot(curve.epochs, curve.accuracies, "o-", label=latest, **line)


def _draw_published(ax: Axes, curves: Sequence[Curve], colours: Mapping[str, str]) -> None:
    """A dotted line at each published number, in the colour of its run if it is only one's."""
    shares: dict[float, list[Curve]] = {}
    for curve in curves:
        shares.setdefault(curve.published, []).append(curve)
    # x as a share of the panel, y as data.
    place: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "va": "center"}
    room = math.inf
    for published in sorted(shares, reverse=True):
        mine = shares[published]
        colour = colours[mine[0].series] if len(mine) == 1 else FAINT
        ax.axhline(published, color=colour, linewidth=0.7, linestyle=(0, (2, 3)))
        at = min(published, room)
        ax.text(1.01, at, as_printed(published), fontsize=6.5, color=colour, **place)
        room = at - APART


def _finish_panel(ax: Axes, title: str, epochs: int) -> None:
    ax.set(title=title, xlabel="epoch", ylabel="test accuracy (%)", ylim=(0, 104), xlim=(0, epochs))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, loc="lower right", fontsize=7, handlelength=1.4)
    open_frame(ax)
