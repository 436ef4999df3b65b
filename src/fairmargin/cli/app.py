"""The `fairmargin` command; each subcommand is a function in a file of this package.

Nothing here imports PyTorch before a command runs, so help appears at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fairmargin.cli.audit import audit
from fairmargin.cli.check import check
from fairmargin.cli.compare import compare
from fairmargin.cli.data import app as data
from fairmargin.cli.demo import demo
from fairmargin.cli.evaluate import evaluate
from fairmargin.cli.export import card, export
from fairmargin.cli.listing import list_names
from fairmargin.cli.options import flowing
from fairmargin.cli.predict import predict
from fairmargin.cli.report import report
from fairmargin.cli.reproduce import reproduce
from fairmargin.cli.scores import scores
from fairmargin.cli.suite import suite
from fairmargin.cli.train import train
from fairmargin.cli.tune import tune
from fairmargin.cli.verify import verify
from fairmargin.runtime import start
from fairmargin.runtime.terminal import visible
from fairmargin.version import __version__


class _Commands(TyperGroup):
    """The commands. What is wrong with a command line is said without control characters."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        with _escaped():
            return super().make_context(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        with _escaped():
            return super().invoke(ctx)


@contextmanager
def _escaped() -> Iterator[None]:
    """Escape the messages of errors that Typer prints itself; they quote the command line."""
    try:
        yield
    except Exception as error:
        message = getattr(error, "message", None)
        if isinstance(message, str):
            vars(error)["message"] = visible(message)
        raise


app = typer.Typer(
    cls=_Commands,
    help="Train models that stay right when the shortcut in the training data disappears.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fairmargin {__version__}")
        raise typer.Exit


@app.callback()
def main(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Prepare the process, then run the subcommand."""
    start.prepare()
    # Typer would remove escape sequences where output is no terminal; they are to be seen.
    ctx.color = True


app.command()(flowing(demo))
app.command()(flowing(train))
app.command()(flowing(compare))
app.command()(flowing(tune))
app.command()(flowing(suite))
app.command()(flowing(evaluate))
app.command()(flowing(predict))
app.command()(flowing(export))
app.command()(flowing(card))
app.command()(flowing(report))
app.command()(flowing(audit))
app.command()(flowing(check))
app.command()(flowing(verify))
app.command()(flowing(scores))
app.command()(flowing(reproduce))
app.add_typer(data, name="data")
app.command("list")(flowing(list_names))
