"""The `fairmargin` command."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fairmargin.data.cli import app as data
from fairmargin.version import __version__

app = typer.Typer(
    help="Train models that stay right when the shortcut in the training data disappears.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

app.add_typer(data, name="data")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fairmargin {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Of the simulated distances.")] = 0,
) -> None:
    """Show why FairKL compares spreads as well as means: the paper's toy example, as a table and a picture."""
    from fairmargin.report.toy import draw, toy_pair

    toys = toy_pair(seed)
    try:
        out.mkdir(parents=True, exist_ok=True)
        picture = draw(toys, out / "toy.png")
    except OSError as error:
        typer.echo(f"cannot write into {out}: {error.strerror}. Choose another folder with --out", err=True)
        raise typer.Exit(2) from error
    table = Table("divergence between aligned and conflicting distances", *(t.title for t in toys))
    for name, label in {
        "mean": "means only, (Δμ)²",
        "moments": "moments, (Δμ)² + (Δσ)²",
        "kl": "FairKL, KL(A‖C)",
        "jeffreys": "Jeffreys",
    }.items():
        table.add_row(label, *(f"{abs(t.divergence[name]):.3f}" for t in toys))
    Console().print(table)
    typer.echo(f"picture: {picture}")
