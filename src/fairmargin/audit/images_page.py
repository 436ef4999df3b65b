"""The page's sections about single pictures: copies and leaks, and pictures to look at."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from fairmargin.audit import problems
from fairmargin.audit.copies import Pair
from fairmargin.audit.section import Figure, NameList, Section, Table
from fairmargin.audit.sight import SPLITS, Sight
from fairmargin.data.split import Data
from fairmargin.report.pictures import picture

# Pairs, and pictures of a problem, that are shown.
SHOWN_PAIRS = 8
SHOWN = 8
# Rows of the table of copies.
ROWS = 20
# Pixels. Smaller pictures are enlarged without smoothing.
TINY = 64


def copies_section(
    described: Mapping[str, Any], pairs: Sequence[Pair], data: Data, sight: Sight
) -> Section:
    """Return the section about copies.

    Args:
        described: "copies" of audit.json.
        pairs: in the same order.
        data: the dataset.
        sight: of its pictures.
    """
    leaks, within = described["leaks"], described["within"]
    lead = (
        "Copies are found by what pictures show, not by their names: exact ones have the same "
        "pixels, near ones differ by no more than another compression, size or brightness does, "
        "or are mirrored. "
    )
    if not leaks and not within:
        return Section("copies", "Copies", lead + "There are none.")
    lead += (
        f"{len(leaks):,} across splits, where they make a test look better than it is; "
        f"{len(within):,} inside a split."
    )
    shown = [*leaks, *within]
    cells: list[Sequence[str | Markup]] = []
    for one in shown[:ROWS]:
        labels = f"{one['second']['label']} / {one['first']['label']}"
        differ = "different" if one["labels_differ"] else ""
        cells.append([*map(_end, (one["second"], one["first"])), one["kind"], labels, differ])
    head = ["picture", "is a copy of", "kind", "labels", ""]
    lists = []
    for title, some in (("copies across splits", leaks), ("copies inside a split", within)):
        if some:
            lists.append(NameList(f"Names of {title}", [one["second"]["name"] for one in some]))
    across = [p for p in pairs if sight.split[p.first] != sight.split[p.second]]
    inside = [p for p in pairs if sight.split[p.first] == sight.split[p.second]]
    items = []
    for pair in [*across, *inside][:SHOWN_PAIRS]:
        items += [_item(k, data, sight, pair.kind) for k in (pair.second, pair.first)]
    figure = Figure("Pairs", _strip(items), "A copy, and then what it is a copy of.")
    return Section("copies", "Copies", lead, [figure], [Table(head, cells)], lists)


def _end(one: Mapping[str, Any]) -> str:
    return f"{one['name']} ({one['split']})"


def problems_section(
    described: Mapping[str, Any], flagged: Mapping[str, np.ndarray], data: Data, sight: Sight
) -> Section:
    """Return the section about pictures that deserve a look.

    Args:
        described: "problems" of audit.json.
        flagged: [N] by problem.
        data: the dataset.
        sight: of its pictures.
    """
    accuracy = described["label error"]["classifier_accuracy"]
    lead = (
        "None of these is a shortcut, and none is sure: they say where to look first. Labels are "
        "judged by a quick classifier of thumbnails and edges that was fitted to other pictures"
    )
    lead += "." if accuracy is None else f"; it agrees with {100 * accuracy:.0f} % of them."
    lead += " Where there is a shortcut, labels that contradict it are doubted too: check those."
    rows: list[Sequence[str | Markup]] = []
    figures = []
    lists = []
    for name, flags in flagged.items():
        where = np.flatnonzero(flags)
        rows.append([name, f"{len(where):,}", problems.MEANINGS[name]])
        if not len(where):
            continue
        entries = described[name]["pictures"]
        items = []
        for k, entry in zip(_positions(entries[:SHOWN], sight, where), entries, strict=False):
            said = entry["label"]
            if name == "label error":
                said = f"{said}; or {entry['suggested']}?"
            items.append(_item(k, data, sight, said))
        figures.append(Figure(f"{name.capitalize()}: {len(where):,}", _strip(items)))
        lists.append(NameList(f"Names: {name}", [sight.name(k) for k in where.tolist()]))
    table = Table(["problem", "pictures", "meaning"], rows, (1,))
    return Section("problems", "Pictures to look at", lead, figures, [table], lists)


def _positions(entries: Sequence[Mapping[str, Any]], sight: Sight, where: np.ndarray) -> list[int]:
    """Return the rows of these entries."""
    row_of = {}
    for k in where.tolist():
        row_of[SPLITS[sight.split[k]], int(sight.position[k])] = k
    return [row_of[entry["split"], entry["index"]] for entry in entries]


def _item(k: int, data: Data, sight: Sight, said: str) -> Markup:
    split = getattr(data, SPLITS[sight.split[k]])
    pixels = split.images(torch.tensor([int(sight.position[k])]))[0].numpy()
    name, label = sight.name(k), data.info.class_names[sight.labels[k]]
    kind = Markup(' class="pixelated"') if max(pixels.shape[1:]) < TINY else ""
    item = Markup(
        '<li><img src="{}" alt="{}, label {}"{}><p class="said">{}</p><p class="file">{}</p></li>'
    )
    return item.format(picture(pixels), name, label, kind, said, name)


def _strip(items: Sequence[Markup]) -> Markup:
    return Markup('<ul class="strip">') + Markup("").join(items) + Markup("</ul>")
