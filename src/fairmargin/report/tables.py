"""Rows of a report: accuracies, groups, example images, warnings, and how to repeat a run."""

import shlex
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmargin.report.charts import pooled_groups
from fairmargin.report.pictures import THUMBNAIL, picture
from fairmargin.report.runs import CLASSIFIERS, Estimate, Group, Part, estimate, method_name
from fairmargin.report.words import count
from fairmargin.runs.record import RunRecord

RECORDS = {
    "last": "last",
    "best-on-validation": "best on validation",
    "best-on-test": "best on test",
}
# Example images of a kind.
SHOWN = 8
# Rows of the group table.
MOST_GROUPS = 400
NOT_RECORDED = "not recorded"

Row = dict[str, Any]


def accuracy_rows(part: Part, classifiers: Sequence[str]) -> list[Row]:
    """Return the accuracies of each group by each of these classifiers.

    Args:
        part: the dataset's groups.
        classifiers: names; one row for each that a group has.
    """
    rows = []
    for group in part.groups:
        for classifier in classifiers:
            judged = group.judged(classifier)
            if judged:
                values = {name: group.accuracy(classifier, name) for name in part.accuracies}
                shown = CLASSIFIERS.get(classifier, classifier)
                rows.append({"group": group, "name": shown, "seeds": len(judged), "values": values})
    return rows


def extra_rows(part: Part) -> list[Row]:
    """Return the accuracies on further test sets, by the headline's classifier."""
    classifier = part.headline[0]
    rows = []
    for group in part.groups:
        tests = [run.outcome.get("extra_tests") or {} for run in group.runs]
        for name in dict.fromkeys(name for test in tests for name in test):
            judged = [test.get(name, {}).get(classifier) for test in tests]
            found = [one["accuracy"] for one in judged if one]
            if found:
                values = {accuracy: _over_seeds(found, accuracy) for accuracy in part.accuracies}
                rows.append({"group": group, "name": name, "seeds": len(found), "values": values})
    return rows


def _over_seeds(measured: Sequence[dict[str, Any]], accuracy: str) -> Estimate | None:
    found = [one[accuracy] for one in measured if accuracy in one]
    if not found:
        return None
    return estimate([one["value"] for one in found], found[0].get("low"), found[0].get("high"))


def record_rows(part: Part) -> list[Row]:
    """Return the accuracies at the last epoch, the best on validation and the best on the test."""
    accuracy = part.headline[1]
    rows = []
    for group in part.groups:
        kept = [run.outcome.get("records") or {} for run in group.runs]
        for name, shown in RECORDS.items():
            found = [records[name] for records in kept if records.get(name)]
            if not found:
                continue
            epochs = sorted({record["epoch"] for record in found})
            valid = [record.get("valid") or {} for record in found]
            test = [record.get("test") or {} for record in found]
            rows.append(
                {
                    "group": group,
                    "name": shown,
                    "reported": group.first.outcome.get("reported") == name,
                    "epoch": f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]}–{epochs[-1]}",
                    "valid": estimate([one.get(accuracy) for one in valid]),
                    "test": estimate([one.get(accuracy) for one in test]),
                    "plain": estimate([one.get("plain") for one in test]),
                }
            )
    return rows


def examples(prefix: str, part: Part) -> list[Row]:
    """Return strips of images: examples with every method's answer, then each method's mistakes.

    Args:
        prefix: of the ids.
        part: whose first method's examples are shown.
    """
    first = part.groups[0]
    shared = [group for group in part.groups if _same_test(group.first, first.first)]
    titles = {"aligned": "Following the shortcut", "conflicting": "Contradicting the shortcut"}
    strips = []
    for kind, title in titles.items():
        images = _images(part, first, kind, shared)
        strips.append(_strip(prefix, f"examples-{kind}", title, images, None))
    for group in part.groups:
        images = _images(part, group, "mistake", [group])
        title = f"Most confident mistakes: {group.name}"
        strip = _strip(prefix, f"mistakes-{group.slug}", title, images, group)
        strips.append(strip | {"mistakes": mistake_names(group.first)})
    return [strip for strip in strips if strip["images"]]


