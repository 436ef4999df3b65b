"""Charts of a report, from the records of its runs; `figures` draws them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fairmargin.report import embedding, figures
from fairmargin.report.colours import category_colour, is_square
from fairmargin.report.runs import Group, Part, estimate
from fairmargin.report.words import percent, whole

PAIR_SETS = {
    "positive-aligned": "same label, same bias",
    "positive-conflicting": "same label, other bias",
    "negative-aligned": "other label, same bias",
    "negative-conflicting": "other label, other bias",
}
DASHED = "5 2.5"
# Most rows of a heat map.
ROWS = 40
# Most entries of a map's legend.
MOST_KEYS = 20
# Intervals of confidence in which the dots of several seeds are put together.
CONFIDENCE_BINS = 15

Counts = NDArray[np.int64]
Key = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One `<figure>` of the page."""

    id: str
    # What links and tests call it.
    name: str
    title: str
    body: Markup
    caption: str | Markup = ""
    group: Group | None = None
    # Entries of its legend.
    keys: list[Key] = field(default_factory=list)


def pooled_groups(part: Part, group: Group) -> tuple[Counts, Counts] | None:
    """Return (test samples, right answers) [classes, biases], summed over seeds.

    Judged by the headline's classifier; None without bias labels.

    Args:
        part: the dataset's groups.
        group: the runs of a method.
    """
    tables = [judged["groups"] for judged in group.judged(part.headline[0]) if judged.get("groups")]
    if not tables or not part.bias_names:
        return None
    n = np.sum([table["n"] for table in tables], axis=0).astype(np.int64)
    correct = np.sum([table["correct"] for table in tables], axis=0).astype(np.int64)
    return n, correct


def cells_figure(prefix: str, part: Part, group: Group) -> Figure:
    """Draw the accuracy by label and bias; without bias labels, by label alone.

    Args:
        prefix: of the figure's id, as in the functions below.
        part: the dataset's.
        group: the method's runs.
    """
    pooled = pooled_groups(part, group)
    columns = part.bias_names
    train, aligned = part.counts, part.aligned
    if pooled is None:
        pooled = _by_class(part, group)
        columns = ["all"]
        train = aligned = None
    n, correct = pooled
    if aligned is None:
        aligned = np.zeros(n.shape, np.bool_)
    rows = np.arange(len(n))
    if len(rows) > ROWS:
        accuracy = correct.sum(1) / np.maximum(n.sum(1), 1)
        rows = np.sort(accuracy.argsort(kind="stable")[:ROWS])
    shown = figures.Cells(
        [part.class_names[i] for i in rows],
        columns,
        n[rows],
        correct[rows],
        None if train is None else train[rows],
        aligned[rows],
    )
    total = correct.sum() / max(n.sum(), 1)
    label = (
        f"Accuracy of {group.name} by label and bias: "
        f"{int(n.sum()):,} answers, {percent(total)} % right."
    )
    caption = f"The {ROWS} weakest of {len(n)} classes." if len(n) > ROWS else ""
    name = f"cells-{group.slug}"
    chart = figures.heat_map(shown, label)
    return Figure(f"{prefix}-{name}", name, group.name, chart, caption, group)


def _by_class(part: Part, group: Group) -> tuple[Counts, Counts]:
    classes = len(part.class_names)
    n, correct = np.zeros((2, classes, 1), np.int64)
    for run in group.runs:
        if run.test:
            labels = run.test["labels"]
            right = run.test["predicted"] == labels
            n[:, 0] += np.bincount(labels, minlength=classes)
            correct[:, 0] += np.bincount(labels[right], minlength=classes)
    return n, correct


def similarity(prefix: str, group: Group, lowest: float) -> Figure | None:
    """Draw the histograms of similarities, summed over seeds; None if none were measured.

    Args:
        prefix: of the figure's id.
        group: the method's runs.
        lowest: where the scale begins, see `lowest_similarity`.
    """
    found = _similarities(group)
    if not found:
        return None
    edges = np.asarray(found[0]["edges"], float)
    found = [one for one in found if len(one["edges"]) == len(edges)]
    sets, keys = [], []
    for name, said in PAIR_SETS.items():
        held = [one["sets"].get(name) for one in found]
        have = [one for one in held if one and one["pairs"]]
        if not have:
            continue
        counts = np.sum([one["counts"] for one in have], axis=0).astype(float)
        pairs = [one["pairs"] for one in have]
        means = [one["mean"] for one in have]
        mean = None
        if all(m is not None for m in means):
            mean = float(np.average(means, weights=pairs))
        key = _pair_key(name, said, mean)
        sets.append(figures.Histogram(counts, mean, key["kind"], key["filled"]))
        keys.append(key | {"pairs": sum(pairs)})
    if not sets:
        return None
    tallest = max(float((one.counts / max(one.counts.sum(), 1)).max()) for one in sets)
    told = [f"{key['name']}, mean {key['mean']:.2f}" for key in keys if key["mean"] is not None]
    label = f"Similarities of pairs under {group.name}: " + "; ".join(told)
    name = f"similarity-{group.slug}"
    chart = figures.histograms(edges, sets, (lowest, 1.0), tallest, label)
    caption = _similarity_words(group, found)
    return Figure(f"{prefix}-{name}", name, group.name, chart, caption, group, keys)


