"""The page about a model: numbers of the audit in, verdict and sections out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from fairmargin.audit import geometry_page, slices_page
from fairmargin.audit.formats import Json, bar, interval, percent
from fairmargin.audit.section import Figure, Section, Table
from fairmargin.audit.slices_page import Samples, pictured, without_slices
from fairmargin.evaluate.accuracy import LEAST, aligned_cells
from fairmargin.report import figures

__all__ = ["Samples", "pictured", "sections", "verdict", "without_slices"]

# Groups, and classes, in the tables.
WORST = 10
# Most rows and columns of a heat map.
MOST_ROWS = 40
# How far from chance to certainty a probe of the bias gets, to call the bias readable or partly so.
LEGIBLE = 0.5
FAINT = 0.1


def verdict(found: Json) -> str:
    """Return the answer in two or three short sentences, from the numbers of the audit."""
    overall = percent(found["accuracy"]["plain"]["value"])
    worst = _worst_groups(found, 1)
    if worst:
        name, value = worst[0]["name"], percent(worst[0]["value"])
        said = [f"The weakest group, {name}, is right {value} of the time; overall, {overall}."]
    else:
        said = [f"The model is right {overall} of the time."]
    readable = (found["bias_readable"] or {}).get("above_chance")
    if readable is not None:
        said.append(f"Inside a class the bias {legibility(readable)} off the embedding.")
    return " ".join([*said, slices_page.verdict(found)])


def legibility(above_chance: float) -> str:
    """Return how well a bias can be read: "can be read", "can partly be read", …

    Args:
        above_chance: share of the gap between chance and perfect.
    """
    if above_chance >= LEGIBLE:
        return "can be read"
    return "can partly be read" if above_chance > FAINT else "can hardly be read"


def sections(found: Json, samples: Samples, members: Sequence[Sequence[int]] = ()) -> list[Section]:
    """Return the sections of the page.

    Args:
        found: the numbers of the audit.
        samples: for the pictures.
        members: positions of all samples of each slice.
    """
    made = [_accuracy(found)]
    if found["geometry"] is not None:
        made.append(geometry_page.section(found))
    if found["bias_readable"] is not None:
        made.append(geometry_page.readable_section(found))
    return [*made, slices_page.section(found, samples, members)]


def _accuracy(found: Json) -> Section:
    judge = f"a {found['classifier']} cross-validated"
    if found["classifier"] == "own":
        judge = "the model's own answers"
    lead = (
        f"Judged are {judge} on {found['n']:,} samples. The interval says how far a number would "
        "move with other samples; “fairmargin list accuracies” says what each name means."
    )
    tables = [_named_table(found), *_group_table(found), _class_table(found)]
    return Section("accuracy", "Whom it fails", lead, _heat_map(found), tables)


def _named_table(found: Json) -> Table:
    rows = [(name, bar(at), interval(at)) for name, at in found["accuracy"].items()]
    if found["equalised_odds_gap"] is not None:
        gap = f"{100 * found['equalised_odds_gap']:.1f} points"
        rows.append(("equalised-odds gap", Markup.escape(gap), ""))
    return Table(("accuracy", "%", "95 % interval"), rows, (1, 2))


def _group_table(found: Json) -> list[Table]:
    """Return the table of the weakest groups; none if no group has enough samples."""
    worst = _worst_groups(found, WORST)
    if not worst:
        return []
    head = ["weakest groups: label / bias", "%", "95 % interval", "samples"]
    rows = [_row(at) for at in worst]
    if found["counts"] is not None:
        head.append("in training")
        for row, at in zip(rows, worst, strict=True):
            row.append(f"{at['train']:,}")
    return [Table(head, rows, tuple(range(1, len(head))))]


def _class_table(found: Json) -> Table:
    by_class = found["by_class"]
    classes = []
    for y, name in enumerate(found["class_names"]):
        if by_class["n"][y]:
            classes.append({"name": name, **_share(by_class, y)})
    classes.sort(key=lambda at: at["value"])
    head = ("weakest classes", "%", "95 % interval", "samples")
    return Table(head, [_row(at) for at in classes[:WORST]], (1, 2, 3))


def _row(at: Json) -> list[str | Markup]:
    return [at["name"], bar(at), interval(at), f"{at['n']:,}"]


def _worst_groups(found: Json, most: int) -> list[Json]:
    """Return groups with enough samples, the one with the lowest accuracy first."""
    groups = found["groups"]
    if groups is None:
        return []
    listed = []
    for y, label in enumerate(found["class_names"]):
        row = {name: groups[name][y] for name in ("n", "correct", "low", "high")}
        for b, bias in enumerate(found["bias_names"]):
            if row["n"][b] >= LEAST:
                train = None if found["counts"] is None else found["counts"][y][b]
                listed.append({"name": f"{label} / {bias}", "train": train, **_share(row, b)})
    return sorted(listed, key=lambda at: at["value"])[:most]


def _share(table: dict[str, Any], k: int) -> Json:
    """Return entry k of a table of counts as a share with its interval."""
    n = table["n"][k]
    value = table["correct"][k] / n
    return {"n": n, "value": value, "low": table["low"][k], "high": table["high"][k]}


def _heat_map(found: Json) -> list[Figure]:
    groups = found["groups"]
    if groups is None or max(len(found["class_names"]), len(found["bias_names"])) > MOST_ROWS:
        return []
    n = np.array(groups["n"])
    caption = (
        "Each cell is the share of right answers, in per cent, of samples with one label (row) and "
        "one bias (column)."
    )
    train, aligned = None, np.zeros(n.shape, bool)
    if found["counts"] is not None:
        train = np.array(found["counts"])
        aligned = aligned_cells(torch.from_numpy(train)).numpy()
        caption += (
            " Framed: groups that the training set over-represents. "
            "Dotted: groups it does not have."
        )
    correct = np.array(groups["correct"])
    names = found["class_names"], found["bias_names"]
    cells = figures.Cells(*names, n, correct, train, aligned)
    return [Figure("Label by bias", figures.heat_map(cells, "Accuracy by label and bias"), caption)]
