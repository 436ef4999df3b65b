"""Run several methods × seeds on one dataset, each in a folder of its own, and make their table."""

import hashlib
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from fairmargin.bias.providers import in_a_path
from fairmargin.config import Config, ConfigError, dataset_name, load_resolved
from fairmargin.data import OWN
from fairmargin.evaluate import NAMES
from fairmargin.loop import Diverged
from fairmargin.methods.base import Unsuited
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.record import CONFIG
from fairmargin.sweep.base import Engine, check_shared, prepare, run_tasks
from fairmargin.sweep.local import HERE

# Accuracies that a narrow terminal does without, in this order.
DISPENSABLE = ("train-weighted", "plain", "worst-group")


@dataclass(frozen=True)
class Outcome:
    """What became of one run of a comparison.

    Args:
        failure: why there is no result; empty if there is one.
        refused: True if the method does not suit the dataset, so that there cannot be a result.
    """

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
    """Run each configuration in its own folder under `out`. Finished runs are only read.

    A run that diverges does not stop the others.

    Args:
        command: recorded in the run folders.
        say: gets a line for each run.
        go_on: a method that does not suit the dataset does not stop the others either. Its other
            seeds are left out, and its outcome says why.
        engine: where runs run; by default one after another in this process.
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

    def called(index: int) -> str:
        return f"{begun[index].method.name}, seed {begun[index].seed}"

    expected = (Diverged, Unsuited) if go_on else (Diverged,)
    results = run_tasks(engine, _run, tasks(), expected=expected, say=say, called=called)
    for index, result in results:
        outcome = _outcome(begun[index], out, result)
        found[index] = outcome
        if outcome.refused:
            unsuited.add(outcome.method)
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


def _outcome(config: Config, out: Path, result: dict[str, Any] | Exception | None) -> Outcome:
    outcome = Outcome(config.method.name, config.seed, folder_of(config, out), None)
    if isinstance(result, Exception):
        return replace(outcome, failure=str(result), refused=isinstance(result, Unsuited))
    return replace(outcome, result=result)


def _without_repeated_refusals(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Keep the first refusal of each method.

    Runs at the same time find out together that their method does not suit the dataset.
    """
    kept: list[Outcome] = []
    refused: set[str] = set()
    for outcome in outcomes:
        if outcome.method not in refused:
            kept.append(outcome)
        if outcome.refused:
            refused.add(outcome.method)
    return kept


def default_out(config: Config) -> Path:
    """Return the default folder of runs on a dataset, one for each setting of `data.bias`.

    People's own data give it the name of their table or folder. If runs on another table are there,
    a few letters are added, which depend on the path.
    """
    name, bias = dataset_name(config), config.data.bias
    ending = "" if bias == "labels" else f"-bias-{in_a_path(bias)}"
    usual = Path("runs") / f"{name}{ending}"
    root = config.data.root
    if config.data.name not in OWN or root is None or not _holds_other_data(usual, config):
        return usual
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:6]
    return Path("runs") / f"{name}-{digest}{ending}"


def _holds_other_data(folder: Path, config: Config) -> bool:
    """True if the runs in a folder were trained on other data than a configuration names."""
    first = next(iter(sorted(folder.glob(f"*/*/{CONFIG}"))), None)
    if first is None or config.data.root is None:
        return False
    try:
        theirs = load_resolved(first).data
    except ConfigError:
        return True
    if theirs.name == config.data.name and theirs.root is not None:
        if theirs.root.resolve() == config.data.root.resolve():
            return False
        if theirs.root.exists():
            return True
        # The same table may have moved.
        before = RunFolder(first.parent).data_hashes().get("source")
        return before is None or before != build.source(config).get("source")
    return True


def folder_of(config: Config, out: Path) -> Path:
    """Return the run folder of a configuration: OUT/METHOD/seed-SEED.

    Args:
        out: the folder of all runs.
    """
    return out / config.method.name / f"seed-{config.seed}"