def _similarities(group: Group) -> list[dict[str, Any]]:
    found = [run.outcome.get("similarity") for run in group.runs]
    return [one for one in found if one]


def _pair_key(name: str, said: str, mean: float | None) -> Key:
    """Return the entry of a legend for one of `PAIR_SETS`."""
    kind, filled = name.split("-")[0], name.endswith("aligned")
    return {"name": said, "kind": kind, "filled": filled, "mean": mean}


def lowest_similarity(part: Part) -> float:
    """Return where the scale of similarities begins; one for all methods, so charts compare."""
    for group in part.groups:
        for one in _similarities(group):
            edges = np.asarray(one["edges"], float)
            for held in one["sets"].values():
                counts = np.asarray(held["counts"])
                shared = min(len(edges), len(counts))
                if (counts[:shared][edges[:shared] < 0] > 0).any():
                    return -1.0
    return 0.0


def _similarity_words(group: Group, found: Sequence[dict[str, Any]]) -> Markup:
    """Say the divergences, and the paper's ordering link by link."""
    words = []
    for sign, said in (("positive", "same label"), ("negative", "other label")):
        value = estimate([(one.get("kl") or {}).get(sign) for one in found])
        if value is not None:
            sentence = Markup("KL from same bias to other bias, {}: <b>{}</b>.")
            words.append(sentence.format(said, f"{value.value:.3g}"))
    orderings = [run.outcome["ordering"] for run in group.runs if run.outcome.get("ordering")]
    links = orderings[0]["links"] if orderings else []
    for k, link in enumerate(links):
        share = estimate([ordering["links"][k]["share"] for ordering in orderings])
        if share is not None:
            closer = PAIR_SETS.get(link["closer"], link["closer"])
            farther = PAIR_SETS.get(link["farther"], link["farther"])
            sentence = Markup("“{}” is closer than “{}” in <b>{}</b> of comparisons.")
            words.append(sentence.format(closer, farther, whole(share.value)))
    total = estimate([ordering.get("total") for ordering in orderings])
    if total is not None:
        sentence = Markup("All three hold without exception for <b>{}</b> of the images.")
        words.append(sentence.format(whole(total.value)))
    item = Markup("<li>{}</li>")
    return Markup("").join(item.format(one) for one in words)


def maps(prefix: str, part: Part, group: Group) -> list[Figure]:
    """Draw the first seed's test features, coloured by label and by bias.

    Args:
        prefix: of the figures' ids.
        part: the dataset's groups.
        group: the runs of a method.
    """
    test = group.first.test
    if "features" not in test or len(test["features"]) < 3:
        return []
    chosen = embedding.choose(len(test["features"]))
    points, how = embedding.project(test["features"][chosen])
    colourings = {"label": (test["labels"], part.class_names)}
    if "bias" in test and part.bias_names:
        colourings["bias"] = (test["bias"], part.bias_names)
    drawn = []
    for kind, (values, names) in colourings.items():
        category = values[chosen].astype(np.int64)
        label = f"{how} map of {len(chosen):,} test images under {group.name}, coloured by {kind}."
        seen = [int(k) for k in np.unique(category) if k >= 0]
        keys = [_category_key(k, names) for k in seen[:MOST_KEYS]]
        name = f"map-{kind}-{group.slug}"
        title = f"{group.name}, by {kind}"
        chart = figures.scatter(points, category, names, label)
        drawn.append(Figure(f"{prefix}-{name}", name, title, chart, how, group, keys))
    return drawn


def _category_key(k: int, names: Sequence[str]) -> Key:
    colour = category_colour(k, names[k], names)
    return {"k": k, "name": names[k], "colour": colour, "square": is_square(k)}


def accuracy_curves(prefix: str, part: Part) -> list[Figure]:
    """Draw the headline accuracy by epoch, a line per seed: on test and on validation images.

    Args:
        prefix: of the figures' ids.
        part: the dataset's groups.
    """
    accuracy = part.headline[1]
    drawn = []
    for split, said in (("test", "Test"), ("valid", "Validation")):
        lines, ends = [], []
        for group in part.groups:
            last = []
            for run in group.runs:
                events = run.evaluations()
                at = [(e["epoch"], (e.get(split) or {}).get(accuracy)) for e in events]
                last += [value for _, value in at[-1:]]
                lines += _line(at, group)
            end = estimate(last)
            if end is not None:
                ends.append(f"{group.name} ends at {whole(end.value)}")
        if lines:
            label = f"{said} accuracy ({accuracy}) by epoch: " + "; ".join(ends)
            chart = figures.curves(lines, label, x_name="epoch", y_range=(0, 1), percent=True)
            name, title = f"curve-{split}", f"{said}, “{accuracy}” accuracy"
            drawn.append(Figure(f"{prefix}-{name}", name, title, chart))
    return drawn


