"""`fairmargin suite`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmargin.cli.errors import DIVERGED, exit_on_user_error
from fairmargin.cli.options import Changes, command_line, parse_seeds
from fairmargin.cli.sweeps import with_engine
from fairmargin.runtime.terminal import Console
from fairmargin.runtime.whole import write_text

if TYPE_CHECKING:
    from fairmargin.sweep.base import Engine

USUAL = "ce,group-balanced,group-dro,fairmargin,eps-supinfonce+fairkl,lff,jtt,fairmargin@bias=auto"


@with_engine
def suite(
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, comma-separated; each may have settings: "
            "fairmargin@bias=auto, lff@train.epochs=20 (docs/suite.md)."
        ),
    ] = USUAL,
    tasks: Annotated[
        str, typer.Option(help="Tasks, comma-separated, or core, images or held-out.")
    ] = "core",
    seeds: Annotated[
        str, typer.Option(help="Number of seeds, or which: 3 means 0,1,2; 0,5 names two.")
    ] = "3",
    tune: Annotated[
        int,
        typer.Option(min=0, help="Trials for every method on every task; 0 takes the defaults."),
    ] = 0,
    out: Annotated[Path, typer.Option(help="Folder of all runs and of suite.html.")] = Path(
        "runs/suite"
    ),
    changes: Changes = None,
    *,
    engine: "Engine",
) -> None:
    """Rank methods on ten small tasks that need no download.

    Methods that may know the same of the bias are ranked together: bias labels known in training,
    only in validation, or not at all. The same command again runs only what is missing.
    """
    from fairmargin.suite.entries import parse_entries
    from fairmargin.suite.page import page
    from fairmargin.suite.plan import cells_of, run_suite, tuned
    from fairmargin.suite.results import PAGE, score, write_scores
    from fairmargin.suite.standings import rankings, summary
    from fairmargin.suite.tasks import parse_tasks
    from fairmargin.suite.terminal import shown
    from fairmargin.sweep.base import prepare

    with exit_on_user_error():
        chosen, entries = parse_tasks(tasks), parse_entries(methods)
        cells = cells_of(chosen, entries, parse_seeds(seeds), changes or (), tune)
        for cell in cells:
            # A mistake in a setting shows now and not after the runs before it.
            cell.config()
        remarks: list[str] = []
        folder = prepare(engine, out)
        if tune:
            cells, remarks = tuned(
                cells, folder, tune, command=command_line(), say=typer.echo, engine=engine
            )
        finished = run_suite(cells, out, command=command_line(), say=typer.echo, engine=engine)
        order = {cell.folder: k for k, cell in enumerate(cells)}
        scores = [score(one) for one in sorted(finished, key=lambda one: order[one.cell.folder])]
        found = rankings(scores, [task.name for task in chosen])
        write_scores(scores, summary(found, remarks), out)
        console = Console()
        for one in found:
            for part in shown(one):
                console.print(part)
        for remark in remarks:
            typer.echo(remark)
        typer.echo(f"\npage: {write_text(out / PAGE, page(found, scores, remarks))}")
        if any(one.failure for one in scores):
            raise typer.Exit(DIVERGED)
