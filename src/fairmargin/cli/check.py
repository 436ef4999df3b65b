"""`fairmargin check`: compare finished runs with limits, for continuous integration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fairmargin.audit.check import GAP, Judged, Limit

# Exit codes.
BROKEN = 1
UNCHECKED = 2
# Mistakes that a broken limit names.
NAMED = 3


def check(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    min_worst_group: Annotated[
        float | None, typer.Option(help="Lowest worst-group accuracy allowed, 0 to 1.")
    ] = None,
    min_conflicting: Annotated[
        float | None, typer.Option(help="Lowest conflicting accuracy allowed, 0 to 1.")
    ] = None,
    min_accuracy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Lowest accuracy of any name allowed, such as plain=0.9; "
            'see "fairmargin list accuracies".',
        ),
    ] = None,
    max_gap: Annotated[
        float | None, typer.Option(help="Largest equalised-odds gap allowed, 0 to 1.")
    ] = None,
    classifier: Annotated[
        str,
        typer.Option(
            help="Whose numbers to compare: that which the run reports, own, probe, knn or linear."
        ),
    ] = "reported",
    lower_bound: Annotated[
        bool,
        typer.Option(
            "--lower-bound", help="Compare the lower end of each 95 % interval, not the value."
        ),
    ] = False,
    ignore_small_groups: Annotated[
        bool,
        typer.Option(
            "--ignore-small-groups",
            help="Accept limits on worst-group accuracy and gap although groups with fewer than "
            "10 test samples are not in them.",
        ),
    ] = False,
) -> None:
    """Compare runs with limits, for continuous integration.

    The exit code is 0 if all limits hold, 1 if one is broken, 2 if one cannot be checked.

    Groups with fewer than 10 test samples count in neither worst-group accuracy nor gap. If there
    are such groups, a limit on these two that is not broken cannot be checked, unless you give
    --ignore-small-groups.
    """
    from fairmargin.runs.record import find_runs

    try:
        limits = _limits(min_worst_group, min_conflicting, min_accuracy or (), max_gap)
        folders = find_runs(runs)
        if not folders:
            raise ValueError(
                f'no run in {", ".join(map(str, runs))}; give folders that "fairmargin train" wrote'
            )
    except (OSError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNCHECKED) from error
    code = 0
    for folder in folders:
        try:
            judged = Judged.read(folder, classifier)
            found = judged.checks(limits, lower_bound, ignore_small_groups)
        except (OSError, ValueError) as error:
            typer.echo(str(error), err=True)
            code = UNCHECKED
            continue
        typer.echo(f"{folder}")
        for warning in judged.result["warnings"]:
            typer.echo(f"  warning: {warning}")
        for one in found:
            typer.echo(f"  {one}")
            if one.unsure:
                code = UNCHECKED
            elif one.broken:
                code = max(code, BROKEN)
        if any(one.broken for one in found):
            _say_mistakes(judged)
    raise typer.Exit(code)


def _say_mistakes(judged: Judged) -> None:
    """Name some of the images that a run is wrong about, if they are files."""
    try:
        names = judged.mistakes()
    except OSError as error:
        typer.echo(f"  warning: {error}", err=True)
        return
    if names:
        rest = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        typer.echo(
            f"  wrong: {', '.join(names[:NAMED])}{rest}; "
            f'"fairmargin audit {judged.run}" lists all of them in audit.csv'
        )


def _limits(
    worst_group: float | None, conflicting: float | None, named: Sequence[str], gap: float | None
) -> list[Limit]:
    given = [
        ("worst-group", worst_group),
        ("conflicting", conflicting),
        *map(_parsed, named),
        (GAP, gap),
    ]
    limits = [Limit(name, bound) for name, bound in given if bound is not None]
    if not limits:
        raise ValueError("there is no limit to check; give one, such as --min-worst-group 0.8")
    return limits


def _parsed(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(
            f"--min-accuracy takes NAME=VALUE, such as plain=0.9; got {text!r}"
        ) from None
