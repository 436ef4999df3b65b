"""The audit of a model in words, tables and figures: numbers of `audit.embeddings` in, sections of the page out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fairmargin.audit.section import Figure, Section, Table
from fairmargin.audit.slices import SMALLEST
from fairmargin.evaluate.accuracy import LEAST, aligned_cells
from fairmargin.evaluate.similarity import SETS
from fairmargin.report import figures
from fairmargin.report.pictures import picture

SHOWN = 8  # pictures of a slice
STRIPS = 6  # slices that are shown in pictures
WORST = 10  # groups in the table
NAMED = 20  # classes without slices; audit.json has all
MOST_ROWS = 40  # of a heat map
LEGIBLE, FAINT = 0.5, 0.1  # of the way from chance to certainty that a probe of the bias gets
PAIRS = {
    "positive-aligned": "same label, same bias",
    "positive-conflicting": "same label, other bias",
    "negative-aligned": "other label, same bias",
    "negative-conflicting": "other label, other bias",
}
GOOD = ("0.50", "1.00", "0.50")  # of the ordering's links
SAYS = (
    "above: inside a class, sharing the bias brings closer",
    "below 0.50 the bias outweighs the label",
    "above: sharing the bias brings different classes closer",
)
TINY = 64  # pixels; smaller images are enlarged without smoothing

Json = dict[str, Any]


@dataclass(frozen=True)
class Samples:
    """What is shown of single samples, by position."""

    labels: Sequence[int]
    predicted: Sequence[int]
    images: dict[int, NDArray[np.uint8]]  # [C, H, W]; those at hand


def pictured(found: Json) -> list[int]:
    """Positions of the samples whose pictures the page shows, if it can."""
    shown = [
        one[kind][:SHOWN]
        for one in found["slices"]["found"][:STRIPS]
        for kind in ("central", "mistakes")
    ]
    return sorted({position for positions in shown for position in positions})


def verdict(found: Json) -> str:
    """The answer in two or three short sentences."""
    overall = _percent(found["accuracy"]["plain"]["value"])
    worst = _worst_groups(found, 1)
    said = [f"The model is right {overall} of the time."]
    if worst:
        said = [
            f"The weakest group, {worst[0]['name']}, is right {_percent(worst[0]['value'])} of the time; overall, {overall}."
        ]
    readable = (found["bias_readable"] or {}).get("above_chance")
    if readable is not None:
        how = (
            "can be"
            if readable >= LEGIBLE
            else "can partly be"
            if readable > FAINT
            else "can hardly be"
        )
        said.append(f"Inside a class the bias {how} read off the embedding.")
    return " ".join([*said, _slices_verdict(found)])


def _slices_verdict(found: Json) -> str:
    number, left_out = len(found["slices"]["found"]), len(found["slices"]["left_out"])
    if not (looked_at := _looked_at(found)):
        return "There were too few samples to look for slices."
    if left_out and not number:
        where = f"In the {looked_at} of {looked_at + left_out} classes with enough samples to look for slices"
        return f"{where}, none fails more often than the rest of its class."
    how_many = {0: "No slice fails", 1: "1 slice fails"}.get(number, f"{number} slices fail")
    return f"{how_many} more often than the rest of {'their' if number > 1 else 'its'} class."


def _looked_at(found: Json) -> int:
    """Classes in which slices were looked for."""
    return sum(n > 0 for n in found["by_class"]["n"]) - len(found["slices"]["left_out"])


def without_slices(classes: Sequence[str]) -> str:
    """Which classes had too few samples to look for slices in."""
    number = len(classes)
    named = ", ".join(classes[:NAMED]) + (f" and {number - NAMED} more" if number > NAMED else "")
    what = f"{number} {'class' if number == 1 else 'classes'}"
    return f"too few samples to look for slices in {what} (a class needs {SMALLEST}): {named}"


def sections(found: Json, samples: Samples) -> list[Section]:
    made = [_accuracy(found)]
    if found["geometry"] is not None:
        made.append(_geometry(found))
    if found["bias_readable"] is not None:
        made.append(_readable(found))
    return [*made, _slices(found, samples)]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _interval(at: Json) -> str:
    return f"{100 * at['low']:.1f}–{100 * at['high']:.1f}"


def _bar(at: Json) -> Markup:
    return Markup("{}{}").format(
        _percent(at["value"]), figures.thin_bar(at["value"], at["low"], at["high"])
    )


def _number(x: float | None, decimals: int = 2) -> str:
    return "–" if x is None else f"{x:.{decimals}f}".replace("-", "−")


# Accuracies


def _worst_groups(found: Json, most: int) -> list[Json]:
    """Groups with enough samples, the one with the lowest accuracy first."""
    groups = found["groups"]
    if groups is None:
        return []
    listed = [
        {
            "name": f"{label} / {bias}",
            "n": n,
            "value": groups["correct"][y][b] / n,
            "low": groups["low"][y][b],
            "high": groups["high"][y][b],
            "train": None if found["counts"] is None else found["counts"][y][b],
        }
        for y, label in enumerate(found["class_names"])
        for b, bias in enumerate(found["bias_names"])
        if (n := groups["n"][y][b]) >= LEAST
    ]
    return sorted(listed, key=lambda at: at["value"])[:most]


def _accuracy(found: Json) -> Section:
    rows = [(name, _bar(at), _interval(at)) for name, at in found["accuracy"].items()]
    if found["equalised_odds_gap"] is not None:
        gap = f"{100 * found['equalised_odds_gap']:.1f} points"
        rows.append(("equalised-odds gap", Markup.escape(gap), ""))
    by_class = found["by_class"]
    classes = [
        {"name": name, "n": n, "value": c / n, "low": low, "high": high}
        for name, n, c, low, high in zip(
            found["class_names"],
            *(by_class[k] for k in ("n", "correct", "low", "high")),
            strict=True,
        )
        if n
    ]
    classes.sort(key=lambda at: at["value"])
    tables = [Table(("accuracy", "%", "95 % interval"), rows, (1, 2))]
    if worst := _worst_groups(found, WORST):
        train = ("in training",) if found["counts"] is not None else ()
        tables.append(
            Table(
                ("weakest groups: label / bias", "%", "95 % interval", "samples", *train),
                [
                    (
                        at["name"],
                        _bar(at),
                        _interval(at),
                        f"{at['n']:,}",
                        *([f"{at['train']:,}"] if train else []),
                    )
                    for at in worst
                ],
                (1, 2, 3, 4)[: 3 + len(train)],
            )
        )
    tables.append(
        Table(
            ("weakest classes", "%", "95 % interval", "samples"),
            [(at["name"], _bar(at), _interval(at), f"{at['n']:,}") for at in classes[:WORST]],
            (1, 2, 3),
        )
    )
    judge = (
        "the model's own answers"
        if found["classifier"] == "own"
        else f"a {found['classifier']} cross-validated"
    )
    return Section(
        "accuracy",
        "Whom it fails",
        f"Judged are {judge} on {found['n']:,} samples. The interval says how far a number would move with other samples; "
        "“fairmargin list accuracies” says what each name means.",
        _heat_map(found),
        tables,
    )


def _heat_map(found: Json) -> list[Figure]:
    groups = found["groups"]
    if groups is None or max(len(found["class_names"]), len(found["bias_names"])) > MOST_ROWS:
        return []
    n = np.array(groups["n"])
    train = None if found["counts"] is None else np.array(found["counts"])
    cells = figures.Cells(
        found["class_names"],
        found["bias_names"],
        n,
        np.array(groups["correct"]),
        train,
        np.zeros(n.shape, bool) if train is None else _aligned(train),
    )
    caption = "Each cell is the share of right answers, in per cent, of samples with one label (row) and one bias (column)."
    if train is not None:
        caption += " Framed: groups that the training set over-represents. Dotted: groups it does not have."
    return [Figure("Label by bias", figures.heat_map(cells, "Accuracy by label and bias"), caption)]


def _aligned(counts: NDArray[np.integer]) -> NDArray[np.bool_]:
    import torch

    return aligned_cells(torch.from_numpy(counts)).numpy()


# What the embedding is organised by


def _geometry(found: Json) -> Section:
    geometry = found["geometry"]
    order = geometry["ordering"]
    links = [
        (
            f"{PAIRS[link['closer']]} before {PAIRS[link['farther']]}",
            _number(link["share"]),
            good,
            says,
        )
        for link, good, says in zip(order["links"], GOOD, SAYS, strict=True)
    ]
    if order["total"] is not None:
        links.append(
            (
                "all at once, for every pair of an anchor",
                _number(order["total"]),
                "0.00",
                "share of anchors",
            )
        )
    first = {one["label"]: one["shares"][0] for one in order["classes"]}
    classes = [
        (
            name,
            _number(first.get(k)),
            *(_number(one["sets"][kind]["mean"]) for kind in SETS),
            _number(one["kl"]["positive"]),
            _number(one["kl"]["negative"]),
            _number(one["fairkl"], 3),
        )
        for k, (name, one) in enumerate(
            zip(found["class_names"], geometry["fairkl"]["classes"], strict=True)
        )
        if one["sets"][SETS[0]]["pairs"] or one["sets"][SETS[1]]["pairs"]
    ]
    classes.sort(key=lambda row: -float(row[-1].replace("−", "-")) if row[-1] != "–" else 1.0)
    return Section(
        "geometry",
        "What the embedding is organised by",
        "Two samples of a class should be equally close whether or not they share the bias. "
        f"Pairs of {geometry['similarity']['samples']:,} samples were compared; for FairKL, those of "
        f"{geometry['fairkl']['samples']:,}.",
        _histograms(geometry["similarity"]),
        (
            Table(
                ("the paper's ordering", "share in this order", "without bias", "what it says"),
                links,
                (1, 2),
            ),
            Table(
                (
                    "class of the anchor",
                    "ordering, first link",
                    *(f"cosine: {PAIRS[kind]}" for kind in SETS),
                    "KL, positives",
                    "KL, negatives",
                    "FairKL",
                ),
                classes,
                tuple(range(1, 9)),
            ),
        ),
    )


def _histograms(similarity: Json) -> list[Figure]:
    edges = np.array(similarity["edges"])
    made = []
    for sign, title in (("positive", "Same label"), ("negative", "Other label")):
        pair = [similarity["sets"][f"{sign}-{kind}"] for kind in ("aligned", "conflicting")]
        counts = [np.array(one["counts"], float) for one in pair]
        used = np.flatnonzero(sum(counts))
        if not len(used):
            continue
        span = float(edges[used[0]]), float(edges[used[-1] + 1])
        tallest = max((c / max(c.sum(), 1)).max() for c in counts)
        sets = [
            figures.Histogram(c, one["mean"], sign, k == 0)
            for k, (c, one) in enumerate(zip(counts, pair, strict=True))
        ]
        caption = "Filled: pairs that share the bias. Dashed: pairs that do not. Triangles: means."
        made.append(
            Figure(
                title,
                figures.histograms(edges, sets, span, tallest, f"Cosines: {title.lower()}"),
                caption,
            )
        )
    return made


def _readable(found: Json) -> Section:
    rows = [
        (
            found["class_names"][one["class"]],
            _bar(one["accuracy"]),
            _interval(one["accuracy"]),
            _percent(one["chance"]),
            f"{one['n']:,}",
        )
        for one in sorted(found["bias_readable"]["classes"], key=lambda one: -one["above_chance"])
    ]
    lead = (
        "A linear probe tries to tell the bias from the embeddings of one class, with as many samples of each bias value. "
        "At chance, nothing of it is left to read."
    )
    if not rows:
        lead += f" No class has two bias values with {LEAST} samples each."
    return Section(
        "readable",
        "Can the bias be read off it?",
        lead,
        (),
        [Table(("class", "% right", "95 % interval", "chance", "samples"), rows, (1, 2, 3, 4))]
        if rows
        else (),
    )


# Slices


def _slices(found: Json, samples: Samples) -> Section:
    slices = found["slices"]
    names = found["class_names"]
    lead = (
        "Clusters of embeddings inside a class, proposed on one half of the samples and tested on the other. "
        f"{slices['tested']} {'was' if slices['tested'] == 1 else 'were'} tested; reported are those that are still worse "
        f"than the rest of their class there, at a corrected level of {slices['alpha']:g}. Bias labels were not used."
    )
    if slices["left_out"]:
        few = f"There were {without_slices(slices['left_out'])}."
        lead = f"{lead} {few}" if _looked_at(found) else few
    rows = [
        (
            f"{k}. {names[one['class']]}",
            _bar(one["confirmation"]),
            _interval(one["confirmation"]),
            _percent(one["discovery"]["value"]),
            _percent(one["rest_of_class"]["value"]),
            _p(one["p_corrected"]),
            f"{one['n']:,}",
            _shares(one["answers"]),
            *([_shares(one["bias"])] if found["bias_names"] else []),
        )
        for k, one in enumerate(slices["found"], 1)
    ]
    head = (
        "slice of class",
        "% wrong",
        "95 % interval",
        "first half",
        "rest of class",
        "p, corrected",
        "samples",
        "answers",
    )
    told = ("its bias",) if found["bias_names"] else ()
    strips = [
        strip
        for k, one in enumerate(slices["found"][:STRIPS], 1)
        for kind, title in (
            ("central", "the most central samples"),
            ("mistakes", "the most central mistakes"),
        )
        if (kind == "central" or one["mistakes"][:SHOWN] != one["central"][:SHOWN])
        and (
            strip := _strip(
                f"Slice {k}, of class {names[one['class']]}: {title}",
                one[kind][:SHOWN],
                samples,
                names,
            )
        )
    ]
    return Section(
        "slices",
        "Where it fails, found without bias labels",
        lead,
        strips,
        [Table((*head, *told), rows, tuple(range(1, 7)))] if rows else (),
    )


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _shares(values: Sequence[Json]) -> str:
    return ", ".join(f"{one['name']} {100 * one['share']:.0f} %" for one in values)


def _strip(
    title: str, positions: Sequence[int], samples: Samples, names: Sequence[str]
) -> Figure | None:
    item = Markup('<li><img src="{}" alt="Sample {}, label {}"{}><p class="said">{}</p></li>')
    items = []
    for position in positions:
        if (image := samples.images.get(position)) is None:
            continue
        answer, label = samples.predicted[position], samples.labels[position]
        said = "no answer" if answer < 0 else names[answer]
        pixelated = Markup(' class="pixelated"') if max(image.shape[1:]) < TINY else ""
        mark = "✓" if answer == label else "✗"
        items.append(
            item.format(picture(image), position, names[label], pixelated, f"{said} {mark}")
        )
    if not items:
        return None
    body = Markup('<ul class="strip">') + Markup("").join(items) + Markup("</ul>")
    return Figure(title, body, "Below each stands the model's answer.")
