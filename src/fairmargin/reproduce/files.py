"""Write cells as configuration files, each opening with the command that runs it.

    fairmargin reproduce 3 --write-configs configs

`fairmargin train FILE` then runs the same as `fairmargin reproduce` under the paper's budget.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairmargin.config import toml
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.published import Published
from fairmargin.runtime.whole import write_bytes


def path_of(cell: Cell) -> Path:
    """Return its place below a folder: table-03/eps-supinfonce+fairkl,rho=0.99,authors.toml."""
    table = f"table-{cell.table:0>2}" if cell.table.isdigit() else cell.table
    words = [cell.row.replace(":", "-"), *cell.setting.split(";"), cell.reading]
    datasets = {other.dataset for other in cells(cell.table)}
    if len(datasets) > 1:
        words.insert(0, cell.dataset)
    return Path(table) / f"{','.join(filter(None, words))}.toml"


def text_of(cell: Cell) -> str:
    """Return the text of its file: the command, the published numbers, and what the cell sets."""
    numbers = ", ".join(_number(cell, number) for number in cell.published)
    opening = [
        f"# {cell.command('paper')}",
        f"# Published: {numbers}" if numbers else "# No number is printed.",
    ]
    settings = cell.settings | cell.changes("paper")
    nested: dict[str, dict[str, Any]] = {
        "data": {"name": cell.dataset},
        "method": {"name": cell.method},
    }
    for key, value in settings.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return "\n".join([*opening, toml.document(nested)])


def _number(cell: Cell, number: Published) -> str:
    std = "" if number.std is None else f" ± {number.std:g}"
    setting = "" if number.setting == cell.setting else f"{number.setting}, "
    return f"{number.mean:g}{std} ({setting}{number.origin})"


def write(chosen: Iterable[Cell], folder: Path) -> list[Path]:
    """Write one file for each cell below `folder`; files of the same name are replaced.

    Args:
        chosen: the cells.
        folder: made if it does not exist.
    """
    written = []
    for cell in chosen:
        file = folder / path_of(cell)
        write_bytes(file, text_of(cell).encode("utf-8"))
        written.append(file)
    return written
