"""`fairmargin reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmargin.cli.errors import DIVERGED, exit_on_user_error
from fairmargin.cli.options import (
    Changes,
    command_line,
    parse_seeds,
)
from fairmargin.cli.sweeps import with_engine

if TYPE_CHECKING:
    from fairmargin.sweep.base import Engine


@with_engine
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="A table (1–5, 8–12, text), figure1 … figure5, fairkl, or all; "
            "ledger renews the ledger and weights keeps the weights of finished runs: "
            "these two run nothing."
        ),
    ],
    budget: Annotated[
        str,
        typer.Option(
            help="paper: as published. laptop: reduced, up to an hour a cell. smoke: few steps."
        ),
    ] = "laptop",
    seeds: Annotated[
        str | None,
        typer.Option(help="Number of seeds, or which: 0,5. By default 3 (paper) or 1."),
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(
            help='Only cells whose name matches, comma-separated: "ce:rho=0.99,*fairkl:*@authors".'
        ),
    ] = None,
    reading: Annotated[
        str | None,
        typer.Option(
            help="Readings of FairKL, comma-separated: paper, authors, recommended "
            "(these three by default), released."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would run, and the estimated time.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs/reproduce"),
    ledger: Annotated[
        Path | None, typer.Option(help="Folder of ledger.md and ledger.csv; OUT by default.")
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="A README whose results table is renewed from the ledger.")
    ] = None,
    weights: Annotated[
        Path, typer.Option(help="Folder of kept weights, for `reproduce weights`.")
    ] = Path("results/weights"),
    write_configs: Annotated[
        Path | None,
        typer.Option(
            help="Write each cell as a configuration file below this folder; run nothing."
        ),
    ] = None,
    changes: Changes = None,
    *,
    engine: "Engine",
) -> None:
    """Run the paper's tables and figures, and compare our numbers with its own in a ledger.

    The same command again runs only what is missing and resumes what was interrupted. See
    docs/reproduce.md.
    """
    from fairmargin.reproduce import command

    with exit_on_user_error():
        if write_configs is not None:
            command.write_configs(
                what, pattern=cell, reading=reading, folder=write_configs, say=typer.echo
            )
            return
        if what == command.WEIGHTS:
            command.keep_weights(out, weights, typer.echo)
            return
        failed = []
        if what != command.LEDGER:
            failed = command.reproduce(
                what,
                budget=budget,
                seeds=parse_seeds(seeds or str(command.default_seeds(budget))),
                pattern=cell,
                reading=reading,
                dry_run=dry_run,
                out=out,
                extra=changes or (),
                command=command_line(),
                say=typer.echo,
                engine=engine,
            )
        if not dry_run and (what == command.LEDGER or budget != "smoke"):
            command.keep_ledger(out, ledger or out, readme, typer.echo)
        for failure in failed:
            typer.echo(f"not run: {failure}", err=True)
        if failed:
            raise typer.Exit(DIVERGED)
