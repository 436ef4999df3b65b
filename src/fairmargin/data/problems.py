"""What is wrong with people's own data: a line for each problem, one line for many of a kind."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairmargin.runtime.whole import write_bytes

# Lines of a message; the exception holds all problems.
SHOWN = 20
# More problems of one kind than this share a line, which names so many of them.
EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class RowProblem:
    """What is wrong with one row of a table, or with one file of a folder.

    Args:
        row: its number as spreadsheets count, the header being row 1 (Parquet has no header: its
            first row is 1); None for a folder.
    """

    row: int | None
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"

    @property
    def where(self) -> str:
        """The row and the file."""
        row = "" if self.row is None else f"row {self.row}, "
        return f"{row}{self.file or '(no file)'}"

    @property
    def kind(self) -> str:
        """The reason without what differs from row to row: numbers and quoted words."""
        return re.sub(r'"[^"]*"|\d+', "…", self.reason)

    @classmethod
    def from_line(cls, line: str) -> "RowProblem":
        """Return the problem that `str` wrote.

        Args:
            line: such as "row 3, a.png: no such file".
        """
        where, _, reason = line.partition(": ")
        numbered = re.fullmatch(r"row (\d+), (.*)", where, re.DOTALL)
        if numbered is None:
            return cls(None, where, reason)
        return cls(int(numbered[1]), numbered[2], reason)


class BadManifest(ValueError):
    """Data that cannot be used as it is.

    `problems` holds every problem; the message is brief.

    Args:
        source: the table or folder, for the message.
        advice: a last line of the message.
    """

    def __init__(
        self, problems: Sequence[RowProblem], source: str = "manifest", advice: str = ""
    ) -> None:
        super().__init__(problems, source, advice)
        self.problems = tuple(problems)
        self.source = source
        self.advice = advice

    def __str__(self) -> str:
        return self.report()

    @property
    def shortened(self) -> bool:
        """True if the message does not show every problem."""
        lines = brief(self.problems)
        return len(lines) < len(self.problems) or len(lines) > SHOWN

    def report(self, file: Path | None = None) -> str:
        """Return the message: what is wrong, many problems of a kind in one line, the advice.

        Args:
            file: that holds all problems, to be named.
        """
        number = len(self.problems)
        plural = "s" if number > 1 else ""
        lines = [f"{self.source}: {number:,} problem{plural}, nothing was loaded"]
        lines += cut(brief(self.problems))
        if file is not None:
            lines.append(f"all {number:,} are listed in {file}")
        if self.advice:
            lines.append(self.advice)
        return "\n  ".join(lines)

    def write_problems(self, path: Path) -> None:
        """Write every problem into a CSV file with the columns row, file and reason."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(["row", "file", "reason"])
        for problem in self.problems:
            writer.writerow([problem.row, problem.file, problem.reason])
        write_bytes(path, text.getvalue().encode("utf-8", "backslashreplace"))


def brief(problems: Sequence[RowProblem]) -> list[str]:
    """Return a line for each problem, or one line with three examples for many of a kind.

    Args:
        problems: in any order; the kinds stay in the order of their first problem.

    Example:
        "no such file: 2,600 rows, such as row 2, a.png; row 3, b.png; row 4, c.png"
    """
    kinds: dict[str, list[RowProblem]] = {}
    for problem in problems:
        kinds.setdefault(problem.kind, []).append(problem)
    lines: list[str] = []
    for kind, alike in kinds.items():
        if len(alike) <= EXAMPLES:
            lines += map(str, alike)
            continue
        same = all(problem.reason == alike[0].reason for problem in alike)
        what = alike[0].reason if same else kind
        counted = "files" if alike[0].row is None else "rows"
        examples = "; ".join(problem.where for problem in alike[:EXAMPLES])
        lines.append(f"{what}: {len(alike):,} {counted}, such as {examples}")
    return lines


def cut(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    shown = list(lines[:SHOWN])
    if len(lines) > SHOWN:
        shown.append(f"… and {len(lines) - SHOWN:,} more")
    return shown
