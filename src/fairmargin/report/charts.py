"""The charts of a report from the records of its runs; `figures` has the drawing itself."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fairmargin.report import embedding, figures
from fairmargin.report.runs import Group, Part, estimate
from fairmargin.report.words import percent, whole

PAIR_SETS = {
    "positive-aligned": "same label, same bias",
    "positive-conflicting": "same label, other bias",
    "negative-aligned": "other label, same bias",
    "negative-conflicting": "other label, other bias",
}
ROWS = 40  # of a heat map


@dataclass(frozen=True)
class Figure:
    """A `<figure>`: `name` is what tests and links call it."""

    id: str
    name: str
    title: str
    body: Markup
    caption: str | Markup = ""
    group: Group | None = None
    keys: list[dict[str, Any]] = field(default_factory=list)


def pooled_groups(part: Part, group: Group) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """(test samples, right ones) [classes, biases] by the headline's classifier, summed over seeds."""
    tables = [judged["groups"] for judged in group.judged(part.headline[0]) if judged.get("groups")]
    if not tables or not part.bias_names:
        return None
    n, correct = (
        np.sum([table[name] for table in tables], axis=0).astype(np.int64)
        for name in ("n", "correct")
    )
    return n, correct


def cells_figure(prefix: str, part: Part, group: Group) -> Figure:
    pooled = pooled_groups(part, group)
    columns = part.bias_names
    train, aligned = part.counts, part.aligned
    if pooled is None:  # without bias labels one column is left: accuracy by class
        columns, train, aligned = ["all"], None, None
        pooled = _by_class(part, group)
    n, correct = pooled
    if aligned is None:
        aligned = np.zeros(n.shape, np.bool_)
    rows = np.arange(len(n))
    if len(rows) > ROWS:
        rows = np.sort((correct.sum(1) / np.maximum(n.sum(1), 1)).argsort(kind="stable")[:ROWS])
    shown = figures.Cells(
        [part.class_names[i] for i in rows],
        columns,
        n[rows],
        correct[rows],
        None if train is None else train[rows],
        aligned[rows],
    )
    total = correct.sum() / max(n.sum(), 1)
    said = f"Accuracy of {group.name} by label and bias: {int(n.sum()):,} answers, {percent(total)} % right."
    caption = f"The {ROWS} weakest of {len(n)} classes." if len(n) > ROWS else ""
    name = f"cells-{group.slug}"
    return Figure(
        f"{prefix}-{name}", name, group.name, figures.heat_map(shown, said), caption, group
    )


def _by_class(part: Part, group: Group) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    classes = len(part.class_names)
    n, correct = np.zeros((2, classes, 1), np.int64)
    for run in group.runs:
        if run.test:
            labels, right = run.test["labels"], run.test["predicted"] == run.test["labels"]
            n[:, 0] += np.bincount(labels, minlength=classes)
            correct[:, 0] += np.bincount(labels[right], minlength=classes)
    return n, correct


def similarity(prefix: str, group: Group, lowest: float) -> Figure | None:
    """Histograms summed over seeds; their means weighted by pairs."""
    found = [run.result["similarity"] for run in group.runs if run.result.get("similarity")]
    if not found:
        return None
    edges = np.asarray(found[0]["edges"], float)
    found = [one for one in found if len(one["edges"]) == len(edges)]
    sets, keys = [], []
    for name, said in PAIR_SETS.items():
        have = [
            one["sets"][name]
            for one in found
            if one["sets"].get(name) and one["sets"][name]["pairs"]
        ]
        if not have:
            continue
        counts = np.sum([one["counts"] for one in have], axis=0).astype(float)
        pairs = [one["pairs"] for one in have]
        means = [one["mean"] for one in have]
        mean = None if any(m is None for m in means) else float(np.average(means, weights=pairs))
        kind, filled = name.split("-")[0], name.endswith("aligned")
        sets.append(figures.Histogram(counts, mean, kind, filled))
        keys.append(
            {"name": said, "kind": kind, "filled": filled, "mean": mean, "pairs": sum(pairs)}
        )
    if not sets:
        return None
    tallest = max(float((one.counts / max(one.counts.sum(), 1)).max()) for one in sets)
    said = f"Similarities of pairs under {group.name}: " + "; ".join(
        f"{key['name']}, mean {key['mean']:.2f}" for key in keys if key["mean"] is not None
    )
    name = f"similarity-{group.slug}"
    chart = figures.histograms(edges, sets, (lowest, 1.0), tallest, said)
    return Figure(
        f"{prefix}-{name}", name, group.name, chart, _similarity_words(group, found), group, keys
    )


