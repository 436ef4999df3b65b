"""Which accuracy of a run is compared with a published number.

The paper reports the best epoch on the test set. We report the last epoch, and show the best one
beside it under its own name.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmargin.config import Config
from fairmargin.data.datasets.imagenet import clusters_of, texture_clusters, unbiased_accuracy
from fairmargin.data.sources import MissingData, data_root
from fairmargin.data.split import FileSplit
from fairmargin.runs import build
from fairmargin.runs.folder import RunRecord
from fairmargin.runtime.whole import write_atomically

# Written into a run folder of 9-Class ImageNet: its texture-unbiased accuracy, the paper's UNB.
UNBIASED = "unbiased.json"
# The first of these classifiers that a run is judged by is the one that is reported (`budgets`).
REPORTED = ("linear", "probe", "own", "knn")
# Of clovaai/rebias, in the data root or with the images.
CLUSTERS = "clusters/9class_imagenet_val.csv"


@dataclass(frozen=True)
class Measured:
    """What one run measured, in percent.

    Args:
        last: accuracy of the last epoch.
        best_on_test: of the best epoch, chosen on the test set itself, as the literature does.
        epochs: done so far.
        of_epochs: that the run has when it is finished.
        commit: the code; several if the run was resumed with other code.
    """

    seed: int
    last: float
    best_on_test: float | None
    epochs: int
    of_epochs: int
    commit: str

    @property
    def whole(self) -> bool:
        """True if the run has done all its epochs."""
        return self.epochs >= self.of_epochs


def measured(record: RunRecord, measure: str = "") -> Measured | None:
    """Return what a run measured; None while there is nothing to report.

    Args:
        measure: the column of a table that prints several accuracies: "unb", "imagenet-a".
    """
    commit = _commits(record.environment)
    seed = int(record.config["seed"])
    course = [100 * value for _, value in evaluated(record)]
    best = max((100 * value for _, value in evaluated(record, final_stage=True)), default=None)
    if record.result is None:
        if not course or measure not in ("", "biased"):
            return None
        latest = _evaluations(record)[-1]
        epochs, steps = int(latest["epoch"]), int(latest["step"])
        return Measured(seed, course[-1], best, epochs, _length(record, epochs, steps), commit)
    value, best = _finished(record, record.result, measure, best)
    if value is None:
        return None
    epochs, steps = int(record.result["epochs"]), int(record.result["steps"])
    return Measured(seed, value, best, epochs, _length(record, epochs, steps), commit)


def _commits(environment: Mapping[str, Any]) -> str:
    """The code of a run, or of each part of a run that was resumed with other code."""
    parts = environment.get("parts") or [environment]
    found = [str((part.get("git") or {}).get("commit") or "")[:9] for part in parts]
    return ", ".join(dict.fromkeys(filter(None, found)))


def _length(record: RunRecord, epochs: int, steps: int) -> int:
    """How many epochs the run has in all, if its first `epochs` took `steps` steps.

    A limit on steps may end a run before its epochs do.
    """
    most = int(record.config["train"]["epochs"])
    limit = record.config["train"].get("steps")
    # Without a limit it is None, or "none".
    if not isinstance(limit, int):
        return most
    return min(most, math.ceil(limit * epochs / steps))


def evaluated(record: RunRecord, *, final_stage: bool = False) -> list[tuple[int, float]]:
    """Return epoch and test accuracy, a fraction, of each evaluation during training.

    Args:
        final_stage: leave out evaluations before the final stage of a method with several stages.
    """
    events = _evaluations(record)
    if final_stage:
        events = [event for event in events if event.get("final_stage", True)]
    return [(event["epoch"], event["test"][_name(record, event["test"])]) for event in events]


def _evaluations(record: RunRecord) -> list[dict[str, Any]]:
    events = [event for event in record.metrics if event.get("event") == "evaluation"]
    return [event for event in events if event["test"]]


def _finished(
    record: RunRecord, result: dict[str, Any], measure: str, best_in_course: float | None
) -> tuple[float | None, float | None]:
    """(accuracy, best epoch on the test set of the same classifier and data if recorded).

    `best_in_course` is that of the method's own classifier during training.
    """
    if measure == "unb":
        return _unbiased(record), None
    sets = result["extra_tests"].get(measure, {}) if measure == "imagenet-a" else result["test"]
    classifier = next(name for name in REPORTED if name in record.config["evaluate"]["classifiers"])
    judged = sets.get(classifier)
    if judged is None:
        # For example because features are not finite. Another classifier is no substitute.
        return None, None
    name = _name(record, judged["accuracy"])
    value = 100 * judged["accuracy"][name]["value"]
    if classifier == "own":
        return value, best_in_course if measure in ("", "biased") else None
    best = (judged.get("best-on-test") or {}).get(name)
    return value, None if best is None else 100 * best


def _unbiased(record: RunRecord) -> float | None:
    file = record.path / UNBIASED
    if not file.is_file():
        return None
    return 100 * json.loads(file.read_text("utf-8"))["unbiased"]


def _name(record: RunRecord, accuracy: dict[str, Any]) -> str:
    """The published convention: over all test samples, or for bFFHQ over the conflicting ones."""
    wanted = "conflicting" if record.config["data"]["name"] == "bffhq" else "plain"
    return wanted if wanted in accuracy else "plain"


def complete(folder: Path, config: Config) -> None:
    """Add what a run does not measure itself: the texture-unbiased accuracy of 9-Class ImageNet.

    Nothing is done for other datasets, without the table of texture clusters, or a second time.

    Args:
        folder: of a finished run.
        config: of the run; its data root may hold the table of clusters.
    """
    file = folder / UNBIASED
    clusters = _cluster_table(config)
    if config.data.name != "imagenet9" or file.is_file() or clusters is None:
        return
    test = build.data(config).test
    if not isinstance(test, FileSplit):
        raise MissingData(
            "the texture-unbiased accuracy needs the file names of the test images, "
            "and these images have none; read 9-Class ImageNet from a folder"
        )
    arrays = RunRecord.read(folder).arrays("test")
    correct = torch.from_numpy((arrays["predicted"] == arrays["labels"]).astype(np.int64))
    found = clusters_of(test.paths, texture_clusters(clusters))
    value = unbiased_accuracy(correct, torch.from_numpy(arrays["labels"]), found)
    write_atomically(file, json.dumps({"unbiased": value}).encode())


def _cluster_table(config: Config) -> Path | None:
    root = data_root(config.data.root)
    for place in (root / CLUSTERS, root / "imagenet9" / CLUSTERS):
        if place.is_file():
            return place
    return None
