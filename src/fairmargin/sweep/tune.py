"""A method's key settings, chosen on validation with a stated budget: the same number of trials for every method.

found = tune(configs, Path("runs/tune"), trials=12, seeds=[0])

Every trial is an ordinary run in OUT/METHOD/trial-007/seed-0. The value of a trial is the accuracy `evaluate.select` on the
validation samples after the last epoch, averaged over the seeds; the test set chooses nothing. Trials are suggested by a
tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) after some random ones, and the first is the configuration
as it stands. The same call again goes on where it was stopped: finished trials are not repeated.
"""

import importlib
import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np
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
from fairmargin.runtime.files import write_atomically
from fairmargin.sweep.base import Engine, check_shared, prepare, run_tasks
from fairmargin.sweep.local import HERE

RANDOM_TRIALS = 5  # before the estimator has something to estimate from
DIVERGED = 0.0  # the value of a trial that ends in numbers that are not finite
BEST = "best.toml"
DIGITS = 3  # of a suggested number: more are not worth reading


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
class Trial:
    number: int
    settings: dict[str, Any]  # by key of the configuration
    value: float | None = None  # None: not finished


class Search(Protocol):
    """What suggests trials, and remembers them whatever happens to this process."""

    def next(self) -> Trial:
        """The one that was begun and not finished, if there is one; else a new one."""

    def tell(self, trial: Trial, value: float) -> None: ...

    def finished(self) -> list[Trial]: ...


MakeSearch = Callable[
    [Path, Space, Mapping[str, Any], int], Search
]  # its file, what to search, the first trial, seed


class OptunaSearch:
    """A study of Optuna in one journal file. What it suggests depends on the seed and on the finished trials alone."""

    def __init__(self, file: Path, space: Space, first: Mapping[str, Any], seed: int) -> None:
        try:
            self.optuna: Any = importlib.import_module("optuna")
        except ImportError as error:
            raise ValueError(
                'tuning needs an extra package: pip install "fairmargin[optuna]"'
            ) from error
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        journal = self.optuna.storages.journal
        storage = journal.JournalStorage(journal.JournalFileBackend(str(file)))
        self.study = self.optuna.create_study(
            storage=storage, study_name="fairmargin", direction="maximize", load_if_exists=True
        )
        self.first, self.seed = dict(first), seed
        kinds = self.optuna.distributions
        self.distributions = {
            key: kinds.FloatDistribution(at.low, at.high, log=at.log)
            if isinstance(at, Between)
            else kinds.CategoricalDistribution(at.values)
            for key, at in space.items()
        }

    def next(self) -> Trial:
        state = self.optuna.trial.TrialState
        for begun in self.study.get_trials(deepcopy=False, states=(state.RUNNING,)):
            if begun.params.keys() == self.distributions.keys():
                return Trial(begun.number, _rounded(begun.params))
            self.study.tell(
                begun.number, state=state.FAIL
            )  # stopped in the middle of a suggestion: nothing was run
        # A generator for each trial: one that starts again after an interruption would repeat what it said before.
        number = len(self.study.get_trials(deepcopy=False, states=(state.COMPLETE,)))
        if number == 0 and not self.study.get_trials(deepcopy=False, states=(state.WAITING,)):
            self.study.enqueue_trial(self.first)
        numbers = np.random.SeedSequence((self.seed, number)).generate_state(1)
        self.study.sampler = self.optuna.samplers.TPESampler(
            n_startup_trials=RANDOM_TRIALS, seed=int(numbers[0])
        )
        new = self.study.ask(self.distributions)
        return Trial(new.number, _rounded(new.params))

    def tell(self, trial: Trial, value: float) -> None:
        self.study.tell(trial.number, value)

    def finished(self) -> list[Trial]:
        state = self.optuna.trial.TrialState
        done = self.study.get_trials(deepcopy=False, states=(state.COMPLETE,))
        return [Trial(one.number, _rounded(one.params), one.value) for one in done]


def _rounded(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for k, v in settings.items()}


@dataclass(frozen=True)
class Tuned:
    """A method's search: all its trials, and the best one as a configuration."""

    method: str
    accuracy: str  # which one it was chosen by, of the validation samples
    trials: list[Trial]
    best: Trial
    file: Path  # its best.toml


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
    """Search for each configuration's method, in a folder of its own under `out`. The trials of a method follow one another.

    Args:
        configs: one for each method; their seeds do not matter.
        trials: for each method; finished ones are not repeated, and of more than so many the first ones count.
        seeds: every trial is trained with each of them.
        seed: of the suggestions.
        say: hears of every trial; from other processes only how a method ends, they print their trials themselves.
        search: for other processes one that they can import.
        go_on: a method that this dataset does not suit is left out, and `say` says why; else it is an error.
        engine: where the methods' searches run; by default in this process, in turn.
    """
    if trials < 1:
        raise ValueError(f"trials must be at least 1; got {trials}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "trials follow one another in one process; start fairmargin tune without torchrun"
        )
    folder, aloud = prepare(engine, out), say if engine.alone else _print
    tasks = [
        _Task(config, folder, trials, tuple(seeds), seed, tuple(command), aloud, search)
        for config in configs
    ]
    found: dict[int, Tuned] = {}
    called = lambda index: configs[index].method.name
    expected = (Unsuited,) if go_on else ()
    for index, result in run_tasks(
        engine, _tune_one, tasks, expected=expected, say=say, called=called
    ):
        method = called(index)
        if isinstance(result, Exception):
            say(f"{method} is left out: {result}")
        else:
            found[index] = replace(result, file=out / method / BEST)
            say(f"{method}: {found[index].file}")
    return [found[index] for index in sorted(found)]


