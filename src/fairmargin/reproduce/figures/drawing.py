"""Draw the paper's figures; Figures 2 and 5 from run records."""

from pathlib import Path

from fairmargin.reproduce import budgets
from fairmargin.reproduce.budgets import Budget
from fairmargin.reproduce.cells import cells
from fairmargin.reproduce.figures import measured
from fairmargin.reproduce.figures.deviations import figure_4
from fairmargin.reproduce.figures.illustrations import figure_1, figure_3
from fairmargin.reproduce.figures.picture import Drawn
from fairmargin.reproduce.ledger import Say, finished_or_all, runs_as_planned

ILLUSTRATIONS = {"figure1": figure_1, "figure3": figure_3, "figure4": figure_4}


def draw(figure: str, out: Path, budget: Budget, say: Say = lambda _: None) -> Drawn:
    """Draw "figure1" … "figure5" into OUT/figures.

    Figures 2 and 5 show the finished runs that were made as planned, and mark what is missing.

    Args:
        out: the folder of all runs.
        say: told of runs that are left out.
    """
    if figure in ILLUSTRATIONS:
        return ILLUSTRATIONS[figure](out / "figures")
    folder = out / "figures" / budget
    if figure == "figure2":
        return _sweep(folder, out, budget, say)
    return _histograms(folder, out, budget, say)


def _sweep(folder: Path, out: Path, budget: Budget, say: Say) -> Drawn:
    rows = []
    seeds = set()
    for cell in cells("figure2"):
        if budgets.left_out(budget, cell.table, cell.setting):
            continue
        records = runs_as_planned(cell, out, budget, say)
        runs = [run for run in finished_or_all(records) if run.whole]
        seeds |= {run.seed for run in runs}
        rho = cell.config(budget, 0).data.options["rho"]
        epsilon = cell.settings["method.epsilon"]
        rows.append(measured.Row(cell.method, rho, epsilon, [run.last / 100 for run in runs]))
    return measured.figure_2(rows, folder, budget=_caption(budget, len(seeds)))


def _histograms(folder: Path, out: Path, budget: Budget, say: Say) -> Drawn:
    runs = {}
    for cell in cells("figure5"):
        records = runs_as_planned(cell, out, budget, say)
        finished = [record for record in records if record.finished]
        if finished:
            runs[cell.method, cell.settings["method.epsilon"]] = finished[0]
    return measured.figure_5(runs, folder, budget=_caption(budget, 1))


def _caption(budget: Budget, seeds: int) -> str:
    how = budgets.note(budget, "biased-mnist")
    reduced = f": {how}" if how else ""
    plural = "" if seeds == 1 else "s"
    return f"budget {budget}{reduced}; {seeds} seed{plural}"
