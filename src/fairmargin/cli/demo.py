"""`fairmargin demo`."""

from pathlib import Path
from typing import Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import command_line


def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs and report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Random seed for data, weights and batches.")] = 0,
) -> None:
    """Train two methods on digits whose colour gives the label away, then shuffle the colours.

    The methods are cross-entropy and fairmargin. A report shows what each has learned.
    """
    from fairmargin.sweep import demo as demonstration

    with exit_on_user_error():
        demonstration.show(out, seed, say=typer.echo, command=command_line())
