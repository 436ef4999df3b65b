"""Which accuracy of a run stands beside a published number.

The paper reports the best epoch on the test set; we report the last one, and give the other beside it under its own name.
"""

import json
import math
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
from fairmargin.runtime.files import write_atomically

UNBIASED = "unbiased.json"  # beside a run's result: the UNB of 9-Class ImageNet
REPORTED = (
    "linear",
    "probe",
    "own",
    "knn",
)  # the first of these that a run is judged by (`budgets`)
CLUSTERS = (
    "clusters/9class_imagenet_val.csv"  # of clovaai/rebias, in the data root or with the images
)


@dataclass(frozen=True)
class Measured:
    """Of one run, in percent."""

    seed: int
    last: float
    best_on_test: float | None  # the literature's convention; chosen by what it reports
    epochs: int  # done
    of_epochs: int
    commit: str

    @property
    def whole(self) -> bool:
        return self.epochs >= self.of_epochs


def measured(record: RunRecord, measure: str = "") -> Measured | None:
    """`measure` is the column of a table that has several ("unb", "imagenet-a"); None while there is nothing to report."""
    commit = str((record.environment.get("git") or {}).get("commit") or "")[:9]
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


def _length(record: RunRecord, epochs: int, steps: int) -> int:
    """How many epochs the run is to have, if so many took so many steps; its steps may end it before its epochs do."""
    most, limit = (
        int(record.config["train"]["epochs"]),
        record.config["train"].get("steps"),
    )  # or "none"
    return min(most, math.ceil(limit * epochs / steps)) if isinstance(limit, int) else most


def evaluated(record: RunRecord, *, final_stage: bool = False) -> list[tuple[int, float]]:
    """Epoch and test accuracy, a fraction, of each evaluation in the course of a run; or of those in its final stage."""
    events = [
        event for event in _evaluations(record) if event.get("final_stage", True) or not final_stage
    ]
    return [(event["epoch"], event["test"][_name(record, event["test"])]) for event in events]


def _evaluations(record: RunRecord) -> list[dict[str, Any]]:
    return [
        event for event in record.metrics if event.get("event") == "evaluation" and event["test"]
    ]


def _finished(
    record: RunRecord, result: dict[str, Any], measure: str, best_in_course: float | None
) -> tuple[float | None, float | None]:
    """What it came to; and the best epoch on the test set of the same classifier and data, if it was recorded.

    `best_in_course`: of the method's own classifier while it was trained.
    """
    if measure == "unb":
        file = record.path / UNBIASED
        return (
            100 * json.loads(file.read_text("utf-8"))["unbiased"] if file.is_file() else None
        ), None
    sets = result["extra_tests"].get(measure, {}) if measure == "imagenet-a" else result["test"]
    classifier = next(name for name in REPORTED if name in record.config["evaluate"]["classifiers"])
    judged = sets.get(classifier)
    if (
        judged is None
    ):  # features that are not finite, for example; another classifier is no substitute
        return None, None
    name = _name(record, judged["accuracy"])
    value = 100 * judged["accuracy"][name]["value"]
    if classifier == "own":
        return value, best_in_course if measure in ("", "biased") else None
    best = (judged.get("best-on-test") or {}).get(name)
    return value, None if best is None else 100 * best


def _name(record: RunRecord, accuracy: dict[str, Any]) -> str:
    """The published convention: all test samples alike, and of bFFHQ the conflicting ones."""
    wanted = "conflicting" if record.config["data"]["name"] == "bffhq" else "plain"
    return wanted if wanted in accuracy else "plain"


def complete(folder: Path, config: Config) -> None:
    """What a run does not measure by itself: the texture-unbiased accuracy of 9-Class ImageNet, if its clusters are there."""
    file, root = folder / UNBIASED, data_root(config.data.root)
    clusters = next(
        (place for place in (root / CLUSTERS, root / "imagenet9" / CLUSTERS) if place.is_file()),
        None,
    )
    if config.data.name != "imagenet9" or file.is_file() or clusters is None:
        return
    test = build.data(config).test
    if not isinstance(test, FileSplit):
        raise MissingData(
            "the UNB of 9-Class ImageNet is found by file names, and these images have none"
        )
    arrays = RunRecord.read(folder).arrays("test")
    correct = torch.from_numpy((arrays["predicted"] == arrays["labels"]).astype(np.int64))
    found = clusters_of(test.paths, texture_clusters(clusters))
    value = unbiased_accuracy(correct, torch.from_numpy(arrays["labels"]), found)
    write_atomically(file, json.dumps({"unbiased": value}).encode())
