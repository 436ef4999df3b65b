"""Every run of a suite: its configuration, its folder, and how all of them are run.

OUT/runs/REGIME/TASK/ENTRY/seed-0          a run with default settings
OUT/tune-12/REGIME/TASK/ENTRY/METHOD/…     12 trials, where the budget is 12
OUT/runs-tune-12/REGIME/TASK/ENTRY/seed-0  a run with the settings that these found

Finished runs and trials are only read, so the same command goes on where it stopped.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairmargin import config as configuration
from fairmargin.config import Config
from fairmargin.loop import Diverged
from fairmargin.methods.base import Unsuited
from fairmargin.run import run
from fairmargin.runtime.terminal import Console
from fairmargin.suite.entries import Entry
from fairmargin.suite.tasks import SuiteTask
from fairmargin.sweep.base import Engine, check_shared, prepare, run_tasks
from fairmargin.sweep.local import HERE
from fairmargin.sweep.tune import Tuned, tune, with_settings

# The seed of all trials of a tuning.
TUNING_SEED = 0


@dataclass(frozen=True)
class Cell:
    """One run: an entry on a task with a seed.

    Args:
        folder: of the run, below the folder of the suite.
        settings: what tuning found, by key of the configuration; empty without tuning.
    """

    task: SuiteTask
    entry: Entry
    seed: int
    folder: Path
    settings: dict[str, Any]
    changes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """For people: "colors, ce, seed 0"."""
        return f"{self.task.name}, {self.entry.label}, seed {self.seed}"

    def config(self) -> Config:
        """Return the configuration of the run."""
        return with_settings(
            config_of(self.task, self.entry, self.seed, self.changes), self.settings
        )


@dataclass(frozen=True)
class Finished:
    """A cell and what became of it.

    Args:
        result: of the run; None if there is none.
        failure: why there is none.
    """

    cell: Cell
    result: dict[str, Any] | None
    failure: str = ""


def config_of(task: SuiteTask, entry: Entry, seed: int, changes: Sequence[str] = ()) -> Config:
    """Return the configuration of one run with the entry's own settings.

    Args:
        task: gives the dataset and its preset.
        entry: gives the method, its settings and what may be known.
        seed: of the run, and of the planted bias.
        changes: settings of all runs, as KEY=VALUE; those of the entry win.
    """
    # Where bias labels may not be seen, plain validation accuracy chooses.
    select = "plain" if entry.regime == "unknown" else "cell-mean"
    overrides = [
        f"data.regime={entry.regime}",
        f"evaluate.select={select}",
        *changes,
        *entry.changes,
    ]
    return configuration.load(
        dataset=task.dataset,
        method=entry.method,
        bias=entry.bias,
        seed=seed,
        overrides=overrides,
    )


def place(kind: str, trials: int, task: SuiteTask, entry: Entry) -> Path:
    """Return where an entry's runs or trials on a task are kept, below the folder of the suite.

    Args:
        kind: "runs" or "tune".
        trials: the budget; 0 without tuning.
        task: what it is tried on.
        entry: what is tried.
    """
    if trials:
        kind = f"{kind}-{trials}" if kind == "tune" else f"{kind}-tune-{trials}"
    return Path(kind) / entry.regime / task.name / entry.folder


def cells_of(
    tasks: Sequence[SuiteTask],
    entries: Sequence[Entry],
    seeds: Sequence[int],
    changes: Sequence[str] = (),
    trials: int = 0,
) -> list[Cell]:
    """Return every run of a suite, the first seed of everything before the second.

    Args:
        tasks: what is tried on.
        entries: what is tried.
        seeds: of the runs.
        changes: settings of all runs.
        trials: the tuning budget, which decides the folders.
    """
    found = []
    for seed in seeds:
        for task in tasks:
            for entry in entries:
                folder = place("runs", trials, task, entry) / f"seed-{seed}"
                found.append(Cell(task, entry, seed, folder, {}, tuple(changes)))
    return found


@dataclass(frozen=True)
class _Job:
    cell: Cell
    out: Path
    command: tuple[str, ...]
    trials: int = 0


def _run(job: _Job) -> dict[str, Any] | None:
    check_shared(job.out)
    quiet = Console(file=io.StringIO())
    folder = job.out / job.cell.folder
    return run(job.cell.config(), folder, command=job.command, console=quiet).result


def _tune(job: _Job) -> Tuned:
    check_shared(job.out)
    cell = job.cell
    folder = job.out / place("tune", job.trials, cell.task, cell.entry)
    config = cell.config()
    [found] = tune(
        [config],
        folder,
        trials=job.trials,
        seeds=[TUNING_SEED],
        command=job.command,
        engine=HERE,
    )
    return found


def tuned(
    cells: Sequence[Cell],
    out: Path,
    trials: int,
    *,
    command: Sequence[str],
    say: Callable[[str], None],
    engine: Engine,
) -> tuple[list[Cell], list[str]]:
    """Return the cells with the settings that the same number of trials found, and remarks.

    Each entry is tuned on each task, on validation samples, with one seed. An entry that learns
    from its validation samples cannot be tuned on them and keeps its defaults.

    Args:
        cells: of the suite.
        out: folder of the suite.
        trials: for each entry on each task.
        command: noted in the run folders.
        say: is told what is done.
        engine: where the trials run.
    """
    first = {(cell.task.name, cell.entry.label): cell for cell in reversed(cells)}
    jobs = [_Job(cell, out, tuple(command), trials) for cell in first.values()]
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    remarks = []
    results = run_tasks(engine, _tune, jobs, expected=(ValueError,), say=say)
    for done, (index, found) in enumerate(results, 1):
        cell = jobs[index].cell
        key = cell.task.name, cell.entry.label
        if isinstance(found, Exception):
            if not isinstance(found, Unsuited):
                raise found
            remarks.append(f"{cell.entry.label} on {cell.task.name} was not tuned: {found}")
            continue
        settings[key] = found.best.settings
        say(f"tuned [{done}/{len(jobs)}] {cell.task.name}, {cell.entry.label}")
    chosen = []
    for cell in cells:
        found_here = settings.get((cell.task.name, cell.entry.label), {})
        chosen.append(replace(cell, settings=found_here))
    return chosen, remarks


def run_suite(
    cells: Sequence[Cell],
    out: Path,
    *,
    command: Sequence[str] = ("fairmargin.suite",),
    say: Callable[[str], None] = lambda text: None,
    engine: Engine = HERE,
) -> Iterator[Finished]:
    """Run every cell and yield what became of it. Finished runs are only read.

    A run that diverges, or a method that a task does not suit, does not stop the others.

    Args:
        cells: of the suite.
        out: folder of the suite.
        command: noted in the run folders.
        say: gets a line for each run.
        engine: where the runs run.
    """
    folder = prepare(engine, out)
    jobs = [_Job(cell, folder, tuple(command)) for cell in cells]
    called = lambda index: cells[index].title
    expected = (Diverged, Unsuited)
    results = run_tasks(engine, _run, jobs, expected=expected, say=say, called=called)
    for done, (index, found) in enumerate(results, 1):
        say(f"[{done}/{len(cells)}] {called(index)}")
        if isinstance(found, Exception):
            say(f"no result: {found}")
            yield Finished(cells[index], None, str(found))
        else:
            yield Finished(cells[index], found)
