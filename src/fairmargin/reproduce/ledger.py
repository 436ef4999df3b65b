"""The ledger: each published number beside ours, with a verdict. Kept as CSV; `pages` shows it.

Runs may come from several machines and times: a line is replaced when runs of its cell are at hand
and stays as it was when they are not. Verdicts are found anew each time, from all lines:

reproduced      the published protocol gives the published number, within `Published.band`
near            a reduced protocol gives it, within three points or the band if that is wider
order only      the number is another; but every method that the paper puts clearly above or below
                this one, and that was run in the same way, is on the same side of it here
not reproduced  the number is another, and there is no such method or one is on the other side
not judged      not finished
not run         there is no run; the note says why

Behind *near*, *order only* and *not reproduced* stands how many of those methods are on their side,
and whether the best epoch on the test set, which the authors' code reports, would have been within
the band.
"""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fairmargin.config import load_resolved
from fairmargin.reproduce import budgets
from fairmargin.reproduce.budgets import Budget
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.measures import Measured, measured
from fairmargin.reproduce.published import Published
from fairmargin.runs.build import changed
from fairmargin.runs.folder import CONFIG, RunRecord, is_run

Say = Callable[[str], None]
# Budgets whose accuracies mean something.
KEPT: tuple[Budget, ...] = ("paper", "laptop")
# Settings that change no weights, so runs may differ in them.
MEASURING = (
    "evaluate.every",
    "evaluate.resamples",
    "evaluate.similarities",
    "evaluate.batch_size",
)
# Points within which a reduced protocol is near a published number. It was chosen to bring four
# methods there (docs/reproduce.md).
NEAR = 3.0
# Behind the verdict of a number that only its best epoch brings into the band.
BEST_IS_WITHIN = "its best epoch on test, as the authors' code counts, is within the band"
# Two published means are clearly different if they are so many deviations apart, and a point.
CLEAR = 2.0


