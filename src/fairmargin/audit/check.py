"""Limits that a trained model has to keep, for use in continuous integration.

    fairmargin check RUN --min-worst-group 0.8

The numbers come from the run's result.json; nothing is computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fairmargin.checks import check_choice
from fairmargin.runs.record import RunRecord

GAP = "equalised-odds gap"
# Measured over groups with enough test samples only.
OF_LARGE_GROUPS = ("worst-group", GAP)
# Small groups that a message names, the weakest first.
NAMED = 5

Classifier = Literal["reported", "own", "probe", "knn", "linear"]


@dataclass(frozen=True)
class Limit:
    """A bound on a number of a run.

    Args:
        name: of an accuracy, which must be at least `bound`, or `GAP`, which must be at most that.
        bound: a fraction from 0 to 1.
    """

    name: str
    bound: float

    def __post_init__(self) -> None:
        # Imported here because it imports PyTorch, which the command's help does not need.
        from fairmargin.evaluate.accuracy import NAMES

        check_choice(self.name, "accuracy", (*NAMES, GAP))
        if not 0 <= self.bound <= 1:
            percent = f" Did you mean {self.bound / 100:g}?" if 1 < self.bound <= 100 else ""
            raise ValueError(
                f"the limit on {self.name} must be a fraction from 0 to 1; "
                f"got {self.bound:g}.{percent}"
            )

    @property
    def at_most(self) -> bool:
        """True if the number must not exceed the bound; False if it must not fall below."""
        return self.name == GAP


@dataclass(frozen=True)
class SmallGroup:
    """A group with too few test samples to be judged."""

    name: str
    n: int
    correct: int

    def __str__(self) -> str:
        return f"{self.name} {self.correct} of {self.n} right"


@dataclass(frozen=True)
class Check:
    """A limit and what was measured."""

    limit: Limit
    value: float
    # Ends of the 95 % interval; None if none was recorded.
    low: float | None
    high: float | None
    # True if the pessimistic end of the interval is compared instead of the value.
    lower_bound: bool
    # Groups that the value says nothing about.
    unjudged: tuple[SmallGroup, ...] = ()

    @property
    def compared(self) -> float:
        """The number that is compared with the limit."""
        end = self.high if self.limit.at_most else self.low
        return end if self.lower_bound and end is not None else self.value

    @property
    def broken(self) -> bool:
        """True if the number is beyond the limit."""
        if self.limit.at_most:
            return self.compared > self.limit.bound
        return self.compared < self.limit.bound

    @property
    def unsure(self) -> bool:
        """True if the limit holds where it was measured, but some groups are too small to tell."""
        return not self.broken and bool(self.unjudged)

    @property
    def holds(self) -> bool:
        """True if the limit holds, and no group is too small to tell."""
        return not self.broken and not self.unjudged

    def __str__(self) -> str:
        what, number, interval = self.limit.name, f"{self.value:.3f}", "no interval"
        if self.low is not None and self.high is not None:
            interval = f"{self.low:.3f}–{self.high:.3f}"
        if self.lower_bound and self.low is None:
            interval += ": the value is compared"
        elif self.lower_bound:
            what, interval = f"lower end of {what}", f"{number}, {interval}"
            number = f"{self.compared:.3f}"
        bound = "at most" if self.limit.at_most else "at least"
        said = f"{what}: {number} ({interval}), {bound} {self.limit.bound:g} wanted"
        if self.broken:
            return f"BROKEN  {said}"
        if self.unsure:
            return f"UNSURE  {said}; {self._doubt()}"
        return f"holds   {said}"

    def _doubt(self) -> str:
        from fairmargin.evaluate.accuracy import LEAST

        number = len(self.unjudged)
        groups = "1 group has" if number == 1 else f"{number} groups have"
        weakest = sorted(self.unjudged, key=lambda group: group.correct / group.n)[:NAMED]
        rest = f", and {number - NAMED} more" if number > NAMED else ""
        return (
            f"{groups} fewer than {LEAST} test samples and cannot be judged: "
            f"{', '.join(map(str, weakest))}{rest}. "
            "Test more samples of them, or allow this with --ignore-small-groups"
        )


class CannotCheckError(ValueError):
    """A limit asks for something that the run does not have."""


def checks(
    run: Path,
    limits: Sequence[Limit],
    *,
    classifier: Classifier = "reported",
    lower_bound: bool = False,
    ignore_small_groups: bool = False,
) -> list[Check]:
    """Compare a run with limits, and return one check for each.

    Args:
        run: the folder of a finished run.
        limits: what the run has to keep.
        classifier: whose numbers are compared, one of those that the run evaluated, or "reported"
            for the one that the run's headline is about.
        lower_bound: compare the lower end of an accuracy's 95 % interval instead of the value. The
            gap has no interval.
        ignore_small_groups: let worst-group accuracy and gap hold although groups with few test
            samples are not in them.
    """
    return Judged.read(run, classifier).checks(limits, lower_bound, ignore_small_groups)


def check(
    run: Path,
    limits: Sequence[Limit],
    *,
    classifier: Classifier = "reported",
    lower_bound: bool = False,
    ignore_small_groups: bool = False,
) -> list[Check]:
    """Return the checks that do not hold: broken limits, and those some groups are too small for.

    The arguments are those of `checks`.
    """
    found = checks(
        run,
        limits,
        classifier=classifier,
        lower_bound=lower_bound,
        ignore_small_groups=ignore_small_groups,
    )
    return [one for one in found if not one.holds]


@dataclass(frozen=True)
class Judged:
    """What a run measured of one classifier on its test set."""

    run: Path
    # The classifier's part of result.json.
    result: dict[str, Any]
    # The run's data.json.
    data: dict[str, Any]

    @staticmethod
    def read(run: Path, classifier: str) -> "Judged":
        """Read a finished run.

        Args:
            run: its folder.
            classifier: one of those that the run evaluated, or "reported".
        """
        record = RunRecord.read(run)
        if record.result is None:
            raise CannotCheckError(
                f"{run} is not finished; continue it: fairmargin train --resume {run}"
            )
        test = record.outcome["test"]
        if classifier == "reported":
            classifier = record.outcome["headline"]["classifier"]
        if classifier not in test:
            raise CannotCheckError(
                f"{run} has no classifier {classifier!r}; it evaluated {', '.join(map(repr, test))}"
            )
        return Judged(run, test[classifier], record.data)

    def checks(
        self, limits: Sequence[Limit], lower_bound: bool, ignore_small_groups: bool
    ) -> list[Check]:
        """Return one check for each limit; the arguments are those of `checks` in this module."""
        found = {limit.name: self._measured(limit.name) for limit in limits}
        missing = [name for name, at in found.items() if at is None]
        unknown = [name for name, at in found.items() if at is not None and at["value"] is None]
        if unknown:
            raise CannotCheckError(
                f"{self.run}: cannot check {', '.join(unknown)}: what was measured is not a finite "
                "number; evaluate the run again"
            )
        if missing:
            why = "its test set has no samples that say anything about it"
            if self.result["groups"] is None:
                why = "its test set has no bias labels"
            raise CannotCheckError(
                f"{self.run}: cannot check {', '.join(missing)}: {why}; "
                f"it has {', '.join(self.result['accuracy'])}"
            )
        small = () if ignore_small_groups else self._small_groups()
        unjudged = dict.fromkeys(OF_LARGE_GROUPS, small)
        made = []
        for limit in limits:
            at = found[limit.name] or {}
            groups = unjudged.get(limit.name, ())
            ends = at.get("low"), at.get("high")
            made.append(Check(limit, at["value"], *ends, lower_bound, groups))
        return made

    def mistakes(self) -> list[str]:
        """Return the names of the test images that the run's own classifier is wrong about.

        Empty if the run kept no names, because its images are no files.
        """
        record = RunRecord.read(self.run)
        test = record.test
        if "names" not in test:
            return []
        return [str(name) for name in test["names"][test["predicted"] != test["labels"]]]

    def _measured(self, name: str) -> dict[str, Any] | None:
        """Return the value of this name with its interval; None if it was not measured."""
        if name != GAP:
            at: dict[str, Any] | None = self.result["accuracy"].get(name)
            return at
        gap = self.result["equalised_odds_gap"]
        return None if gap is None else {"value": gap}

    def _small_groups(self) -> tuple[SmallGroup, ...]:
        """Return the groups that were left out of worst-group accuracy and gap.

        None are if all groups are small: then the worst was looked for among all.
        """
        from fairmargin.evaluate.accuracy import LEAST

        groups = self.result["groups"]
        if groups is None or not any(n >= LEAST for row in groups["n"] for n in row):
            return ()
        small = []
        for y, sizes in enumerate(groups["n"]):
            for b, n in enumerate(sizes):
                if 0 < n < LEAST:
                    label, bias = self._name("class_names", y), self._name("bias_names", b)
                    right = groups["correct"][y][b]
                    small.append(SmallGroup(f"(label={label}, bias={bias})", n, right))
        return tuple(small)

    def _name(self, key: str, position: int) -> str:
        return str(self.data[key][position]) if self.data.get(key) else str(position)
