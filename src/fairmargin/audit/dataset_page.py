"""The page about a dataset: the ranking, what each shortcut looks like, how it was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from fairmargin.audit import drawings
from fairmargin.audit.finding import CORRELATE, SHORTCUT, Finding, Scored
from fairmargin.audit.section import Figure, NameList, Section, Table
from fairmargin.audit.significance import Answers
from fairmargin.data.split import sample_names
from fairmargin.report.figures import thin_bar
from fairmargin.report.svg import signed

# Shortcuts that are shown in pictures.
PICTURED = 4
# Correlates that are shown instead if there are no shortcuts.
CORRELATES = 2
# Pictures of each kind and class.
EXAMPLES = 4
# Classes in a figure.
ROWS = 12


def sections(
    findings: Sequence[Finding],
    scored: Scored,
    settings: Mapping[str, Any],
    left_out: Sequence[str],
    planted: Mapping[str, Any] | None,
) -> list[Section]:
    """Return the sections of the page.

    Args:
        findings: about all attributes, ranked.
        scored: the samples they were measured on.
        settings: of the audit.
        left_out: sentences about what was not looked at.
        planted: whether the planted shortcut was found; None if none was planted.
    """
    leaders = [f for f in findings if f.verdict == SHORTCUT and f.echo_of is None]
    correlates = [f for f in findings if f.verdict == CORRELATE]
    made = [_planted_section(planted)] if planted else []
    made.append(_ranking(findings, scored))
    for k, finding in enumerate(leaders[:PICTURED] or correlates[:CORRELATES], 1):
        made.append(_looks(k, finding, scored))
    return [*made, _method(settings, left_out)]


def _planted_section(planted: Mapping[str, Any]) -> Section:
    if planted["found"]:
        lead = (
            f"The shortcut {planted['shortcut']} was planted in these data, and the audit found "
            f"it: {planted['by']}, rank {planted['rank']}, "
            f"corrected p = {planted['p_corrected']:.3g}."
        )
    else:
        lead = (
            f"The shortcut {planted['shortcut']} was planted in these data, and the audit reports "
            "none that follows it. That is right where it is no more frequent than chance, and a "
            "miss where it is."
        )
    return Section("planted", "The planted shortcut", lead)


def _ranking(findings: Sequence[Finding], scored: Scored) -> Section:
    chance = 1 / len(scored.names)
    rank_of = {f.attribute.name: rank for rank, f in enumerate(findings, 1)}
    has_bias = any(f.follows is not None for f in findings)
    rows = []
    for rank, f in enumerate(findings, 1):
        bar = thin_bar(min(max(f.score.accuracy, 0), 1), None, None, chance)
        accuracy = f"{100 * f.score.accuracy:.1f} ± {100 * f.score.error:.1f}"
        kind = "echo" if f.echo_of else f.verdict
        row = [
            Markup("{}. {} <small>{}</small>").format(rank, f.attribute.name, f.attribute.family),
            Markup("{}{}").format(accuracy, bar),
            signed(f"{f.score.strength:.2f}"),
            f"{f.score.p_corrected:.3g}",
            Markup('<span class="verdict {}">{}</span>').format(kind, f.verdict),
        ]
        if has_bias:
            row.append("–" if f.follows is None else f"{100 * f.follows:.0f}")
        rows.append([*row, _remark(f, scored, rank_of)])
    lead = (
        "Each attribute was fitted to one half of the training pictures and scored on the other, "
        f"classes counted alike. Strength is 0 at chance ({100 * chance:.0f} %, the mark in the "
        "bar) and 1 when every label is told. An echo tells nothing that a stronger one does not."
    )
    head = ["attribute", "right, %", "strength", "p, corrected", "verdict", "remark"]
    numeric = [1, 2, 3]
    if has_bias:
        lead += (
            " The known bias was not looked at; “follows bias” is how often an attribute says what "
            "the bias says where bias and label disagree."
        )
        head.insert(5, "follows bias, %")
        numeric.append(5)
    return Section("ranking", "What tells the label", lead, tables=[Table(head, rows, numeric)])


def _remark(finding: Finding, scored: Scored, rank_of: Mapping[str, int]) -> str:
    score = finding.score
    if finding.echo_of is not None:
        return f"echo of {rank_of[finding.echo_of]}"
    if finding.verdict == SHORTCUT and (finding.answers.predicted == scored.labels).all():
        return "nothing contradicts it: is it the label under another name?"
    if finding.verdict == CORRELATE and finding.attribute.sees_shape:
        return "may see the object itself"
    if finding.verdict == CORRELATE and finding.bond is not None:
        return f"belongs to the object: bond {finding.bond:.2f}"
    if finding.verdict == CORRELATE:
        return f"tells {scored.names[int(score.recall.argmax())]} best"
    return ""


def _looks(k: int, finding: Finding, scored: Scored) -> Section:
    name = finding.attribute.name
    classes = np.argsort(-finding.score.recall, kind="stable")[:ROWS]
    classes.sort()
    lead = (
        f"On the left pictures of each class such as the {name} expects, on the right pictures "
        "that contradict it: without enough of those, no method can tell the shortcut from the "
        "label."
    )
    if finding.verdict == CORRELATE:
        lead = (
            f"A correlate, not called a shortcut: the {name} tells something about the label, but "
            "far from all."
        )
    figures = [_values(finding, scored, classes), _examples(finding, scored, classes)]
    lists = [_contradicting(finding, scored)]
    return Section(f"look-{k}", f"What it looks like: {name}", lead, figures, lists=lists)


def _contradicting(finding: Finding, scored: Scored) -> NameList:
    """Return the names of the scored pictures that contradict an attribute, or their positions."""
    wrong = scored.index[finding.answers.predicted != scored.labels].tolist()
    names = sample_names(scored.split)
    listed = [f"train {i}" if names is None else names[i] for i in wrong]
    return NameList(f"Scored pictures that contradict the {finding.attribute.name}", listed)


def _values(finding: Finding, scored: Scored, classes: np.ndarray) -> Figure:
    attribute = finding.attribute
    names = [scored.names[y] for y in classes]
    at = np.isin(scored.labels, classes)
    labels = np.searchsorted(classes, scored.labels[at])
    label = f"{attribute.name.capitalize()} of each class"
    if attribute.kind in ("colour", "number"):
        values = finding.answers.values[at]
        if attribute.kind == "colour":
            bars = drawings.colour_bars(values, labels, names, label)
            return Figure(label, bars, "Each bar is one class.")
        caption = "Dot: middle value; thick: half of the samples; thin: nine tenths."
        return Figure(label, drawings.boxes(values[:, 0], labels, names, label), caption)
    if attribute.kind == "category":
        return _levels(finding, labels, names, at, label)
    told = np.searchsorted(classes, finding.answers.predicted[at])
    known = np.isin(finding.answers.predicted[at], classes)
    share = _shares(labels[known], told[known], len(names), len(names))
    said = f"Classes as the {attribute.name} alone tells them"
    body = drawings.share_map(share, names, names, said)
    caption = "Rows: the label. Columns: what the attribute alone says, in per cent."
    return Figure(f"What the {attribute.name} takes each class for", body, caption)


def _levels(
    finding: Finding, labels: np.ndarray, names: Sequence[str], at: np.ndarray, label: str
) -> Figure:
    codes, levels = finding.answers.values[at], finding.attribute.levels
    common = np.argsort(-np.bincount(codes, minlength=len(levels)), kind="stable")[:ROWS]
    common.sort()
    share = _shares(labels, codes, len(names), len(levels))[:, common]
    body = drawings.share_map(share, names, [levels[k] for k in common], label)
    caption = "Rows: the label. Columns: the commonest values, in per cent of the row."
    return Figure(label, body, caption)


def _shares(rows: np.ndarray, columns: np.ndarray, height: int, width: int) -> np.ndarray:
    table = np.bincount(rows * width + columns, minlength=height * width).reshape(height, width)
    return table / np.maximum(table.sum(1, keepdims=True), 1)


def _examples(finding: Finding, scored: Scored, classes: np.ndarray) -> Figure:
    answers, rows = finding.answers, []
    for y in classes:
        mine = scored.labels == y
        wrong = answers.predicted != y
        rows.append(
            drawings.Contrast(
                scored.names[y],
                _shown(answers, scored, mine & ~wrong),
                _shown(answers, scored, mine & wrong),
                float(wrong[mine].mean()),
            )
        )
    return Figure("Pictures", drawings.contrasts(rows, finding.attribute.name))


def _shown(answers: Answers, scored: Scored, among: np.ndarray) -> list[drawings.Shown]:
    """Return the samples the attribute is surest of, in random order where it is equally sure."""
    where = np.random.default_rng(0).permutation(np.flatnonzero(among))
    where = where[np.argsort(-answers.confidence[where], kind="stable")][:EXAMPLES]
    if not len(where):
        return []
    index = scored.index[where]
    images = scored.split.images(torch.from_numpy(index))
    names = sample_names(scored.split)
    return [
        drawings.Shown(
            image.numpy(), scored.names[answers.predicted[i]], names[at] if names else ""
        )
        for image, i, at in zip(images, where, index, strict=True)
    ]


def _method(settings: Mapping[str, Any], left_out: Sequence[str]) -> Section:
    lead = (
        "The labels of the scored half were permuted; one permutation serves all attributes, and "
        "the largest standardised score of each corrects for looking at many. A shortcut has a "
        "corrected p below the level and at least the strength below; what is surer than chance "
        "but weaker is a correlate. Samples are taken to be independent of each other: "
        "near-duplicates make everything look surer than it is."
    )
    rows = [
        ["pictures looked at", f"{settings['samples']:,}"],
        ["of these scored", f"{settings['scored']:,}"],
        ["permutations", f"{settings['permutations']:,}"],
        ["level of corrected p", f"{settings['alpha']:g}"],
        ["strength of a shortcut", f"{settings['strong']:g}"],
        ["seed", str(settings["seed"])],
        *(["left out", said] for said in left_out),
    ]
    return Section("method", "How this was measured", lead, tables=[Table(["", ""], rows)])