@dataclass(frozen=True)
class Summary:
    """A method over its seeds, accuracies in percent.

    Args:
        seeds: how many runs have a result.
        std: the sample deviation (n − 1); None for one seed.
        seconds: mean over the runs.
        failures: how many runs have no result.
    """

    method: str
    seeds: int
    mean: dict[str, float]
    std: dict[str, float | None]
    seconds: float
    failures: int


def summaries(outcomes: Sequence[Outcome], classifier: str = "own") -> list[Summary]:
    """Return a summary for each method, in the order of their first runs.

    Methods that cannot be run on the dataset are left out.

    Args:
        classifier: by which the methods are judged; "reported": that which each run reports.
    """
    methods = dict.fromkeys(outcome.method for outcome in outcomes if not outcome.refused)
    found = []
    for method in methods:
        mine = [outcome for outcome in outcomes if outcome.method == method]
        found.append(_summary(method, mine, classifier))
    return found


def _summary(method: str, outcomes: Sequence[Outcome], classifier: str) -> Summary:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    judged = []
    for result in results:
        named = result["headline"]["classifier"] if classifier == "reported" else classifier
        if named in result["test"]:
            judged.append(result["test"][named]["accuracy"])
    mean: dict[str, float] = {}
    std: dict[str, float | None] = {}
    for name in NAMES:
        if judged and all(name in accuracy for accuracy in judged):
            values = [100 * accuracy[name]["value"] for accuracy in judged]
            mean[name] = statistics.fmean(values)
            std[name] = statistics.stdev(values) if len(values) > 1 else None
    seconds = float("nan")
    if results:
        seconds = statistics.fmean([result["seconds"] for result in results])
    failures = len(outcomes) - len(results)
    return Summary(method, len(judged), mean, std, seconds, failures)


def table(rows: Sequence[Summary], title: str, width: int = 80) -> Table:
    """Return a table for the terminal: mean ± std of the accuracies that fit.

    Args:
        width: columns of the terminal.
    """
    widths = {}
    for name in _accuracy_names(rows):
        longest = max(len(cell(row, name)) for row in rows)
        widths[name] = max(len(name), longest) + 3
    room = width - max((len(row.method) for row in rows), default=0) - 14
    for name in DISPENSABLE:
        if sum(widths.values()) > room and len(widths) > 1:
            widths.pop(name, None)
    shown = Table(title=title)
    shown.add_column("method", no_wrap=True)
    for name in (*widths, "seeds"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        seeds = f"{row.seeds} of {row.seeds + row.failures}" if row.failures else f"{row.seeds}"
        shown.add_row(row.method, *(cell(row, name) for name in widths), seeds)
    return shown


def _accuracy_names(rows: Sequence[Summary]) -> list[str]:
    return [name for name in NAMES if any(name in row.mean for row in rows)]


def cell(row: Summary, name: str) -> str:
    """Return the accuracy of this name as "91.2 ± 0.4", or "–" if there is none.

    Args:
        name: of the accuracy, such as "cell-mean".
    """
    return spread(row.mean[name], row.std[name]) if name in row.mean else "–"


def spread(mean: float, std: float | None) -> str:
    """Return "91.2 ± 0.4", or "91.2" without a deviation."""
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"


def markdown(rows: Sequence[Summary], outcomes: Sequence[Outcome] = ()) -> str:
    """Return the table as Markdown, with a list of the runs that have no result, and why.

    Args:
        outcomes: of all runs; without them there is no such list.
    """
    names = _accuracy_names(rows)
    lines = [
        f"| method | {' | '.join(names)} | seeds | seconds |",
        f"|---|{'---|' * len(names)}---|---|",
    ]
    for row in rows:
        accuracies = " | ".join(cell(row, name) for name in names)
        lines.append(f"| {row.method} | {accuracies} | {row.seeds} | {row.seconds:.0f} |")
    failed = [outcome for outcome in outcomes if outcome.failure]
    if failed:
        lines += ["", "Not in the table:", ""]
    for outcome in failed:
        seed = "" if outcome.refused else f", seed {outcome.seed}"
        lines.append(f"- {outcome.method}{seed}: {outcome.failure}")
    return "\n".join(lines) + "\n"
