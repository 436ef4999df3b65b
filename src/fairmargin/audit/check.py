"""Limits that a trained model has to keep, for use in continuous integration: `fairmargin check RUN --min-worst-group 0.8`.

What is compared stands in the run's result.json; nothing is computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

GAP = "equalised-odds gap"
BROKEN, WRONG_INPUT = 1, 2  # exit codes


@dataclass(frozen=True)
class Limit:
    """An accuracy that must be at least `bound`, or the equalised-odds gap, which must be at most that."""

    name: str
    bound: float

    def __post_init__(self) -> None:
        from fairmargin.evaluate.accuracy import NAMES
        from fairmargin.losses.inputs import check_choice

        check_choice(self.name, "accuracy", (*NAMES, GAP))
        if not 0 <= self.bound <= 1:
            percent = f" Did you mean {self.bound / 100:g}?" if 1 < self.bound <= 100 else ""
            raise ValueError(f"the limit on {self.name} must be a fraction from 0 to 1; got {self.bound:g}.{percent}")

    @property
    def at_most(self) -> bool:
        return self.name == GAP


@dataclass(frozen=True)
class Check:
    """A limit and what was measured."""

    limit: Limit
    value: float
    low: float | None  # ends of the 95 % interval; None where none was recorded
    high: float | None
    lower_bound: bool  # the pessimistic end was compared, not the value

    @property
    def compared(self) -> float:
        end = self.high if self.limit.at_most else self.low
        return end if self.lower_bound and end is not None else self.value

    @property
    def holds(self) -> bool:
        return self.compared <= self.limit.bound if self.limit.at_most else self.compared >= self.limit.bound

    def __str__(self) -> str:
        interval = "no interval" if self.low is None or self.high is None else f"{self.low:.3f}–{self.high:.3f}"
        if self.lower_bound and self.low is None:
            interval += ": the value is compared"
        wanted = f"{'at most' if self.limit.at_most else 'at least'} {self.limit.bound:g}"
        what = self.limit.name
        if self.lower_bound and self.low is not None:
            what = f"lower end of {what}"
        return f"{'holds ' if self.holds else 'BROKEN'}  {what}: {self.value:.3f} ({interval}), {wanted} wanted"


class CannotCheckError(ValueError):
    """A limit asks for something that the run does not have."""


def checks(run: Path, limits: Sequence[Limit], *, classifier: str = "own", lower_bound: bool = False) -> list[Check]:
    """Each limit beside what the run's result has.

    Args:
        run: the folder of a finished run.
        classifier: "own", "probe" or "knn", as far as the run evaluated them.
        lower_bound: compare the lower end of an accuracy's 95 % interval instead of the value. The gap has no interval.
    """
    from fairmargin.record import RunRecord

    result = RunRecord.read(run).result
    if result is None:
        raise CannotCheckError(f"{run} is not finished; continue it: fairmargin train --resume {run}")
    if classifier not in result["test"]:
        raise CannotCheckError(
            f"{run} has no classifier {classifier!r}; it evaluated {', '.join(map(repr, result['test']))}"
        )
    judged = result["test"][classifier]
    found = {limit.name: _measured(judged, limit.name) for limit in limits}
    if missing := [name for name, at in found.items() if at is None]:
        why = (
            "its test set has no bias labels"
            if judged["groups"] is None
            else "its test set has no samples that say anything about it"
        )
        raise CannotCheckError(
            f"{run}: cannot check {', '.join(missing)}: {why}; it has {', '.join(judged['accuracy'])}"
        )
    return [
        Check(limit, at["value"], at.get("low"), at.get("high"), lower_bound)
        for limit in limits
        if (at := found[limit.name]) is not None
    ]


def check(run: Path, limits: Sequence[Limit], *, classifier: str = "own", lower_bound: bool = False) -> list[Check]:
    """The limits that the run breaks; none is what one hopes for."""
    return [one for one in checks(run, limits, classifier=classifier, lower_bound=lower_bound) if not one.holds]


def _measured(judged: dict[str, Any], name: str) -> dict[str, Any] | None:
    if name != GAP:
        at: dict[str, Any] | None = judged["accuracy"].get(name)
        return at
    return None if judged["equalised_odds_gap"] is None else {"value": judged["equalised_odds_gap"]}


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    min_worst_group: Annotated[float | None, typer.Option(help="Least worst-group accuracy, 0 to 1.")] = None,
    min_conflicting: Annotated[float | None, typer.Option(help="Least conflicting accuracy, 0 to 1.")] = None,
    min_accuracy: Annotated[
        list[str] | None, typer.Option(help='NAME=VALUE, such as plain=0.9; see "fairmargin list accuracies".')
    ] = None,
    max_gap: Annotated[float | None, typer.Option(help="Largest equalised-odds gap, 0 to 1.")] = None,
    classifier: Annotated[str, typer.Option(help="own, probe or knn.")] = "own",
    lower_bound: Annotated[
        bool, typer.Option("--lower-bound", help="Compare the lower end of each 95 % interval, not the value.")
    ] = False,
) -> None:
    """Compare runs with limits: exit code 0 if all hold, 1 if one is broken, 2 if one cannot be checked."""
    from fairmargin.record import find_runs

    try:
        limits = _limits(min_worst_group, min_conflicting, min_accuracy or (), max_gap)
        folders = find_runs(runs)
        if not folders:
            raise ValueError(f"no run in {', '.join(map(str, runs))}; give folders that fairmargin train wrote")
    except (OSError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(WRONG_INPUT) from error
    code = 0
    for folder in folders:
        try:
            found = checks(folder, limits, classifier=classifier, lower_bound=lower_bound)
        except (OSError, ValueError) as error:
            typer.echo(str(error), err=True)
            code = WRONG_INPUT
            continue
        typer.echo(f"{folder}")
        for one in found:
            typer.echo(f"  {one}")
        if code == 0 and not all(one.holds for one in found):
            code = BROKEN
    raise typer.Exit(code)


def _limits(
    worst_group: float | None, conflicting: float | None, named: Sequence[str], gap: float | None
) -> list[Limit]:
    given = [("worst-group", worst_group), ("conflicting", conflicting), *map(_parsed, named), (GAP, gap)]
    limits = [Limit(name, bound) for name, bound in given if bound is not None]
    if not limits:
        raise ValueError("there is no limit to check; give one, such as --min-worst-group 0.8")
    return limits


def _parsed(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(f"--min-accuracy takes NAME=VALUE, such as plain=0.9; got {text!r}") from None
