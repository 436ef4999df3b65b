"""`fairmargin audit` of a folder that holds runs: an audit of each, and a table of all."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from fairmargin.cli.errors import WRONG_INPUT
from fairmargin.cli.listing import plain_table
from fairmargin.runtime.terminal import Console

if TYPE_CHECKING:
    from fairmargin.audit.section import Found

# Accuracies of the table, in this order, if some run has them.
SHOWN = ("plain", "conflicting", "worst-group")


def runs_below(path: Path) -> list[Path]:
    """Return the runs below a folder that is no run itself; none below a folder of images.

    Args:
        path: what is to be audited.
    """
    from fairmargin.data.decode import EXTENSIONS
    from fairmargin.runs.record import find_runs, is_run

    if not path.is_dir() or is_run(path):
        return []
    found = find_runs([path])
    # Class folders beside the runs that were trained on them.
    pictures = (file for level in ("*/*", "*/*/*") for file in path.glob(level))
    if found and any(file.suffix.lower() in EXTENSIONS for file in pictures):
        return []
    return found


def audit_each(
    folders: Sequence[Path],
    below: Path,
    audit: Callable[[Path], "Found"],
    place: Callable[[Path], Path],
) -> int:
    """Audit runs one after the other, print a table of all, and return the exit code.

    It is 0 if every run could be audited, 2 if one could not be; the others are audited all the
    same.

    Args:
        folders: of the runs.
        below: the folder that holds them, which the table leaves out of their names.
        audit: of one run.
        place: where the page of a run goes.
    """
    from fairmargin.audit.page import write

    rows: list[tuple[str, Found]] = []
    code = 0
    for number, folder in enumerate(folders, start=1):
        typer.echo(f"{number} of {len(folders)}: {folder}")
        try:
            found = audit(folder)
        except (OSError, ValueError) as error:
            typer.echo(f"not audited: {error}", err=True)
            code = WRONG_INPUT
            continue
        page, _ = write(found, place(folder))
        typer.echo(f"{found.verdict}\npage: {page}\n")
        rows.append((str(folder.relative_to(below)), found))
    if rows:
        Console().print(table([(name, found.json) for name, found in rows]))
    return code


def table(rows: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """Return a line for each run: accuracies, how far the bias can be read, weak slices.

    Args:
        rows: name and numbers (audit.json) of each run.
    """
    shown = plain_table(
        "audits, in percent",
        "bias read: how far above chance the bias can be told inside a class, 100 being always",
    )
    names = [name for name in SHOWN if any(name in json["accuracy"] for _, json in rows)]
    shown.add_column("run", overflow="fold")
    for name in (*names, "bias read", "weak slices"):
        shown.add_column(name, justify="right")
    for run, json in rows:
        cells = [_percent(json["accuracy"].get(name, {}).get("value")) for name in names]
        readable = json.get("bias_readable") or {}
        cells.append(_percent(readable.get("above_chance")))
        slices = json.get("slices") or {}
        cells.append(str(len(slices["found"])) if "found" in slices else "–")
        shown.add_row(run, *cells)
    return shown


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