@dataclass(frozen=True)
class Line:
    """A published number under one budget, in percent; None where there is no number.

    Args:
        method: by the paper's name.
        reading: of FairKL; empty for methods without it.
        budget: empty if there is no run under any budget.
        best_on_test: of the best epoch, chosen on the test set.
        epochs: done and planned: "6 of 6".
        note: how a reduced run differs from the published one, or why there is no run.
        commit, command: which code made the newest run, and the command that makes all of them.
    """

    table: str
    dataset: str
    method: str
    setting: str
    reading: str
    published: float
    published_std: float | None
    origin: str
    budget: str = ""
    ours: float | None = None
    ours_std: float | None = None
    best_on_test: float | None = None
    seeds: int = 0
    epochs: str = ""
    gap: float | None = None
    verdict: str = ""
    note: str = ""
    commit: str = ""
    command: str = ""

    @property
    def whole(self) -> bool:
        """True if every run has done all its epochs."""
        runs = [run.split(" of ") for run in self.epochs.split(", ")]
        return all(len(set(done_and_planned)) == 1 for done_and_planned in runs)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells this line from all others."""
        return (*self.number, self.reading, self.budget)

    @property
    def number(self) -> tuple[str, ...]:
        """Which published number it is about; several lines may be about one."""
        return self.table, self.dataset, self.method, self.setting, self.origin


def collect(out: Path, say: Say = lambda _: None) -> list[Line]:
    """Return a line for each published number and budget that has runs under `out`.

    Args:
        say: told of runs that were not made as their cell says, which are left out.
    """
    found = []
    for cell in cells("all"):
        for budget in KEPT:
            if not cell.published or budgets.left_out(budget, cell.table, cell.setting):
                continue
            records = runs_as_planned(cell, out, budget, say)
            for number in cell.published:
                line = _line(cell, number, budget, records)
                if line is not None:
                    found.append(line)
    return found


def runs_of(cell: Cell, out: Path, budget: Budget) -> list[RunRecord]:
    """Return the runs of all seeds, in their order.

    Folders with other names than "seed-NUMBER" are not runs of the cell.

    Args:
        out: the folder of all runs.
    """
    by_seed = {}
    for path in cell.folder(out, budget, 0).parent.glob("seed-*"):
        number = path.name.removeprefix("seed-")
        if number.isdecimal() and is_run(path):
            by_seed[int(number), path] = path
    return [RunRecord.read(by_seed[key]) for key in sorted(by_seed)]


def runs_as_planned(
    cell: Cell, out: Path, budget: Budget, say: Say = lambda _: None
) -> list[RunRecord]:
    """Return the runs that were made as their cell says, and tell `say` of the others.

    Left out are runs that `--set` made into something else than the cell they are named after, and
    runs on generated data under a budget that needs real data.

    Args:
        out: the folder of all runs.
        say: gets a line for each run that is left out.
    """
    records = []
    for record in runs_of(cell, out, budget):
        changes = _changes(record, cell, budget)
        if changes:
            say(f"left out: {record.path} is not {cell.name} ({'; '.join(changes)})")
        else:
            records.append(record)
    return records


def _changes(record: RunRecord, cell: Cell, budget: Budget) -> list[str]:
    """How a run differs from its cell in what may change its weights."""
    planned = cell.config(budget, int(record.config["seed"]))
    changes = changed(planned, load_resolved(record.path / CONFIG))
    generated = record.data.get("notes", {}).get("stand-in")
    if budget != "smoke" and generated:
        changes.append(generated)
    return [change for change in changes if not change.startswith(MEASURING)]


def _line(
    cell: Cell, number: Published, budget: Budget, records: Sequence[RunRecord]
) -> Line | None:
    runs = finished_or_all(records, number.measure)
    if not runs:
        return None
    ours = [run.last for run in runs]
    best = [run.best_on_test for run in runs if run.best_on_test is not None]
    mean = statistics.fmean(ours)
    return replace(
        _empty(cell, number),
        budget=budget,
        ours=round(mean, 2),
        ours_std=round(statistics.stdev(ours), 2) if len(ours) > 1 else None,
        best_on_test=round(statistics.fmean(best), 2) if len(best) == len(ours) else None,
        seeds=len(ours),
        epochs=_epochs(runs),
        gap=round(mean - number.mean, 2),
        note=budgets.note(budget, cell.dataset),
        commit=runs[-1].commit,
        command=cell.command(budget, [run.seed for run in runs]),
    )


def finished_or_all(records: Sequence[RunRecord], measure: str = "") -> list[Measured]:
    """Return what the finished runs measured, or all runs if none is finished.

    Args:
        measure: the column of a table that prints several accuracies.
    """
    every = []
    for record in records:
        found = measured(record, measure)
        if found is not None:
            every.append(found)
    finished = [one for one in every if one.whole]
    return finished or every


def _epochs(runs: Sequence[Measured]) -> str:
    done = {(run.epochs, run.of_epochs) for run in runs}
    return ", ".join(f"{epochs} of {of_epochs}" for epochs, of_epochs in sorted(done))


def _empty(cell: Cell, number: Published) -> Line:
    facts = (cell.table, cell.dataset, cell.row, number.setting, cell.reading)
    return Line(*facts, number.mean, number.std, number.origin, command=cell.command("paper"))


def merged(old: Iterable[Line], new: Iterable[Line]) -> list[Line]:
    """Return the whole ledger in the order of the tables. New lines replace old ones.

    A cell without any run has one line that says so. Old lines of a reduced protocol that is no
    longer the budget's are dropped: nothing else in the ledger can be compared with them.

    Args:
        old: lines as they were read from a ledger.
        new: lines of the runs at hand.
    """
    known = {line.key: line for line in [*old, *new] if line.budget and _is_current(line)}
    lines = []
    for cell in cells("all"):
        for number in cell.published:
            empty = _empty(cell, number)
            keys = [replace(empty, budget=budget).key for budget in KEPT]
            mine = [known[key] for key in keys if key in known]
            why = budgets.why_not_run(cell.dataset)
            lines += mine or [replace(empty, verdict="not run", note=why)]
    return judged(lines)


def _is_current(line: Line) -> bool:
    """Whether a line was made with what its budget is today."""
    return line.note == budgets.note(budgets.parse(line.budget), line.dataset)


def judged(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with their verdicts; those without runs are returned as they are.

    Args:
        lines: all of them, because a verdict depends on the other lines.
    """
    return [replace(line, verdict=_verdict(line, lines)) if line.budget else line for line in lines]


