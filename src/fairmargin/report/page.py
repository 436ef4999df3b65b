"""Run folders in, one self-contained HTML page out. Only files are read: no model, no data, no network."""

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fairmargin.evaluate.accuracy import MEANINGS
from fairmargin.report import embedding, figures, template
from fairmargin.report.runs import CLASSIFIERS, Estimate, Group, Part, Run, estimate, method_name, parts_of, read_run

JUDGES = {"own": "each method's own classifier", "probe": "a linear probe on the features", "knn": "nearest neighbours"}
RECORDS = {"last": "last", "best-on-validation": "best on validation", "best-on-test": "best on test"}
SHUFFLED = {  # what the test asks, where a dataset's name does not say it
    "biased-mnist": "On digits whose colours are shuffled",
    "biased-mnist-mini": "On digits whose colours are shuffled",
    "corrupted-cifar10": "On pictures whose corruptions are shuffled",
}
ASKED = {
    "plain": "On the test images of {}",
    "cell-mean": "On {}, with every label and bias counted alike",
    "aligned": "On images of {} that follow the shortcut",
    "conflicting": "On images of {} that contradict the shortcut",
    "worst-group": "On its weakest group of {}",
    "train-weighted": "On {}, with groups weighted as in training",
}
PAIR_SETS = {
    "positive-aligned": "same label, same bias",
    "positive-conflicting": "same label, other bias",
    "negative-aligned": "other label, same bias",
    "negative-conflicting": "other label, other bias",
}
ROWS = 40  # of a heat map
WORST = 8  # rows of the group table that are not folded away
SHOWN = 8  # example images of a kind


def write_report(runs: Sequence[Path], target: Path, *, title: str | None = None, story: str | None = None) -> Path:
    """Write one HTML page about the runs to `target` and return its path.

    Args:
        runs: run folders. Runs that differ in their seed only are taken together; each dataset has its own part.
            A run without result.json is listed as unfinished.
        target: the file to write; its folder is made.
        title: of the window, and the line above the answer.
        story: the paragraphs below the answer, as plain text with blank lines between them; None tells how far the bias
            gives the label away in the training and in the test images.
    """
    if not runs:
        raise ValueError('a report needs at least one run folder and got none; make one with "fairmargin train"')
    if target.is_dir():
        raise ValueError(f"{target} is a folder; give the file to write, such as {target / 'report.html'}")
    folders = list(dict.fromkeys(Path(folder).resolve() for folder in runs))
    read = [read_run(folder) for folder in folders]
    html = render(read, title=title, story=story)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(html, encoding="utf-8")
    return target


def render(runs: Sequence[Run], *, title: str | None = None, story: str | None = None) -> str:
    finished = [run for run in runs if run.finished]
    parts = parts_of(finished)
    environment = template.environment("fairmargin.report")
    environment.filters |= {"percent": percent, "whole": whole, "count": count, "unbroken": unbroken, "bar": bar}
    told = [paragraph.strip() for paragraph in (story or "").split("\n\n") if paragraph.strip()]
    sections = [_section(f"d{k}", part) for k, part in enumerate(parts)]
    return environment.get_template("page.html").render(
        title=title or _title(parts),
        story=told,
        sections=sections,
        unfinished=[_unfinished(run) for run in runs if not run.finished],
        groups={group.name: group for part in parts for group in part.groups},
    )


# Words


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def whole(fraction: float) -> str:
    return f"{100 * fraction:.0f}\u00a0%"


def count(number: float) -> str:
    return f"{number:,.0f}"


def bar(at: Estimate) -> Markup:
    return figures.thin_bar(at.value, at.low, at.high)


def in_sentence(name: str) -> str:
    """ "Cross-entropy" → "cross-entropy"; names with capitals of their own ("SupCon") stay."""
    return name[0].lower() + name[1:] if name[:1].isupper() and name[1:].split(" ")[0].islower() else name


def unbroken(name: str) -> Markup:
    """A name whose words do not break at their hyphens, unless they are too long for a phone."""
    kept = Markup('<span class="unbroken">{}</span>')
    return Markup(" ").join(
        kept.format(word) if "-" in word and len(word) <= 18 else Markup.escape(word) for word in name.split(" ")
    )


def _title(parts: Sequence[Part]) -> str:
    return "FairMargin report" + (": " + ", ".join(part.title for part in parts) if parts else "")


