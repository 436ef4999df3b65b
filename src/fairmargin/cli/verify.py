"""`fairmargin verify`."""

from pathlib import Path
from typing import Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error

CHANGED = 1


def verify(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
) -> None:
    """Check that the files of finished runs are what the runs wrote.

    The exit code is 0 if they are, 1 if a file has changed or is missing, 2 if a folder cannot be
    read. Checkpoints have checksums of their own, and are looked at too.
    """
    from fairmargin.runs import checkpoint
    from fairmargin.runs.integrity import verify as look
    from fairmargin.runs.record import CHECKPOINTS, RunError, find_runs

    code = 0
    with exit_on_user_error():
        folders = find_runs(runs)
        if not folders:
            raise ValueError(
                f'no run in {", ".join(map(str, runs))}; give folders that "fairmargin train" wrote'
            )
    for folder in folders:
        try:
            found = list(look(folder))
        except RunError as error:
            typer.echo(str(error), err=True)
            code = 2
            continue
        wrong = [one for one in found if one.bad]
        damaged = checkpoint.damaged(folder / CHECKPOINTS)
        unknown = sum(one.verdict == "unknown" for one in found)
        whole = sum(one.verdict == "whole" for one in found)
        note = f", {unknown} without a checksum" if unknown else ""
        typer.echo(f"{folder}: {whole} files are whole{note}")
        for one in wrong:
            typer.echo(f"  {one.verdict.upper()}  {one.name}: {one.said}")
        for path, why in damaged:
            typer.echo(f"  DAMAGED  {CHECKPOINTS}/{path.name}: {why}")
        if wrong or damaged:
            code = max(code, CHANGED)
    raise typer.Exit(code)