def _line(
    points: Sequence[tuple[float, float | None]], group: Group, *, dashed: bool = True
) -> list[figures.Line]:
    """Return the line of one seed through its known points, in a list; an empty one without any."""
    known = [(x, y) for x, y in points if y is not None]
    if not known:
        return []
    kind = f"m m{group.colour}"
    if len(group.runs) > 1:
        kind += " thin"
    dash = group.dash if dashed else ""
    return [figures.Line([x for x, _ in known], [y for _, y in known], kind, dash)]


def term_curves(prefix: str, group: Group) -> list[Figure]:
    """Draw a panel for each loss term, and the pairs that FairKL had.

    Each term has its own panel because their sizes differ by orders of magnitude.

    Args:
        prefix: of the figures' ids.
        group: the runs of a method.
    """
    logged = [run.steps() for run in group.runs]
    names: dict[str, None] = {}
    for events in logged:
        for event in events:
            names |= dict.fromkeys(event.get("terms") or {})
    panel = Markup('<p class="panel">{}</p>{}')
    panels = []
    for term in names:
        lines = []
        for events in logged:
            at = [(event["step"], (event.get("terms") or {}).get(term)) for event in events]
            lines += _line(at, group, dashed=False)
        if lines:
            ends = f"from {lines[0].y[0]:.3g} to {lines[0].y[-1]:.3g}"
            label = f"Loss term {term} of {group.name} by step, {ends}"
            chart = figures.curves(lines, label, x_name="step", height=120)
            panels.append(panel.format(term, chart))
    drawn = []
    if panels:
        name, body = f"terms-{group.slug}", Markup("").join(panels)
        drawn.append(Figure(f"{prefix}-{name}", name, group.name, body, "", group))
    return drawn + _pair_curves(prefix, group)


def _pair_curves(prefix: str, group: Group) -> list[Figure]:
    counted = [event for event in group.first.steps() if event.get("pairs")]
    if not counted:
        return []
    steps = [event["step"] for event in counted]
    lines, keys, told = [], [], []
    # Events count A⁺, C⁺ and, with negatives, A⁻, C⁻.
    sets = list(PAIR_SETS.items())[: min(len(event["pairs"]) for event in counted)]
    for k, (name, said) in enumerate(sets):
        counts = [event["pairs"][k] for event in counted]
        key = _pair_key(name, said, statistics.fmean(counts))
        lines.append(figures.Line(steps, counts, key["kind"], "" if key["filled"] else DASHED))
        keys.append(key)
        told.append(f"{said}, {min(counts):,.0f} to {max(counts):,.0f}")
    label = f"Pairs in a batch under {group.name}: " + "; ".join(told)
    chart = figures.curves(lines, label, x_name="step", logarithmic=True)
    name, title = f"pairs-{group.slug}", f"{group.name}: pairs in a batch"
    return [Figure(f"{prefix}-{name}", name, title, chart, "", group, keys)]


def calibration(prefix: str, part: Part, group: Group) -> Figure | None:
    """Draw how often answers of each confidence are right; None if it was not measured.

    Args:
        prefix: of the figure's id.
        part: the dataset's groups.
        group: the runs of a method.
    """
    judged = group.judged(part.headline[0])
    measured = [one["calibration"] for one in judged if one.get("calibration")]
    if not measured:
        return None
    # The dots of all seeds in one interval of confidence become one dot.
    together: dict[int, list[dict[str, Any]]] = {}
    for one in measured:
        for dot in one["bins"]:
            if dot["n"]:
                interval = math.ceil(dot["confidence"] * CONFIDENCE_BINS)
                together.setdefault(interval, []).append(dot)
    bins = []
    for _, dots in sorted(together.items()):
        n = [dot["n"] for dot in dots]
        confidence = float(np.average([dot["confidence"] for dot in dots], weights=n))
        accuracy = float(np.average([dot["accuracy"] for dot in dots], weights=n))
        bins.append(figures.Bin(confidence, accuracy, sum(n)))
    label = f"Reliability of {group.name}: "
    ece = estimate([one["ece"] for one in measured])
    if ece is not None:
        label += f"expected calibration error {percent(ece.value)} %."
    name = f"calibration-{group.slug}"
    chart = figures.reliability(bins, label)
    return Figure(f"{prefix}-{name}", name, group.name, chart, "", group)