def _answer(part: Part) -> Markup:
    """The page in a sentence: the worst and the best method by the headline accuracy."""
    accuracy = part.headline[1]
    asked = ASKED.get(accuracy, "On {}").format(part.title)
    if accuracy in ("plain", "cell-mean"):
        asked = SHUFFLED.get(part.dataset, asked)
    ranked = sorted(part.groups, key=lambda group: part.headline_of(group).value)
    worst, best = ranked[0], ranked[-1]
    low, high = part.headline_of(worst).value, part.headline_of(best).value
    exact = len(part.groups) > 1 and whole(low) == whole(high)
    said = [f"{percent(v)}\u00a0%" if exact else whole(v) for v in (low, high)]
    name = Markup('<span class="m m{}">{}</span>')
    number = Markup('<b class="m m{}">{}</b>')
    opening = Markup("{}, {} is right {} of the time").format(
        asked, name.format(worst.colour, unbroken(in_sentence(worst.name))), number.format(worst.colour, said[0])
    )
    if worst is best:
        return opening + "."
    closing = Markup("; {} {}.")
    return opening + closing.format(
        name.format(best.colour, unbroken(in_sentence(best.name))), number.format(best.colour, said[1])
    )


def _verdict(part: Part) -> str:
    """Whether best and worst can be told apart, and by what."""
    if len(part.groups) < 2:
        return ""
    ranked = sorted((part.headline_of(group) for group in part.groups), key=lambda e: e.value)
    worst, best = ranked[0], ranked[-1]
    said = f"The difference is {100 * (best.value - worst.value):.1f} points"
    if worst.spread is not None and best.spread is not None:
        twice = best.value - worst.value > 2 * max(worst.spread, best.spread)
        return said + (
            ", more than twice the larger deviation between seeds."
            if twice
            else ", within twice the larger deviation between seeds: more seeds are needed to tell them apart."
        )
    if worst.high is None or best.low is None:
        return said + "."
    if best.low > worst.high:
        return said + ", and the intervals do not overlap."
    return said + "; the intervals overlap, so this test set does not tell the two apart."


def _measure(part: Part) -> str:
    """What the headline number is, for the line under the bars."""
    classifier, accuracy = part.headline
    over = ""
    if any(len(group.runs) > 1 for group in part.groups):
        over = ", mean ± sample standard deviation over seeds"
    elif any(part.headline_of(group).low is not None for group in part.groups):
        over = ", with its bootstrap interval"
    return (
        f"“{accuracy}” accuracy by {JUDGES.get(classifier, classifier)} on "
        f"{count(part.groups[0].first.result['test'][classifier]['n'])} test images{over}."
    )


def _small_numbers(part: Part) -> str:
    """What stands below the accuracies of the table."""
    at = [part.headline_of(group) for group in part.groups]
    kinds = ["sample standard deviation over seeds (±)"] if any(one.spread is not None for one in at) else []
    if any(one.spread is None and one.low is not None for one in at):
        kinds.append("bootstrap interval of a single run")
    return f"Small numbers: {' or '.join(kinds)}." if kinds else ""


def _story(part: Part) -> str:
    sizes, classes = part.data["sizes"], len(part.class_names)
    if part.aligned is None or part.counts is None or not part.counts.sum():
        return (
            f"Trained on {count(sizes['train'])} images of {classes} classes and tested on {count(sizes['test'])}. No bias "
            "was written down for this dataset, so accuracies by group cannot be given."
        )
    train = part.counts[part.aligned].sum() / part.counts.sum()
    usual = int(part.counts.max(axis=1).argmax())
    pair = f"“{part.class_names[usual]}” comes with “{part.bias_names[int(part.counts[usual].argmax())]}”"
    told = (
        f"In {whole(train)} of the {count(part.counts.sum())} training images the bias gives the label away: {pair}, for "
        "example. A model can learn that instead of the label."
    )
    test = _test_share(part)
    return told + ("" if test is None else f" Of the test images {whole(test)} follow this pattern.")


def _test_share(part: Part) -> float | None:
    test = part.groups[0].first.test
    if part.aligned is None or "bias" not in test:
        return None
    known = test["bias"] >= 0
    followed = part.aligned[test["labels"][known], test["bias"][known]]
    return float(followed.mean()) if known.any() else None


