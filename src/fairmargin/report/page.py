"""Run folders in, one self-contained HTML page out. Only files are read: no model, no data, no network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fairmargin.evaluate.accuracy import MEANINGS
from fairmargin.report import charts, figures, tables, template, words
from fairmargin.report.runs import Estimate, Part, Run, parts_of, read_run
from fairmargin.report.words import count, percent, unbroken, whole

WORST = 8  # rows of the group table that are not folded away


def write_report(
    runs: Sequence[Path], target: Path, *, title: str | None = None, story: str | None = None
) -> Path:
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
        raise ValueError(
            'a report needs at least one run folder and got none; make one with "fairmargin train"'
        )
    if target.is_dir():
        raise ValueError(
            f"{target} is a folder; give the file to write, such as {target / 'report.html'}"
        )
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
    environment.filters |= {
        "percent": percent,
        "whole": whole,
        "count": count,
        "unbroken": unbroken,
        "bar": bar,
    }
    told = [paragraph.strip() for paragraph in (story or "").split("\n\n") if paragraph.strip()]
    sections = [_section(f"d{k}", part) for k, part in enumerate(parts)]
    return environment.get_template("page.html").render(
        title=title or words.title(parts),
        story=told,
        sections=sections,
        unfinished=[tables.unfinished(run) for run in runs if not run.finished],
        groups={group.name: group for part in parts for group in part.groups},
    )


def _section(prefix: str, part: Part) -> dict[str, Any]:
    few = part.charted  # whose charts there are; tables have all
    lowest = charts.lowest_similarity(few)
    calibration = [
        figure for group in few.groups if (figure := charts.calibration(prefix, few, group))
    ]
    groups, scores, warnings = tables.group_rows(few), tables.scores(part), tables.warnings(part)
    return {
        "id": prefix,
        "dataset": part.title,
        "answer": words.answer(part),
        "verdict": words.verdict(part),
        "measure": words.measure(part),
        "story": words.story(part),
        "headline": {"classifier": part.headline[0], "accuracy": part.headline[1]},
        "chance": 1 / len(part.class_names),
        "bars": _bars(part),
        "accuracies": {name: MEANINGS.get(name, "") for name in part.accuracies},
        "small_numbers": words.small_numbers(part),
        "judge": words.JUDGES.get(part.headline[0], part.headline[0]),
        "table": tables.rows(part, [part.headline[0]]),
        "others": tables.rows(
            part, [name for name in part.classifiers if name != part.headline[0]]
        ),
        "extra": tables.extra_rows(part),
        "records": tables.record_rows(part),
        "facts": _facts(part),
        "groups": few.groups,
        "selection": words.selection(part),
        "has_bias": bool(part.bias_names),
        "many_seeds": any(len(group.runs) > 1 for group in part.groups),
        "examples": tables.examples(prefix, few),
        "cells": [charts.cells_figure(prefix, few, group) for group in few.groups],
        "similarity": [
            figure for group in few.groups if (figure := charts.similarity(prefix, group, lowest))
        ],
        "maps": [figure for group in few.groups for figure in charts.maps(prefix, few, group)],
        "curves": charts.accuracy_curves(prefix, few),
        "terms": [figure for group in few.groups for figure in charts.term_curves(prefix, group)],
        "group_rows": groups,
        "worst": WORST,
        "calibration": calibration,
        "scores": scores,
        "warnings": warnings,
        "trust": bool(groups or calibration or scores or warnings),
        "runs": [tables.repeat(group, run) for group in part.groups for run in group.runs],
        "heat_legend": figures.heat_legend(),
    }


def _bars(part: Part) -> list[dict[str, Any]]:
    chance = 1 / len(part.class_names)
    rows = [(group, part.headline_of(group)) for group in part.groups]
    return [
        {"group": group, "at": at, "bar": figures.thin_bar(at.value, at.low, at.high, chance)}
        for group, at in rows
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
        facts.append(
            (
                whole(part.counts[part.aligned].sum() / part.counts.sum()),
                "follow the shortcut in training",
            )
        )
    facts.append(
        ("–".join(str(n) for n in {seeds[0]: 0, seeds[-1]: 0}), "seed" if seeds == [1] else "seeds")
    )
    return facts


def bar(at: Estimate) -> Markup:
    return figures.thin_bar(at.value, at.low, at.high)