def _verdict(line: Line, lines: Sequence[Line]) -> str:
    assert line.gap is not None
    facts = (line.table, line.dataset, line.method, line.setting)
    number = Published(*facts, line.published, line.published_std, line.origin)
    if not line.whole:
        return f"not judged (unfinished, {line.epochs} epochs)"
    if line.budget == "paper" and abs(line.gap) <= number.band:
        return "reproduced"
    orders, all_right = _orders(line, lines)
    if line.budget != "paper" and abs(line.gap) <= max(number.band, NEAR):
        return f"near{orders}"
    verdict = f"order only{orders}" if all_right else f"not reproduced{orders}"
    best = line.best_on_test
    if line.budget == "paper" and best is not None and abs(best - line.published) <= number.band:
        verdict += f" ({BEST_IS_WITHIN})"
    return verdict


def _orders(line: Line, lines: Sequence[Line]) -> tuple[str, bool]:
    """Which orderings of this line hold, in brackets, and whether there are any and all hold."""
    others = [other for other in lines if _comparable(line, other)]
    if not others:
        return "", False
    # Those that should be below come first.
    wrong = [
        other for other in others if _published_above(line, other) and not _ours_above(line, other)
    ]
    wrong += [
        other for other in others if _published_above(other, line) and not _ours_above(other, line)
    ]
    held = f"{len(others) - len(wrong)} of {len(others)} orderings"
    if not wrong:
        return f" ({held})", True
    against = ", ".join(dict.fromkeys(_other(line, other) for other in wrong))
    return f" ({held}; not against {against})", False


def _published_above(line: Line, other: Line) -> bool:
    return line.published > other.published


def _ours_above(line: Line, other: Line) -> bool:
    return (line.ours or 0) > (other.ours or 0)


def _other(line: Line, other: Line) -> str:
    """The method and reading of another line; for the same method, how its setting differs."""
    if other.method != line.method:
        return f"{other.method} ({other.reading})" if other.reading else other.method
    own = line.setting.split(";")
    return ";".join(part for part in other.setting.split(";") if part not in own)


def _comparable(line: Line, other: Line) -> bool:
    """Whether the paper puts the other line clearly elsewhere, and it was run in the same way.

    It is of another method, or in Table 12 of another setting.
    """
    return (
        bool(other.budget)
        and other.whole
        and _column(line) == _column(other)
        and (line.method, line.setting) != (other.method, other.setting)
        and ("" in (line.reading, other.reading) or line.reading == other.reading)
        and _clearly_apart(line, other)
    )


def _column(line: Line) -> tuple[str, ...]:
    return line.table, line.dataset, line.budget, line.setting.partition(";")[0]


def _clearly_apart(line: Line, other: Line) -> bool:
    noise = CLEAR * math.hypot(line.published_std or 0.0, other.published_std or 0.0)
    return abs(line.published - other.published) > max(noise, 1.0)


# Files


def read(file: Path) -> list[Line]:
    """Return the lines of a CSV file; none if there is no file."""
    if not file.is_file():
        return []
    rows = csv.DictReader(io.StringIO(file.read_text("utf-8")))
    lines = []
    for row in rows:
        values = {key: _parsed(key, value) for key, value in row.items()}
        lines.append(Line(**values))
    return lines


_NUMBERS = {field.name for field in fields(Line) if "float" in str(field.type)}


def _parsed(key: str, value: str) -> Any:
    if key in _NUMBERS:
        return float(value) if value else None
    return int(value) if key == "seeds" else value


def text(lines: Sequence[Line]) -> str:
    """Return the lines as CSV."""
    file = io.StringIO()
    writer = csv.DictWriter(file, [field.name for field in fields(Line)], lineterminator="\n")
    writer.writeheader()
    for line in lines:
        facts = asdict(line)
        writer.writerow({key: "" if value is None else value for key, value in facts.items()})
    return file.getvalue()


__all__ = [
    "BEST_IS_WITHIN",
    "KEPT",
    "Line",
    "collect",
    "finished_or_all",
    "judged",
    "merged",
    "read",
    "runs_as_planned",
    "runs_of",
    "text",
]
