"""What an audit finds, in the two forms it is handed on: numbers for a file, sections for a page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

Progress = Callable[[str, int, int], None]  # (what is being done, done, of how many)


def silent(doing: str, done: int, total: int) -> None:
    """For callers that want no progress."""


@dataclass(frozen=True)
class Table:
    """Cells are texts, or Markup for what is HTML already; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Markup]]
    numeric: Sequence[int] = ()  # columns that are set flush right


@dataclass(frozen=True)
class Figure:
    title: str
    body: Markup  # one <svg>, or a strip of pictures
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """One part of the page; its figures stand before its tables."""

    id: str  # of the HTML element, unique on the page
    title: str
    lead: str  # what is shown, and how to read it, in a sentence or two
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Found:
    """The outcome of one audit."""

    title: str
    verdict: str  # the answer in one or two sentences
    json: dict[str, Any]  # no NaN: None instead
    sections: Sequence[Section] = ()
    warnings: Sequence[str] = field(default_factory=tuple)
