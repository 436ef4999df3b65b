"""Write a report: run folders in, one self-contained HTML page out.

Only files are read: no model, no data, no network.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fairmargin.report import charts, figures, tables, template, words
from fairmargin.report.grouping import parts_of, read_runs
from fairmargin.report.headline import check_named, compared
from fairmargin.report.runs import Estimate, Part, accuracy_meanings
from fairmargin.report.words import count, percent, unbroken, whole
from fairmargin.runs.record import RunError, RunRecord
from fairmargin.runtime.whole import write_text

# Rows of the group table that are not folded away.
WORST = 8


def write_report(
    runs: Sequence[Path],
    target: Path,
    *,
    title: str | None = None,
    story: str | None = None,
    headline: Sequence[str] = (),
    say: Callable[[str], None] = warnings.warn,
) -> Path:
    """Write one HTML page about the runs to `target` and return its path.

    Args:
        runs: run folders. Runs that differ in their seed only are taken together; each dataset has
            its own part. A run without result.json is listed as unfinished.
        target: the file to write; its folder is made.
        title: of the window, and the line above the answer.
        story: the paragraphs below the answer, as plain text with blank lines between them. None
            tells how far the bias gives the label away in the training and in the test images.
        headline: two methods that the first sentence compares, such as "ce" and "group-dro", or
            one to compare with cross-entropy. By default cross-entropy and the best other method.
        say: is told which runs are left out because they cannot be read.
    """
    if not runs:
        raise ValueError(
            'a report needs at least one run folder and got none; make one with "fairmargin train"'
        )
    if target.is_dir():
        raise ValueError(
            f"{target} is a folder; give the file to write, such as {target / 'report.html'}"
        )
    records = read_runs(runs, say)
    while True:
        try:
            html = render(records, title=title, story=story, headline=headline)
            return write_text(target, html)
        except RunError as error:
            # Arrays are read when a chart needs them.
            whole = [record for record in records if record.path != error.run]
            if len(whole) in (0, len(records)):
                raise
            say(f"left out: {error}")
            records = whole


def render(
    runs: Sequence[RunRecord],
    *,
    title: str | None = None,
    story: str | None = None,
    headline: Sequence[str] = (),
) -> str:
    """Return the page about these runs as HTML; the arguments are those of `write_report`."""
    parts = parts_of([run for run in runs if run.finished], headline)
    check_named(parts, headline)
    paragraphs = [paragraph.strip() for paragraph in (story or "").split("\n\n")]
    environment = template.environment("fairmargin.report")
    environment.filters |= {
        "percent": percent,
        "whole": whole,
        "count": count,
        "unbroken": unbroken,
        "bar": _bar,
    }
    return environment.get_template("page.html").render(
        title=title or words.title(parts),
        story=[paragraph for paragraph in paragraphs if paragraph],
        sections=[_section(f"d{k}", part) for k, part in enumerate(parts)],
        unfinished=[tables.unfinished(run) for run in runs if not run.finished],
        groups={group.name: group for part in parts for group in part.groups},
    )


def _section(prefix: str, part: Part) -> dict[str, Any]:
    """Return what the template says about one dataset.

    Args:
        prefix: of all ids in the section.
        part: the dataset's. Tables show all its methods, charts those of `part.charted`.
    """
    classifier, accuracy = part.headline
    pair = compared(part, part.named)
    other_classifiers = [name for name in part.classifiers if name != classifier]
    meanings = accuracy_meanings()
    shown = _charts(prefix, part.charted)
    scores, warnings = tables.scores(part), tables.warnings(part)
    return shown | {
        "id": prefix,
        "dataset": part.title,
        "answer": words.answer(part, pair),
        "verdict": words.verdict(part, pair),
        "measure": words.measure(part),
        "unlike": words.unlike_runs(part),
        "story": words.story(part),
        "headline": {"classifier": classifier, "accuracy": accuracy},
        "chance": 1 / len(part.class_names),
        "bars": _bars(part),
        "accuracies": {name: meanings.get(name, "") for name in part.accuracies},
        "small_numbers": words.small_numbers(part),
        "judge": words.JUDGES.get(classifier, classifier),
        "table": tables.accuracy_rows(part, [classifier]),
        "others": tables.accuracy_rows(part, other_classifiers),
        "extra": tables.extra_rows(part),
        "records": tables.record_rows(part),
        "facts": _facts(part),
        "inferred": words.inferred_bias(part),
        "selection": words.selection(part),
        "has_bias": bool(part.bias_names),
        "many_seeds": any(len(group.runs) > 1 for group in part.groups),
        "worst": WORST,
        "scores": scores,
        "warnings": warnings,
        "trust": bool(shown["group_rows"] or shown["calibration"] or scores or warnings),
        "runs": [tables.repeat(group, run) for group in part.groups for run in group.runs],
        "heat_legend": figures.heat_legend(),
    }


def _charts(prefix: str, part: Part) -> dict[str, Any]:
    """Return the charts of a section, and what else is shown of charted methods only."""
    lowest = charts.lowest_similarity(part)
    shown: dict[str, Any] = {
        "groups": part.groups,
        "examples": tables.examples(prefix, part),
        "group_rows": tables.group_rows(part),
        "curves": charts.accuracy_curves(prefix, part),
        "cells": [],
        "similarity": [],
        "maps": [],
        "terms": [],
        "calibration": [],
    }
    for group in part.groups:
        shown["cells"].append(charts.cells_figure(prefix, part, group))
        shown["similarity"].append(charts.similarity(prefix, group, lowest))
        shown["maps"] += charts.maps(prefix, part, group)
        shown["terms"] += charts.term_curves(prefix, group)
        shown["calibration"].append(charts.calibration(prefix, part, group))
    for name in ("similarity", "calibration"):
        shown[name] = [figure for figure in shown[name] if figure is not None]
    return shown


def _bars(part: Part) -> list[dict[str, Any]]:
    chance = 1 / len(part.class_names)
    bars = []
    for group in part.groups:
        at = part.headline_of(group)
        bar = figures.thin_bar(at.value, at.low, at.high, chance)
        bars.append({"group": group, "at": at, "bar": bar})
    return bars


def _facts(part: Part) -> list[tuple[str, str]]:
    """Return (number, what it counts) of the dataset and its runs."""
    sizes = part.data["sizes"]
    facts = []
    for name, said in (("train", "training images"), ("test", "test images")):
        if name in sizes:
            facts.append((count(sizes[name]), said))
    facts.append((count(len(part.class_names)), "classes"))
    if part.bias_names:
        facts.append((count(len(part.bias_names)), "values of the bias"))
    if part.aligned is not None and part.counts is not None and part.counts.sum():
        share = part.counts[part.aligned].sum() / part.counts.sum()
        facts.append((whole(share), "follow the shortcut in training"))
    seeds = sorted({len(group.runs) for group in part.groups})
    said = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"
    facts.append((said, "seed" if seeds == [1] else "seeds"))
    return facts


def _bar(at: Estimate) -> Markup:
    return figures.thin_bar(at.value, at.low, at.high)
