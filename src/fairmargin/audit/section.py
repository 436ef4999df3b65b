"""The outcome of an audit: numbers for a file, and sections for a page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

# Called with what is being done, how much of it is done, and of how much.
Progress = Callable[[str, int, int], None]


def silent(doing: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row.

    Args:
        head: titles of the columns.
        rows: cells, as text or as Markup where they are HTML already.
        numeric: columns that are set flush right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str | Markup]]
    numeric: Sequence[int] = ()


@dataclass(frozen=True)
class Figure:
    """One `<svg>`, or a strip of pictures, with its title."""

    title: str
    body: Markup
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """One part of the page; its figures stand before its tables.

    Args:
        id: of the HTML element, unique on the page.
        title: its heading.
        lead: what is shown and how to read it, in a sentence or two.
        figures: shown first.
        tables: shown after them.
    """

    id: str
    title: str
    lead: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Found:
    """The outcome of one audit.

    Args:
        title: of the page.
        verdict: the answer in one or two sentences.
        json: everything measured, for audit.json; None stands for NaN.
        sections: of the page.
        warnings: sentences that limit what the numbers mean.
    """

    title: str
    verdict: str
    json: dict[str, Any]
    sections: Sequence[Section] = ()
    warnings: Sequence[str] = field(default_factory=tuple)
