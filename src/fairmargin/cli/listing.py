"""`fairmargin list`: tables from listing.json, which `python -m fairmargin.cli.catalog` writes.

Tables of names need no PyTorch, so they appear at once.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.runtime.terminal import Console

# Rows of each catalogue.
FILE = "listing.json"
# Columns of a terminal below which a table leaves out its wide columns.
NARROW = 100


@dataclass(frozen=True)
class Layout:
    """How a catalogue is shown.

    Args:
        columns: their headings; the first holds names.
        right: headings of columns of numbers.
        wide: headings of columns that a narrow terminal does not get.
    """

    title: str
    columns: tuple[str, ...]
    caption: str = ""
    right: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


LAYOUTS = {
    "methods": Layout(
        'methods; options: "fairmargin list methods NAME"',
        ("method", "paper", "needs", "networks", "cost"),
        "cost: training time relative to cross-entropy",
        right=("cost",),
        wide=("networks",),
    ),
    "datasets": Layout(
        'datasets; options: "fairmargin list datasets NAME"', ("dataset", "what it is")
    ),
    "networks": Layout('networks; options: "fairmargin list networks NAME"', ("network", "class")),
    "accuracies": Layout(
        'accuracies, of each classifier in "fairmargin list classifiers"', ("accuracy", "meaning")
    ),
    "classifiers": Layout(
        "classifiers that evaluation judges: --set evaluate.classifiers=own,linear",
        ("classifier", "what it is"),
    ),
    "biases": Layout(
        "what methods may know of the bias: --bias NAME (docs/scores.md)",
        ("bias", "what a method sees", "needs"),
    ),
}


def list_names(
    what: Annotated[
        str,
        typer.Argument(
            help="What to list: methods, datasets, networks, accuracies, classifiers or biases."
        ),
    ] = "methods",
    name: Annotated[
        str | None, typer.Argument(help="Show the options of this method, dataset or network.")
    ] = None,
) -> None:
    """List methods, datasets, networks, accuracies, classifiers, biases, or the options of one.

    Example: fairmargin list methods jtt
    """
    from fairmargin.checks import check_choice

    with exit_on_user_error():
        check_choice(what, "list", LAYOUTS)
        console = Console()
        if name is None:
            console.print(catalogue(what, console.width))
            return
        from fairmargin.cli.catalog import options

        console.print(options(what, name))


def catalogue(what: str, width: int) -> Table:
    """Return the table of a catalogue.

    Args:
        what: a key of `LAYOUTS`.
        width: columns of the terminal.
    """
    layout = LAYOUTS[what]
    shown = [k for k, c in enumerate(layout.columns) if width >= NARROW or c not in layout.wide]
    table = plain_table(layout.title, layout.caption, tight=len(shown) < len(layout.columns))
    for k in shown:
        heading = layout.columns[k]
        # Names and numbers stay in one piece; the other columns wrap.
        number = heading in layout.right
        table.add_column(heading, no_wrap=k == 0 or number, justify="right" if number else "left")
    rows = json.loads((files("fairmargin.cli") / FILE).read_text("utf-8"))[what]
    for row in rows:
        table.add_row(*(Text(row[k]) for k in shown))
    return table


def plain_table(title: str, caption: str = "", *, tight: bool = False) -> Table:
    """Return an empty table without vertical lines, so that 80 columns hold more.

    Args:
        title: above it. It is no markup.
        caption: below it.
        tight: leave a single space between columns.
    """
    return Table(
        title=Text(title, style="table.title"),
        caption=caption or None,
        box=box.SIMPLE_HEAD,
        padding=(0, 0) if tight else (0, 1, 0, 0),
        show_edge=not tight,
    )