def lowest_similarity(part: Part) -> float:
    """Where the scale of similarities begins: one for all methods, so that their charts compare."""
    found = [
        run.result["similarity"]
        for group in part.groups
        for run in group.runs
        if run.result.get("similarity")
    ]
    negative = any(
        n and edge < 0
        for one in found
        for held in one["sets"].values()
        for edge, n in zip(one["edges"], held["counts"], strict=False)
    )
    return -1.0 if negative else 0.0


def _similarity_words(group: Group, found: Sequence[dict[str, Any]]) -> Markup:
    """The divergences, and the ordering test link by link."""
    words = []
    for sign, said in (("positive", "same label"), ("negative", "other label")):
        value = estimate([(one.get("kl") or {}).get(sign) for one in found])
        if value is not None:
            words.append(
                Markup("KL from same bias to other bias, {}: <b>{}</b>.").format(
                    said, f"{value.value:.3g}"
                )
            )
    orderings = [run.result["ordering"] for run in group.runs if run.result.get("ordering")]
    for k, link in enumerate(orderings[0]["links"] if orderings else ()):
        share = estimate([ordering["links"][k]["share"] for ordering in orderings])
        if share is not None:
            closer, farther = (
                PAIR_SETS.get(link[side], link[side]) for side in ("closer", "farther")
            )
            said = Markup("“{}” is closer than “{}” in <b>{}</b> of comparisons.")
            words.append(said.format(closer, farther, whole(share.value)))
    total = estimate([ordering.get("total") for ordering in orderings])
    if total is not None:
        words.append(
            Markup("All three hold without exception for <b>{}</b> of the images.").format(
                whole(total.value)
            )
        )
    return Markup("").join(Markup("<li>{}</li>").format(one) for one in words)


def maps(prefix: str, part: Part, group: Group) -> list[Figure]:
    """The first seed's test features, coloured by label and by bias."""
    test = group.first.test
    if "features" not in test or len(test["features"]) < 3:
        return []
    chosen = embedding.choose(len(test["features"]))
    points, how = embedding.project(test["features"][chosen])
    colourings = {"label": (test["labels"], part.class_names)}
    if "bias" in test and part.bias_names:
        colourings["bias"] = (test["bias"], part.bias_names)
    drawn = []
    for kind, (category, names) in colourings.items():
        said = f"{how} map of {len(chosen):,} test images under {group.name}, coloured by {kind}."
        seen = [int(k) for k in np.unique(category[chosen]) if k >= 0]
        keys = [
            {
                "k": k,
                "name": names[k],
                "colour": figures.category_colour(k, names[k], names),
                "square": figures.is_square(k),
            }
            for k in seen[:20]
        ]
        name = f"map-{kind}-{group.slug}"
        chart = figures.scatter(points, category[chosen].astype(np.int64), names, said)
        drawn.append(
            Figure(f"{prefix}-{name}", name, f"{group.name}, by {kind}", chart, how, group, keys)
        )
    return drawn


def accuracy_curves(prefix: str, part: Part) -> list[Figure]:
    """The headline accuracy by epoch: a line per seed, on the test and on the validation images."""
    accuracy, drawn = part.headline[1], []
    for split, said in (("test", "Test"), ("valid", "Validation")):
        lines = []
        for group in part.groups:
            for run in group.runs:
                at = [
                    (event["epoch"], (event.get(split) or {}).get(accuracy))
                    for event in run.evaluations()
                ]
                known = [(epoch, value) for epoch, value in at if value is not None]
                if known:
                    x, y = zip(*known, strict=True)
                    seed = " thin" if len(group.runs) > 1 else ""
                    lines.append(figures.Line(x, y, f"m m{group.colour}{seed}", group.dash))
        if lines:
            label = f"{said} accuracy ({accuracy}) by epoch: " + "; ".join(
                f"{group.name} ends at {whole(group_end)}"
                for group in part.groups
                if (group_end := _end(group, split, accuracy)) is not None
            )
            chart = figures.curves(lines, label, x_name="epoch", y_range=(0, 1), percent=True)
            drawn.append(
                Figure(
                    f"{prefix}-curve-{split}",
                    f"curve-{split}",
                    f"{said}, “{accuracy}” accuracy",
                    chart,
                )
            )
    return drawn


