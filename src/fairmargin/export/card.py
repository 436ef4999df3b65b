"""A model card in the format of the Hugging Face Hub: a YAML head, then what users must know."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmargin.export.audits import Named, audit_section
from fairmargin.methods.catalog import CARDS
from fairmargin.runs.folder import RunError, RunRecord

SHOWN = 8  # warnings


def model_card(run: str | Path, *, name: str | None = None, audit: Named = ()) -> str:
    """Markdown about a finished run: what it is for, what it was trained on, and whom it fails.

    Args:
        run: its folder.
        name: of the model; made of method and dataset if not given.
        audit: file audit.json of the run or of its data, or both, whose findings are told; if none
            is given, those that `fairmargin audit` wrote where it does by default.
    """
    record = RunRecord.read(Path(run))
    if record.result is None:
        raise RunError(
            f"{run} is not finished, so there is nothing to report; "
            f"continue it with: fairmargin train --resume {run}"
        )
    result, data = record.outcome, record.data
    if not data:
        raise RunError(f"{run} has no data.json, which says what it was trained on; copy all of it")
    title = name or f"{result['method']} on {data['name']}"
    headline = result["headline"]
    judged = result["test"][headline["classifier"]]
    parts = [
        head({title: values_of(judged)}, data),
        f"# {title}",
        _summary(result, headline, judged),
        uses(data),
        training_data(data),
        _accuracies(judged),
        _groups(judged, data),
        audit_section(record, audit),
        _warnings(result),
        "## How to use it\n\n" + loading(record, record.path.name),
        provenance(record),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def values_of(judged: Mapping[str, Any]) -> dict[str, float]:
    """Return accuracies by name.

    Args:
        judged: what result.json holds of a classifier.
    """
    return {name: float(one["value"]) for name, one in judged["accuracy"].items()}


def head(models: Mapping[str, Mapping[str, float]], data: Mapping[str, Any]) -> str:
    """Return what the Hub reads. Strings are written as JSON, which YAML understands.

    Args:
        models: accuracies by name, by the model's name.
        data: what data.json holds.
    """
    task = "tabular-classification" if _has_vectors(data) else "image-classification"
    dataset = _quoted(data["name"])
    lines = ["---", "library_name: fairmargin", f"pipeline_tag: {task}"]
    lines += ["tags:", "  - fairmargin", "  - debiasing", "model-index:"]
    for model, accuracy in models.items():
        lines += [f"  - name: {_quoted(model)}", "    results:"]
        lines += ["      - task:", f"          type: {task}"]
        lines += ["        dataset:", f"          name: {dataset}", f"          type: {dataset}"]
        lines.append("        metrics:")
        for name, value in accuracy.items():
            lines += ["          - type: accuracy", f"            name: {_quoted(name)}"]
            lines.append(f"            value: {value:.4f}")
    return "\n".join([*lines, "---"])


def _quoted(text: str) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _has_vectors(data: Mapping[str, Any]) -> bool:
    return len(data["image_shape"]) == 1


def _summary(
    result: Mapping[str, Any], headline: Mapping[str, str], judged: Mapping[str, Any]
) -> str:
    value = judged["accuracy"][headline["accuracy"]]
    known = CARDS.get(result["method"])
    paper = f" ({known.paper}, {known.venue})" if known is not None and known.venue != "–" else ""
    return (
        f"Trained with `{result['method']}`{paper} for {result['epochs']} epochs, "
        f"seed {result['seed']}. {headline['accuracy'].capitalize()} accuracy on the test set: "
        f"**{_percent(value)}**, "
        f"weights of the {_weights(result['reported'])}."
    )


def _weights(reported: str) -> str:
    return "last epoch" if reported == "last" else "epoch that was best on validation"


def uses(data: Mapping[str, Any]) -> str:
    """Return the section on intended use.

    Args:
        data: what data.json holds.
    """
    classes = ", ".join(map(cell, data["class_names"]))
    sample = "embedding" if _has_vectors(data) else "picture"
    return (
        "## Intended use\n\n"
        f"Tells {sample}s of these classes apart: {classes}. It knows no others: every {sample} "
        f"gets one of them. Measure it on your own {sample}s, group by group, before you rely on "
        f"it; the numbers below hold for {sample}s like those of the test set."
    )


def training_data(data: Mapping[str, Any]) -> str:
    """Return the section on the training data, with the counts of its groups.

    Args:
        data: what data.json holds.
    """
    sizes = data["sizes"]
    lines = [
        "## Training data",
        "",
        f"{cell(data['name'])}: {sizes['train']:,} samples for training, "
        f"{sizes['valid']:,} for validation, {sizes['test']:,} for the test.",
    ]
    weights = (data.get("notes") or {}).get("weights")
    if weights:
        lines += ["", f"Training drew its samples by weight: {weights}."]
    inferred = data.get("bias") or {}
    for text in (inferred.get("sentence"), inferred.get("groups")):
        if text:
            lines += ["", f"{cell(text[:1].upper() + text[1:])}."]
    if data["bias_names"]:
        lines += ["", "Training samples by class and bias:", ""]
        lines.append("| class | " + " | ".join(map(cell, data["bias_names"])) + " |")
        lines.append("|---" * (1 + len(data["bias_names"])) + "|")
        for name, row in zip(data["class_names"], data["counts"], strict=True):
            lines.append(f"| {cell(name)} | " + " | ".join(f"{count:,}" for count in row) + " |")
    else:
        lines += [
            "",
            "The bias of its samples is not known, so accuracy by group could not be measured.",
        ]
    return "\n".join(lines)


def _accuracies(judged: Mapping[str, Any]) -> str:
    lines = ["## Accuracy", "", "| accuracy | value | 95 % interval |", "|---|---|---|"]
    for name, value in judged["accuracy"].items():
        lines.append(f"| {name} | {100 * value['value']:.1f} % | {_interval(value)} |")
    return "\n".join(lines)


def _groups(judged: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    groups = judged.get("groups")
    if not groups or not data["bias_names"]:
        return ""
    lines = ["## Groups", "", "Right answers of test samples, by class and bias:", ""]
    lines.append("| class | " + " | ".join(map(cell, data["bias_names"])) + " |")
    lines.append("|---" * (1 + len(data["bias_names"])) + "|")
    for name, sizes, right in zip(data["class_names"], groups["n"], groups["correct"], strict=True):
        cells = [f"{correct} of {n}" if n else "–" for n, correct in zip(sizes, right, strict=True)]
        lines.append(f"| {cell(name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _warnings(result: Mapping[str, Any]) -> str:
    found = list(dict.fromkeys(result.get("warnings") or ()))
    if not found:
        return ""
    lines = ["## Warnings", "", *(f"- {warning}" for warning in found[:SHOWN])]
    if len(found) > SHOWN:
        lines.append(f"- … and {len(found) - SHOWN} more in result.json")
    return "\n".join(lines)


def loading(record: RunRecord, folder: str) -> str:
    """Return the lines of Python that load a model, with the weights that were reported.

    Args:
        record: of the run.
        folder: as the reader of the card will find it.
    """
    call = 'model.predict(["a.jpg", "b.png"])'
    if _has_vectors(record.data):
        call = f"model.predict(vectors)  # [N, {record.data['image_shape'][0]}]"
    best = record.outcome["reported"] == "best-on-validation"
    weights = ', weights="best"' if best else ""
    return (
        "```python\nimport fairmargin as fm\n\n"
        f"model = fm.load({_quoted(folder)}{weights})\n"
        f"found = {call}\n"
        "found.labels, found.probabilities\n```"
    )


def provenance(record: RunRecord) -> str:
    """Return the section on command and versions.

    Args:
        record: of the run.
    """
    facts = record.environment
    git = facts.get("git") or {}
    commit = f", commit {git['commit'][:12]}" if git.get("commit") else ""
    return (
        "## How it was made\n\n"
        f"`{facts.get('command', '')}` with FairMargin {facts.get('fairmargin', '?')}{commit}, "
        f"PyTorch {facts.get('torch', '?')}, {facts.get('device', '?')}, "
        f"{facts.get('threads', '?')} threads."
    )


def _percent(value: Mapping[str, float]) -> str:
    shown = f"{100 * value['value']:.1f} %"
    interval = _interval(value)
    return f"{shown} ({interval})" if interval != "–" else shown


def _interval(value: Mapping[str, float]) -> str:
    if value.get("low") is None or value.get("high") is None:
        return "–"
    return f"{100 * value['low']:.1f} to {100 * value['high']:.1f}"


def cell(text: str) -> str:
    """Return a name as it stands in Markdown, also in a table: nothing in it is markup."""
    plain = str(text).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("|", "\\|").replace("\n", " ")