# The parts of a page


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


def _section(prefix: str, part: Part) -> dict[str, Any]:
    lowest = _lowest_similarity(part)
    calibration = [figure for group in part.groups if (figure := _calibration(prefix, part, group))]
    groups, scores, warnings = _group_rows(part), _scores(part), _warnings(part)
    return {
        "id": prefix,
        "dataset": part.title,
        "answer": _answer(part),
        "verdict": _verdict(part),
        "measure": _measure(part),
        "story": _story(part),
        "headline": {"classifier": part.headline[0], "accuracy": part.headline[1]},
        "chance": 1 / len(part.class_names),
        "bars": _bars(part),
        "accuracies": {name: MEANINGS.get(name, "") for name in part.accuracies},
        "small_numbers": _small_numbers(part),
        "judge": JUDGES.get(part.headline[0], part.headline[0]),
        "table": _rows(part, [part.headline[0]]),
        "others": _rows(part, [name for name in part.classifiers if name != part.headline[0]]),
        "extra": _extra_rows(part),
        "records": _record_rows(part),
        "facts": _facts(part),
        "groups": part.groups,
        "has_bias": bool(part.bias_names),
        "many_seeds": any(len(group.runs) > 1 for group in part.groups),
        "examples": _examples(prefix, part),
        "cells": [_cells_figure(prefix, part, group) for group in part.groups],
        "similarity": [figure for group in part.groups if (figure := _similarity(prefix, group, lowest))],
        "maps": [figure for group in part.groups for figure in _maps(prefix, part, group)],
        "curves": _accuracy_curves(prefix, part),
        "terms": [figure for group in part.groups for figure in _term_curves(prefix, group)],
        "group_rows": groups,
        "worst": WORST,
        "calibration": calibration,
        "scores": scores,
        "warnings": warnings,
        "trust": bool(groups or calibration or scores or warnings),
        "runs": [_repeat(group, run) for group in part.groups for run in group.runs],
        "heat_legend": figures.heat_legend(),
    }


def _bars(part: Part) -> list[dict[str, Any]]:
    chance = 1 / len(part.class_names)
    rows = [(group, part.headline_of(group)) for group in part.groups]
    return [
        {"group": group, "at": at, "bar": figures.thin_bar(at.value, at.low, at.high, chance)} for group, at in rows
    ]


def _facts(part: Part) -> list[tuple[str, str]]:
    sizes = part.data["sizes"]
    seeds = sorted({len(group.runs) for group in part.groups})
    facts = [
        (count(sizes[name]), said)
        for name, said in (("train", "training images"), ("test", "test images"))
        if name in sizes
    ]
    facts.append((count(len(part.class_names)), "classes"))
    if part.bias_names:
        facts.append((count(len(part.bias_names)), "values of the bias"))
    if part.aligned is not None and part.counts is not None and part.counts.sum():
        facts.append((whole(part.counts[part.aligned].sum() / part.counts.sum()), "follow the shortcut in training"))
    facts.append(("–".join(str(n) for n in {seeds[0]: 0, seeds[-1]: 0}), "seed" if seeds == [1] else "seeds"))
    return facts


def _rows(part: Part, classifiers: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "group": group,
            "name": CLASSIFIERS.get(classifier, classifier),
            "seeds": len(group.judged(classifier)),
            "values": {name: group.accuracy(classifier, name) for name in part.accuracies},
        }
        for group in part.groups
        for classifier in classifiers
        if group.judged(classifier)
    ]


def _extra_rows(part: Part) -> list[dict[str, Any]]:
    """Further test sets, by the headline's classifier."""
    classifier, rows = part.headline[0], []
    for group in part.groups:
        for name in dict.fromkeys(name for run in group.runs for name in run.result.get("extra_tests") or {}):
            tested = [(run.result.get("extra_tests") or {}).get(name, {}).get(classifier) for run in group.runs]
            found = [judged["accuracy"] for judged in tested if judged]
            values = {}
            for accuracy in part.accuracies:
                have = [one[accuracy] for one in found if accuracy in one]
                ends = (have[0].get("low"), have[0].get("high")) if have else (None, None)
                values[accuracy] = estimate([one["value"] for one in have], *ends)
            if found:
                rows.append({"group": group, "name": name, "seeds": len(found), "values": values})
    return rows