def _strip(prefix: str, name: str, title: str, images: list[Row], group: Group | None) -> Row:
    return {
        "id": f"{prefix}-{name}",
        "name": name,
        "title": title,
        "images": images,
        "group": group,
        "mistakes": [],
    }


def mistake_names(run: RunRecord) -> list[str]:
    """Return the names of the test images that a run is wrong about; empty if it kept none.

    Args:
        run: a finished run.
    """
    test = run.test
    if "names" not in test:
        return []
    return [str(name) for name in test["names"][test["predicted"] != test["labels"]]]


def _same_test(a: RunRecord, b: RunRecord) -> bool:
    none = np.empty(0)
    return all(
        np.array_equal(a.test.get(name, none), b.test.get(name, none))
        for name in ("labels", "bias")
    )


def _images(part: Part, source: Group, kind: str, speakers: Sequence[Group]) -> list[Row]:
    """Return the images of this kind that `source` kept, with what the speakers say of each."""
    examples, test = source.first.examples, source.first.test
    # Of vectors there is nothing to show.
    if not examples or not test or examples["images"].ndim != 4:
        return []
    images = []
    for k in np.flatnonzero(examples["kind"] == kind)[:SHOWN]:
        index = int(examples["index"][k])
        bias = int(test["bias"][index]) if "bias" in test else -1
        images.append(
            {
                "uri": picture(examples["images"][k]),
                "index": index,
                "name": str(test["names"][index]) if "names" in test else None,
                "label": part.class_names[int(test["labels"][index])],
                "bias": part.bias_names[bias] if bias >= 0 else None,
                "said": [_said(part, group, index) for group in speakers],
                "pixelated": max(examples["images"].shape[2:]) <= THUMBNAIL,
            }
        )
    return images


def _said(part: Part, group: Group, index: int) -> Row:
    """Return a method's answer to one test image, and how sure it is."""
    test = group.first.test
    k = int(test["predicted"][index])
    confidence = None
    if "logits" in test:
        logits = test["logits"][index].astype(np.float64)
        if np.isfinite(logits).all():
            shares = np.exp(logits - logits.max())
            confidence = float(shares[k] / shares.sum())
    return {
        "group": group,
        "predicted": part.class_names[k],
        "confidence": confidence,
        "right": k == int(test["labels"][index]),
    }


def group_rows(part: Part) -> list[Row]:
    """Return every (label, bias) group with test images, weakest first by the best method."""
    tables = {group.name: pooled_groups(part, group) for group in part.groups}
    best = max(part.groups, key=lambda group: part.headline_of(group).value)
    reference = tables[best.name]
    if reference is None:
        return []
    n, correct = reference
    cells = [(int(i), int(j)) for i, j in np.argwhere(n > 0)]
    cells.sort(key=lambda at: (correct[at] / n[at], -int(n[at]), at))
    rows = []
    for i, j in cells[:MOST_GROUPS]:
        values = [_cell_estimate(part, group, tables[group.name], i, j) for group in part.groups]
        rows.append(
            {
                "label": part.class_names[i],
                "bias": part.bias_names[j],
                "n": int(n[i, j]),
                "train": None if part.counts is None else int(part.counts[i, j]),
                "aligned": part.aligned is not None and bool(part.aligned[i, j]),
                "values": values,
            }
        )
    return rows


def _cell_estimate(
    part: Part,
    group: Group,
    pooled: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    i: int,
    j: int,
) -> Estimate | None:
    """Return the accuracy of a cell; its interval is known for single runs only."""
    if pooled is None or not pooled[0][i, j]:
        return None
    value = float(pooled[1][i, j] / pooled[0][i, j])
    if len(group.runs) > 1:
        return Estimate(value)
    table = group.judged(part.headline[0])[0]["groups"]
    low = table["low"][i][j] if table.get("low") else None
    high = table["high"][i][j] if table.get("high") else None
    return Estimate(value, low, high)


def scores(part: Part) -> list[Row]:
    """Return calibration and equalised-odds gap of each group; empty if nothing was measured."""
    names = ("ece", "nll", "brier")
    rows: list[Row] = []
    for group in part.groups:
        judged = group.judged(part.headline[0])
        calibrated = [one["calibration"] for one in judged if one.get("calibration")]
        gaps = [one.get("equalised_odds_gap") for one in judged]
        row: Row = {"group": group, "gap": estimate(gaps)}
        for name in names:
            row[name] = estimate([one.get(name) for one in calibrated])
        rows.append(row)
    measured = any(row[name] is not None for row in rows for name in (*names, "gap"))
    return rows if measured else []


