"""`fairmargin demo`."""

from pathlib import Path
from typing import Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import command_line


def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs and report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Of data, networks and order.")] = 0,
) -> None:
    """Train cross-entropy and ε-SupInfoNCE+FairKL on digits whose colour gives the label away; then shuffle the colours."""
    from fairmargin.sweep import demo as demonstration

    with exit_on_user_error():
        demonstration.show(out, seed, say=typer.echo, command=command_line())