def _record_rows(part: Part) -> list[dict[str, Any]]:
    accuracy = part.headline[1]
    rows = []
    for group in part.groups:
        for name, shown in RECORDS.items():
            found = [run.result["records"][name] for run in group.runs if (run.result.get("records") or {}).get(name)]
            if not found:
                continue
            epochs = sorted({record["epoch"] for record in found})
            rows.append(
                {
                    "group": group,
                    "name": shown,
                    "reported": group.first.result.get("reported") == name,
                    "epoch": f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]}–{epochs[-1]}",
                    "valid": estimate([(record.get("valid") or {}).get(accuracy) for record in found]),
                    "test": estimate([(record.get("test") or {}).get(accuracy) for record in found]),
                    "plain": estimate([(record.get("test") or {}).get("plain") for record in found]),
                }
            )
    return rows


def _examples(prefix: str, part: Part) -> list[dict[str, Any]]:
    """Strips of images: the first method's examples with what every method says, then each method's mistakes."""
    strips = []
    shared = [group for group in part.groups if _same_test(group.first, part.groups[0].first)]
    titles = {"aligned": "Following the shortcut", "conflicting": "Contradicting the shortcut"}
    wanted: list[tuple[str, str, str, Group | None]] = []
    wanted += [(f"examples-{kind}", title, kind, None) for kind, title in titles.items()]
    wanted += [(f"mistakes-{g.slug}", f"Most confident mistakes: {g.name}", "mistake", g) for g in part.groups]
    for name, title, kind, group in wanted:
        images = _strip(part, group or part.groups[0], kind, [group] if group else shared)
        if images:
            strips.append({"id": f"{prefix}-{name}", "name": name, "title": title, "images": images, "group": group})
    return strips


def _same_test(a: Run, b: Run) -> bool:
    return all(
        np.array_equal(a.test.get(name, np.empty(0)), b.test.get(name, np.empty(0))) for name in ("labels", "bias")
    )


def _strip(part: Part, source: Group, kind: str, speakers: Sequence[Group]) -> list[dict[str, Any]]:
    examples, test = source.first.examples, source.first.test
    if not examples or not test:
        return []
    images = []
    for k in np.flatnonzero(examples["kind"] == kind)[:SHOWN]:
        index = int(examples["index"][k])
        label = part.class_names[int(test["labels"][index])]
        b = int(test["bias"][index]) if "bias" in test else -1
        images.append(
            {
                "uri": figures.picture(examples["images"][k]),
                "index": index,
                "label": label,
                "bias": part.bias_names[b] if b >= 0 else None,
                "said": [_said(part, group, index) for group in speakers],
                "pixelated": max(examples["images"].shape[2:]) <= figures.THUMBNAIL,
            }
        )
    return images


def _said(part: Part, group: Group, index: int) -> dict[str, Any]:
    test = group.first.test
    k = int(test["predicted"][index])
    confidence = None
    if "logits" in test:
        logits = test["logits"][index].astype(np.float64)
        if np.isfinite(logits).all():
            shares = np.exp(logits - logits.max())
            confidence = float(shares[k] / shares.sum())
    right = k == int(test["labels"][index])
    return {"group": group, "predicted": part.class_names[k], "confidence": confidence, "right": right}


def _pooled(part: Part, group: Group) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """(test samples, right ones) [classes, biases] by the headline's classifier, summed over seeds."""
    tables = [judged["groups"] for judged in group.judged(part.headline[0]) if judged.get("groups")]
    if not tables or not part.bias_names:
        return None
    n, correct = (np.sum([table[name] for table in tables], axis=0).astype(np.int64) for name in ("n", "correct"))
    return n, correct


def _cells_figure(prefix: str, part: Part, group: Group) -> Figure:
    pooled = _pooled(part, group)
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
    return Figure(f"{prefix}-{name}", name, group.name, figures.heat_map(shown, said), caption, group)


def _by_class(part: Part, group: Group) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    classes = len(part.class_names)
    n, correct = np.zeros((2, classes, 1), np.int64)
    for run in group.runs:
        if run.test:
            labels, right = run.test["labels"], run.test["predicted"] == run.test["labels"]
            n[:, 0] += np.bincount(labels, minlength=classes)
            correct[:, 0] += np.bincount(labels[right], minlength=classes)
    return n, correct


