"""What an audit of a dataset says about single pictures: copies, leaks, problems; audit.csv."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairmargin.audit import copies, images_page, problems, rows
from fairmargin.audit.finding import Finding
from fairmargin.audit.section import Found, Progress, silent
from fairmargin.audit.sight import SPLITS, Sight, look
from fairmargin.data.decode import opened
from fairmargin.data.split import Data, FileSplit

# Parts that can be left out.
PARTS = ("copies", "problems")
# Pictures of each problem that audit.json lists; audit.csv has all.
LISTED = 200
# Columns that tell which picture it is.
IDENTITY: tuple[str, ...] = ("path", "split", "index", "label", "bias")
# Pairs that a sentence names.
NAMED = 3


def check_parts(leave_out: Sequence[str]) -> None:
    """Raise ValueError unless these are parts that can be left out.

    Args:
        leave_out: their names.
    """
    unknown = [name for name in leave_out if name not in PARTS]
    if unknown:
        raise ValueError(f'only {" and ".join(PARTS)} can be left out; got "{unknown[0]}"')


def with_images(
    found: Found,
    data: Data,
    findings: Sequence[Finding],
    index: np.ndarray,
    labels: np.ndarray,
    halves: tuple[np.ndarray, np.ndarray],
    *,
    leave_out: Sequence[str] = (),
    progress: Progress = silent,
) -> Found:
    """Add to an audit of a dataset what it says about single pictures.

    Args:
        found: the outcome so far; its settings say how many pictures of a split are looked at.
        data: the dataset.
        findings: about all attributes, ranked.
        index: [n] positions of the audited training pictures.
        labels: [n] of these, positions in the audited classes.
        halves: positions among the n of (the fitting half, the scoring half).
        leave_out: "copies", "problems" or both.
        progress: called with what is being done, how much is done, and of how much.
    """
    check_parts(leave_out)
    settings, classes = found.json["settings"], data.info.class_names
    seed = settings["seed"]
    chosen = {"train": index}
    for name in SPLITS[1:]:
        chosen[name] = _drawn(len(getattr(data, name)), settings["most"], seed)
    sight = look(data, chosen, progress)
    columns = _columns(data, sight)
    json: dict[str, Any] = {"looked_at": {name: len(at) for name, at in chosen.items()}}
    warnings = list(found.warnings)
    sections = []
    if "copies" not in leave_out:
        pairs = copies.find(data, sight, progress, seed)
        json["copies"] = described = describe_copies(pairs, sight, classes)
        columns |= _copy_columns(pairs, sight)
        if described["leaks"]:
            warnings.append(leak_warning(described["leaks"]))
        sections.append(images_page.copies_section(described, pairs, data, sight))
    if "problems" not in leave_out:
        progress("looking for problems", 0, 1)
        more, flagged, accuracy = _problems(data, sight, findings, seed)
        progress("looking for problems", 1, 1)
        columns |= more
        json["problems"] = _describe_problems(more, flagged, columns, accuracy)
        sections.append(images_page.problems_section(json["problems"], flagged, data, sight))
    names = found.json["classes"]
    columns |= rows.attribute_columns(findings, labels, halves, names, len(sight))
    *others, last = found.sections
    return replace(
        found,
        json=found.json | json | {"warnings": warnings},
        sections=[*others, *sections, last],
        warnings=warnings,
        columns=columns,
    )


def _drawn(length: int, samples: int, seed: int) -> np.ndarray:
    if length <= samples:
        return np.arange(length)
    return np.sort(np.random.default_rng(seed).choice(length, samples, replace=False))


def _columns(data: Data, sight: Sight) -> rows.Columns:
    columns: rows.Columns = {}
    if sight.names is not None:
        columns["path"] = sight.names
    columns["split"] = [SPLITS[k] for k in sight.split.tolist()]
    columns["index"] = sight.position.tolist()
    columns["label"] = [data.info.class_names[y] for y in sight.labels.tolist()]
    if data.info.bias_names and data.train.bias is not None:
        biases: list[str | None] = []
        for number, position in zip(sight.split.tolist(), sight.position.tolist(), strict=True):
            known = getattr(data, SPLITS[number]).bias
            b = -1 if known is None else int(known[position])
            biases.append(data.info.bias_names[b] if b >= 0 else None)
        columns["bias"] = biases
    return columns


def _copy_columns(pairs: Sequence[copies.Pair], sight: Sight) -> rows.Columns:
    """Return of each picture a copy before it; one in an earlier split if there is any."""
    cells: dict[str, list[Any]] = {}
    for name in ("copy of", "copy of: split", "copy kind"):
        cells[name] = [None] * len(sight)
    # Those across splits last, so that they stay.
    for pair in sorted(pairs, key=lambda pair: _across(pair, sight)):
        cells["copy of"][pair.second] = sight.name(pair.first)
        cells["copy of: split"][pair.second] = SPLITS[sight.split[pair.first]]
        cells["copy kind"][pair.second] = pair.kind
    return dict(cells)


def _across(pair: copies.Pair, sight: Sight) -> bool:
    return bool(sight.split[pair.first] != sight.split[pair.second])


def describe_copies(
    pairs: Sequence[copies.Pair], sight: Sight, classes: Sequence[str]
) -> dict[str, Any]:
    """Return copies for audit.json: "leaks" across splits, "within" a split, and a remark.

    Args:
        pairs: as `copies.find` returns them.
        sight: of the pictures.
        classes: names of the classes.
    """
    leaks: list[dict[str, Any]] = []
    within: list[dict[str, Any]] = []
    for pair in pairs:
        ends = {}
        for end, k in (("first", pair.first), ("second", pair.second)):
            ends[end] = {
                "name": sight.name(k),
                "split": SPLITS[sight.split[k]],
                "index": int(sight.position[k]),
                "label": classes[sight.labels[k]],
            }
        told = {
            **ends,
            "kind": pair.kind,
            "distance": round(pair.distance, 4),
            "labels_differ": bool(sight.labels[pair.first] != sight.labels[pair.second]),
        }
        (leaks if _across(pair, sight) else within).append(told)
    remark = None
    if within:
        are = "picture is a copy" if len(within) == 1 else "pictures are copies"
        remark = f"{len(within):,} {are} of another in the same split{_different(within)}"
    return {"leaks": leaks, "within": within, "remark": remark}


def _different(pairs: Sequence[dict[str, Any]]) -> str:
    """Say how many copies have another label than what they are a copy of."""
    number = sum(pair["labels_differ"] for pair in pairs)
    return f", {number:,} with a different label" if number else ""


def leak_warning(leaks: Sequence[dict[str, Any]]) -> str:
    """Say in a sentence how many pictures leak, and name some.

    Args:
        leaks: of audit.json.
    """
    exact = sum(pair["kind"] == "exact" for pair in leaks)
    are = "picture is a copy" if len(leaks) == 1 else "pictures are copies"
    named = []
    for pair in leaks[:NAMED]:
        first, second = pair["first"], pair["second"]
        named.append(f"{second['name']} ({second['split']}) of {first['name']} ({first['split']})")
    rest = f" and {len(leaks) - NAMED:,} more, in audit.csv" if len(leaks) > NAMED else ""
    return (
        f"leak: {len(leaks):,} {are} of one in another split ({exact:,} exact)"
        f"{_different(leaks)}: {', '.join(named)}{rest}"
    )


def _problems(
    data: Data, sight: Sight, findings: Sequence[Finding], seed: int
) -> tuple[rows.Columns, dict[str, np.ndarray], float]:
    """Return (columns of audit.csv, [N] flags by problem, accuracy of the label classifier)."""
    x = problems.features(sight)
    doubts = problems.doubtful_labels(x, sight.labels, seed)
    far = problems.isolation(x, seed)
    flagged = {"label error": doubts.flagged}
    flagged |= dict(problems.flags(sight, far, _sizes(data, sight, findings)))
    names = data.info.class_names
    columns: rows.Columns = {
        "label confidence": [float(v) for v in doubts.confidence],
        "suggested label": [
            names[k] if doubt else None
            for k, doubt in zip(doubts.suggested.tolist(), doubts.flagged, strict=True)
        ],
        "isolation": [float(v) for v in far],
    }
    for name, flags in flagged.items():
        columns[name] = ["yes" if flag else None for flag in flags]
    return columns, flagged, doubts.accuracy


def _sizes(data: Data, sight: Sight, findings: Sequence[Finding]) -> np.ndarray | None:
    """Return [N, 2] width and height of the files; None if pictures are no files."""
    known = None
    for finding in findings:
        if finding.attribute.name == "picture size" and finding.attribute.family == "file":
            known = finding.attribute.values
    sizes = np.ones((len(sight), 2))
    for k in range(len(sight)):
        split = getattr(data, SPLITS[sight.split[k]])
        if not isinstance(split, FileSplit):
            return None
        if known is not None and k < len(known):
            sizes[k] = known[k]
            continue
        # This reads the header only.
        largest = getattr(split.decode, "largest", None)
        with opened(split.paths[int(sight.position[k])], largest) as image:
            sizes[k] = image.size
    return sizes


def _describe_problems(
    more: rows.Columns,
    flagged: dict[str, np.ndarray],
    columns: rows.Columns,
    accuracy: float,
) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for name, flags in flagged.items():
        where = np.flatnonzero(flags)
        if name == "label error":
            confidence = np.array(more["label confidence"])
            where = where[np.argsort(confidence[where], kind="stable")]
        listed = []
        for k in where[:LISTED].tolist():
            known = [key for key in IDENTITY if key in columns]
            entry = {key: columns[key][k] for key in known}
            if name == "label error":
                entry["confidence"] = round(more["label confidence"][k], 5)
                entry["suggested"] = more["suggested label"][k]
            listed.append(entry)
        described[name] = {"n": len(where), "pictures": listed}
    described["label error"]["classifier_accuracy"] = None if np.isnan(accuracy) else accuracy
    return described
