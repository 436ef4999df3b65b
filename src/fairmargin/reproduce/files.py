"""The cells as configuration files, each opening with the command that runs it.

    python -m fairmargin.reproduce.files configs/reproduce

`fairmargin train FILE` runs the same as `fairmargin reproduce`, under the paper's budget.
"""

import sys
from pathlib import Path
from typing import Any

from fairmargin.config import toml
from fairmargin.reproduce.cells import Cell, cells


def path_of(cell: Cell) -> Path:
    """table-03/eps-supinfonce+fairkl,rho=0.99,authors.toml"""
    table = f"table-{cell.table:0>2}" if cell.table.isdigit() else cell.table
    words = [cell.row.replace(":", "-"), *cell.setting.split(";"), cell.reading]
    several = len({other.dataset for other in cells(cell.table)}) > 1
    return Path(table) / f"{','.join([*([cell.dataset] if several else []), *filter(None, words)])}.toml"


def text_of(cell: Cell) -> str:
    """What the cell changes in its dataset's preset."""
    numbers = ", ".join(
        f"{number.mean:g}{'' if number.std is None else f' ± {number.std:g}'} "
        f"({f'{number.setting}, ' if number.setting != cell.setting else ''}{number.origin})"
        for number in cell.published
    )
    opening = [f"# {cell.command('paper')}", f"# Published: {numbers}" if numbers else "# No number is printed."]
    settings = cell.settings | cell.changes("paper").settings
    nested: dict[str, dict[str, Any]] = {"data": {"name": cell.dataset}, "method": {"name": cell.method}}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return "\n".join([*opening, toml.document(nested)])


def contents() -> dict[Path, str]:
    return {path_of(cell): text_of(cell) for cell in cells("all")}


def write(folder: Path) -> int:
    """Write all, and remove files of cells that are no more."""
    wanted = contents()
    for old in folder.rglob("*.toml"):
        if old.relative_to(folder) not in wanted:
            old.unlink()
    for path, text in wanted.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    return len(wanted)


if __name__ == "__main__":
    print(f"{write(Path(sys.argv[1]))} files")
