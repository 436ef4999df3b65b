"""Read tables of people's own data as text: CSV, TSV, Parquet."""

import csv
import difflib
import importlib
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from fairmargin.data.problems import BadManifest, RowProblem

# A .csv is read with the first of these that its header has.
DELIMITERS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
PARQUET = (".parquet", ".pq")

Rows = list[tuple[int, list[str]]]


def _bad_table(path: Path, row: int | None, reason: str, advice: str = "") -> BadManifest:
    """The error for a problem of the table as a whole."""
    return BadManifest([RowProblem(row, str(path), reason)], str(path), advice)


def read_table(path: Path) -> tuple[list[str], Rows]:
    """Read the header, and the rows with their numbers.

    Blank lines are passed over but counted.

    Args:
        path: a .csv, .tsv or .parquet file.
    """
    kind = path.suffix.lower()
    if not path.is_file():
        raise _bad_table(path, None, "no such file or folder")
    if kind in PARQUET:
        return _parquet(path)
    if kind not in DELIMITERS:
        endings = ", ".join((*DELIMITERS, *PARQUET))
        raise ValueError(f"{path}: a manifest ends in {endings}; save it as one of these")
    lines: Rows = []
    last = 0
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            delimiter = _delimiter(file, kind)
            is_csv = kind == ".csv"
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=is_csv, strict=True)
            for row, cells in enumerate(reader, start=1):
                last = row
                if cells:
                    lines.append((row, cells))
    # For example a quotation mark that is never closed: the rows after it cannot be told apart.
    except csv.Error as error:
        raise _bad_table(path, last + 1, f"the table breaks off here: {error}") from None
    if not lines:
        raise _bad_table(path, 1, "no header")
    header = [name.strip() for name in lines[0][1]]
    if any("\ufffd" in name for name in header):
        raise _bad_table(path, 1, "the header is not UTF-8 text; save it as UTF-8")
    return header, lines[1:]


def _delimiter(file: TextIO, kind: str) -> str:
    """Spreadsheets write semicolons where a comma is the decimal point."""
    header = next((line for line in file if line.strip()), "")
    file.seek(0)
    return next((one for one in DELIMITERS[kind] if one in header), DELIMITERS[kind][0])


def _parquet(path: Path) -> tuple[list[str], Rows]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            f'{path}: Parquet needs an extra: pip install "fairmargin[parquet]"; or save it as CSV'
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise _bad_table(path, None, f"not a Parquet table: {error}") from error
    columns = [map(cell_text, column.to_pylist()) for column in table.columns]
    rows = [list(cells) for cells in zip(*columns, strict=True)]
    return list(table.column_names), list(enumerate(rows, start=1))


def cell_text(value: object) -> str:
    """Write a value as text.

    Missing values are None or NaN. Beside them whole numbers become floats, and labels must not
    change because of that.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def find_column(path: Path, header: list[str], name: str, option: str) -> int:
    """Return the position of the column `name`.

    Args:
        path: the table, for the message.
        option: the setting that names the column, for the message.
    """
    if header.count(name) == 1:
        return header.index(name)
    if name in header:
        reason = f'column "{name}" appears more than once. '
    else:
        plain = {column.casefold(): column for column in header}
        near = difflib.get_close_matches(name.casefold(), plain, n=1, cutoff=0.4)
        hint = f'did you mean "{plain[near[0]]}"? ' if near else ""
        reason = f'no column "{name}": {hint}'
    word = f"--{option.replace('_', '-')}"
    advice = f'name another with --set data.{option}=… ("data show": {word} …)'
    raise _bad_table(path, 1, f"{reason}The columns are {', '.join(header)}", advice)


def find_column_if_there(path: Path, header: list[str], name: str, option: str) -> int | None:
    """Return the position of the column `name`, or None if the table has none like it.

    A column with nearly that name, such as "Bias", is an error: it was not meant to be ignored.

    Args:
        path: the table, for the message.
        option: the setting that names the column, for the message.
    """
    alike = difflib.get_close_matches(name, [column.casefold() for column in header], cutoff=0.8)
    return find_column(path, header, name, option) if alike else None


def natural_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names, each once: by value if all are numbers, else with "a2" before "a10".

    Args:
        names: may hold a name more than once.
    """
    unique = set(names)
    number = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
    if all(number.fullmatch(name) for name in unique):
        return tuple(sorted(unique, key=lambda name: (float(name), name)))
    return tuple(sorted(unique, key=lambda name: (_words_and_numbers(name), name)))


def _words_and_numbers(name: str) -> list[int | str]:
    parts = re.split(r"(\d+)", name)
    return [int(part) if part.isdecimal() else part.casefold() for part in parts]
