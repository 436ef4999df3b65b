"""`fairmargin reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from fairmargin.cli.errors import DIVERGED, exit_on_user_error
from fairmargin.cli.options import (
    Address,
    Changes,
    Cpus,
    EngineName,
    Gpus,
    Jobs,
    command_line,
    parse_seeds,
)


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="A table (1–5, 8–12, text), figure1 … figure5, fairkl, all; or ledger, which runs nothing."
        ),
    ],
    budget: Annotated[
        str, typer.Option(help="paper: as published. laptop: reduced, minutes. smoke: a few steps.")
    ] = "laptop",
    seeds: Annotated[
        str | None, typer.Option(help="How many, or which: 0,5. By default 3 (paper) or 1.")
    ] = None,
    cell: Annotated[
        str | None, typer.Option(help='Only those whose name matches: "*fairkl:rho=0.99@authors".')
    ] = None,
    reading: Annotated[
        str | None,
        typer.Option(
            help="Of FairKL, comma-separated: paper, authors, recommended (these three by default), released."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would run, with the time a probe suggests.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs/reproduce"),
    ledger: Annotated[
        Path | None, typer.Option(help="Folder of ledger.md and ledger.csv; OUT by default.")
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="A README whose results table is renewed from the ledger.")
    ] = None,
    write_configs: Annotated[
        Path | None,
        typer.Option(
            help="Write each cell as a configuration file below this folder; run nothing."
        ),
    ] = None,
    changes: Changes = None,
    engine: EngineName = "local",
    jobs: Jobs = None,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> None:
    """Run the paper's tables and figures cell by cell, and keep a ledger of its numbers beside ours. See docs/reproduce.md.

    Again: only what is missing; a run that was killed goes on from its checkpoint.
    """
    from fairmargin.reproduce import command
    from fairmargin.sweep.engines import engine as chosen

    with exit_on_user_error():
        if write_configs is not None:
            command.write_configs(
                what, pattern=cell, reading=reading, folder=write_configs, say=typer.echo
            )
            return
        where_to_run = chosen(engine, jobs=jobs, address=address, cpus=cpus, gpus=gpus)
        failed = []
        if what != "ledger":
            failed = command.reproduce(
                what,
                budget=budget,
                seeds=parse_seeds(seeds or str(command.SEEDS.get(budget, 1))),
                pattern=cell,
                reading=reading,
                dry_run=dry_run,
                out=out,
                extra=changes or (),
                command=command_line(),
                say=typer.echo,
                engine=where_to_run,
            )
        if not dry_run and (what == "ledger" or budget != "smoke"):
            command.keep_ledger(out, ledger or out, readme, typer.echo)
        for what_and_why in failed:
            typer.echo(f"not run: {what_and_why}", err=True)
        if failed:
            raise typer.Exit(DIVERGED)
