"""Choose each method's key settings on validation, with the same number of trials for every method.

found = tune(configs, Path("runs/tune"), trials=12, seeds=[0])

Every trial is an ordinary run in OUT/METHOD/trial-007/seed-0. The value of a trial is the accuracy
`evaluate.select` on the validation samples after the last epoch, averaged over the seeds; the test
set chooses nothing. What is searched stands on the method's card. The first trial is the
configuration as it stands, some random ones follow, and then a tree-structured Parzen estimator
(Bergstra et al., NeurIPS 2011) suggests. The same call again continues where it was stopped:
finished trials are not repeated.
"""

import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from fairmargin import config as configuration
from fairmargin.config import Config, MethodConfig, toml
from fairmargin.evaluate import available
from fairmargin.loop import Diverged
from fairmargin.methods.base import Unsuited
from fairmargin.methods.card import Between, OneOf, Space
from fairmargin.methods.catalog import card_of
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runs.folder import RunRecord
from fairmargin.runtime.whole import write_atomically
from fairmargin.sweep.base import Engine, check_shared, prepare, run_tasks
from fairmargin.sweep.local import HERE
from fairmargin.sweep.search import MakeSearch, OptunaSearch, Trial

DIVERGED = 0.0  # the value of a trial whose loss is no longer finite
BEST = "best.toml"
# Before the digest of the contents of people's own images, in the first line of start.toml.
CONTENTS = "; contents "
RATE: Space = {"optimizer.lr": Between(1e-4, 1e-2)}


def space_of(method: str, epochs: float = math.inf) -> Space:
    """Return what is searched: the learning rate, and what the method's card names.

    Args:
        epochs: length of the run. A preparation that would take all of them is not tried.
    """
    space = RATE | card_of(method).space
    for key, searched in space.items():
        if isinstance(searched, OneOf) and searched.epochs:
            shorter = tuple(value for value in searched.values if value < epochs)
            if shorter:
                space[key] = OneOf(shorter, epochs=True)
    return space


@dataclass(frozen=True)
class Tuned:
    """What the search for one method found.

    Args:
        accuracy: name of the accuracy on validation samples that chose.
        file: best.toml, the best trial as a configuration.
    """

    method: str
    accuracy: str
    trials: list[Trial]
    best: Trial
    file: Path


def tune(
    configs: Sequence[Config],
    out: Path,
    *,
    trials: int,
    seeds: Sequence[int],
    seed: int = 0,
    command: Sequence[str] = ("fairmargin.sweep.tune",),
    say: Callable[[str], None] = lambda text: None,
    search: MakeSearch = OptunaSearch,
    go_on: bool = False,
    engine: Engine = HERE,
) -> list[Tuned]:
    """Search the settings of each configuration's method, in a folder of its own under `out`.

    The trials of a method follow one another.

    Args:
        configs: one for each method; their seeds do not matter.
        trials: number for each method. Finished ones are not repeated; if there are more already,
            the first ones count.
        seeds: every trial is trained with each of them.
        seed: random seed of the suggestions.
        command: noted in the folder of every run.
        say: receives a line for every trial. Other processes print their trials themselves; of
            these it receives only how a method ends.
        search: makes the search; other processes must be able to import it.
        go_on: leave out a method that this dataset does not suit, and `say` why; else it is an
            error.
        engine: where the methods' searches run; by default in this process, in turn.

    Returns:
        What was found for each method that was not left out, in the order of `configs`.
    """
    if trials < 1:
        raise ValueError(f"trials must be at least 1; got {trials}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "trials follow one another in one process; start fairmargin tune without torchrun"
        )
    folder = prepare(engine, out)
    aloud = say if engine.alone else _print
    tasks = [
        _Task(config, folder, trials, tuple(seeds), seed, tuple(command), aloud, search)
        for config in configs
    ]
    found: dict[int, Tuned] = {}
    called = lambda index: configs[index].method.name
    expected = (Unsuited,) if go_on else ()
    results = run_tasks(engine, _tune_one, tasks, expected=expected, say=say, called=called)
    for index, result in results:
        method = called(index)
        if isinstance(result, Exception):
            say(f"{method} is left out: {result}")
        else:
            found[index] = replace(result, file=out / method / BEST)
            say(f"{method}: {found[index].file}")
    return [found[index] for index in sorted(found)]