def _similarity(prefix: str, group: Group, lowest: float) -> Figure | None:
    """Histograms summed over seeds; their means weighted by pairs."""
    found = [run.result["similarity"] for run in group.runs if run.result.get("similarity")]
    if not found:
        return None
    edges = np.asarray(found[0]["edges"], float)
    found = [one for one in found if len(one["edges"]) == len(edges)]
    sets, keys = [], []
    for name, said in PAIR_SETS.items():
        have = [one["sets"][name] for one in found if one["sets"].get(name) and one["sets"][name]["pairs"]]
        if not have:
            continue
        counts = np.sum([one["counts"] for one in have], axis=0).astype(float)
        pairs = [one["pairs"] for one in have]
        means = [one["mean"] for one in have]
        mean = None if any(m is None for m in means) else float(np.average(means, weights=pairs))
        kind, filled = name.split("-")[0], name.endswith("aligned")
        sets.append(figures.Histogram(counts, mean, kind, filled))
        keys.append({"name": said, "kind": kind, "filled": filled, "mean": mean, "pairs": sum(pairs)})
    if not sets:
        return None
    tallest = max(float((one.counts / max(one.counts.sum(), 1)).max()) for one in sets)
    said = f"Similarities of pairs under {group.name}: " + "; ".join(
        f"{key['name']}, mean {key['mean']:.2f}" for key in keys if key["mean"] is not None
    )
    name = f"similarity-{group.slug}"
    chart = figures.histograms(edges, sets, (lowest, 1.0), tallest, said)
    return Figure(f"{prefix}-{name}", name, group.name, chart, _similarity_words(group, found), group, keys)


def _lowest_similarity(part: Part) -> float:
    """Where the scale of similarities begins: one for all methods, so that their charts compare."""
    found = [run.result["similarity"] for group in part.groups for run in group.runs if run.result.get("similarity")]
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
            words.append(Markup("KL from same bias to other bias, {}: <b>{}</b>.").format(said, f"{value.value:.3g}"))
    orderings = [run.result["ordering"] for run in group.runs if run.result.get("ordering")]
    for k, link in enumerate(orderings[0]["links"] if orderings else ()):
        share = estimate([ordering["links"][k]["share"] for ordering in orderings])
        if share is not None:
            closer, farther = (PAIR_SETS.get(link[side], link[side]) for side in ("closer", "farther"))
            said = Markup("“{}” is closer than “{}” in <b>{}</b> of comparisons.")
            words.append(said.format(closer, farther, whole(share.value)))
    total = estimate([ordering.get("total") for ordering in orderings])
    if total is not None:
        words.append(Markup("All three hold without exception for <b>{}</b> of the images.").format(whole(total.value)))
    return Markup("").join(Markup("<li>{}</li>").format(one) for one in words)


def _maps(prefix: str, part: Part, group: Group) -> list[Figure]:
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
        drawn.append(Figure(f"{prefix}-{name}", name, f"{group.name}, by {kind}", chart, how, group, keys))
    return drawn


def _accuracy_curves(prefix: str, part: Part) -> list[Figure]:
    """The headline accuracy by epoch: a line per seed, on the test and on the validation images."""
    accuracy, drawn = part.headline[1], []
    for split, said in (("test", "Test"), ("valid", "Validation")):
        lines = []
        for group in part.groups:
            for run in group.runs:
                at = [(event["epoch"], (event.get(split) or {}).get(accuracy)) for event in run.evaluations()]
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
            drawn.append(Figure(f"{prefix}-curve-{split}", f"curve-{split}", f"{said}, “{accuracy}” accuracy", chart))
    return drawn


def _end(group: Group, split: str, accuracy: str) -> float | None:
    ends = [(run.evaluations()[-1].get(split) or {}).get(accuracy) for run in group.runs if run.evaluations()]
    found = estimate(ends)
    return None if found is None else found.value


