"""Which simple attributes of a training set tell its labels suspiciously well?

An attribute is a *shortcut* when it tells the label better than chance beyond doubt (corrected p below `alpha`) and well
enough to be learned instead of it (it closes the share `strong` of the gap between chance and perfect). Surer than chance
but weaker, it is a *correlate*: ones are written with less ink than eights, and that is no fault of the data.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans

from fairmargin.audit import dataset_page, significance
from fairmargin.audit.attributes import (
    Attribute,
    file_attributes,
    image_statistics,
    metadata_attributes,
)
from fairmargin.audit.finding import CORRELATE, NOTHING, SHORTCUT, Finding, Scored
from fairmargin.audit.section import Found, Progress, silent
from fairmargin.audit.significance import Answers, Score
from fairmargin.batch import DataInfo
from fairmargin.data.split import Data, Split

LEARNED = (
    "blind model",
    "clusters",
)  # families; they stand below single attributes of the same verdict
CLUSTERS = 32  # at least, where there are 50 samples for each
FOLLOWS = 0.5  # share of the samples that contradict the bias, told as the bias says, from which on it is that bias
TIED = 1.5  # times as frequent in its class as overall: a bias that goes with the label
MOST_CLASSES = 100  # of the blind model, whose trees grow with them
LEAST = 40  # samples


def audit_data(
    data: Data,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    permutations: int = 999,
    alpha: float = 0.01,
    strong: float = 0.5,
    samples: int = 60_000,
    seed: int = 0,
    progress: Progress = silent,
) -> Found:
    """Rank the simple attributes of the training split by how well they tell the label.

    Args:
        columns: what else is known of every training sample, such as the other columns of a manifest.
        permutations: of the labels, for the p-values; at least 1/alpha.
        alpha: level of the corrected p-values.
        strong: share of the gap between chance and perfect that a shortcut closes.
        samples: how many at most are looked at, drawn at random.
        seed: of that draw, of the halves and of the permutations.
        progress: called with what is being done, how much is done, and of how much.
    """
    _check_settings(permutations, alpha, strong, samples)
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
    progress("asking attributes", len(attributes) + 1, len(attributes) + 1)
    scored = Scored(data.train, index[score], labels[score], names)
    scores = significance.judge(
        answers, scored.labels, len(names), permutations=permutations, seed=seed, progress=progress
    )
    findings = _ranked(answers, scores, alpha, strong, scored, _bias_of_classes(data))
    settings = {
        "samples": len(index),
        "scored": len(score),
        "permutations": permutations,
        "alpha": alpha,
        "strong": strong,
        "seed": seed,
    }
    planted = _planted(findings, data.info)
    return Found(
        title=f"Audit of {data.info.name}",
        verdict=_verdict(findings, scored),
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


def drawn(length: int, samples: int, seed: int) -> np.ndarray:
    """Positions of all, or of so many at random, in ascending order."""
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
            f"with {permutations} permutations no p-value is below {1 / (1 + permutations):.3g}, and alpha is {alpha:g}; "
            f"take at least {int(1 / alpha)}"
        )
    if samples < LEAST:
        raise ValueError(f"an audit needs at least {LEAST} samples; got {samples}")


def _chosen(
    data: Data, samples: int, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], list[str]]:
    """(positions [n], labels [n] from 0 up, class names, warnings): classes that cannot be halved are left out."""
    everyone = data.train.labels.numpy()
    index = drawn(len(everyone), samples, seed)
    size = np.bincount(everyone[index], minlength=data.info.num_classes)
    kept = np.flatnonzero(size >= 2)
    index = index[np.isin(everyone[index], kept)]
    if len(kept) < 2 or len(index) < LEAST:
        raise ValueError(
            f"an audit needs at least {LEAST} training samples of two classes; {data.info.name} has {len(index)} of "
            f"{len(kept)}: add samples, or mark fewer of them as test or validation"
        )
    names = tuple(data.info.class_names[y] for y in kept)
    dropped = [name for name, n in zip(data.info.class_names, size, strict=True) if n < 2]
    warnings = (
        [f"classes with fewer than two samples are left out: {', '.join(dropped)}"]
        if dropped
        else []
    )
    if size[kept].min() < 20:
        least = names[int(size[kept].argmin())]
        warnings.append(
            f'class "{least}" has only {size[kept].min()} samples; what is said of so few is uncertain'
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
    """(attributes from simple to learned, what was left out and why)."""
    where = torch.from_numpy(index)
    known, left_out = metadata_attributes(
        {name: [cells[i] for i in index] for name, cells in columns.items()}
    )
    statistics, thumbnails = image_statistics(split, where, progress)
    files = file_attributes(split, where, progress)
    return [*statistics, *files, *known, clusters(thumbnails, classes, seed)], left_out


def clusters(thumbnails: np.ndarray, classes: int, seed: int) -> Attribute:
    """Pictures that look alike from afar. The object itself may be what is alike, so this is never called a shortcut."""
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


def _ranked(
    answers: Sequence[Answers],
    scores: Sequence[Score],
    alpha: float,
    strong: float,
    scored: Scored,
    bias_of_class: np.ndarray | None,
) -> list[Finding]:
    """By verdict, single attributes before learned ones, the stronger first."""
    verdicts = [
        _judged(a.attribute, s, alpha, strong) for a, s in zip(answers, scores, strict=True)
    ]
    level = (SHORTCUT, CORRELATE, NOTHING)
    groups = [
        2 * level.index(v) + (a.attribute.family in LEARNED)
        for a, v in zip(answers, verdicts, strict=True)
    ]
    findings: list[Finding] = []
    for k in significance.rank(scores, groups):
        stronger = [f for f in findings if f.verdict == SHORTCUT and f.echo_of is None]
        echo = None
        if verdicts[k] == SHORTCUT:
            alike = (
                f.attribute.name
                for f in stronger
                if significance.echoes(answers[k], f.answers, scored.labels)
            )
            echo = next(alike, None)
        follows = _follows(answers[k], scored, bias_of_class)
        findings.append(Finding(answers[k], scores[k], verdicts[k], echo, follows))
    return findings


def _judged(attribute: Attribute, score: Score, alpha: float, strong: float) -> str:
    if score.p_corrected >= alpha:
        return NOTHING
    return SHORTCUT if score.strength >= strong and not attribute.sees_shape else CORRELATE


def _bias_of_classes(data: Data) -> np.ndarray | None:
    """The bias value that each class has most, [classes]; None where there is none that goes with the class."""
    counts = data.info.counts.double().numpy()
    if data.train.bias is None or not counts.sum():
        return None
    most = counts.argmax(1)
    inside = counts.max(1) / np.maximum(counts.sum(1), 1)
    overall = (counts.sum(0) / counts.sum())[most]
    return most if (inside / overall).mean() >= TIED else None


def _follows(answers: Answers, scored: Scored, bias_of_class: np.ndarray | None) -> float | None:
    """Where label and bias disagree, how often the answer is a class with that bias; if they never do, how often at all."""
    if bias_of_class is None or scored.split.bias is None:
        return None
    labels, bias = (
        values.numpy()[scored.index] for values in (scored.split.labels, scored.split.bias)
    )
    audited = np.unique(labels)  # the dataset's numbers of the classes, in the order of ours
    sayable = np.isin(bias, bias_of_class[audited])  # the bias may be that of a class left out
    contradicts = sayable & (bias != bias_of_class[labels])
    at = contradicts if contradicts.any() else sayable
    return (
        float((bias_of_class[audited[answers.predicted]] == bias)[at].mean()) if at.any() else None
    )


def _planted(findings: Sequence[Finding], info: DataInfo) -> dict[str, Any] | None:
    """Whether the audit found the shortcut that was planted, and by which attribute."""
    text = info.notes.get("injected")
    if text is None:
        return None
    for rank, finding in enumerate(findings, 1):
        if finding.verdict == SHORTCUT and (finding.follows or 0) >= FOLLOWS:
            p = finding.score.p_corrected
            return {
                "shortcut": text,
                "found": True,
                "by": finding.attribute.name,
                "rank": rank,
                "p_corrected": p,
            }
    return {"shortcut": text, "found": False, "by": None, "rank": None, "p_corrected": None}


# Words


def _verdict(findings: Sequence[Finding], scored: Scored) -> str:
    chance = 100 / len(scored.names)
    shortcuts = [f for f in findings if f.verdict == SHORTCUT]
    leaders = [f for f in shortcuts if f.echo_of is None]
    if not shortcuts:
        best = max(findings, key=lambda f: (f.attribute.family not in LEARNED, f.score.accuracy))
        return (
            f"No shortcut found among {len(findings)} attributes. The one that tells most, the {best.attribute.name}, is right "
            f"{100 * best.score.accuracy:.0f} % of the time; chance is {chance:.0f} %."
        )
    first = leaders[0]
    who = f"{first.attribute.name.capitalize()} alone tells"
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
        "contradicting": int((finding.answers.predicted != scored.labels).sum()),
        "recall": {name: float(r) for name, r in zip(scored.names, score.recall, strict=True)},
    }