def _end(group: Group, split: str, accuracy: str) -> float | None:
    ends = [
        (run.evaluations()[-1].get(split) or {}).get(accuracy)
        for run in group.runs
        if run.evaluations()
    ]
    found = estimate(ends)
    return None if found is None else found.value


def term_curves(prefix: str, group: Group) -> list[Figure]:
    """A panel for each loss term, because their sizes differ by orders of magnitude; then the pairs that FairKL had."""
    panels = []
    names = dict.fromkeys(
        name for run in group.runs for event in run.steps() for name in event.get("terms") or {}
    )
    for term in names:
        lines = []
        for run in group.runs:
            known = [
                (e["step"], e["terms"][term])
                for e in run.steps()
                if (e.get("terms") or {}).get(term) is not None
            ]
            if known:
                x, y = zip(*known, strict=True)
                lines.append(
                    figures.Line(
                        x, y, f"m m{group.colour}" + (" thin" if len(group.runs) > 1 else "")
                    )
                )
        if lines:
            label = f"Loss term {term} of {group.name} by step, from {lines[0].y[0]:.3g} to {lines[0].y[-1]:.3g}"
            panels.append((term, figures.curves(lines, label, x_name="step", height=120)))
    drawn = []
    if panels:
        body = Markup("").join(
            Markup('<p class="panel">{}</p>{}').format(term, chart) for term, chart in panels
        )
        drawn.append(
            Figure(
                f"{prefix}-terms-{group.slug}", f"terms-{group.slug}", group.name, body, "", group
            )
        )
    return drawn + _pair_curves(prefix, group)


def _pair_curves(prefix: str, group: Group) -> list[Figure]:
    counted = [event for event in group.first.steps() if event.get("pairs")]
    if not counted:
        return []
    steps = [event["step"] for event in counted]
    lines, keys, told = [], [], []
    for k, (name, said) in enumerate(
        list(PAIR_SETS.items())[: len(counted[0]["pairs"])]
    ):  # A⁺, C⁺[, A⁻, C⁻]
        counts = [event["pairs"][k] for event in counted]
        kind, filled = name.split("-")[0], name.endswith("aligned")
        lines.append(figures.Line(steps, counts, kind, "" if filled else "5 2.5"))
        keys.append(
            {"name": said, "kind": kind, "filled": filled, "mean": statistics.fmean(counts)}
        )
        told.append(f"{said}, {min(counts):,.0f} to {max(counts):,.0f}")
    label = f"Pairs in a batch under {group.name}: " + "; ".join(told)
    chart = figures.curves(lines, label, x_name="step", logarithmic=True)
    name = f"pairs-{group.slug}"
    return [
        Figure(f"{prefix}-{name}", name, f"{group.name}: pairs in a batch", chart, "", group, keys)
    ]


def calibration(prefix: str, part: Part, group: Group) -> Figure | None:
    measured = [
        judged["calibration"]
        for judged in group.judged(part.headline[0])
        if judged.get("calibration")
    ]
    if not measured:
        return None
    tables = [one["bins"] for one in measured]
    seeds: dict[
        int, list[dict[str, Any]]
    ] = {}  # the dots of one interval of confidence are put together
    for one in (one for table in tables for one in table if one["n"]):
        seeds.setdefault(math.ceil(one["confidence"] * 15), []).append(one)
    bins = []
    for _, same in sorted(seeds.items()):
        n = [one["n"] for one in same]
        confidence, accuracy = (
            float(np.average([one[name] for one in same], weights=n))
            for name in ("confidence", "accuracy")
        )
        bins.append(figures.Bin(confidence, accuracy, sum(n)))
    ece = estimate([one["ece"] for one in measured])
    said = f"Reliability of {group.name}: " + (
        f"expected calibration error {percent(ece.value)} %." if ece else ""
    )
    name = f"calibration-{group.slug}"
    return Figure(f"{prefix}-{name}", name, group.name, figures.reliability(bins, said), "", group)
