"""`fairmargin reproduce`: run cells, draw figures, keep the ledger."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fairmargin.checks import check_choice
from fairmargin.reproduce import (
    budgets,
    campaign,
    estimate,
    files,
    ledger,
    pages,
    show,
)
from fairmargin.reproduce.cells import DEFAULT_READINGS, EVERYTHING, FIGURES, STUDY, Cell, cells
from fairmargin.reproduce.figures import curves, drawing
from fairmargin.reproduce.ledger import Say
from fairmargin.runtime.files import write_atomically
from fairmargin.sweep.base import Engine
from fairmargin.sweep.local import HERE

WHAT = ("all", *EVERYTHING, "ledger")
SEEDS = {"paper": 3, "laptop": 1, "smoke": 1}  # unless told otherwise


def chosen(what: str, pattern: str | None, reading: str | None) -> list[Cell]:
    """The cells to run: of the readings named, of all readings that `pattern` names, or of the default ones."""
    if reading is not None:
        readings = [name.strip() for name in reading.split(",") if name.strip()]
        return cells(what, pattern=pattern, readings=readings)
    if pattern is not None and "@" in pattern:
        return cells(what, pattern=pattern)
    return cells(what, pattern=pattern, readings=DEFAULT_READINGS)


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
    """What could not be run or drawn, and why. Finished cells are only read."""
    check_choice(what, "table or figure", WHAT)
    check_choice(budget, "budget", budgets.BUDGETS)
    wanted = chosen(what, pattern, reading)
    tasks = campaign.plan(wanted, budget, seeds, out, extra=extra, command=command)
    if dry_run:
        missing = [task for task in tasks if not task.finished]
        times = estimate.estimates(missing, out.absolute() / "stand-in")
        Console().print(show.planned(tasks, times))
        whole = show.duration(sum(one.seconds for one in times.values()))
        say(f"{len(missing)} of {len(tasks)} runs, {whole} of training one after the other")
        return []
    outcomes = list(campaign.run_tasks(tasks, say, engine))
    failed = [f"{outcome.task}: {outcome.failure}" for outcome in outcomes if outcome.failure]
    if tasks:
        Console().print(show.table(wanted, out, budget))
    for figure in FIGURES if what == "all" else [what] if what in FIGURES else []:
        try:
            say(f"{figure}: {drawing.draw(figure, out, budget, say).png}")
        except ValueError as error:
            failed.append(f"{figure}: {error}")
    if what == STUDY:
        say(show.study(out, budget) or f"nothing of {STUDY} is finished")
    return failed


def write_configs(
    what: str, *, pattern: str | None, reading: str | None, folder: Path, say: Say
) -> None:
    """Write the chosen cells as configuration files that `fairmargin train` takes."""
    check_choice(what, "table or figure", ("all", *EVERYTHING))
    written = files.write(chosen(what, pattern, reading), folder)
    if not written:
        raise ValueError(
            f"{what} has no cell to write; its figure is drawn without runs, or --cell matches none"
        )
    say(
        f"{len(written)} configurations below {folder}; run one with: fairmargin train {written[0]}"
    )


def keep_ledger(out: Path, folder: Path, readme: Path | None, say: Say) -> None:
    """Write the ledger from the runs under `out` and the lines it has; and the README's table."""
    lines = ledger.merged(ledger.read(folder / "ledger.csv"), ledger.collect(out, say))
    pages.write(folder, lines)
    say(
        f"ledger: {folder / 'ledger.md'}, {sum(bool(line.budget) for line in lines)} of {len(lines)} lines with runs"
    )
    if courses := curves.merged(curves.read(folder), curves.collect(out)):
        say(f"runs at the published protocol: {curves.draw(courses, folder).png}")
    if readme is not None:
        text = readme.read_text("utf-8")
        write_atomically(readme, pages.into_readme(text, lines).encode())
