"""Suggest settings: trials, and the search that remembers them in a file."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairmargin.methods.card import Between, Search, Space
from fairmargin.runtime.whole import WriteError, open_plain

RANDOM_TRIALS = 5  # before the estimator has something to estimate from
DIGITS = 3  # significant digits of a suggested number
# What Optuna raises for a journal with other content than its own.
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RuntimeError)


@dataclass(frozen=True)
class Trial:
    """One choice of settings.

    Args:
        number: from 0.
        settings: by key of the configuration.
        value: mean validation accuracy; None: not finished.
    """

    number: int
    settings: dict[str, Any]
    value: float | None = None


class TrialSearch(Protocol):
    """Suggests trials, and remembers them if this process is killed."""

    def next(self) -> Trial:
        """Return the trial that was begun and not finished, if there is one; else a new one."""

    def tell(self, trial: Trial, value: float) -> None:
        """Remember the value of a finished trial."""

    def finished(self) -> list[Trial]:
        """Return the finished trials in their order."""


# (its file, what to search, the settings of the first trial, seed)
MakeSearch = Callable[[Path, Space, Mapping[str, Any], int], TrialSearch]


class OptunaSearch:
    """A study of Optuna in one journal file.

    Suggestions depend only on the seed and on the finished trials.

    Args:
        file: the journal; an existing one is continued.
        space: what to search.
        first: the settings of the first trial.
        seed: random seed of the suggestions.
    """

    def __init__(self, file: Path, space: Space, first: Mapping[str, Any], seed: int) -> None:
        try:
            self.optuna: Any = importlib.import_module("optuna")
        except ImportError as error:
            raise ValueError(
                'tuning needs an extra package: pip install "fairmargin[optuna]"'
            ) from error
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        self.file = file
        journal = self.optuna.storages.journal
        with self._named(), self._whole():
            _cut_half_line(file)
            storage = journal.JournalStorage(journal.JournalFileBackend(str(file)))
            self.study = self.optuna.create_study(
                storage=storage, study_name="fairmargin", direction="maximize", load_if_exists=True
            )
        self.first, self.seed = dict(first), seed
        self.distributions = {key: self._distribution(search) for key, search in space.items()}

    def _distribution(self, search: Search) -> Any:
        kinds = self.optuna.distributions
        if isinstance(search, Between):
            return kinds.FloatDistribution(search.low, search.high, log=search.log)
        return kinds.CategoricalDistribution(search.values)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name the journal in errors of the system."""
        try:
            yield
        except OSError as error:
            raise WriteError(self.file, 0, error) from error

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Name the journal in what Optuna raises while it reads a damaged one."""
        try:
            yield
        except DAMAGED as error:
            raise ValueError(
                f"{self.file} is damaged ({type(error).__name__}: {error}); put a whole copy back, "
                "or choose another folder with --out"
            ) from error

    def next(self) -> Trial:
        """The trial to run next: one that was begun and not finished, or a new one."""
        with self._named():
            return self._next()

    def _next(self) -> Trial:
        state = self.optuna.trial.TrialState
        for begun in self.study.get_trials(deepcopy=False, states=(state.RUNNING,)):
            if begun.params.keys() == self.distributions.keys():
                return Trial(self._position(begun.number), _rounded(begun.params))
            # Stopped in the middle of a suggestion: nothing was run.
            self.study.tell(begun.number, state=state.FAIL)
        # A generator for each trial: a single one would start again after an interruption and
        # repeat its suggestions.
        number = len(self.study.get_trials(deepcopy=False, states=(state.COMPLETE,)))
        if number == 0 and not self.study.get_trials(deepcopy=False, states=(state.WAITING,)):
            self.study.enqueue_trial(self.first)
        numbers = np.random.SeedSequence((self.seed, number)).generate_state(1)
        self.study.sampler = self.optuna.samplers.TPESampler(
            n_startup_trials=RANDOM_TRIALS, seed=int(numbers[0])
        )
        new = self.study.ask(self.distributions)
        return Trial(self._position(new.number), _rounded(new.params))

    def tell(self, trial: Trial, value: float) -> None:
        """Note the validation accuracy of a trial."""
        with self._named():
            self.study.tell(self._numbers()[trial.number], value)

    def finished(self) -> list[Trial]:
        """All trials with a value, in the order in which they were begun."""
        state = self.optuna.trial.TrialState
        with self._whole():
            done = self.study.get_trials(deepcopy=False, states=(state.COMPLETE,))
            return [
                Trial(self._position(one.number), _rounded(one.params), _accuracy(one.value))
                for one in done
            ]

    def _numbers(self) -> list[int]:
        """Optuna's numbers of the trials, without those that were stopped in a suggestion."""
        fail = self.optuna.trial.TrialState.FAIL
        return [one.number for one in self.study.get_trials(deepcopy=False) if one.state != fail]

    def _position(self, number: int) -> int:
        return self._numbers().index(number)


def _cut_half_line(file: Path) -> None:
    """Remove the end of a journal that a killed process or a full disk left without its newline.

    Optuna would write the next line after it, and could never read the journal again.
    """
    if file.is_file():
        with open_plain(file, "r+b") as journal:
            whole = journal.read().rfind(b"\n") + 1
            journal.seek(0, os.SEEK_END)
            if journal.tell() != whole:
                journal.truncate(whole)


def _accuracy(value: object) -> float:
    """The value of a finished trial, which a damaged journal may give as anything."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"an accuracy lies from 0 to 1; got {value!r}")
    return float(value)


def _rounded(settings: Mapping[str, Any]) -> dict[str, Any]:
    rounded = dict(settings)
    for key, value in settings.items():
        if isinstance(value, float):
            rounded[key] = float(f"{value:.{DIGITS}g}")
    return rounded
