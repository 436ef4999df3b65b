"""The paper's figures from run records."""

from pathlib import Path

from fairmargin.reproduce import budgets
from fairmargin.reproduce.cells import cells
from fairmargin.reproduce.figures import measured
from fairmargin.reproduce.figures.illustrations import figure_1, figure_3, figure_4
from fairmargin.reproduce.figures.picture import Drawn
from fairmargin.reproduce.ledger import Say, finished_or_all, runs_as_planned

ILLUSTRATIONS = {"figure1": figure_1, "figure3": figure_3, "figure4": figure_4}


def draw(figure: str, out: Path, budget: str, say: Say = lambda _: None) -> Drawn:
    """Into OUT/figures. Of Figures 2 and 5 whatever was run as planned, and what was not is marked."""
    if figure in ILLUSTRATIONS:
        return ILLUSTRATIONS[figure](out / "figures")
    folder = out / "figures" / budget
    return (_sweep if figure == "figure2" else _histograms)(folder, out, budget, say)


def _sweep(folder: Path, out: Path, budget: str, say: Say) -> Drawn:
    rows, seeds = [], set()
    for cell in cells("figure2"):
        found = [
            one for one in finished_or_all(runs_as_planned(cell, out, budget, say)) if one.whole
        ]
        seeds |= {one.seed for one in found}
        rho, epsilon = cell.config(budget, 0).data.options["rho"], cell.settings["method.epsilon"]
        rows.append(measured.Row(cell.method, rho, epsilon, [one.last / 100 for one in found]))
    return measured.figure_2(rows, folder, budget=_caption("figure2", budget, len(seeds)))


def _histograms(folder: Path, out: Path, budget: str, say: Say) -> Drawn:
    runs = {}
    for cell in cells("figure5"):
        if records := [
            record for record in runs_as_planned(cell, out, budget, say) if record.finished
        ]:
            runs[cell.method, cell.settings["method.epsilon"]] = records[0]
    return measured.figure_5(runs, folder, budget=_caption("figure5", budget, 1))


def _caption(figure: str, budget: str, seeds: int) -> str:
    how = budgets.note(budget, figure, "biased-mnist")
    return f"budget {budget}{f': {how}' if how else ''}; {seeds} seed{'s' if seeds != 1 else ''}"
