"""Go on with a run for more epochs, in a new folder: `fairmargin train --resume RUN --set …`.

The new folder begins as an interrupted run does: with the last checkpoint of its parent, the
metrics up to there, and the name and the digest of its parent in environment.json. The old folder
is only read.
"""

import json
from pathlib import Path
from typing import Any

from fairmargin.config import Config, difference, dump, load_resolved
from fairmargin.runs import build, checkpoint
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.record import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    METRICS,
    RESULT,
    WEIGHTS,
    RunError,
    RunRecord,
    is_run,
)
from fairmargin.runtime.files import load_weights
from fairmargin.runtime.whole import digest, write_atomically

# Settings that a run may go on with in a new folder, besides those that change nothing.
EXTENDS = ("train.epochs ", "train.steps ", "evaluate.")
# Why the others may not change, by the beginning of the key.
REASONS = {
    "seed": "it decides the order of the samples",
    "data.": "the run has seen other samples so far",
    "network.": "the weights belong to the old network",
    "method.": "the weights and the optimizers belong to the old method",
    "optimizer.": "the optimizers' state belongs to the old settings",
    "players.": "the optimizers' state belongs to the old settings",
    "schedule.": "the rates so far followed the old schedule",
    "train.": "the position in the data and the weights belong to the old value",
}
# Methods that are completed after the last epoch (`FinalStage.at_end`): weights of a finished run
# are no longer those that it trained.
COMPLETED_AT_THE_END = {"dfr", "class-refit", "afr", "self"}
NOTE = (
    "note: the schedule of the learning rate is now that of {length}, from {where} on. What was "
    "trained so far followed that of {before}, so this is not the run that {length} from the start "
    "would be"
)


def allowed(parent: Config, config: Config) -> list[str]:
    """Return what changes, such as "train.epochs 2 → 4"; refuse what a run cannot go on with.

    Args:
        parent: configuration of the run to go on with.
        config: what it is to go on with.
    """
    changes = build.changed(parent, config)
    refused = []
    for change in changes:
        if not change.startswith(EXTENDS):
            reason = next(why for key, why in REASONS.items() if change.startswith(key))
            refused.append(f"{change} ({reason})")
    if refused:
        raise ValueError(
            f"a run cannot go on with {'; '.join(refused)}. Only train.epochs, train.steps, "
            f"evaluate.… and {', '.join(build.HARMLESS)} may change; for anything else train from "
            "the start"
        )
    return changes


def default_folder(parent: Path, config: Config) -> Path:
    """Return the parent's folder with "-epochs-40" added, or "-steps-5000" if only that changes.

    Args:
        parent: folder of the run to go on with.
        config: what it is to go on with.
    """
    before = load_resolved(parent / CONFIG).train
    ending = "continued"
    if config.train.epochs != before.epochs:
        ending = f"epochs-{config.train.epochs}"
    elif config.train.steps != before.steps and config.train.steps is not None:
        ending = f"steps-{config.train.steps}"
    named = parent.resolve() if parent.name in ("", "..") else parent
    return named.with_name(f"{named.name}-{ending}")


def extend(parent: Path, config: Config, out: Path) -> str:
    """Make a folder in which the run goes on with another configuration; return what to tell.

    A folder that was made so before is left as it is, for its run to be resumed.

    Args:
        parent: folder of the run to go on with, finished or not.
        config: its configuration, with more epochs or steps.
        out: the new folder.
    """
    old = load_resolved(parent / CONFIG)
    allowed(old, config)
    # Before the folder is made.
    build.device(config.train.device)
    if out.resolve() == parent.resolve():
        raise ValueError(
            f"{out} is the run itself, which stays as it is; choose another folder with --out"
        )
    record = RunRecord.read(parent)
    found = checkpoint.newest(parent / CHECKPOINTS)
    if found is None:
        raise RunError(
            f"{parent} has no checkpoint to go on from: {CHECKPOINTS}/ is empty or was removed, "
            f"and {WEIGHTS} alone lacks the optimizers' state. Put {CHECKPOINTS}/ back, or train "
            "from the start"
        )
    state = found.state
    _check_longer(parent, old, config, state)
    facts = _facts(parent, old, record, state, found.path)
    note = NOTE.format(length=_length(config), before=_length(old), where=_where(state))
    if is_run(out):
        before = RunFolder(out).parent()
        if before != facts:
            raise ValueError(
                f"{out} holds a run that does not go on from {parent} as it is now; choose another "
                "folder with --out, or remove that one"
            )
        return note
    folder = RunFolder(out).create()
    with folder.lock():
        metrics = parent / METRICS
        lines = metrics.read_bytes()[: state["metrics"]] if metrics.is_file() else b""
        write_atomically(out / METRICS, lines)
        state["metrics"] = len(lines)
        state["config"] = dump(config)
        state["records"] = _records(parent, out, state["records"], difference(old, config))
        checkpoint.save(folder.checkpoints, found.step, state, keep=config.train.keep)
        folder.write_environment({"data": record.data_hashes, "parent": facts})
        # Last: without it the folder is no run, and is made again.
        folder.write_config(dump(config))
    return note


