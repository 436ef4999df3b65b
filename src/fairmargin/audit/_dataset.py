"""Audit a dataset: which simple attributes of its training set tell the label suspiciously well?

An attribute is a *shortcut* if it tells the label better than chance beyond doubt (corrected p
below `alpha`), well enough to be learned instead of it (it closes the share `strong` of the gap
between chance and perfect, and is sure enough between two classes), and is not bound to the object
(audit/bond.py). If it is surer than chance but weaker or bound, it is a *correlate*: ones are
written with less ink than eights, and that is no fault of the data.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans

from fairmargin.audit import bond, dataset_page, significance
from fairmargin.audit.attributes import (
    Attribute,
    file_attributes,
    image_statistics,
    metadata_attributes,
)
from fairmargin.audit.finding import CORRELATE, NOTHING, SHORTCUT, Finding, Scored, Verdict
from fairmargin.audit.images import check_parts, with_images
from fairmargin.audit.learned import fixed_pattern, small_marks
from fairmargin.audit.section import Found, Progress, silent
from fairmargin.audit.sight import remember
from fairmargin.audit.significance import Answers, Score
from fairmargin.batch import DataInfo
from fairmargin.data.split import Data, Split

# Families that stand below single attributes of the same verdict.
LEARNED = ("blind model", "learned", "clusters")
# Least number of clusters, if there are 50 samples for each.
CLUSTERS = 32
# An attribute is the known bias if, of the samples that contradict it, it tells this share of the
# way from chance to all as the bias says. Of ten degrees of blur, neighbors are easily confused.
FOLLOWS = 0.25
# A bias goes with the label if it is this many times as frequent in its class as overall.
TIED = 1.5
# Odds of the right class against any other that a shortcut needs, at a strength of 0.5.
ODDS = 8
# The same for what puts many numbers together, and so tells more of honest pictures too.
ODDS_LEARNED = 16
# Most classes for the blind model and the learned attributes, whose trees grow with them.
MOST_CLASSES = 100
# Least samples of an audit.
LEAST = 40
# A class with fewer samples gets a warning.
FEW = 20


def audit_data(
    data: Data,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    permutations: int = 999,
    alpha: float = 0.01,
    strong: float = 0.5,
    samples: int = 60_000,
    seed: int = 0,
    leave_out: Sequence[str] = (),
    progress: Progress = silent,
) -> Found:
    """Rank the simple attributes of the training split by how well they tell the label.

    Args:
        data: the dataset; its bias labels serve only to check the answer.
        columns: what else is known of every training sample, such as the other columns of a
            manifest.
        permutations: of the labels, for the p-values; at least 1/alpha.
        alpha: level of the corrected p-values.
        strong: share of the gap between chance and perfect that a shortcut closes.
        samples: how many at most are looked at, drawn at random.
        seed: of that draw, of the halves and of the permutations.
        leave_out: "copies" and "problems" are not looked for if they are named here.
        progress: called with what is being done, how much is done, and of how much.
    """
    _check_settings(permutations, alpha, strong, samples)
    check_parts(leave_out)
    data = remember(data)
    started = time.perf_counter()
    index, labels, names, warnings = _chosen(data, samples, seed)
    attributes, left_out = _attributes(data.train, index, columns or {}, len(names), seed, progress)
    fit, score = significance.halves(labels, seed)
    answers = []
    for k, attribute in enumerate(attributes):
        answers.append(significance.ask(attribute, labels, fit, score, len(names)))
        progress("asking attributes", k + 1, len(attributes) + 1)
    numbers = [a for a in attributes if a.family not in (*LEARNED, "metadata")]
    if len(names) <= MOST_CLASSES:
        answers.append(significance.ask_together(numbers, labels, fit, score, seed))
        marks = small_marks(data.train, index, fit, seed, progress)
        pattern = fixed_pattern(data.train, index, labels, fit, len(names), progress)
        answers.append(significance.ask_forest(marks, labels, fit, score, seed))
        answers.append(significance.ask_forest(pattern, labels, fit, score, seed))
    progress("asking attributes", len(attributes) + 1, len(attributes) + 1)
    scored = Scored(data.train, index[score], labels[score], names)
    scores = significance.judge(
        answers, scored.labels, len(names), permutations=permutations, seed=seed, progress=progress
    )
    bonds = bond.Bonds(data.train, index, labels, fit, score, seed)
    judged = _verdicts(answers, scores, alpha, strong, bonds, progress)
    findings = _ranked(answers, scores, judged, scored, _bias_of_classes(data))
    settings = {
        "samples": len(index),
        "most": samples,
        "scored": len(score),
        "permutations": permutations,
        "alpha": alpha,
        "strong": strong,
        "seed": seed,
    }
    planted = _planted(findings, data.info)
    found = Found(
        title=f"Audit of {data.info.name}",
        verdict=_answer(findings, scored),
        json={
            "kind": "dataset",
            "dataset": data.info.name,
            "classes": list(names),
            "settings": settings,
            "shortcuts": [f.attribute.name for f in findings if f.verdict == SHORTCUT],
            "planted": planted,
            "attributes": [_as_json(rank, f, scored) for rank, f in enumerate(findings, 1)],
            "left_out": left_out,
            "warnings": warnings,
            "seconds": round(time.perf_counter() - started, 1),
        },
        sections=dataset_page.sections(findings, scored, settings, left_out, planted),
        warnings=warnings,
    )
    halves = fit, score
    return with_images(
        found, data, findings, index, labels, halves, leave_out=leave_out, progress=progress
    )


def drawn(length: int, samples: int, seed: int) -> np.ndarray:
    """Draw positions at random and return them in ascending order; all of them if there are few.

    Args:
        length: how many there are.
        samples: how many to draw at most.
        seed: of the draw.
    """
    if length <= samples:
        return np.arange(length)
    return np.sort(np.random.default_rng(seed).choice(length, samples, replace=False))


def _check_settings(permutations: int, alpha: float, strong: float, samples: int) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1; got {alpha:g}")
    if not 0 < strong <= 1:
        raise ValueError(f"the strength of a shortcut must lie in (0, 1]; got {strong:g}")
    if 1 / (1 + permutations) >= alpha:
        raise ValueError(
            f"with {permutations} permutations no p-value is below {1 / (1 + permutations):.3g}, "
            f"and alpha is {alpha:g}; take at least {int(1 / alpha)}"
        )
    if samples < LEAST:
        raise ValueError(f"an audit needs at least {LEAST} samples; got {samples}")


def _chosen(
    data: Data, samples: int, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], list[str]]:
    """Return (positions [n], labels [n] from 0 up, class names, warnings).

    Classes that cannot be halved are left out.
    """
    everyone = data.train.labels.numpy()
    index = drawn(len(everyone), samples, seed)
    size = np.bincount(everyone[index], minlength=data.info.num_classes)
    kept = np.flatnonzero(size >= 2)
    index = index[np.isin(everyone[index], kept)]
    if len(kept) < 2 or len(index) < LEAST:
        raise ValueError(
            f"an audit needs at least {LEAST} training samples of two classes; "
            f"{data.info.name} has {len(index)} of {len(kept)}: "
            "add samples, or mark fewer of them as test or validation"
        )
    names = tuple(data.info.class_names[y] for y in kept)
    dropped = [name for name, n in zip(data.info.class_names, size, strict=True) if n < 2]
    warnings = []
    if dropped:
        warnings.append(f"classes with fewer than two samples are left out: {', '.join(dropped)}")
    if size[kept].min() < FEW:
        least = names[int(size[kept].argmin())]
        warnings.append(
            f'class "{least}" has only {size[kept].min()} samples; '
            "what is said of so few is uncertain"
        )
    return index, np.searchsorted(kept, everyone[index]), names, warnings


def _attributes(
    split: Split,
    index: np.ndarray,
    columns: Mapping[str, Sequence[str]],
    classes: int,
    seed: int,
    progress: Progress,
) -> tuple[list[Attribute], list[str]]:
    """Return (attributes from simple to learned, sentences about what was left out)."""
    where = torch.from_numpy(index)
    chosen = {}
    for name, cells in columns.items():
        chosen[name] = [cells[i] for i in index]
    known, left_out = metadata_attributes(chosen)
    statistics, thumbnails = image_statistics(split, where, progress)
    files = file_attributes(split, where, progress)
    return [*statistics, *files, *known, clusters(thumbnails, classes, seed)], left_out


def clusters(thumbnails: np.ndarray, classes: int, seed: int) -> Attribute:
    """Cluster pictures that look alike from afar.

    The object itself may be what is alike, so this is never called a shortcut.

    Args:
        thumbnails: [N, values].
        classes: number of classes; there are at least two clusters for each.
        seed: of the clusters.
    """
    number = max(2, min(max(CLUSTERS, 2 * classes), len(thumbnails) // 50))
    found = MiniBatchKMeans(number, n_init=3, batch_size=4096, random_state=seed).fit(thumbnails)
    levels = tuple(f"cluster {k + 1}" for k in range(number))
    return Attribute(
        "thumbnail clusters",
        "clusters",
        "category",
        found.labels_.astype(np.int64),
        levels,
        sees_shape=True,
    )


def _verdicts(
    answers: Sequence[Answers],
    scores: Sequence[Score],
    alpha: float,
    strong: float,
    bonds: bond.Bonds,
    progress: Progress,
) -> list[tuple[Verdict, float | None]]:
    """Return verdict and bond of each attribute; bonds of strong ones alone are measured."""
    judged: list[tuple[Verdict, float | None]] = []
    for k, (one, score) in enumerate(zip(answers, scores, strict=True)):
        verdict: Verdict = CORRELATE if score.p_corrected < alpha else NOTHING
        tied = None
        enough = _is_strong(score, strong, _odds_for(one.attribute))
        if verdict == CORRELATE and enough and not one.attribute.sees_shape:
            tied = bonds.of(one.attribute)
            if not bonds.may_hold(tied):
                verdict = SHORTCUT
        judged.append((verdict, tied))
        progress("comparing with the object", k + 1, len(answers))
    return judged


def _odds_for(attribute: Attribute) -> float:
    """Return the odds that a shortcut needs; honest objects say nothing in columns of a table."""
    if attribute.family in bond.NOT_SEEN:
        return 0
    return ODDS_LEARNED if attribute.family in LEARNED else ODDS


def _is_strong(score: Score, strong: float, odds: float) -> bool:
    """Return True if the attribute tells enough of the label to be learned instead of it.

    With few classes half of the gap is soon closed: of two classes, an attribute that is right
    three times in four does. So the right class must also win against any other by some odds,
    which grow and shrink with `strong`. Eight to one is no more than that from seven classes on.
    """
    others = len(score.recall) - 1
    odds *= strong / max(1 - strong, 1e-9)
    sure = score.accuracy * others >= odds * (1 - score.accuracy)
    return score.strength >= strong and sure


def _ranked(
    answers: Sequence[Answers],
    scores: Sequence[Score],
    judged: Sequence[tuple[Verdict, float | None]],
    scored: Scored,
    bias_of_class: np.ndarray | None,
) -> list[Finding]:
    """Return a finding for each attribute: by verdict, single ones before learned, strong first."""
    order = (SHORTCUT, CORRELATE, NOTHING)
    groups = []
    for one, (verdict, _) in zip(answers, judged, strict=True):
        groups.append(2 * order.index(verdict) + (one.attribute.family in LEARNED))
    findings: list[Finding] = []
    for k in significance.rank(scores, groups):
        verdict, tied = judged[k]
        echo = None
        if verdict == SHORTCUT:
            echo = _echo_of(answers[k], findings, scored)
        follows = _follows(answers[k], scored, bias_of_class)
        findings.append(Finding(answers[k], scores[k], verdict, echo, follows, tied))
    return findings


def _echo_of(answers: Answers, findings: Sequence[Finding], scored: Scored) -> str | None:
    """Return the name of the first shortcut that tells everything these answers do."""
    for finding in findings:
        leads = finding.verdict == SHORTCUT and finding.echo_of is None
        if leads and significance.echoes(answers, finding.answers, scored.labels):
            return finding.attribute.name
    return None


def _bias_of_classes(data: Data) -> np.ndarray | None:
    """Return the commonest bias of each class; None if the bias does not go with the label."""
    counts = data.info.counts.double().numpy()
    if data.train.bias is None or not counts.sum():
        return None
    most = counts.argmax(1)
    inside = counts.max(1) / np.maximum(counts.sum(1), 1)
    overall = (counts.sum(0) / counts.sum())[most]
    return most if (inside / overall).mean() >= TIED else None


def _follows(answers: Answers, scored: Scored, bias_of_class: np.ndarray | None) -> float | None:
    """Return how often the answer is a class with the sample's bias, where label and bias disagree.

    If they never do, return how often it is at all.
    """
    if bias_of_class is None or scored.split.bias is None:
        return None
    labels = scored.split.labels.numpy()[scored.index]
    bias = scored.split.bias.numpy()[scored.index]
    # The dataset's numbers of the audited classes, in the order of `scored.names`.
    audited = np.unique(labels)
    # The bias may be that of a class which is left out; then no answer can follow it.
    sayable = np.isin(bias, bias_of_class[audited])
    contradicts = sayable & (bias != bias_of_class[labels])
    at = contradicts if contradicts.any() else sayable
    if not at.any():
        return None
    followed = bias_of_class[audited[answers.predicted]] == bias
    return float(followed[at].mean())


def _planted(findings: Sequence[Finding], info: DataInfo) -> dict[str, Any] | None:
    """Return whether the audit found the planted shortcut, and by which attribute."""
    text = info.notes.get("injected")
    if text is None:
        return None
    planted = {"shortcut": text, "found": False, "by": None, "rank": None, "p_corrected": None}
    for rank, finding in enumerate(findings, 1):
        chance = 1 / len(finding.score.recall)
        least = chance + FOLLOWS * (1 - chance)
        if finding.verdict == SHORTCUT and (finding.follows or 0) >= least:
            p = finding.score.p_corrected
            found = {"found": True, "by": finding.attribute.name, "rank": rank, "p_corrected": p}
            return planted | found
    return planted


def _answer(findings: Sequence[Finding], scored: Scored) -> str:
    """Say in one or two sentences what tells the label."""
    chance = 100 / len(scored.names)
    shortcuts = [f for f in findings if f.verdict == SHORTCUT]
    leaders = [f for f in shortcuts if f.echo_of is None]
    if not shortcuts:
        best = max(findings, key=lambda f: (f.attribute.family not in LEARNED, f.score.accuracy))
        return (
            f"No shortcut found among {len(findings)} attributes. The one that tells most, the "
            f"{best.attribute.name}, is right {100 * best.score.accuracy:.0f} % of the time; "
            f"chance is {chance:.0f} %."
        )
    first = leaders[0]
    several = first.attribute.name == "small marks"
    who = f"{first.attribute.name.capitalize()} alone {'tell' if several else 'tells'}"
    if first.attribute.family == "blind model":
        who = "No single attribute does, but all together tell"
    said = (
        f"{who} the label {100 * first.score.accuracy:.0f} % of the time; chance is {chance:.0f} %."
    )
    others = [f.attribute.name for f in leaders[1:]]
    echoes = len(shortcuts) - len(leaders)
    if others:
        said += f" Beside it stand: {', '.join(others)}."
    if echoes:
        what = "1 more attribute echoes" if echoes == 1 else f"{echoes} more attributes echo"
        said += f" {what} {'them' if others else 'it'}."
    return said


def _as_json(rank: int, finding: Finding, scored: Scored) -> dict[str, Any]:
    score = finding.score
    return {
        "rank": rank,
        "name": finding.attribute.name,
        "family": finding.attribute.family,
        "verdict": finding.verdict,
        "balanced_accuracy": score.accuracy,
        "standard_error": score.error,
        "strength": score.strength,
        "p": score.p,
        "p_corrected": score.p_corrected,
        "echo_of": finding.echo_of,
        "follows_known_bias": finding.follows,
        "bond": finding.bond,
        "contradicting": int((finding.answers.predicted != scored.labels).sum()),
        "recall": {name: float(r) for name, r in zip(scored.names, score.recall, strict=True)},
    }
