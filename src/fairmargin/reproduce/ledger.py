"""The ledger: each published number beside ours, with a verdict. Kept as CSV; `pages` shows it.

Runs may come from several machines and times: a line is replaced when runs of its cell are at hand and stays as it was when
they are not. Verdicts are found anew each time, from all lines:

reproduced        the published protocol gives the published number, within its band (`Published.band`)
trend reproduced  other than published, or a reduced protocol; but every method that the paper puts clearly above or below
                  this one, and that we ran in the same way, is on the same side of it here
not reproduced    it is not
not judged        not finished, or a reduced protocol and nothing to compare it with
not run           and why
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
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.measures import Measured, measured
from fairmargin.reproduce.published import Published
from fairmargin.runs.build import changed
from fairmargin.runs.folder import CONFIG, RunRecord, is_run

Say = Callable[[str], None]
KEPT = ("paper", "laptop")  # budgets whose accuracies mean something
MEASURING = (
    "evaluate.every",
    "evaluate.resamples",
    "evaluate.similarities",
    "evaluate.batch_size",
)  # change no weights
CLEAR = (
    2.0  # deviations between two published means that are clearly different, and at least a point
)


@dataclass(frozen=True)
class Line:
    """A published number under one budget. Percent; None where there is nothing."""

    table: str
    dataset: str
    method: str  # by the paper's name
    setting: str
    reading: str
    published: float
    published_std: float | None
    origin: str
    budget: str = ""  # empty: not run under any
    ours: float | None = None
    ours_std: float | None = None
    best_on_test: float | None = None
    seeds: int = 0
    epochs: str = ""  # "6 of 6"
    gap: float | None = None
    verdict: str = ""
    note: str = ""
    commit: str = ""
    command: str = ""

    @property
    def whole(self) -> bool:
        """Whether every run has done all its epochs."""
        return all(len(set(one.split(" of "))) == 1 for one in self.epochs.split(", "))

    @property
    def key(self) -> tuple[str, ...]:
        return (
            self.table,
            self.dataset,
            self.method,
            self.setting,
            self.reading,
            self.origin,
            self.budget,
        )


def collect(out: Path, say: Say = lambda _: None) -> list[Line]:
    """A line for each published number and budget of which there are runs under `out`, made as the cell says."""
    found = []
    for cell in (cell for cell in cells("all") if cell.published):
        for budget in KEPT:
            if budgets.left_out(budget, cell.table, cell.setting):
                continue
            records = runs_as_planned(cell, out, budget, say)
            found += [
                line for number in cell.published if (line := _line(cell, number, budget, records))
            ]
    return found


def runs_of(cell: Cell, out: Path, budget: str) -> list[RunRecord]:
    """Of all seeds, in their order; folders of other names are somebody's own."""
    numbered = {
        path.name.removeprefix("seed-"): path
        for path in cell.folder(out, budget, 0).parent.glob("seed-*")
    }
    seeds = sorted((int(number), path) for number, path in numbered.items() if number.isdecimal())
    return [RunRecord.read(path) for _, path in seeds if is_run(path)]


def runs_as_planned(
    cell: Cell, out: Path, budget: str, say: Say = lambda _: None
) -> list[RunRecord]:
    """Without those made with `--set` into something else than the cell they are named after, or on drawn data unasked."""
    records = []
    for record in runs_of(cell, out, budget):
        planned = cell.config(budget, int(record.config["seed"]))
        changes = changed(planned, load_resolved(record.path / CONFIG))
        if budget != "smoke" and (drawn := record.data.get("notes", {}).get("stand-in")):
            changes.append(drawn)
        if changes := [change for change in changes if not change.startswith(MEASURING)]:
            say(f"left out: {record.path} is not {cell.name} ({'; '.join(changes)})")
        else:
            records.append(record)
    return records


def _line(cell: Cell, number: Published, budget: str, records: Sequence[RunRecord]) -> Line | None:
    several = finished_or_all(records, number.measure)
    if not several:
        return None
    ours = [one.last for one in several]
    best = [one.best_on_test for one in several if one.best_on_test is not None]
    return replace(
        _empty(cell, number),
        budget=budget,
        ours=round(statistics.fmean(ours), 2),
        ours_std=round(statistics.stdev(ours), 2) if len(ours) > 1 else None,
        best_on_test=round(statistics.fmean(best), 2) if len(best) == len(ours) else None,
        seeds=len(ours),
        epochs=_epochs(several),
        gap=round(statistics.fmean(ours) - number.mean, 2),
        note=budgets.note(budget, cell.table, cell.dataset),
        commit=several[-1].commit,
        command=cell.command(budget, [one.seed for one in several]),
    )


