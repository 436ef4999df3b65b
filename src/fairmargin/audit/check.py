"""Limits that a trained model has to keep, for use in continuous integration: `fairmargin check RUN --min-worst-group 0.8`.

What is compared stands in the run's result.json; nothing is computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GAP = "equalised-odds gap"
OF_LARGE_GROUPS = ("worst-group", GAP)  # measured over groups with enough test samples
NAMED = 5  # small groups, the weakest first


@dataclass(frozen=True)
class Limit:
    """An accuracy that must be at least `bound`, or the equalised-odds gap, which must be at most that."""

    name: str
    bound: float

    def __post_init__(self) -> None:
        from fairmargin.checks import check_choice
        from fairmargin.evaluate.accuracy import NAMES

        check_choice(self.name, "accuracy", (*NAMES, GAP))
        if not 0 <= self.bound <= 1:
            percent = f" Did you mean {self.bound / 100:g}?" if 1 < self.bound <= 100 else ""
            raise ValueError(
                f"the limit on {self.name} must be a fraction from 0 to 1; got {self.bound:g}.{percent}"
            )

    @property
    def at_most(self) -> bool:
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
    low: float | None  # ends of the 95 % interval; None where none was recorded
    high: float | None
    lower_bound: bool  # the pessimistic end was compared, not the value
    unjudged: tuple[SmallGroup, ...] = ()  # what was measured is silent about these

    @property
    def compared(self) -> float:
        end = self.high if self.limit.at_most else self.low
        return end if self.lower_bound and end is not None else self.value

    @property
    def broken(self) -> bool:
        return (
            self.compared > self.limit.bound
            if self.limit.at_most
            else self.compared < self.limit.bound
        )

    @property
    def unsure(self) -> bool:
        """It holds as far as was measured, which is not far enough."""
        return not self.broken and bool(self.unjudged)

    @property
    def holds(self) -> bool:
        return not self.broken and not self.unjudged

    def __str__(self) -> str:
        interval = (
            "no interval"
            if self.low is None or self.high is None
            else f"{self.low:.3f}–{self.high:.3f}"
        )
        if self.lower_bound and self.low is None:
            interval += ": the value is compared"
        wanted = f"{'at most' if self.limit.at_most else 'at least'} {self.limit.bound:g}"
        what, number = self.limit.name, f"{self.value:.3f}"
        if self.lower_bound and self.low is not None:
            what, number, interval = (
                f"lower end of {what}",
                f"{self.compared:.3f}",
                f"{number}, {interval}",
            )
        state = "BROKEN" if self.broken else "UNSURE" if self.unsure else "holds "
        doubt = f"; {self._doubt()}" if self.unsure else ""
        return f"{state}  {what}: {number} ({interval}), {wanted} wanted{doubt}"

    def _doubt(self) -> str:
        from fairmargin.evaluate.accuracy import LEAST

        number = len(self.unjudged)
        weakest = sorted(self.unjudged, key=lambda group: group.correct / group.n)[:NAMED]
        rest = f", and {number - NAMED} more" if number > NAMED else ""
        return (
            f"{number} {'group has' if number == 1 else 'groups have'} fewer than {LEAST} test samples and cannot be judged: "
            f"{', '.join(map(str, weakest))}{rest}. Test more samples of them, or allow this with --ignore-small-groups"
        )


class CannotCheckError(ValueError):
    """A limit asks for something that the run does not have."""


def checks(
    run: Path,
    limits: Sequence[Limit],
    *,
    classifier: str = "own",
    lower_bound: bool = False,
    ignore_small_groups: bool = False,
) -> list[Check]:
    """Each limit beside what the run's result has.

    Args:
        run: the folder of a finished run.
        classifier: "own", "probe", "knn" or "linear", as far as the run evaluated them.
        lower_bound: compare the lower end of an accuracy's 95 % interval instead of the value. The gap has no interval.
        ignore_small_groups: let worst-group accuracy and gap hold although groups with few test samples are not in them.
    """
    return Judged.read(run, classifier).checks(limits, lower_bound, ignore_small_groups)


def check(
    run: Path,
    limits: Sequence[Limit],
    *,
    classifier: str = "own",
    lower_bound: bool = False,
    ignore_small_groups: bool = False,
) -> list[Check]:
    """The limits that the run breaks, or may break in groups too small to tell; none is what one hopes for."""
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
    """What a run says of one classifier on its test set."""

    run: Path
    result: dict[str, Any]  # of `evaluate.judge`
    data: dict[str, Any]  # the run's data.json

    @staticmethod
    def read(run: Path, classifier: str) -> "Judged":
        from fairmargin.runs.folder import RunRecord

        record = RunRecord.read(run)
        if record.result is None:
            raise CannotCheckError(
                f"{run} is not finished; continue it: fairmargin train --resume {run}"
            )
        test = record.result["test"]
        if classifier not in test:
            raise CannotCheckError(
                f"{run} has no classifier {classifier!r}; it evaluated {', '.join(map(repr, test))}"
            )
        return Judged(run, test[classifier], record.data)

    def checks(
        self, limits: Sequence[Limit], lower_bound: bool, ignore_small_groups: bool
    ) -> list[Check]:
        found = {limit.name: self._measured(limit.name) for limit in limits}
        if missing := [name for name, at in found.items() if at is None]:
            why = (
                "its test set has no bias labels"
                if self.result["groups"] is None
                else "its test set has no samples that say anything about it"
            )
            raise CannotCheckError(
                f"{self.run}: cannot check {', '.join(missing)}: {why}; it has {', '.join(self.result['accuracy'])}"
            )
        small = () if ignore_small_groups else self._small_groups()
        unjudged = dict.fromkeys(OF_LARGE_GROUPS, small)
        return [
            Check(
                limit,
                at["value"],
                at.get("low"),
                at.get("high"),
                lower_bound,
                unjudged.get(limit.name, ()),
            )
            for limit in limits
            if (at := found[limit.name]) is not None
        ]

    def _measured(self, name: str) -> dict[str, Any] | None:
        if name != GAP:
            at: dict[str, Any] | None = self.result["accuracy"].get(name)
            return at
        gap = self.result["equalised_odds_gap"]
        return None if gap is None else {"value": gap}

    def _small_groups(self) -> tuple[SmallGroup, ...]:
        """Groups among which the worst one was not looked for; none where all are small, because there it was."""
        from fairmargin.evaluate.accuracy import LEAST

        groups = self.result["groups"]
        if groups is None or not any(n >= LEAST for row in groups["n"] for n in row):
            return ()
        return tuple(
            SmallGroup(
                f"(label={self._name('class_names', y)}, bias={self._name('bias_names', b)})",
                n,
                correct,
            )
            for y, (sizes, right) in enumerate(zip(groups["n"], groups["correct"], strict=True))
            for b, (n, correct) in enumerate(zip(sizes, right, strict=True))
            if 0 < n < LEAST
        )

    def _name(self, key: str, position: int) -> str:
        return str(self.data[key][position]) if self.data.get(key) else str(position)
