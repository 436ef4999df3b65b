"""The outcome of an audit: numbers for a file, and sections for a page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
class NameList:
    """Names of pictures, which a button of the page copies."""

    title: str
    names: Sequence[str]


@dataclass(frozen=True)
class Section:
    """One part of the page; its figures stand before its tables.

    Args:
        id: of the HTML element, unique on the page.
        title: its heading.
        lead: what is shown and how to read it, in a sentence or two.
        figures: shown first.
        tables: shown after them.
        lists: names of pictures, shown last.
    """

    id: str
    title: str
    lead: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    lists: Sequence[NameList] = ()


@dataclass(frozen=True)
class Item:
    """One thing that an audit looked at or found.

    Args:
        attribute: of a dataset, such as "mean colour"; of a model, "bias" or a slice of a class.
        accuracy: of a dataset, how often the attribute tells the label, classes counting alike; of
            a model, how often the bias can be read inside classes, or the slice is right.
        strength: share of the gap between chance and perfect; None for a slice.
        p: corrected; None for the bias, of which an audit tests nothing.
        verdict: "shortcut", "correlate" or "nothing"; of a model, how well the bias "can be read",
            or "weak slice".
    """

    attribute: str
    accuracy: float
    strength: float | None
    p: float | None
    verdict: str


@dataclass(frozen=True)
class Found:
    """The outcome of one audit; a notebook shows its table.

    Args:
        title: of the page.
        verdict: the answer in one or two sentences.
        json: everything measured, for audit.json; None stands for NaN.
        sections: of the page.
        warnings: sentences that limit what the numbers mean.
        columns: of audit.csv, one cell for each picture; None if it is not written.
    """

    title: str
    verdict: str
    json: dict[str, Any]
    sections: Sequence[Section] = ()
    warnings: Sequence[str] = field(default_factory=tuple)
    columns: Mapping[str, Sequence[Any]] | None = None

    def rows(self) -> list[dict[str, Any]]:
        """What audit.csv holds: a dict for each picture that was looked at.

        `pandas.DataFrame(found.rows())` makes a data frame of it.
        """
        # Here, because that module imports this one.
        from fairmargin.audit.rows import to_rows

        return to_rows(self.columns or {})

    @property
    def leaks(self) -> list[dict[str, Any]]:
        """Pictures that are copies of one in another split; empty for a model."""
        return list((self.json.get("copies") or {}).get("leaks", ()))

    @property
    def problems(self) -> dict[str, list[dict[str, Any]]]:
        """Pictures to look at, by problem: "label error", "outlier", "dark", …"""
        found = self.json.get("problems") or {}
        return {name: list(one["pictures"]) for name, one in found.items()}

    @property
    def findings(self) -> list[Item]:
        """What was looked at, of a dataset; what was found, of a model. Strongest first."""
        # Here, because that module imports this one.
        from fairmargin.audit.model_page import legibility

        items = []
        for one in self.json.get("attributes", ()):
            right, p = one["balanced_accuracy"], one["p_corrected"]
            items.append(Item(one["name"], right, one["strength"], p, one["verdict"]))
        readable = self.json.get("bias_readable") or {}
        if readable.get("above_chance") is not None:
            rates = [one["accuracy"]["value"] for one in readable["classes"]]
            above = readable["above_chance"]
            items.append(Item("bias", sum(rates) / len(rates), above, None, legibility(above)))
        for number, one in enumerate((self.json.get("slices") or {}).get("found", ()), 1):
            name = f"slice {number}, class {self.json['class_names'][one['class']]}"
            tested = one["confirmation"]
            right = 1 - tested["value"]
            items.append(Item(name, right, None, one["p_corrected"], "weak slice"))
        return items

    def save(self, file: str | Path = "audit.html") -> Path:
        """Write the page, and the numbers beside it with the ending .json; return the page's path.

        Args:
            file: of the page; a name without an ending, or of a folder, stands for a folder in
                which audit.html is written.
        """
        # Here, because that module imports this one.
        from fairmargin.audit.page import write_page

        return write_page(self, Path(file))

    def table(self) -> str:
        """The findings as a Markdown table."""
        lines = ["| attribute | right % | strength | p | verdict |", "|---|---:|---:|---:|---|"]
        for one in self.findings:
            strength = "" if one.strength is None else f"{one.strength:.2f}"
            p = "" if one.p is None else f"{one.p:.3g}"
            name = one.attribute.replace("|", "\\|")
            right = f"{100 * one.accuracy:.1f}"
            lines.append(f"| {name} | {right} | {strength} | {p} | {one.verdict} |")
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        warnings = "".join(f"\n\nwarning: {text}" for text in self.warnings)
        return f"**{self.title}.** {self.verdict}{warnings}\n\n{self.table()}"

    def _repr_html_(self) -> str:
        """What a notebook shows where it prefers HTML."""
        row = Markup("<tr><th>{}</th><td>{:.1f}</td><td>{}</td><td>{}</td><td>{}</td></tr>")
        rows = []
        for one in self.findings:
            strength = "" if one.strength is None else f"{one.strength:.2f}"
            p = "" if one.p is None else f"{one.p:.3g}"
            rows.append(row.format(one.attribute, 100 * one.accuracy, strength, p, one.verdict))
        head = Markup(
            "<tr><th>attribute</th><th>right %</th><th>strength</th><th>p</th><th>verdict</th></tr>"
        )
        text = Markup("<p><b>{}.</b> {}</p>").format(self.title, self.verdict)
        for warning in self.warnings:
            text += Markup("<p>warning: {}</p>").format(warning)
        return text + Markup("<table>") + head + Markup("").join(rows) + Markup("</table>")
