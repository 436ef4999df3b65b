"""A model card in the format of the Hugging Face Hub: a YAML head, then what users must know."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmargin.methods.catalog import CARDS
from fairmargin.runs.folder import RunError, RunRecord

SHOWN = 8  # warnings


def model_card(run: str | Path, *, name: str | None = None) -> str:
    """Markdown about a finished run: what it is for, what it was trained on, and whom it fails.

    Args:
        run: its folder.
        name: of the model; made of method and dataset if not given.
    """
    record = RunRecord.read(Path(run))
    if record.result is None:
        raise RunError(
            f"{run} is not finished, so there is nothing to report; "
            f"continue it with: fairmargin train --resume {run}"
        )
    result, data = record.result, record.data
    title = name or f"{result['method']} on {data['name']}"
    headline = result["headline"]
    judged = result["test"][headline["classifier"]]
    parts = [
        _head(title, result, judged, _task(data)),
        f"# {title}",
        _summary(result, headline, judged),
        _uses(data),
        _training_data(data),
        _accuracies(judged),
        _groups(judged, data),
        _warnings(result),
        _loading(record),
        _provenance(record),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _has_vectors(data: Mapping[str, Any]) -> bool:
    return len(data["image_shape"]) == 1


def _task(data: Mapping[str, Any]) -> str:
    """The Hub's name of what the model does."""
    return "tabular-classification" if _has_vectors(data) else "image-classification"


def _head(title: str, result: Mapping[str, Any], judged: Mapping[str, Any], task: str) -> str:
    """What the Hub reads. Strings are written as JSON, which YAML understands."""
    metrics = []
    for name, value in judged["accuracy"].items():
        metrics.append(f"          - type: accuracy\n            name: {json.dumps(name)}")
        metrics.append(f"            value: {value['value']:.4f}")
    lines = [
        "---",
        "library_name: fairmargin",
        f"pipeline_tag: {task}",
        "tags:",
        "  - fairmargin",
        "  - debiasing",
        "model-index:",
        f"  - name: {json.dumps(title, ensure_ascii=False)}",
        "    results:",
        "      - task:",
        f"          type: {task}",
        "        dataset:",
        f"          name: {json.dumps(result['dataset'], ensure_ascii=False)}",
        f"          type: {json.dumps(result['dataset'], ensure_ascii=False)}",
        "        metrics:",
        *metrics,
        "---",
    ]
    return "\n".join(lines)


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


def _uses(data: Mapping[str, Any]) -> str:
    classes = ", ".join(data["class_names"])
    sample = "embedding" if _has_vectors(data) else "picture"
    return (
        "## Intended use\n\n"
        f"Tells {sample}s of these classes apart: {classes}. It knows no others: every {sample} "
        f"gets one of them. Measure it on your own {sample}s, group by group, before you rely on "
        f"it; the numbers below hold for {sample}s like those of the test set."
    )


def _training_data(data: Mapping[str, Any]) -> str:
    sizes = data["sizes"]
    lines = [
        "## Training data",
        "",
        f"{data['name']}: {sizes['train']:,} samples for training, "
        f"{sizes['valid']:,} for validation, {sizes['test']:,} for the test.",
    ]
    inferred = data.get("bias") or {}
    for text in (inferred.get("sentence"), inferred.get("groups")):
        if text:
            lines += ["", f"{_cell(text[:1].upper() + text[1:])}."]
    if data["bias_names"]:
        lines += ["", f"Training samples by class and {_cell('bias')}:", ""]
        lines.append("| class | " + " | ".join(map(_cell, data["bias_names"])) + " |")
        lines.append("|---" * (1 + len(data["bias_names"])) + "|")
        for name, row in zip(data["class_names"], data["counts"], strict=True):
            lines.append(f"| {_cell(name)} | " + " | ".join(f"{count:,}" for count in row) + " |")
    else:
        lines += [
            "",
            "The bias of its samples is not known, so accuracy by group could not be measured.",
        ]
    return "\n".join(lines)


def _accuracies(judged: Mapping[str, Any]) -> str:
    lines = ["## Accuracy", "", "| accuracy | value | 95 % interval |", "|---|---|---|"]
    for name, value in judged["accuracy"].items():
        interval = f"{100 * value['low']:.1f} to {100 * value['high']:.1f}"
        lines.append(f"| {name} | {100 * value['value']:.1f} % | {interval} |")
    return "\n".join(lines)


def _groups(judged: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    groups = judged.get("groups")
    if not groups or not data["bias_names"]:
        return ""
    lines = ["## Groups", "", "Right answers of test samples, by class and bias:", ""]
    lines.append("| class | " + " | ".join(map(_cell, data["bias_names"])) + " |")
    lines.append("|---" * (1 + len(data["bias_names"])) + "|")
    for name, sizes, right in zip(data["class_names"], groups["n"], groups["correct"], strict=True):
        cells = [f"{correct} of {n}" if n else "–" for n, correct in zip(sizes, right, strict=True)]
        lines.append(f"| {_cell(name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _warnings(result: Mapping[str, Any]) -> str:
    found = list(dict.fromkeys(result.get("warnings") or ()))
    if not found:
        return ""
    lines = ["## Warnings", "", *(f"- {warning}" for warning in found[:SHOWN])]
    if len(found) > SHOWN:
        lines.append(f"- … and {len(found) - SHOWN} more in result.json")
    return "\n".join(lines)


def _loading(record: RunRecord) -> str:
    call = 'model.predict(["a.jpg", "b.png"])'
    if _has_vectors(record.data):
        call = f"model.predict(vectors)  # [N, {record.data['image_shape'][0]}]"
    return (
        "## How to use it\n\n"
        "```python\nimport fairmargin as fm\n\n"
        f'model = fm.load("{record.path.name}")\n'
        f"found = {call}\n"
        "found.labels, found.probabilities\n```"
    )


def _provenance(record: RunRecord) -> str:
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
    return f"{100 * value['value']:.1f} % ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def _cell(text: str) -> str:
    """A name in a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ")
