"""Read tables of people's own data as text: CSV, TSV, Parquet."""

import csv
import difflib
import importlib
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from fairmargin.data.problems import BadManifest, RowProblem
from fairmargin.runtime.limits import ARRAYS, GIB, TooLarge, check_unpacked, limit

# A .csv is read with the first of these that its header has.
DELIMITERS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
PARQUET = (".parquet", ".pq")
# Rows of a Parquet table read at a time, and bytes that a cell takes beside its characters.
ROWS = 4096
CELL_BYTES = 150

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
        names = _texts_of(parquet.ParquetFile(path).schema)
        # A value that is repeated is kept once: some bytes of a file can repeat it a million times.
        file = parquet.ParquetFile(path, read_dictionary=names)
        return list(file.schema_arrow.names), _cells(path, file)
    except (BadManifest, TooLarge):
        raise
    except (OSError, ValueError, LookupError, NotImplementedError, TypeError) as error:
        raise _bad_table(path, None, f"not a Parquet table: {error}") from error


def _texts_of(schema: Any) -> list[str]:
    """Names of the columns that hold texts or bytes."""
    columns = [schema.column(i) for i in range(len(schema))]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _cells(path: Path, file: Any) -> Rows:
    """The rows of a Parquet file as text; `TooLarge` if they are more than the limit."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    size = values * CELL_BYTES
    check_unpacked(path, size)
    most = limit(ARRAYS) * GIB
    rows: Rows = []
    for batch in file.iter_batches(ROWS):
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            texts = []
            for row, cell in enumerate(column, start=len(rows) + 1):
                text = arrow_text(path, row, name, cell)
                size += len(text)
                # Looked at here too, because one value of a batch may be as long as the file says.
                if size > most:
                    check_unpacked(path, size)
                texts.append(text)
            columns.append(texts)
        cells = map(list, zip(*columns, strict=True))
        rows += enumerate(cells, start=len(rows) + 1)
    return rows


def arrow_text(path: Path, row: int, column: str, cell: Any) -> str:
    """Write a value of PyArrow as text.

    Args:
        path: the table, for the message.
        row: from 1, for the message.
        column: its name, for the message.
        cell: a scalar of PyArrow.
    """
    try:
        return cell_text(cell.as_py())
    # Dates after the year 9999, time zones that nobody knows, text that is not UTF-8.
    except (ValueError, OverflowError) as error:
        reason = f'column "{column}" has a {cell.type} that cannot be read: {error}'
        raise _bad_table(path, row, reason) from error


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


def _words_and_numbers(name: str) -> list[Decimal | str]:
    parts = re.split(r"(\d+)", name)
    # Python makes no int of more than 4300 digits.
    return [Decimal(part) if part.isdecimal() else part.casefold() for part in parts]