@dataclass(frozen=True)
class _Task:
    """The search for one method's settings."""

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
    config, folder, seeds = task.config, task.out / task.config.method.name, task.seeds
    method, accuracy = config.method.name, _accuracy(config)
    space = space_of(method, config.train.epochs)
    _claim(folder, config, seeds)
    searching = task.search(folder / "trials.log", space, _standing(config, space), task.seed)
    while (number := len(searching.finished())) < task.trials:
        trial = searching.next()
        shown = ", ".join(f"{key}={toml.value(value)}" for key, value in trial.settings.items())
        task.say(f"{method}, trial {number + 1} of {task.trials}: {shown}")
        searching.tell(
            trial, _value(config, accuracy, trial, folder, seeds, task.command, task.say)
        )
    # Note: a longer search that went before counts no more than any other method's.
    return _conclude(config, accuracy, searching.finished()[: task.trials], folder)


def _accuracy(config: Config) -> str:
    """Of the validation samples, which one chooses; refuse a dataset without them, and a method that has learnt them."""
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
    # What the samples do not have, such as conflicting ones, cannot choose.
    return (
        config.evaluate.select
        if config.evaluate.select in available(data.valid, data.info)
        else "plain"
    )


def _claim(folder: Path, config: Config, seeds: Sequence[int]) -> None:
    """Write down what is searched, and refuse a folder whose trials were something else."""
    folder.mkdir(parents=True, exist_ok=True)
    start = folder / "start.toml"
    now = config.model_copy(update={"seed": 0})  # the trials have seeds of their own
    if not start.is_file():
        write_atomically(start, f"{_first_line(seeds, config)}\n{configuration.dump(now)}".encode())
        return
    before, now_seeds = start.read_text("utf-8").partition("\n")[0], _first_line(seeds, config)
    changes = build.changed(configuration.load_resolved(start), now)
    if before != now_seeds:
        changes.append(f"{before.removeprefix('# ')} → {now_seeds.removeprefix('# seeds ')}")
    if changes:
        raise ValueError(
            f"{folder} holds trials of another configuration: {'; '.join(changes)}. Choose another --out"
        )


def _first_line(seeds: Sequence[int], config: Config) -> str:
    """What the configuration does not say: the seeds, and of one's own images which they are."""
    images = "".join(f"; images {digest[:12]}" for digest in build.source(config).values())
    return f"# seeds {', '.join(map(str, seeds))}{images}"


def _standing(config: Config, space: Space) -> dict[str, Any]:
    """The configuration's own values, or the nearest that are in the space: the first trial."""
    values = _values(config)
    return {key: at.nearest(values[key]) for key, at in space.items()}


def _values(config: Config) -> dict[str, Any]:
    """Of every key, the method's options with their defaults included."""
    options = {
        f"method.{name}": option.default
        for name, option in MethodConfig.known(config.method.name).items()
    }
    return options | dict(toml.leaves(tomllib.loads(configuration.dump(config))))


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    return configuration.override(
        config, [f"{key}={toml.value(value)}" for key, value in settings.items()]
    )


def _value(
    config: Config,
    accuracy: str,
    trial: Trial,
    folder: Path,
    seeds: Sequence[int],
    command: Sequence[str],
    say: Callable[[str], None],
) -> float:
    """The trial's mean validation accuracy over the seeds."""
    found = []
    for seed in seeds:
        chosen = with_settings(config, {**trial.settings, "seed": seed})
        try:
            record = run(
                chosen, folder / f"trial-{trial.number:03d}" / f"seed-{seed}", command=command
            )
            found.append(validation_accuracy(record, accuracy))
        except Diverged as error:
            say(str(error))
            found.append(DIVERGED)
    return fmean(found)


def validation_accuracy(record: RunRecord, name: str) -> float:
    """What chooses: the accuracy `name` of the validation samples after the last epoch."""
    assert record.result is not None
    return float(record.result["records"]["last"]["valid"][name])


def _conclude(config: Config, accuracy: str, trials: list[Trial], folder: Path) -> Tuned:
    best = max(trials, key=lambda trial: trial.value or 0.0)  # the earliest of equals
    file = folder / BEST
    text = (
        f"# fairmargin train {file.name} --seed 1\n"
        f"# {config.method.name}: the best of {len(trials)} trials, number {best.number}, by validation accuracy "
        f"({accuracy}): {100 * (best.value or 0.0):.1f} %\n\n"
    )
    write_atomically(
        file, (text + configuration.dump(with_settings(config, best.settings))).encode("utf-8")
    )
    return Tuned(config.method.name, accuracy, trials, best, file)


def settings(found: Sequence[Tuned], file: Path | None = None) -> str:
    """TOML with the best settings of every method, in what `file` has; "fairmargin compare" takes it as its file."""
    nested: dict[str, Any] = {}
    for row in found:
        for key, value in row.best.settings.items():
            section, _, name = key.partition(".")
            nested.setdefault(row.method, {}).setdefault(section, {})[name] = value
    return configuration.extended(file, {"methods": nested})


def table(found: Sequence[Tuned]) -> Table:
    """For a terminal."""
    shown = Table(*_HEAD, title="validation accuracy in percent; the test set chose nothing")
    for row in found:
        shown.add_row(*_cells(row))
    return shown


def markdown(found: Sequence[Tuned]) -> str:
    """The same for a file."""
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
