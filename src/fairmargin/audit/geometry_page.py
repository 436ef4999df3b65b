"""Sections about an embedding: what it is organised by, and whether it shows the bias."""

import numpy as np
from markupsafe import Markup

from fairmargin.audit.formats import Json, bar, interval, number, percent
from fairmargin.audit.section import Figure, Section, Table
from fairmargin.evaluate.accuracy import LEAST
from fairmargin.evaluate.similarity import SETS
from fairmargin.report import figures

PAIRS = {
    "positive-aligned": "same label, same bias",
    "positive-conflicting": "same label, other bias",
    "negative-aligned": "other label, same bias",
    "negative-conflicting": "other label, other bias",
}
# Of each link of the ordering: the share without bias, and what another share says.
LINKS = (
    ("0.50", "above: inside a class, sharing the bias brings closer"),
    ("1.00", "below 0.50 the bias outweighs the label"),
    ("0.50", "above: sharing the bias brings different classes closer"),
)


def section(found: Json) -> Section:
    """Return the section about similarities, from the numbers of the audit."""
    geometry = found["geometry"]
    compared = geometry["similarity"]["samples"]
    lead = (
        "Two samples of a class should be equally close whether or not they share the bias. "
        f"Pairs of {compared:,} samples were compared; for FairKL, those of "
        f"{geometry['fairkl']['samples']:,}."
    )
    tables = (_ordering_table(geometry["ordering"]), _class_table(found))
    title = "What the embedding is organised by"
    return Section("geometry", title, lead, _histograms(geometry["similarity"]), tables)


def _ordering_table(order: Json) -> Table:
    rows = []
    for link, (good, says) in zip(order["links"], LINKS, strict=True):
        name = f"{PAIRS[link['closer']]} before {PAIRS[link['farther']]}"
        rows.append((name, number(link["share"]), good, says))
    if order["total"] is not None:
        name = "all at once, for every pair of an anchor"
        rows.append((name, number(order["total"]), "0.00", "share of anchors"))
    head = ("the paper's ordering", "share in this order", "without bias", "what it says")
    return Table(head, rows, (1, 2))


def _class_table(found: Json) -> Table:
    """Return FairKL class by class, the largest first; classes without one come last."""
    geometry = found["geometry"]
    first = {one["label"]: one["shares"][0] for one in geometry["ordering"]["classes"]}
    rows: list[tuple[str, ...]] = []
    classes = zip(found["class_names"], geometry["fairkl"]["classes"], strict=True)
    for k, (name, one) in enumerate(classes):
        sets = one["sets"]
        if sets[SETS[0]]["pairs"] or sets[SETS[1]]["pairs"]:
            rows.append(
                (
                    name,
                    number(first.get(k)),
                    *(number(sets[kind]["mean"]) for kind in SETS),
                    number(one["kl"]["positive"]),
                    number(one["kl"]["negative"]),
                    number(one["fairkl"], 3),
                )
            )
    rows.sort(key=_fairkl_rank)
    head = (
        "class of the anchor",
        "ordering, first link",
        *(f"cosine: {PAIRS[kind]}" for kind in SETS),
        "KL, positives",
        "KL, negatives",
        "FairKL",
    )
    return Table(head, rows, tuple(range(1, 9)))


def _fairkl_rank(row: tuple[str, ...]) -> float:
    # By the number as it is shown, so that equal rows stay in the order of the classes.
    shown = row[-1]
    return 1.0 if shown == "–" else -float(shown.replace("−", "-"))


def _histograms(similarity: Json) -> list[Figure]:
    edges = np.array(similarity["edges"])
    caption = "Filled: pairs that share the bias. Dashed: pairs that do not. Triangles: means."
    made = []
    for sign, title in (("positive", "Same label"), ("negative", "Other label")):
        aligned = similarity["sets"][f"{sign}-aligned"]
        conflicting = similarity["sets"][f"{sign}-conflicting"]
        counts = [np.array(one["counts"], float) for one in (aligned, conflicting)]
        used = np.flatnonzero(sum(counts))
        if not len(used):
            continue
        span = float(edges[used[0]]), float(edges[used[-1] + 1])
        tallest = max((c / max(c.sum(), 1)).max() for c in counts)
        sets = [
            figures.Histogram(counts[0], aligned["mean"], sign, True),
            figures.Histogram(counts[1], conflicting["mean"], sign, False),
        ]
        label = f"Cosines: {title.lower()}"
        made.append(Figure(title, figures.histograms(edges, sets, span, tallest, label), caption))
    return made


def readable_section(found: Json) -> Section:
    """Return the section about reading the bias, from the numbers of the audit."""
    classes = sorted(found["bias_readable"]["classes"], key=lambda one: -one["above_chance"])
    rows = [_readable_row(found["class_names"][one["class"]], one) for one in classes]
    lead = (
        "A linear probe tries to tell the bias from the embeddings of one class, with as many "
        "samples of each bias value. At chance, nothing of it is left to read."
    )
    tables = []
    if rows:
        head = ("class", "% right", "95 % interval", "chance", "samples")
        tables.append(Table(head, rows, (1, 2, 3, 4)))
    else:
        lead += f" No class has two bias values with {LEAST} samples each."
    return Section("readable", "Can the bias be read off it?", lead, (), tables)


def _readable_row(name: str, one: Json) -> list[str | Markup]:
    accuracy = one["accuracy"]
    return [name, bar(accuracy), interval(accuracy), percent(one["chance"]), f"{one['n']:,}"]
