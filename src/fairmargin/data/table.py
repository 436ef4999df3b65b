"""Tables of people's own data as text: CSV, TSV and Parquet, and the problems found in them."""

import csv
import difflib
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

DELIMITERS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}  # a .csv has the first that its header has
PARQUET = (".parquet", ".pq")
SHOWN = 20  # problems in the message; the exception holds all


@dataclass(frozen=True, slots=True)
class Problem:
    row: (
        int | None
    )  # as spreadsheets count, the header is row 1 (Parquet has none: its first row is 1); None: a folder
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{'' if self.row is None else f'row {self.row}, '}{self.file or '(no file)'}: {self.reason}"


class BadManifest(ValueError):
    """Data that cannot be used as it stands: `problems` has every problem, the message the first few."""

    def __init__(
        self, problems: Sequence[Problem], source: str = "manifest", advice: str = ""
    ) -> None:
        super().__init__(problems, source, advice)
        self.problems, self.source, self.advice = tuple(problems), source, advice

    def __str__(self) -> str:
        return self.report(SHOWN)

    def report(self, most: int | None = None) -> str:
        """Every problem on a line of its own, or the first `most` of them."""
        number = len(self.problems)
        more = [f"… and {number - most} more"] if most is not None and number > most else []
        lines = [*map(str, self.problems[:most]), *more, *([self.advice] if self.advice else [])]
        return "\n  ".join(
            [f"{self.source}: {number} problem{'s'[: number > 1]}, nothing was loaded", *lines]
        )

    def write_problems(self, path: Path) -> None:
        with open(path, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.writer(file)
            writer.writerow(["row", "file", "reason"])
            writer.writerows(
                [problem.row, problem.file, problem.reason] for problem in self.problems
            )


def read_table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and the rows with their numbers; blank lines are passed over but counted."""
    kind = path.suffix.lower()
    if not path.is_file():
        raise BadManifest([Problem(None, str(path), "no such file or folder")], str(path))
    if kind in PARQUET:
        return _parquet(path)
    if kind not in DELIMITERS:
        raise ValueError(
            f"{path}: a manifest ends in {', '.join((*DELIMITERS, *PARQUET))}; save it as one of these"
        )
    lines: list[tuple[int, list[str]]] = []
    last = 0
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.reader(
                file, delimiter=_delimiter(file, kind), skipinitialspace=kind == ".csv", strict=True
            )
            for row, cells in enumerate(reader, start=1):
                last = row
                if cells:
                    lines.append((row, cells))
    except (
        csv.Error
    ) as error:  # such as a quotation mark that is never closed: what follows cannot be told apart
        raise BadManifest(
            [Problem(last + 1, str(path), f"the table breaks off here: {error}")], str(path)
        ) from None
    if not lines:
        raise BadManifest([Problem(1, str(path), "no header")], str(path))
    header = [name.strip() for name in lines[0][1]]
    if any("\ufffd" in name for name in header):
        raise BadManifest(
            [Problem(1, str(path), "the header is not UTF-8 text; save it as UTF-8")], str(path)
        )
    return header, lines[1:]


def _delimiter(file: TextIO, kind: str) -> str:
    """Spreadsheets write semicolons where a comma is the decimal point."""
    header = next((line for line in file if line.strip()), "")
    file.seek(0)
    return next((one for one in DELIMITERS[kind] if one in header), DELIMITERS[kind][0])


def _parquet(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            f'{path}: Parquet needs an extra: pip install "fairmargin[parquet]"; or save it as CSV'
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise BadManifest(
            [Problem(None, str(path), f"not a Parquet table: {error}")], str(path)
        ) from error
    columns = [map(_text, column.to_pylist()) for column in table.columns]
    return list(table.column_names), [
        (i, list(cells)) for i, cells in enumerate(zip(*columns, strict=True), start=1)
    ]


def _text(value: object) -> str:
    """Missing values are None or NaN; whole numbers become floats beside them, and labels must not change for that."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def find_column(path: Path, header: list[str], name: str, option: str) -> int:
    """Where the column `name` stands; `option` is the setting that names it."""
    if header.count(name) == 1:
        return header.index(name)
    plain = {column.casefold(): column for column in header}
    near = difflib.get_close_matches(name.casefold(), plain, n=1, cutoff=0.4)
    hint = f'did you mean "{plain[near[0]]}"? ' if near else ""
    reason = (
        f'column "{name}" stands there more than once. '
        if name in header
        else f'no column "{name}": {hint}'
    )
    advice = (
        f'name another with --set data.{option}=… ("data show": --{option.replace("_", "-")} …)'
    )
    raise BadManifest(
        [Problem(1, str(path), f"{reason}The columns are {', '.join(header)}")], str(path), advice
    )


def find_column_if_there(path: Path, header: list[str], name: str, option: str) -> int | None:
    """The default names may be missing; but one that looks like them, "Bias", was not meant to be passed over."""
    alike = difflib.get_close_matches(name, [column.casefold() for column in header], cutoff=0.8)
    return find_column(path, header, name, option) if alike else None
