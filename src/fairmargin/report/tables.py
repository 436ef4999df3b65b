"""The rows of a report: accuracies, groups, example images, warnings, and what it takes to repeat a run."""

import shlex
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmargin.report import figures
from fairmargin.report.charts import pooled_groups
from fairmargin.report.runs import CLASSIFIERS, Estimate, Group, Part, Run, estimate, method_name
from fairmargin.report.words import count

RECORDS = {
    "last": "last",
    "best-on-validation": "best on validation",
    "best-on-test": "best on test",
}
SHOWN = 8  # example images of a kind


def rows(part: Part, classifiers: Sequence[str]) -> list[dict[str, Any]]:
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


def extra_rows(part: Part) -> list[dict[str, Any]]:
    """Further test sets, by the headline's classifier."""
    classifier, rows = part.headline[0], []
    for group in part.groups:
        for name in dict.fromkeys(
            name for run in group.runs for name in run.result.get("extra_tests") or {}
        ):
            tested = [
                (run.result.get("extra_tests") or {}).get(name, {}).get(classifier)
                for run in group.runs
            ]
            found = [judged["accuracy"] for judged in tested if judged]
            values = {}
            for accuracy in part.accuracies:
                have = [one[accuracy] for one in found if accuracy in one]
                ends = (have[0].get("low"), have[0].get("high")) if have else (None, None)
                values[accuracy] = estimate([one["value"] for one in have], *ends)
            if found:
                rows.append({"group": group, "name": name, "seeds": len(found), "values": values})
    return rows


def record_rows(part: Part) -> list[dict[str, Any]]:
    accuracy = part.headline[1]
    rows = []
    for group in part.groups:
        for name, shown in RECORDS.items():
            found = [
                run.result["records"][name]
                for run in group.runs
                if (run.result.get("records") or {}).get(name)
            ]
            if not found:
                continue
            epochs = sorted({record["epoch"] for record in found})
            rows.append(
                {
                    "group": group,
                    "name": shown,
                    "reported": group.first.result.get("reported") == name,
                    "epoch": f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]}–{epochs[-1]}",
                    "valid": estimate(
                        [(record.get("valid") or {}).get(accuracy) for record in found]
                    ),
                    "test": estimate(
                        [(record.get("test") or {}).get(accuracy) for record in found]
                    ),
                    "plain": estimate(
                        [(record.get("test") or {}).get("plain") for record in found]
                    ),
                }
            )
    return rows


def examples(prefix: str, part: Part) -> list[dict[str, Any]]:
    """Strips of images: the first method's examples with what every method says, then each method's mistakes."""
    strips = []
    shared = [group for group in part.groups if _same_test(group.first, part.groups[0].first)]
    titles = {"aligned": "Following the shortcut", "conflicting": "Contradicting the shortcut"}
    wanted: list[tuple[str, str, str, Group | None]] = []
    wanted += [(f"examples-{kind}", title, kind, None) for kind, title in titles.items()]
    wanted += [
        (f"mistakes-{g.slug}", f"Most confident mistakes: {g.name}", "mistake", g)
        for g in part.groups
    ]
    for name, title, kind, group in wanted:
        images = _strip(part, group or part.groups[0], kind, [group] if group else shared)
        if images:
            strips.append(
                {
                    "id": f"{prefix}-{name}",
                    "name": name,
                    "title": title,
                    "images": images,
                    "group": group,
                }
            )
    return strips


def _same_test(a: Run, b: Run) -> bool:
    return all(
        np.array_equal(a.test.get(name, np.empty(0)), b.test.get(name, np.empty(0)))
        for name in ("labels", "bias")
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
    return {
        "group": group,
        "predicted": part.class_names[k],
        "confidence": confidence,
        "right": right,
    }


def group_rows(part: Part) -> list[dict[str, Any]]:
    """Every (label, bias) cell with test images, weakest first by the best method."""
    tables = {group.name: pooled_groups(part, group) for group in part.groups}
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
                "order": (
                    reference[1][i, j] / reference[0][i, j],
                    -int(reference[0][i, j]),
                    int(i),
                    int(j),
                ),
            }
        )
    return sorted(rows, key=lambda row: row["order"])[:400]


def _cell_estimate(
    part: Part,
    group: Group,
    pooled: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    i: int,
    j: int,
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


def scores(part: Part) -> list[dict[str, Any]]:
    rows = []
    for group in part.groups:
        judged = group.judged(part.headline[0])
        calibrated = [one["calibration"] for one in judged if one.get("calibration")]
        scores = {
            name: estimate([one.get(name) for one in calibrated])
            for name in ("ece", "nll", "brier")
        }
        rows.append(
            {
                "group": group,
                "gap": estimate([one.get("equalised_odds_gap") for one in judged]),
                **scores,
            }
        )
    measured = any(row[name] is not None for row in rows for name in ("ece", "nll", "brier", "gap"))
    return rows if measured else []


def warnings(part: Part) -> list[dict[str, Any]]:
    """Each warning once, with those that gave it."""
    found: dict[str, dict[str, list[str]]] = {}
    for group in part.groups:
        for run in group.runs:
            seed = [f"seed {run.seed}"] if len(group.runs) > 1 else []
            sources = [(said, seed) for said in run.result.get("warnings") or ()]
            for classifier, judged in run.result["test"].items():
                sources += [
                    (said, [CLASSIFIERS.get(classifier, classifier), *seed])
                    for said in judged.get("warnings") or ()
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


def repeat(group: Group, run: Run) -> dict[str, Any]:
    environment, git = run.environment, run.environment.get("git") or {}
    command = environment.get("command") or ""
    state = (
        f"{git['commit']}{' with uncommitted changes' if git.get('dirty') else ''}"
        if git.get("commit")
        else "not recorded"
    )
    versions = [
        f"{name} {environment[name]}"
        for name in ("fairmargin", "python", "torch", "numpy")
        if environment.get(name)
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


def unfinished(run: Run) -> dict[str, Any]:
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