def warnings(part: Part) -> list[Row]:
    """Return each warning once, with the methods, classifiers and seeds that gave it."""
    found: dict[str, dict[str, list[str]]] = {}
    for group in part.groups:
        for run in group.runs:
            for said, source in _warnings_of(run, many_seeds=len(group.runs) > 1):
                told = found.setdefault(said, {}).setdefault(group.name, [])
                told += [one for one in source if one not in told]
    rows = []
    for said, by_group in found.items():
        sources = [_source(g, by_group[g.name]) for g in part.groups if g.name in by_group]
        rows.append({"said": said, "sources": sources})
    return rows


def _warnings_of(run: RunRecord, *, many_seeds: bool) -> list[tuple[str, list[str]]]:
    """Return (warning, classifier and seed that gave it) of one run."""
    seed = [f"seed {run.seed}"] if many_seeds else []
    found = [(said, seed) for said in run.outcome.get("warnings") or ()]
    for classifier, judged in run.outcome["test"].items():
        source = [CLASSIFIERS.get(classifier, classifier), *seed]
        found += [(said, source) for said in judged.get("warnings") or ()]
    return found


def _source(group: Group, told: Sequence[str]) -> Row:
    """Return who gave a warning; classifiers and seeds are named only if some did not give it."""
    everyone = {CLASSIFIERS.get(name, name) for name in group.first.outcome["test"]}
    if len(group.runs) > 1:
        everyone |= {f"seed {run.seed}" for run in group.runs}
    return {"group": group, "told": [] if set(told) >= everyone else told}


def repeat(group: Group, run: RunRecord) -> Row:
    """Return what it takes to repeat a run: command, versions, code, machine, data, settings.

    Args:
        group: that the run belongs to.
        run: a finished one.
    """
    environment = run.environment
    command = environment.get("command") or ""
    programs = ("fairmargin", "python", "torch", "numpy")
    versions = [f"{name} {environment[name]}" for name in programs if environment.get(name)]
    return {
        "group": group,
        "seed": run.seed,
        "folder": run.path.name,
        "command": shlex.join(map(str, command)) if isinstance(command, list) else str(command),
        "facts": [
            ("versions", ", ".join(versions) or NOT_RECORDED),
            ("code", _code(environment)),
            ("machine", _machine(environment)),
            ("started", environment.get("started") or NOT_RECORDED),
            ("work", _work(run)),
            *((f"{split} data", digest) for split, digest in run.data_hashes.items()),
        ],
        "config": run.config_text,
    }


def _code(environment: dict[str, Any]) -> str:
    git = environment.get("git") or {}
    if not git.get("commit"):
        return NOT_RECORDED
    return f"{git['commit']} with uncommitted changes" if git.get("dirty") else str(git["commit"])


def _work(run: RunRecord) -> str:
    result = run.outcome
    done = f"{result['epochs']} epochs, {count(result['steps'])} steps, {result['seconds']:.0f} s"
    speeds = [event["images_per_second"] for event in run.steps() if event.get("images_per_second")]
    return f"{done}, {count(statistics.median(speeds))} images/s" if speeds else done


def _machine(environment: dict[str, Any]) -> str:
    said = [str(environment[name]) for name in ("platform", "device") if environment.get(name)]
    for name, many in (("threads", "threads"), ("world_size", "processes")):
        if environment.get(name):
            said.append(f"{environment[name]} {many}")
    return ", ".join(said) or NOT_RECORDED


def unfinished(run: RunRecord) -> Row:
    """Return how far an unfinished run is."""
    epochs = [event["epoch"] for event in run.metrics if "epoch" in event]
    steps = [event["step"] for event in run.metrics if "step" in event]
    return {
        "folder": run.path.name,
        "method": method_name(run.method),
        "dataset": run.dataset,
        "seed": run.seed,
        "epoch": max(epochs, default=0),
        "epochs": run.config.get("train", {}).get("epochs"),
        "step": max(steps, default=0),
    }