def _term_curves(prefix: str, group: Group) -> list[Figure]:
    """A panel for each loss term, because their sizes differ by orders of magnitude; then the pairs that FairKL had."""
    panels = []
    names = dict.fromkeys(name for run in group.runs for event in run.steps() for name in event.get("terms") or {})
    for term in names:
        lines = []
        for run in group.runs:
            known = [(e["step"], e["terms"][term]) for e in run.steps() if (e.get("terms") or {}).get(term) is not None]
            if known:
                x, y = zip(*known, strict=True)
                lines.append(figures.Line(x, y, f"m m{group.colour}" + (" thin" if len(group.runs) > 1 else "")))
        if lines:
            label = f"Loss term {term} of {group.name} by step, from {lines[0].y[0]:.3g} to {lines[0].y[-1]:.3g}"
            panels.append((term, figures.curves(lines, label, x_name="step", height=120)))
    drawn = []
    if panels:
        body = Markup("").join(Markup('<p class="panel">{}</p>{}').format(term, chart) for term, chart in panels)
        drawn.append(Figure(f"{prefix}-terms-{group.slug}", f"terms-{group.slug}", group.name, body, "", group))
    return drawn + _pair_curves(prefix, group)


def _pair_curves(prefix: str, group: Group) -> list[Figure]:
    counted = [event for event in group.first.steps() if event.get("pairs")]
    if not counted:
        return []
    steps = [event["step"] for event in counted]
    lines, keys, told = [], [], []
    for k, (name, said) in enumerate(list(PAIR_SETS.items())[: len(counted[0]["pairs"])]):  # A⁺, C⁺[, A⁻, C⁻]
        counts = [event["pairs"][k] for event in counted]
        kind, filled = name.split("-")[0], name.endswith("aligned")
        lines.append(figures.Line(steps, counts, kind, "" if filled else "5 2.5"))
        keys.append({"name": said, "kind": kind, "filled": filled, "mean": statistics.fmean(counts)})
        told.append(f"{said}, {min(counts):,.0f} to {max(counts):,.0f}")
    label = f"Pairs in a batch under {group.name}: " + "; ".join(told)
    chart = figures.curves(lines, label, x_name="step", logarithmic=True)
    name = f"pairs-{group.slug}"
    return [Figure(f"{prefix}-{name}", name, f"{group.name}: pairs in a batch", chart, "", group, keys)]


def _group_rows(part: Part) -> list[dict[str, Any]]:
    """Every (label, bias) cell with test images, weakest first by the best method."""
    tables = {group.name: _pooled(part, group) for group in part.groups}
    best = max(part.groups, key=lambda group: part.headline_of(group).value)
    reference = tables[best.name]
    if reference is None:
        return []
    rows = []
    for i, j in np.argwhere(reference[0] > 0):
        values = [_cell_estimate(part, group, tables[group.name], i, j) for group in part.groups]
        rows.append(
            {
                "label": part.class_names[i],
                "bias": part.bias_names[j],
                "n": int(reference[0][i, j]),
                "train": None if part.counts is None else int(part.counts[i, j]),
                "aligned": part.aligned is not None and bool(part.aligned[i, j]),
                "values": values,
                "order": (reference[1][i, j] / reference[0][i, j], -int(reference[0][i, j]), int(i), int(j)),
            }
        )
    return sorted(rows, key=lambda row: row["order"])[:400]


def _cell_estimate(
    part: Part, group: Group, pooled: tuple[NDArray[np.int64], NDArray[np.int64]] | None, i: int, j: int
) -> Estimate | None:
    """The accuracy of a cell; its interval is known for single runs only."""
    if pooled is None or not pooled[0][i, j]:
        return None
    value = float(pooled[1][i, j] / pooled[0][i, j])
    if len(group.runs) > 1:
        return Estimate(value)
    table = group.judged(part.headline[0])[0]["groups"]
    low, high = ((table.get(end) or {i: {j: None}})[i][j] for end in ("low", "high"))
    return Estimate(value, low, high)


def _calibration(prefix: str, part: Part, group: Group) -> Figure | None:
    measured = [judged["calibration"] for judged in group.judged(part.headline[0]) if judged.get("calibration")]
    if not measured:
        return None
    tables = [one["bins"] for one in measured]
    seeds: dict[int, list[dict[str, Any]]] = {}  # the dots of one interval of confidence are put together
    for one in (one for table in tables for one in table if one["n"]):
        seeds.setdefault(math.ceil(one["confidence"] * 15), []).append(one)
    bins = []
    for _, same in sorted(seeds.items()):
        n = [one["n"] for one in same]
        confidence, accuracy = (
            float(np.average([one[name] for one in same], weights=n)) for name in ("confidence", "accuracy")
        )
        bins.append(figures.Bin(confidence, accuracy, sum(n)))
    ece = estimate([one["ece"] for one in measured])
    said = f"Reliability of {group.name}: " + (f"expected calibration error {percent(ece.value)} %." if ece else "")
    name = f"calibration-{group.slug}"
    return Figure(f"{prefix}-{name}", name, group.name, figures.reliability(bins, said), "", group)


