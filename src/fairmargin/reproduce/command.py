"""What `fairmargin reproduce` does: run cells, draw figures, keep the ledger."""

from collections.abc import Sequence
from pathlib import Path

from fairmargin.checks import check_choice
from fairmargin.networks.native import library
from fairmargin.reproduce import budgets, campaign, estimate, files, ledger, pages, show, weights
from fairmargin.reproduce.budgets import Budget
from fairmargin.reproduce.campaign import Task
from fairmargin.reproduce.cells import EVERYTHING, FIGURES, STUDY, Cell, cells
from fairmargin.reproduce.figures import curves, drawing
from fairmargin.reproduce.ledger import Say
from fairmargin.reproduce.readings import DEFAULT_READINGS, READINGS
from fairmargin.runs import build
from fairmargin.runtime.terminal import Console
from fairmargin.runtime.whole import write_atomically
from fairmargin.sweep.base import Engine
from fairmargin.sweep.local import HERE

LEDGER = "ledger"
WEIGHTS = "weights"
WHAT = ("all", *EVERYTHING, LEDGER, WEIGHTS)
# Seeds of each cell unless their number is given.
SEEDS: dict[Budget, int] = {"paper": 3, "laptop": 1, "smoke": 1}


def default_seeds(budget: str) -> int:
    """Return how many seeds a cell has under this budget unless their number is given."""
    return SEEDS[budgets.parse(budget)]


def chosen(what: str, pattern: str | None, reading: str | None) -> list[Cell]:
    """Return the cells to run.

    Args:
        what: a table, a figure, "fairkl" or "all".
        pattern: that the cells' names match, if given. Several, separated by commas, give their
            cells in this order. One with "@" may match every reading.
        reading: comma-separated readings of FairKL; by default those of `DEFAULT_READINGS`.
    """
    readings = _words(reading) if reading is not None else DEFAULT_READINGS
    if pattern is None:
        return cells(what, readings=readings)
    found: list[Cell] = []
    for one in _words(pattern) or [pattern]:
        any_reading = reading is None and "@" in one
        matching = cells(what, pattern=one, readings=tuple(READINGS) if any_reading else readings)
        found += [cell for cell in matching if cell not in found]
    return found


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def reproduce(
    what: str,
    *,
    budget: str,
    seeds: Sequence[int],
    pattern: str | None,
    reading: str | None,
    dry_run: bool,
    out: Path,
    extra: Sequence[str],
    command: Sequence[str],
    say: Say,
    engine: Engine = HERE,
) -> list[str]:
    """Run the chosen cells, print their table and draw their figures. Finished runs are only read.

    Args:
        pattern, reading: see `chosen`.
        dry_run: only print what would run, and the estimated time.
        out: the folder of all runs.
        extra: changes of the configuration that every cell gets, such as "data.root=…"
        command: recorded in the run folders.
        engine: where runs run; by default one after another in this process.

    Returns:
        What could not be run or drawn, and why.
    """
    check_choice(what, "table or figure", WHAT)
    chosen_budget = budgets.parse(budget)
    wanted = chosen(what, pattern, reading)
    tasks = campaign.plan(wanted, chosen_budget, seeds, out, extra=extra, command=command)
    if _kernels_would_help(tasks):
        say(f"{library.VARIABLE}=1 trains this network faster (docs/performance.md)")
    if dry_run:
        _print_plan(tasks, out, say)
        return []
    outcomes = list(campaign.run_tasks(tasks, say, engine))
    failed = [f"{outcome.task}: {outcome.failure}" for outcome in outcomes if outcome.failure]
    if tasks:
        Console().print(show.table(wanted, out, chosen_budget))
    for figure in FIGURES:
        if what in ("all", figure):
            failed += _draw(figure, out, chosen_budget, say)
    if what == STUDY:
        say(show.study(out, chosen_budget) or f"no run of {STUDY} is finished")
    return failed


def _kernels_would_help(tasks: Sequence[Task]) -> bool:
    """Whether a run is still to be made that the kernels are for, and nobody asked for them."""
    if library.is_wanted() or not library.can_compile():
        return False
    for task in tasks:
        config = task.cell.config(task.budget, task.seed, task.extra)
        if task.budget == "smoke" or config.network.name != "simple-conv-7" or task.finished:
            continue
        return build.device(config.train.device).type == "cpu"
    return False


def _print_plan(tasks: Sequence[Task], out: Path, say: Say) -> None:
    missing = [task for task in tasks if not task.finished]
    times = estimate.estimates(missing, out.absolute() / "stand-in")
    Console().print(show.planned(tasks, times))
    total = show.duration(sum(one.seconds for one in times.values()))
    say(f"{len(missing)} of {len(tasks)} runs, {total} of training one after the other")


def _draw(figure: str, out: Path, budget: Budget, say: Say) -> list[str]:
    """Draw a figure; return why it could not be drawn, as a list of at most one sentence."""
    try:
        say(f"{figure}: {drawing.draw(figure, out, budget, say).png}")
    except ValueError as error:
        return [f"{figure}: {error}"]
    return []


def write_configs(
    what: str, *, pattern: str | None, reading: str | None, folder: Path, say: Say
) -> None:
    """Write the chosen cells as configuration files that `fairmargin train` takes.

    Args:
        pattern, reading: see `chosen`.
    """
    check_choice(what, "table or figure", ("all", *EVERYTHING))
    written = files.write(chosen(what, pattern, reading), folder)
    if not written:
        raise ValueError(
            f"{what} has no cell to write: its figure is drawn without runs, or --cell matches none"
        )
    say(
        f"{len(written)} configurations below {folder}; run one with: fairmargin train {written[0]}"
    )


def keep_ledger(out: Path, folder: Path, readme: Path | None, say: Say) -> None:
    """Renew the ledger from the runs under `out` and the lines it already has.

    Args:
        folder: where ledger.csv, ledger.md and the curves are.
        readme: a README whose results table is renewed as well, if given.
    """
    lines = ledger.merged(ledger.read(folder / "ledger.csv"), ledger.collect(out, say))
    pages.write(folder, lines)
    with_runs = sum(bool(line.budget) for line in lines)
    say(f"ledger: {folder / 'ledger.md'}, {with_runs} of {len(lines)} lines with runs")
    courses = curves.merged(curves.read(folder), curves.collect(out))
    if courses:
        say(f"runs at the published protocol: {curves.draw(courses, folder).png}")
    if readme is not None:
        text = readme.read_text("utf-8")
        write_atomically(readme, pages.into_readme(text, lines).encode())


def keep_weights(out: Path, folder: Path, say: Say) -> None:
    """Keep the last weights of finished runs at the published protocol.

    Args:
        out: the folder of all runs.
        folder: of the kept runs.
    """
    if not weights.keep(out, folder, say):
        say(f"no run at the published protocol is finished below {out}")
