"""The cells as configuration files, each opening with the command that runs it.

    fairmargin reproduce 3 --write-configs configs

`fairmargin train FILE` runs the same as `fairmargin reproduce`, under the paper's budget.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairmargin.config import toml
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.runtime.files import write_atomically


def path_of(cell: Cell) -> Path:
    """table-03/eps-supinfonce+fairkl,rho=0.99,authors.toml"""
    table = f"table-{cell.table:0>2}" if cell.table.isdigit() else cell.table
    words = [cell.row.replace(":", "-"), *cell.setting.split(";"), cell.reading]
    several = len({other.dataset for other in cells(cell.table)}) > 1
    return (
        Path(table)
        / f"{','.join([*([cell.dataset] if several else []), *filter(None, words)])}.toml"
    )


def text_of(cell: Cell) -> str:
    """What the cell changes in its dataset's preset."""
    numbers = ", ".join(
        f"{number.mean:g}{'' if number.std is None else f' ± {number.std:g}'} "
        f"({f'{number.setting}, ' if number.setting != cell.setting else ''}{number.origin})"
        for number in cell.published
    )
    opening = [
        f"# {cell.command('paper')}",
        f"# Published: {numbers}" if numbers else "# No number is printed.",
    ]
    settings = cell.settings | cell.changes("paper").settings
    nested: dict[str, dict[str, Any]] = {
        "data": {"name": cell.dataset},
        "method": {"name": cell.method},
    }
    for key, value in settings.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return "\n".join([*opening, toml.document(nested)])


def write(chosen: Iterable[Cell], folder: Path) -> list[Path]:
    """Write one file for each cell below `folder`; files of the same name are replaced."""
    written = []
    for cell in chosen:
        file = folder / path_of(cell)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text_of(cell).encode("utf-8"))
        written.append(file)
    return written