def _scores(part: Part) -> list[dict[str, Any]]:
    rows = []
    for group in part.groups:
        judged = group.judged(part.headline[0])
        calibrated = [one["calibration"] for one in judged if one.get("calibration")]
        scores = {name: estimate([one.get(name) for one in calibrated]) for name in ("ece", "nll", "brier")}
        rows.append({"group": group, "gap": estimate([one.get("equalised_odds_gap") for one in judged]), **scores})
    measured = any(row[name] is not None for row in rows for name in ("ece", "nll", "brier", "gap"))
    return rows if measured else []


def _warnings(part: Part) -> list[dict[str, Any]]:
    """Each warning once, with those that gave it."""
    found: dict[str, dict[str, list[str]]] = {}
    for group in part.groups:
        for run in group.runs:
            seed = [f"seed {run.seed}"] if len(group.runs) > 1 else []
            sources = [(said, seed) for said in run.result.get("warnings") or ()]
            for classifier, judged in run.result["test"].items():
                sources += [
                    (said, [CLASSIFIERS.get(classifier, classifier), *seed]) for said in judged.get("warnings") or ()
                ]
            for said, source in sources:
                told = found.setdefault(said, {}).setdefault(group.name, [])
                told += [one for one in source if one not in told]
    return [
        {"said": said, "sources": [_source(g, told[g.name]) for g in part.groups if g.name in told]}
        for said, told in found.items()
    ]


def _source(group: Group, told: Sequence[str]) -> dict[str, Any]:
    """Who gave a warning; classifiers and seeds are named only if some did not give it."""
    seeds = [f"seed {run.seed}" for run in group.runs] if len(group.runs) > 1 else []
    judges = [CLASSIFIERS.get(name, name) for name in group.first.result["test"]]
    return {"group": group, "told": [] if set(told) >= {*judges, *seeds} else told}


def _repeat(group: Group, run: Run) -> dict[str, Any]:
    environment, git = run.environment, run.environment.get("git") or {}
    command = environment.get("command") or ""
    state = (
        f"{git['commit']}{' with uncommitted changes' if git.get('dirty') else ''}"
        if git.get("commit")
        else "not recorded"
    )
    versions = [
        f"{name} {environment[name]}" for name in ("fairmargin", "python", "torch", "numpy") if environment.get(name)
    ]
    speeds = [event["images_per_second"] for event in run.steps() if event.get("images_per_second")]
    return {
        "group": group,
        "seed": run.seed,
        "folder": run.folder.name,
        "command": shlex.join(map(str, command)) if isinstance(command, list) else str(command),
        "facts": [
            ("versions", ", ".join(versions) or "not recorded"),
            ("code", state),
            ("machine", _machine(environment)),
            ("started", environment.get("started") or "not recorded"),
            ("work", f"{run.result['epochs']} epochs, {count(run.result['steps'])} steps, {run.result['seconds']:.0f} s"
             + (f", {count(statistics.median(speeds))} images/s" if speeds else "")),
            *((f"{split} data", digest) for split, digest in (environment.get("data") or {}).items()),
        ],
        "config": run.config_text,
    }  # fmt: skip


def _machine(environment: dict[str, Any]) -> str:
    said = [str(environment[name]) for name in ("platform", "device") if environment.get(name)]
    said += [
        f"{environment[name]} {many}"
        for name, many in (("threads", "threads"), ("world_size", "processes"))
        if environment.get(name)
    ]
    return ", ".join(said) or "not recorded"


def _unfinished(run: Run) -> dict[str, Any]:
    done = [event["epoch"] for event in run.evaluations() if "epoch" in event]
    begun = [event["epoch"] for event in run.steps() if "epoch" in event]
    steps = [event["step"] for event in run.events if "step" in event]
    return {
        "folder": run.folder.name,
        "method": method_name(run.method),
        "dataset": run.dataset,
        "seed": run.seed,
        "epoch": max([*done, *begun], default=0),
        "epochs": run.config.get("train", {}).get("epochs"),
        "step": max(steps, default=0),
    }
