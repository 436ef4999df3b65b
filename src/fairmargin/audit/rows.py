"""A row for each picture that an audit looked at: audit.csv, and the same in Python.

A table is kept by columns. Text cells that a spreadsheet would take for a formula get an apostrophe
in front when they are written, as spreadsheets themselves do.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairmargin.audit import significance
from fairmargin.audit.attributes import Attribute
from fairmargin.audit.finding import SHORTCUT, Finding

# Columns of names → cells, one for each picture.
Columns = dict[str, Sequence[Any]]
# Starts of a text that spreadsheets take for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
# Numbers of an attribute that are written into one cell; of longer ones only what they tell.
WRITTEN = 4


def to_csv(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Return a table as CSV in UTF-8.

    Args:
        columns: cells by column; None is an empty cell.
    """
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([harmless(name) for name in columns])
    writer.writerows(zip(*map(_cells, columns.values()), strict=True))
    return stream.getvalue().encode("utf-8", "backslashreplace")


def _cells(cells: Sequence[Any]) -> list[Any]:
    """Return the cells of a column as they are written; equal texts are looked at once."""
    known: dict[str, str] = {}
    written = []
    for cell in cells:
        if isinstance(cell, str):
            if cell not in known:
                known[cell] = harmless(cell)
            cell = known[cell]
        elif isinstance(cell, float):
            cell = "" if math.isnan(cell) else f"{cell:.5g}"
        written.append(cell)
    return written


def harmless(text: str) -> str:
    """Return a text that no spreadsheet runs as a formula; numbers stay as they are.

    Args:
        text: of a cell.
    """
    if not text.startswith(FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return "'" + text
    return text


def to_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return a dict for each picture.

    Args:
        columns: cells by column.
    """
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def attribute_columns(
    findings: Sequence[Finding],
    labels: np.ndarray,
    halves: tuple[np.ndarray, np.ndarray],
    names: Sequence[str],
    total: int,
) -> Columns:
    """Return the value of each attribute and what it tells, and which slice a picture is in.

    What an attribute tells of a picture comes from a predictor that was fitted to the other half.
    The blind model and other learned attributes tell only of the half they were scored on.

    Args:
        findings: about all attributes, ranked.
        labels: [n] of the pictures, positions in `names`.
        halves: positions of (the fitting half, the scoring half).
        names: of the classes.
        total: number of rows; those after the n pictures stay empty.
    """
    columns: Columns = {}
    rest = [None] * (total - len(labels))
    leader = next((f for f in findings if f.verdict == SHORTCUT), None)
    for finding in findings:
        attribute = finding.attribute
        told = _told(finding, labels, halves, len(names))
        values = _values(attribute)
        if values is not None:
            columns[attribute.name] = [*values, *rest]
        said = [names[k] if k >= 0 else None for k in told.tolist()]
        columns[f"{attribute.name}: tells"] = [*said, *rest]
        if finding is leader:
            columns["slice"] = [*_sides(attribute.name, told, labels), *rest]
    columns.setdefault("slice", [None] * total)
    return columns


def _sides(name: str, told: np.ndarray, labels: np.ndarray) -> list[str | None]:
    sides: list[str | None] = []
    for said, label in zip(told.tolist(), labels.tolist(), strict=True):
        if said < 0:
            sides.append(None)
        else:
            sides.append(f"follows {name}" if said == label else f"contradicts {name}")
    return sides


def _told(
    finding: Finding, labels: np.ndarray, halves: tuple[np.ndarray, np.ndarray], classes: int
) -> np.ndarray:
    """Return [n] the class an attribute tells; −1 where it was fitted and tells nothing."""
    fit, score = halves
    told = np.full(len(labels), -1)
    told[score] = finding.answers.predicted
    attribute = finding.attribute
    if attribute.family != "blind model" and len(attribute.values) == len(labels):
        told[fit] = significance.ask(attribute, labels, score, fit, classes).predicted
    return told


def _values(attribute: Attribute) -> list[Any] | None:
    """Return what is written of an attribute's values; None if they are too many for a cell."""
    if attribute.kind == "category":
        return [attribute.levels[k] for k in attribute.values.tolist()]
    if attribute.kind == "colour":
        shade = np.rint(255 * attribute.values.clip(0, 1)).astype(int)
        return [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in shade.tolist()]
    if attribute.values.shape[1] == 1:
        return [float(v) for v in attribute.values[:, 0].tolist()]
    if attribute.values.shape[1] > WRITTEN:
        return None
    # Brackets, because "-1 -2" is a formula.
    return ["[" + " ".join(f"{v:.4g}" for v in row) + "]" for row in attribute.values.tolist()]