@dataclass(frozen=True)
class _Task:
    """The search for one method's settings, as a process gets it."""

    config: Config
    out: Path
    trials: int
    seeds: tuple[int, ...]
    seed: int
    command: tuple[str, ...]
    say: Callable[[str], None]
    search: MakeSearch


def _print(text: str) -> None:
    print(text, flush=True)


def _tune_one(task: _Task) -> Tuned:
    check_shared(task.out)
    config, seeds = task.config, task.seeds
    method = config.method.name
    folder = task.out / method
    accuracy = _accuracy(config)
    space = space_of(method, config.train.epochs)
    _claim(folder, config, seeds)
    searching = task.search(folder / "trials.log", space, _standing(config, space), task.seed)
    while (number := len(searching.finished())) < task.trials:
        trial = searching.next()
        shown = ", ".join(f"{key}={toml.value(value)}" for key, value in trial.settings.items())
        task.say(f"{method}, trial {number + 1} of {task.trials}: {shown}")
        value = _value(config, accuracy, trial, folder, seeds, task.command, task.say)
        searching.tell(trial, value)
    # A longer search that went before counts no more than any other method's.
    return _conclude(config, accuracy, searching.finished()[: task.trials], folder)


def _accuracy(config: Config) -> str:
    """Return the name of the accuracy on validation samples that chooses.

    Refuse a dataset without validation samples, and a method that learns from them.
    """
    fit = card_of(config.method.name).validation_fit
    if fit is not None and _values(config)[f"method.{fit.option}"] == fit.value:
        raise Unsuited(
            f'{config.method.name} with {fit.option}="{fit.value}" learns from the validation '
            f"samples, so they cannot choose its settings; {fit.instead}"
        )
    data = build.data(config)
    if not len(data.valid):
        raise ValueError(
            f"{config.data.name} has no validation samples here, and settings are chosen on them; "
            "hold some out of the training data: --set data.valid_fraction=0.1"
        )
    # An accuracy of samples that are not there, such as conflicting ones, cannot choose.
    if config.evaluate.select in ("ula", *available(data.valid, data.info)):
        return config.evaluate.select
    return "plain"


def _claim(folder: Path, config: Config, seeds: Sequence[int]) -> None:
    """Write start.toml with what is searched; refuse a folder with trials of something else."""
    folder.mkdir(parents=True, exist_ok=True)
    start = folder / "start.toml"
    # The trials have seeds of their own.
    now = config.model_copy(update={"seed": 0})
    now_seeds = _first_line(seeds, config)
    if not start.is_file():
        write_atomically(start, f"{now_seeds}\n{configuration.dump(now)}".encode())
        return
    before = start.read_text("utf-8").partition("\n")[0]
    changes = build.changed(configuration.load_resolved(start), now)
    # Folders of older versions have no digest of the images' contents.
    if before != now_seeds and not now_seeds.startswith(f"{before}{CONTENTS}"):
        changes.append(f"{before.removeprefix('# ')} → {now_seeds.removeprefix('# seeds ')}")
    if changes:
        raise ValueError(
            f"{folder} holds trials of another configuration: {'; '.join(changes)}. "
            "Choose another --out"
        )


def _first_line(seeds: Sequence[int], config: Config) -> str:
    """Return what the configuration does not say: the seeds, and the digest of one's own images."""
    source = "".join(f"; images {digest[:12]}" for digest in build.source(config).values())
    images = build.images(config)
    contents = f"{CONTENTS}{images[:12]}" if images else ""
    return f"# seeds {', '.join(map(str, seeds))}{source}{contents}"