def _check_longer(parent: Path, old: Config, config: Config, state: dict[str, Any]) -> None:
    """Refuse a length that the run has behind it already."""
    training = state["training"]
    epochs, steps = training["loader"]["epoch"], training["step"]
    if config.train.epochs <= epochs:
        raise ValueError(
            f"{parent} has {epochs} epochs behind it; go on with more: "
            f"--set train.epochs={2 * epochs}"
        )
    most = config.train.steps
    if most is not None and most <= steps:
        raise ValueError(
            f"{parent} has {steps} steps behind it and train.steps={most} ends it there; "
            f"go on with more: --set train.steps={2 * steps}, or --set train.steps=none"
        )
    ended = training["ended_at"] == steps
    if ended and old.method.name in COMPLETED_AT_THE_END:
        raise ValueError(
            f"{old.method.name} ends with a stage of its own after the last epoch, which cannot be "
            "taken back; train from the start with more epochs"
        )


def _facts(
    parent: Path, old: Config, record: RunRecord, state: dict[str, Any], path: Path
) -> dict[str, Any]:
    """What environment.json says of the parent."""
    kind, file = "weights", parent / WEIGHTS
    if not (parent / RESULT).is_file() or not file.is_file():
        kind, file = "checkpoint", path
    # A run that goes on from one that went on keeps the plan of the first.
    before = record.environment.get("parent") or {}
    planned = before.get("planned") or {"epochs": old.train.epochs, "steps": old.train.steps}
    return {
        "run": _last_parts(parent),
        "digest_of": kind,
        "sha256": digest(file),
        "epoch": state["training"]["loader"]["epoch"],
        "step": state["training"]["step"],
        "planned": planned,
    }


def _last_parts(path: Path) -> str:
    """Up to three parts of a relative path; one of an absolute path, whose others name places."""
    if path.is_absolute() or ".." in path.parts or not path.name:
        return path.resolve().name
    return "/".join(path.parts[-3:])


def _records(
    parent: Path, out: Path, records: dict[str, Any], changes: list[str]
) -> dict[str, Any]:
    """The best epochs so far, with the weights of the one that is best on validation.

    They are left out where another accuracy is to choose them, or where the weights are gone.
    """
    kept = dict(records)
    if any(change.startswith("evaluate.select ") for change in changes):
        kept.pop("best-on-validation", None)
        kept.pop("best-on-test", None)
    best = kept.get("best-on-validation")
    if best is None:
        return kept
    file = parent / BEST
    if file.is_file() and _step_of(file) == best["step"]:
        write_atomically(out / BEST, file.read_bytes())
    else:
        del kept["best-on-validation"]
    return kept


def _step_of(file: Path) -> int:
    """The step at which weights were saved."""
    facts = json.loads(load_weights(file)[1].get("fairmargin", "{}"))
    return int(facts.get("step", -1))


def _length(config: Config) -> str:
    steps = config.train.steps
    epochs = "1 epoch" if config.train.epochs == 1 else f"{config.train.epochs} epochs"
    return epochs + (f" or {steps} steps" if steps is not None else "")


def _where(state: dict[str, Any]) -> str:
    training = state["training"]
    return f"epoch {training['loader']['epoch']} (step {training['step']})"
