"""Several methods × seeds on one dataset: each a run of its own, finished ones skipped; and their table."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from fairmargin.config import Config
from fairmargin.evaluate import NAMES
from fairmargin.loop import Diverged
from fairmargin.methods.base import Unsuited
from fairmargin.run import run
from fairmargin.sweep.base import Engine, check_shared, prepare, run_tasks
from fairmargin.sweep.local import HERE


@dataclass(frozen=True)
class Outcome:
    """One run of a comparison; `failure` says why there is no result, `refused` that there cannot be one."""

    method: str
    seed: int
    folder: Path
    result: dict[str, Any] | None
    failure: str = ""
    refused: bool = False


def compare(
    configs: Sequence[Config],
    out: Path,
    *,
    command: Sequence[str] = ("fairmargin.sweep.compare",),
    say: Callable[[str], None] = lambda text: None,
    go_on: bool = False,
    engine: Engine = HERE,
) -> list[Outcome]:
    """Run each configuration in its own folder under `out`. A run that diverges does not stop the others.

    Args:
        go_on: nor does a method that this dataset does not suit; its other seeds are left out, and the outcome says why.
        engine: where they run; by default in this process, in turn.
    """
    folder = prepare(engine, out)
    begun: list[Config] = []
    found: dict[int, Outcome] = {}
    unsuited: set[str] = set()

    def tasks() -> Iterator[_Task]:
        for number, config in enumerate(configs, 1):
            if config.method.name in unsuited:
                continue
            if engine.alone:
                say(f"[{number}/{len(configs)}] {config.method.name}, seed {config.seed}")
            begun.append(config)
            yield _Task(config, folder, tuple(command))

    called = lambda index: f"{begun[index].method.name}, seed {begun[index].seed}"
    expected = (Diverged, Unsuited) if go_on else (Diverged,)
    for index, result in run_tasks(
        engine, _run, tasks(), expected=expected, say=say, called=called
    ):
        config = begun[index]
        outcome = Outcome(config.method.name, config.seed, folder_of(config, out), None)
        if isinstance(result, Exception):
            outcome = replace(outcome, failure=str(result), refused=isinstance(result, Unsuited))
            unsuited |= {config.method.name} if outcome.refused else set()
        else:
            outcome = replace(outcome, result=result)
        found[index] = outcome
        if not engine.alone:
            say(f"[{len(found)}/{len(configs)}] {called(index)}")
        if outcome.failure:
            say(outcome.failure)
    return _without_repeated_refusals([found[index] for index in sorted(found)])


@dataclass(frozen=True)
class _Task:
    config: Config
    out: Path
    command: tuple[str, ...]


def _run(task: _Task) -> dict[str, Any] | None:
    check_shared(task.out)
    return run(task.config, folder_of(task.config, task.out), command=task.command).result


def _without_repeated_refusals(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Runs at the same time find out together that their method does not suit; one of them says it for all."""
    kept: list[Outcome] = []
    refused: set[str] = set()
    for outcome in outcomes:
        if outcome.method not in refused:
            kept.append(outcome)
        if outcome.refused:
            refused.add(outcome.method)
    return kept


def folder_of(config: Config, out: Path) -> Path:
    return out / config.method.name / f"seed-{config.seed}"


@dataclass(frozen=True)
class Summary:
    """A method over its seeds, in percent; std is the sample's (n − 1) and None for one seed."""

    method: str
    seeds: int
    mean: dict[str, float]
    std: dict[str, float | None]
    seconds: float
    failures: int


def summaries(outcomes: Sequence[Outcome], classifier: str = "own") -> list[Summary]:
    """In the order of the methods' first runs, without those that cannot be run."""
    found = []
    for method in dict.fromkeys(o.method for o in outcomes if not o.refused):
        mine = [o for o in outcomes if o.method == method]
        results = [o.result for o in mine if o.result is not None]
        judged = [r["test"][classifier]["accuracy"] for r in results if classifier in r["test"]]
        names = [name for name in NAMES if judged and all(name in accuracy for accuracy in judged)]
        values = {name: [100 * accuracy[name]["value"] for accuracy in judged] for name in names}
        found.append(
            Summary(
                method,
                len(judged),
                {name: statistics.fmean(v) for name, v in values.items()},
                {name: statistics.stdev(v) if len(v) > 1 else None for name, v in values.items()},
                statistics.fmean([r["seconds"] for r in results]) if results else float("nan"),
                sum(o.result is None for o in mine),
            )
        )
    return found


def table(rows: Sequence[Summary], title: str, width: int = 80) -> Table:
    """For a terminal: mean ± std of the accuracies that fit into `width` columns."""
    names = [name for name in NAMES if any(name in row.mean for row in rows)]
    room = width - max((len(row.method) for row in rows), default=0) - 14
    taken = [max(len(name), *(len(cell(row, name)) for row in rows)) + 3 for name in names]
    for dispensable in ("train-weighted", "plain", "worst-group"):
        if sum(taken) > room and dispensable in names and len(names) > 1:
            del taken[names.index(dispensable)]
            names.remove(dispensable)
    shown = Table(title=title)
    shown.add_column("method", no_wrap=True)
    for name in (*names, "seeds"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        seeds = f"{row.seeds} of {row.seeds + row.failures}" if row.failures else f"{row.seeds}"
        shown.add_row(row.method, *(cell(row, name) for name in names), seeds)
    return shown


def cell(row: Summary, name: str) -> str:
    return spread(row.mean[name], row.std[name]) if name in row.mean else "–"


def spread(mean: float, std: float | None) -> str:
    return f"{mean:.1f}" + (f" ± {std:.1f}" if std is not None else "")


def markdown(rows: Sequence[Summary], outcomes: Sequence[Outcome] = ()) -> str:
    """The same table for a file, and what is not in it."""
    names = [name for name in NAMES if any(name in row.mean for row in rows)]
    lines = [
        f"| method | {' | '.join(names)} | seeds | seconds |",
        f"|---|{'---|' * len(names)}---|---|",
        *(
            f"| {row.method} | {' | '.join(cell(row, name) for name in names)} | {row.seeds} | {row.seconds:.0f} |"
            for row in rows
        ),
    ]
    missing = [
        f"- {o.method}{'' if o.refused else f', seed {o.seed}'}: {o.failure}"
        for o in outcomes
        if o.failure
    ]
    return "\n".join([*lines, *(["", "Not in the table:", "", *missing] if missing else [])]) + "\n"