def _standing(config: Config, space: Space) -> dict[str, Any]:
    """Return the first trial: the configuration's own values, or the nearest in the space."""
    values = _values(config)
    return {key: at.nearest(values[key]) for key, at in space.items()}


def _values(config: Config) -> dict[str, Any]:
    """Return the value of every key, with the defaults of the method's options."""
    options = {
        f"method.{name}": option.default
        for name, option in MethodConfig.known(config.method.name).items()
    }
    return options | dict(toml.leaves(tomllib.loads(configuration.dump(config))))


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return the configuration with other values of some keys."""
    changes = [f"{key}={toml.value(value)}" for key, value in settings.items()]
    return configuration.override(config, changes)


def _value(
    config: Config,
    accuracy: str,
    trial: Trial,
    folder: Path,
    seeds: Sequence[int],
    command: Sequence[str],
    say: Callable[[str], None],
) -> float:
    """Train the trial and return its mean validation accuracy over the seeds."""
    found = []
    for seed in seeds:
        chosen = with_settings(config, {**trial.settings, "seed": seed})
        where = folder / f"trial-{trial.number:03d}" / f"seed-{seed}"
        try:
            record = run(chosen, where, command=command)
            found.append(validation_accuracy(record, accuracy))
        except Diverged as error:
            say(str(error))
            found.append(DIVERGED)
    return fmean(found)


def validation_accuracy(record: RunRecord, name: str) -> float:
    """Return the accuracy `name` on the validation samples after the last epoch."""
    assert record.result is not None
    return float(record.result["records"]["last"]["valid"][name])


def _conclude(config: Config, accuracy: str, trials: list[Trial], folder: Path) -> Tuned:
    """Write best.toml."""
    best = max(trials, key=lambda trial: trial.value or 0.0)  # the earliest of equals
    file = folder / BEST
    text = (
        f"# fairmargin train {file.name} --seed 1\n"
        f"# {config.method.name}: the best of {len(trials)} trials, number {best.number}, "
        f"by validation accuracy ({accuracy}): {100 * (best.value or 0.0):.1f} %\n\n"
    )
    text += configuration.dump(with_settings(config, best.settings))
    write_atomically(file, text.encode("utf-8"))
    return Tuned(config.method.name, accuracy, trials, best, file)


def settings(found: Sequence[Tuned], file: Path | None = None) -> str:
    """Return TOML with the best settings of every method, for `fairmargin compare`.

    Args:
        file: a configuration to which the settings are added.
    """
    nested: dict[str, Any] = {}
    for row in found:
        for key, value in row.best.settings.items():
            section, _, name = key.partition(".")
            nested.setdefault(row.method, {}).setdefault(section, {})[name] = value
    return configuration.extended(file, {"methods": nested})


def table(found: Sequence[Tuned]) -> Table:
    """Return what was found as a table for a terminal."""
    shown = Table(*_HEAD, title="validation accuracy in percent; the test set chose nothing")
    for row in found:
        shown.add_row(*_cells(row))
    return shown


def markdown(found: Sequence[Tuned]) -> str:
    """Return what was found as a Markdown table."""
    lines = [_HEAD, ["---"] * len(_HEAD), *map(_cells, found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_HEAD = ["method", "trials", "chosen by", "as configured", "best", "settings of the best"]


def _cells(row: Tuned) -> list[str]:
    percent = lambda trial: f"{100 * (trial.value or 0.0):.1f}"
    settings = ", ".join(f"{key} = {toml.value(value)}" for key, value in row.best.settings.items())
    return [
        row.method,
        str(len(row.trials)),
        row.accuracy,
        percent(row.trials[0]),
        percent(row.best),
        settings,
    ]


__all__ = ["Trial", "Tuned", "markdown", "settings", "space_of", "table", "tune", "with_settings"]
