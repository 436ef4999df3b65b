"""Test accuracy by epoch of the runs at the published protocol: a picture beside the ledger, and its numbers.

Such a run takes hours and may go on later, or elsewhere: its curve is replaced when the run is at hand and stays as it was
when it is not.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.figures.picture import (
    FAINT,
    Drawn,
    caption,
    open_frame,
    page,
    save,
)
from fairmargin.reproduce.ledger import runs_as_planned
from fairmargin.reproduce.measures import evaluated, measured
from fairmargin.reproduce.published import as_printed
from fairmargin.runs.folder import RunRecord

NAME = "curves"
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Curve:
    """Of one run, in percent."""

    cell: str
    seed: int
    epochs: list[int]  # after which it was evaluated
    accuracies: list[float]
    of_epochs: int
    published: float

    @property
    def run(self) -> tuple[str, int]:
        return self.cell, self.seed


def collect(out: Path) -> list[Curve]:
    """Of each cell with a published number that was begun at the published protocol."""
    every = (
        (cell, record)
        for cell in cells("all")
        if cell.published
        for record in runs_as_planned(cell, out, "paper")
    )
    return [curve for cell, record in every if (curve := _curve(cell, record)).epochs]


def _curve(cell: Cell, record: RunRecord) -> Curve:
    found, run = evaluated(record), measured(record)
    accuracies = [round(100 * value, 2) for _, value in found]
    facts = run.of_epochs if run else 0, cell.published[0].mean
    return Curve(
        cell.name, int(record.config["seed"]), [epoch for epoch, _ in found], accuracies, *facts
    )


def merged(old: Sequence[Curve], new: Sequence[Curve]) -> list[Curve]:
    known = {curve.run: curve for curve in (*old, *new)}
    return [known[run] for run in sorted(known)]


def read(folder: Path) -> list[Curve]:
    file = folder / f"{NAME}.json"
    return (
        [Curve(**curve) for curve in json.loads(file.read_text("utf-8"))] if file.is_file() else []
    )


def draw(curves: Sequence[Curve], folder: Path) -> Drawn:
    """A line for each run over the epochs that it is to have, and one where the paper's number is."""
    with page(2.8 + 0.2 * len(curves)) as figure:
        ax = figure.subplots()
        for index, curve in enumerate(curves):
            colour, last = COLOURS[index % len(COLOURS)], f"{curve.accuracies[-1]:.1f} %"
            label = f"{curve.cell}, seed {curve.seed}: {last} after {curve.epochs[-1]} of {curve.of_epochs} epochs"
            ax.plot(
                curve.epochs,
                curve.accuracies,
                "o-",
                color=colour,
                markersize=2.5,
                linewidth=1.2,
                label=label,
            )
            ax.axhline(curve.published, color=colour, linewidth=0.7, linestyle=(0, (2, 3)))
            ax.text(
                1.005, curve.published, f"paper {as_printed(curve.published)}", transform=ax.get_yaxis_transform(),
                fontsize=7, color=FAINT, va="center",
            )  # fmt: skip
        ax.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(0, 104))
        ax.set_xlim(0, max((curve.of_epochs for curve in curves), default=1))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1.01), borderaxespad=0)
        open_frame(ax)
        caption(
            figure,
            "budget paper: the published protocol. Every evaluation is shown, and nothing was chosen by it.",
        )
        return save(figure, folder, NAME, [asdict(curve) for curve in curves])
