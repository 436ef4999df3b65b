"""What the runs of a suite gave, run by run, and the files that keep it: suite.json, suite.csv."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from scipy.stats import norm

from fairmargin.runtime.whole import write_text
from fairmargin.suite.plan import Finished
from fairmargin.suite.ranking import CONFIDENCE, Measured

JSON, CSV, PAGE = "suite.json", "suite.csv", "suite.html"
# The accuracy that ranks: on the unbiased test set, every (class, bias) group counting alike.
HEADLINE = "cell-mean"


@dataclass(frozen=True)
class Score:
    """One run. Accuracies are in percent on the unbiased test set, NaN where there is no result.

    Args:
        unbiased: mean of all groups; it ranks.
        conflicting: of the groups where the shortcut misleads.
        worst_group: of the weakest group.
        test_error: standard error of `unbiased` from the number of test samples.
        seconds: of the run.
        failure: why there is no result.
    """

    regime: str
    task: str
    entry: str
    method: str
    knows: str
    seed: int
    unbiased: float = math.nan
    conflicting: float = math.nan
    worst_group: float = math.nan
    test_error: float = math.nan
    seconds: float = math.nan
    failure: str = ""

    @property
    def has_result(self) -> bool:
        """True if the run gave an accuracy."""
        return not math.isnan(self.unbiased)


def score(finished: Finished) -> Score:
    """Return the numbers of one run that a suite keeps.

    Args:
        finished: a run of the suite.
    """
    cell = finished.cell
    entry = cell.entry
    who = (entry.regime, cell.task.name, entry.label, entry.method, entry.needs, cell.seed)
    if finished.result is None:
        return Score(*who, failure=finished.failure or "the run has no result")
    # What the run reports: its own classifier, unless its settings name another.
    classifier = finished.result["headline"]["classifier"]
    accuracy = finished.result["test"][classifier]["accuracy"]
    headline = accuracy[HEADLINE]
    width = headline["high"] - headline["low"]
    deviations = 2 * float(norm.ppf((1 + CONFIDENCE) / 2))
    return Score(
        *who,
        unbiased=100 * headline["value"],
        conflicting=_percent(accuracy, "conflicting"),
        worst_group=_percent(accuracy, "worst-group"),
        test_error=100 * width / deviations,
        seconds=float(finished.result["seconds"]),
    )


def _percent(accuracy: Mapping[str, Any], name: str) -> float:
    return 100 * float(accuracy[name]["value"]) if name in accuracy else math.nan


def measured(scores: Iterable[Score], name: str = "unbiased") -> Measured | None:
    """Return the accuracies of one entry on one task over its seeds; None if a run has no result.

    Args:
        scores: of its runs.
        name: of the accuracy.
    """
    found = list(scores)
    if not found or not all(one.has_result for one in found):
        return None
    values = tuple(float(getattr(one, name)) for one in found)
    return Measured(values, sum(one.test_error for one in found) / len(found))


def write_scores(scores: Sequence[Score], summary: Mapping[str, Any], out: Path) -> None:
    """Write suite.csv, a row for each run, and suite.json, with the rankings as well.

    Args:
        scores: of all runs.
        summary: what the rankings say.
        out: folder of the suite.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Score)]
    writer.writerow(names)
    for one in scores:
        writer.writerow([_shown(getattr(one, name)) for name in names])
    write_text(out / CSV, text.getvalue())
    rows = [{key: _or_none(value) for key, value in asdict(one).items()} for one in scores]
    whole = {**summary, "runs": rows}
    write_text(out / JSON, json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _shown(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else round(value, 3)
    return value


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
