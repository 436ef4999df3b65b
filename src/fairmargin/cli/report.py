"""`fairmargin report`."""

from pathlib import Path
from typing import Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    headline: Annotated[
        str | None,
        typer.Option(
            help="Methods that the first sentence compares: ce,group-dro; by default cross-entropy "
            "and the best other method on validation."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs: tables, charts, images."""
    from fairmargin.report.page import write_report
    from fairmargin.runs.record import find_runs

    with exit_on_user_error():
        named = [name.strip() for name in (headline or "").split(",") if name.strip()]
        page = write_report(
            find_runs(runs),
            out,
            title=title,
            headline=named,
            say=lambda text: typer.echo(text, err=True),
        )
        typer.echo(f"report: {page}")
