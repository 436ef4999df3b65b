"""Tables of a campaign for the terminal, and the study of FairKL as Markdown."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from scipy.stats import t as student

from fairmargin.config import Config, toml
from fairmargin.reproduce.budgets import Budget
from fairmargin.reproduce.campaign import Task
from fairmargin.reproduce.cells import STUDY, Cell, cells
from fairmargin.reproduce.estimate import Estimate
from fairmargin.reproduce.ledger import finished_or_all, runs_of
from fairmargin.reproduce.published import as_printed
from fairmargin.runs.folder import RunRecord
from fairmargin.sweep.compare import spread

STUDY_COLUMNS = (
    "FairKL", "validation", "test", "conflicting", "worst group", "similarity, same label",
    "other label", "seeds",
)  # fmt: skip


def table(shown: Sequence[Cell], out: Path, budget: Budget) -> Table:
    """Return a table of published numbers and ours.

    Args:
        shown: the cells, one row for each of their published numbers.
        out: the folder of all runs.
    """
    title = f"test accuracy in percent, {budget} budget"
    if budget == "smoke":
        title += ": generated data, accuracies mean nothing"
    rows = Table("cell", "published", "ours", "seeds", title=title)
    for cell in shown:
        records = runs_of(cell, out, budget)
        for number in cell.published or (None,):
            measure = "" if number is None else number.measure
            published = "–" if number is None else as_printed(number.mean, number.std)
            accuracies = [one.last for one in finished_or_all(records, measure)]
            name = f"{cell.name} {measure}" if measure else cell.name
            rows.add_row(name, published, _mean_and_std(accuracies), str(len(accuracies)))
    return rows


def _mean_and_std(values: Sequence[float]) -> str:
    if not values:
        return "–"
    std = statistics.stdev(values) if len(values) > 1 else None
    return spread(statistics.fmean(values), std)


def planned(tasks: Sequence[Task], times: dict[Task, Estimate]) -> Table:
    """Return a table of what would run, with its settings and how long it would take.

    Args:
        times: of the tasks that are not finished.
    """
    title = "what would run; time estimated from a few steps on this machine"
    rows = Table("run", "settings", "images", "training", title=title)
    for task in tasks:
        settings = recipe(task.cell.config(task.budget, task.seed, task.extra))
        if task.finished:
            rows.add_row(str(task), settings, "", "finished")
        else:
            time = times[task]
            rows.add_row(str(task), settings, f"{time.images:,}", duration(time.seconds))
    return rows


def recipe(config: Config) -> str:
    """Return in one line how a run is trained.

    "adam 0.001, decay 0.0001, step ×0.1 at 26, 53, batch 128, 80 epochs; lambda=1"
    """
    optimizer, schedule, train = config.optimizer, config.schedule, config.train
    changes: str = schedule.name
    if schedule.name == "step":
        milestones = ", ".join(f"{milestone:g}" for milestone in schedule.milestones)
        changes += f" ×{schedule.factor:g} at {milestones}"
    if schedule.warmup_epochs:
        changes += f" after {schedule.warmup_epochs:g} epochs of warm-up"
    length = f"{train.epochs} epochs" if train.steps is None else f"{train.steps:,} steps"
    words = [f"{optimizer.name} {optimizer.lr:g}", f"decay {optimizer.weight_decay:g}", changes]
    words += [f"batch {train.batch_size}", length]
    text = ", ".join(words)
    for key, value in config.method.options.items():
        text += f"; {key.rstrip('_')}={toml.value(value)}"
    return text


def duration(seconds: float) -> str:
    """Return seconds as "80 s", "12 min" or "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def study(out: Path, budget: Budget) -> str:
    """Return the study of FairKL as Markdown, best validation accuracy first.

    It is empty if no run of the study is finished.

    Args:
        out: the folder of all runs.
    """
    found: list[tuple[str, list[RunRecord]]] = []
    for cell in cells(STUDY):
        finished = [record for record in runs_of(cell, out, budget) if record.finished]
        if finished:
            found.append((cell.setting, finished))
    if not found:
        return ""
    found.sort(key=lambda row: -statistics.fmean(_accuracies(row[1], "valid", "cell-mean")))
    lines = [f"| {' | '.join(STUDY_COLUMNS)} |", "|---" * len(STUDY_COLUMNS) + "|"]
    for setting, records in found:
        values = [
            interval(_accuracies(records, "valid", "cell-mean")),
            interval(_accuracies(records, "test", "cell-mean")),
            interval(_accuracies(records, "test", "conflicting")),
            interval(_accuracies(records, "test", "worst-group")),
            f"{_mean_similarity(records, 'positive'):.2f}",
            f"{_mean_similarity(records, 'negative'):.2f}",
        ]
        lines.append(f"| {setting} | {' | '.join(values)} | {len(records)} |")
    return "\n".join(lines) + "\n"


def interval(values: Sequence[float]) -> str:
    """Return the mean of percentages and its 95 % interval by Student's t, within 0 and 100.

    A single value has no interval.

    Args:
        values: in percent, one for each seed.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.1f}"
    quantile = float(student.ppf(0.975, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.1f} ({max(mean - half, 0.0):.1f}–{min(mean + half, 100.0):.1f})"


def _accuracies(
    records: Sequence[RunRecord], split: Literal["valid", "test"], name: str
) -> list[float]:
    """In percent, of the last epoch."""
    return [100 * _result(record)["records"]["last"][split][name] for record in records]


def _mean_similarity(records: Sequence[RunRecord], sign: Literal["positive", "negative"]) -> float:
    """Mean cosine over all positive or negative pairs of the test set.

    Where both are near 1, all samples have collapsed into one point.
    """
    means = []
    for record in records:
        sets = _result(record)["similarity"]["sets"]
        mine = [one for name, one in sets.items() if name.startswith(sign)]
        total = sum(one["mean"] * one["pairs"] for one in mine)
        means.append(float(total / sum(one["pairs"] for one in mine)))
    return statistics.fmean(means)


def _result(record: RunRecord) -> dict[str, Any]:
    assert record.result is not None
    return record.result
