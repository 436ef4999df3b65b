"""Cells × seeds under a budget: what is missing is run, what is finished is only read.

    for outcome in run_tasks(plan(cells("3"), "laptop", [0], Path("runs/reproduce"))):
        ...

A killed campaign goes on where it was: every run resumes from its own checkpoint.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairmargin.bias import capture
from fairmargin.config import toml
from fairmargin.data.sources import MissingData, data_root
from fairmargin.loop import Diverged
from fairmargin.methods.base import Unsuited
from fairmargin.reproduce import budgets, measures, synthetic
from fairmargin.reproduce.cells import Cell
from fairmargin.run import run
from fairmargin.runs.folder import Locked, RunRecord, is_run
from fairmargin.sweep import base as engines
from fairmargin.sweep.base import Engine, check_shared, prepare
from fairmargin.sweep.local import HERE

PATIENCE = 1.0  # seconds
CAPTURE = "bagnet18"  # of 9-Class ImageNet, whose bias nobody wrote down


@dataclass(frozen=True)
class Task:
    """One run of a campaign."""

    cell: Cell
    budget: str
    seed: int
    out: Path
    extra: tuple[str, ...] = ()
    command: tuple[str, ...] = ("fairmargin.reproduce",)

    @property
    def folder(self) -> Path:
        return self.cell.folder(self.out, self.budget, self.seed)

    @property
    def finished(self) -> bool:
        return is_run(self.folder) and RunRecord.read(self.folder).finished

    def __str__(self) -> str:
        table = self.cell.table
        return (
            f"{f'Table {table}' if table.isdigit() else table}: {self.cell.name}, seed {self.seed}"
        )


@dataclass(frozen=True)
class Outcome:
    task: Task
    failure: str = ""  # why there is no result


def plan(
    cells: Sequence[Cell],
    budget: str,
    seeds: Sequence[int],
    out: Path,
    *,
    extra: Sequence[str] = (),
    command: Sequence[str] = ("fairmargin.reproduce",),
) -> list[Task]:
    """Every run once, though several tables may show it; those that the budget leaves out are not there."""
    tasks = [
        Task(cell, budget, seed, out.absolute(), tuple(extra), tuple(command))
        for seed in seeds
        for cell in cells
        if not budgets.left_out(budget, cell.table, cell.setting)
    ]
    return list({task.folder: task for task in reversed(tasks)}.values())[::-1]


def perform(task: Task) -> Outcome:
    """Train, evaluate and measure one cell."""
    check_shared(task.out)
    extra = list(task.extra)
    try:
        if task.budget == "smoke":
            extra += synthetic_root(task.out / "stand-in", task.cell.dataset)
        extra += extra_data_roots(task.cell, extra)
        if task.cell.needs_scores:
            extra.append(f"data.scores={toml.value(str(_capture(task, extra)))}")
        config = task.cell.config(task.budget, task.seed, extra)
        run(config, task.folder, command=task.command)
        measures.complete(task.folder, config)
    except (Diverged, MissingData, Unsuited) as error:
        return Outcome(task, str(error))
    return Outcome(task)


def run_tasks(
    tasks: Sequence[Task], say: Callable[[str], None] = lambda text: None, engine: Engine = HERE
) -> Iterator[Outcome]:
    """As they finish; by default one after the other, in this process."""
    number = itertools.count(1)
    line = lambda task: f"[{next(number)}/{len(tasks)}] {task}"

    def begun() -> Iterator[Task]:
        for task in tasks:
            if engine.alone:
                say(line(task) + (" (finished)" if task.finished else ""))
            yield task

    for out in {task.out for task in tasks}:
        prepare(engine, out)
    for index, outcome in engines.run_tasks(engine, perform, begun(), say=say):
        if not engine.alone:
            say(line(tasks[index]))
        assert isinstance(outcome, Outcome)
        yield outcome


def synthetic_root(root: Path, dataset: str) -> list[str]:
    """Generated data, made now if they are not there, as a change of the configuration."""
    if dataset == "biased-mnist-mini":
        return []
    synthetic.make(root / dataset, dataset)
    return [f"data.root={toml.value(str(root / dataset))}"]


def extra_data_roots(cell: Cell, extra: Sequence[str]) -> list[str]:
    """ImageNet-A, and the stylised images that SIN trains on, where they lie in the data root."""
    if cell.dataset != "imagenet9":
        return []
    root = data_root(cell.config("paper", 0, extra).data.root)
    places = {"imagenet_a": root / "imagenet-a"} | (
        {"stylized": root / "sin"} if cell.method == "sin" else {}
    )
    return [
        f"data.{key}={toml.value(str(place))}" for key, place in places.items() if place.is_dir()
    ]


def _capture(task: Task, extra: Sequence[str]) -> Path:
    """The folder with the features of the bias-capturing model, trained now if it is not there."""
    changes = budgets.changes(
        task.budget, task.cell.table, task.cell.dataset, "ce", task.cell.settings
    )
    own = [f"{key}={toml.value(value)}" for key, value in changes.settings.items()]
    config = capture.configuration(
        dataset=task.cell.dataset, capture=CAPTURE, seed=task.seed, overrides=[*own, *extra]
    )
    folder = task.out / task.budget / "scores" / task.cell.dataset / f"seed-{task.seed}"
    while True:
        try:
            capture.make(config, folder, command=task.command)
            return folder
        except Locked:  # another cell needs it too, and is training it
            time.sleep(PATIENCE)
