"""The runs of a report: seeds of a method make a group, methods on a dataset make a part."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmargin.report.colours import DASHES
from fairmargin.runs.record import RunRecord

CLASSIFIERS = {
    "own": "own classifier",
    "probe": "linear probe",
    "knn": "nearest neighbours",
    "linear": "linear evaluation",
    "reported": "as each reports",
}
# Display name of each part of a method's name, written from the methods' cards.
METHOD_NAMES: dict[str, str] = json.loads(
    (files("fairmargin") / "methods" / "titles.json").read_text("utf-8")
)
# Colours of methods. Of more methods than this, only some have charts.
COLOURS = 8
# Of many methods these have charts: so many of the best, a baseline and the worst.
BEST = 4
BASELINE = "ce"


@dataclass(frozen=True)
class Estimate:
    """A value with its interval.

    Over several seeds: mean ± sample standard deviation. Of a single seed: the interval that was
    measured for it, if there is one.
    """

    value: float
    low: float | None = None
    high: float | None = None
    spread: float | None = None


def estimate(
    values: Sequence[float | None], low: float | None = None, high: float | None = None
) -> Estimate | None:
    """Summarise the values of some seeds; None if all are unknown.

    Args:
        values: one for each seed; None for unknown.
        low: beginning of the interval, for a single seed.
        high: its end.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Estimate(known[0], low, high)
    mean, spread = statistics.fmean(known), statistics.stdev(known)
    return Estimate(mean, mean - spread, mean + spread, spread)


@dataclass(frozen=True)
class Group:
    """The finished runs of a method on a dataset; they differ in their seed only."""

    name: str
    runs: tuple[RunRecord, ...]
    colour: int = 0
    # The name in ASCII, for ids and links.
    slug: str = ""

    @property
    def first(self) -> RunRecord:
        """The run with the smallest seed."""
        return self.runs[0]

    @property
    def dash(self) -> str:
        """Pattern of the method's lines."""
        return DASHES[self.colour]

    def judged(self, classifier: str) -> list[dict[str, Any]]:
        """What was measured of a classifier on the test set, one for each run that has it.

        Args:
            classifier: such as "own"; "reported" for that which each run's headline is about.
        """
        found = []
        for run in self.runs:
            named = classifier
            if classifier == "reported":
                named = run.outcome["headline"]["classifier"]
            found.append(run.outcome["test"].get(named))
        return [judged for judged in found if judged]

    def accuracy(self, classifier: str, name: str) -> Estimate | None:
        """The accuracy of this name over seeds; None if no run has it.

        Args:
            classifier: such as "own".
            name: such as "worst-group".
        """
        measured = [judged["accuracy"] for judged in self.judged(classifier)]
        found = [accuracy[name] for accuracy in measured if name in accuracy]
        if not found:
            return None
        values = [one["value"] for one in found]
        return estimate(values, found[0].get("low"), found[0].get("high"))


@dataclass(frozen=True)
class Part:
    """All that is said about one dataset."""

    dataset: str
    title: str
    groups: list[Group]
    # Methods that the user named for the first sentence.
    named: tuple[str, ...] = ()

    @property
    def data(self) -> dict[str, Any]:
        """data.json of the first run."""
        return self.groups[0].first.data

    @property
    def runs(self) -> list[RunRecord]:
        """The runs of all groups."""
        return [run for group in self.groups for run in group.runs]

    @cached_property
    def charted(self) -> "Part":
        """The same with the groups that have charts: all, or the best, a baseline and the worst."""
        if len(self.groups) <= COLOURS:
            return self
        ranked = self.ranked
        chosen = {group.name for group in (*ranked[:BEST], ranked[-1])}
        for method in (BASELINE, *self.named):
            mine = [group.name for group in ranked if group.first.method == method]
            chosen |= set(mine[:1])
        return replace(self, groups=[group for group in ranked if group.name in chosen])

    @property
    def in_order(self) -> list[Group]:
        """The groups as given if they are few, else ranked."""
        return self.groups if len(self.groups) <= COLOURS else self.ranked

    @property
    def ranked(self) -> list[Group]:
        """The groups by the headline accuracy, best first."""
        return sorted(self.groups, key=lambda group: -self.headline_of(group).value)

    @cached_property
    def headline(self) -> tuple[str, str]:
        """(classifier, accuracy) that the first run names, if every run has it.

        The classifier is "reported" if runs report different ones.
        """
        named = self.groups[0].first.outcome["headline"]
        wanted = named["classifier"], named["accuracy"]
        if len({run.outcome["headline"]["classifier"] for run in self.runs}) > 1:
            wanted = "reported", named["accuracy"]
        everywhere = all(group.accuracy(*wanted) is not None for group in self.groups)
        return wanted if everywhere else ("own", "plain")

    def headline_of(self, group: Group) -> Estimate:
        """The headline accuracy of a group."""
        found = group.accuracy(*self.headline)
        if found is None:
            where = ", ".join(str(run.path) for run in group.runs)
            raise ValueError(
                f"{where}: result.json has no {' '.join(self.headline)} accuracy; "
                "evaluate the run again"
            )
        return found

    @cached_property
    def accuracies(self) -> list[str]:
        """Names of all accuracies that some run has, known ones first."""
        found: dict[str, None] = {}
        for run in self.runs:
            for judged in run.outcome["test"].values():
                found |= dict.fromkeys(judged["accuracy"])
        return _known_first(found, list(accuracy_meanings()))

    @cached_property
    def classifiers(self) -> list[str]:
        """Names of all classifiers that some run has, known ones first."""
        found: dict[str, None] = {}
        for run in self.runs:
            found |= dict.fromkeys(run.outcome["test"])
        return _known_first(found, list(CLASSIFIERS))

    @property
    def class_names(self) -> list[str]:
        """Names of the labels."""
        return [str(name) for name in self.data["class_names"]]

    @property
    def bias_names(self) -> list[str]:
        """Names of the values of the bias; empty if the dataset has none."""
        return [str(name) for name in self.data.get("bias_names") or ()]

    @property
    def counts(self) -> NDArray[np.int64] | None:
        """Training samples [classes, biases]; None without bias labels."""
        return np.asarray(self.data["counts"], np.int64) if self.bias_names else None

    @cached_property
    def aligned(self) -> NDArray[np.bool_] | None:
        """Groups that training over-represents, by the rule of `accuracy.aligned_cells`."""
        if self.counts is None:
            return None
        counts = self.counts.astype(np.float64)
        return counts * counts.sum() > counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True)


def accuracy_meanings() -> dict[str, str]:
    """Return what each accuracy means, in the order of tables."""
    # Imported here because it imports PyTorch, which reading runs and drawing charts do not need.
    from fairmargin.evaluate.accuracy import MEANINGS

    return MEANINGS


def method_name(method: str) -> str:
    """Return the name to show: "eps-supinfonce+fairkl" → "ε-SupInfoNCE + FairKL".

    Parts that are not known stay as they are.
    """
    return " + ".join(METHOD_NAMES.get(part, part) for part in method.split("+"))


def _known_first(found: dict[str, None], known: Sequence[str]) -> list[str]:
    listed = [name for name in known if name in found]
    return listed + [name for name in found if name not in known]