def finished_or_all(records: Sequence[RunRecord], measure: str = "") -> list[Measured]:
    """What the runs measured; while a seed goes on, the finished ones count."""
    several = [one for record in records if (one := measured(record, measure))]
    finished = [one for one in several if one.whole]
    return finished or several


def _epochs(several: Sequence[Measured]) -> str:
    done = {(one.epochs, one.of_epochs) for one in several}
    return ", ".join(f"{a} of {b}" for a, b in sorted(done))


def _empty(cell: Cell, number: Published) -> Line:
    facts = (cell.table, cell.dataset, cell.row, number.setting, cell.reading)
    return Line(*facts, number.mean, number.std, number.origin, command=cell.command("paper"))


def merged(old: Iterable[Line], new: Iterable[Line]) -> list[Line]:
    """In the order of the tables; a cell without any run has one line that says so."""
    known = {line.key: line for line in [*old, *new] if line.budget}
    lines = []
    for cell in (cell for cell in cells("all") if cell.published):
        for number in cell.published:
            empty = _empty(cell, number)
            mine = [
                known[key] for budget in KEPT if (key := replace(empty, budget=budget).key) in known
            ]
            lines += mine or [
                replace(empty, verdict="not run", note=budgets.why_not_run(cell.dataset))
            ]
    return judged(lines)


def judged(lines: Sequence[Line]) -> list[Line]:
    return [replace(line, verdict=_verdict(line, lines)) if line.budget else line for line in lines]


def _verdict(line: Line, lines: Sequence[Line]) -> str:
    assert line.gap is not None
    number = Published(*_facts(line), line.published, line.published_std, line.origin)
    if not line.whole:
        return f"not judged (unfinished, {line.epochs} epochs)"
    if line.budget == "paper" and abs(line.gap) <= number.band:
        return "reproduced"
    pairs = [other for other in lines if _comparable(line, other)]
    if not pairs and line.budget == "paper":
        return "not reproduced"
    if not pairs:
        return "not judged (nothing to compare it with under this budget)"
    wrong = [
        other
        for other in pairs
        if (line.ours or 0) <= (other.ours or 0)
        if line.published > other.published
    ]
    wrong += [
        other
        for other in pairs
        if (line.ours or 0) >= (other.ours or 0)
        if line.published < other.published
    ]
    if not wrong:
        return f"trend reproduced ({len(pairs)} of {len(pairs)} orderings)"
    against = ", ".join(dict.fromkeys(_other(line, other) for other in wrong))
    return f"not reproduced ({len(pairs) - len(wrong)} of {len(pairs)} orderings; not against {against})"


def _other(line: Line, other: Line) -> str:
    """Its method, with the reading of FairKL; of the same method in Table 12 what differs in its setting."""
    if other.method != line.method:
        return f"{other.method} ({other.reading})" if other.reading else other.method
    return ";".join(
        part for part in other.setting.split(";") if part not in line.setting.split(";")
    )


def _facts(line: Line) -> tuple[str, str, str, str]:
    return line.table, line.dataset, line.method, line.setting


def _comparable(line: Line, other: Line) -> bool:
    """Another method, or in Table 12 another setting, run in the same way, that the paper puts clearly elsewhere."""
    same_run = (line.table, line.dataset, line.budget) == (other.table, other.dataset, other.budget)
    column = lambda one: one.setting.partition(";")[0]
    if not same_run or not other.budget or not other.whole or column(line) != column(other):
        return False
    if (line.method, line.setting) == (other.method, other.setting) or (
        "" not in (line.reading, other.reading) and (line.reading != other.reading)
    ):
        return False
    noise = CLEAR * math.hypot(line.published_std or 0.0, other.published_std or 0.0)
    return abs(line.published - other.published) > max(noise, 1.0)


# Files


def read(file: Path) -> list[Line]:
    if not file.is_file():
        return []
    numbers = {f.name for f in fields(Line) if "float" in str(f.type)}
    lines = []
    for row in csv.DictReader(io.StringIO(file.read_text("utf-8"))):
        values: dict[str, Any] = {
            k: (float(v) if v else None) if k in numbers else int(v) if k == "seeds" else v
            for k, v in row.items()
        }
        lines.append(Line(**values))
    return lines


def text(lines: Sequence[Line]) -> str:
    """CSV."""
    file = io.StringIO()
    writer = csv.DictWriter(file, [f.name for f in fields(Line)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if value is None else value for key, value in asdict(line).items()}
        for line in lines
    )
    return file.getvalue()


__all__ = [
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
