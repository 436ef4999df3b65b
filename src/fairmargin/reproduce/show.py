"""What a campaign found, for a terminal; and the study of FairKL as a page."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from scipy.stats import t as student

from fairmargin.config import Config, toml
from fairmargin.reproduce.campaign import Task
from fairmargin.reproduce.cells import STUDY, Cell, cells
from fairmargin.reproduce.estimate import Estimate
from fairmargin.reproduce.ledger import finished_or_all, runs_of
from fairmargin.reproduce.published import as_printed
from fairmargin.runs.folder import RunRecord
from fairmargin.sweep.compare import spread

SIGNS = ("positive", "negative")


def table(shown: Sequence[Cell], out: Path, budget: str) -> Table:
    """Published beside ours."""
    title = f"test accuracy in percent, {budget} budget" + (
        ": generated data, accuracies mean nothing" * (budget == "smoke")
    )
    rows = Table("cell", "published", "ours", "seeds", title=title)
    for cell in shown:
        records = runs_of(cell, out, budget)
        for number in cell.published or (None,):
            measure = "" if number is None else number.measure
            ours = [one.last for one in finished_or_all(records, measure)]
            std = statistics.stdev(ours) if len(ours) > 1 else None
            name = f"{cell.name}{f' {measure}' if measure else ''}"
            published = "–" if number is None else as_printed(number.mean, number.std)
            rows.add_row(
                name,
                published,
                spread(statistics.fmean(ours), std) if ours else "–",
                str(len(ours)),
            )
    return rows


def planned(tasks: Sequence[Task], times: dict[Task, Estimate]) -> Table:
    """What would run, with its settings, and for how long."""
    title = "what would run; time by a probe of a few steps on this machine"
    rows = Table("run", "settings", "images", "training", title=title)
    for task in tasks:
        settings = recipe(task.cell.config(task.budget, task.seed, task.extra))
        if task.finished:
            rows.add_row(str(task), settings, "", "finished")
        else:
            rows.add_row(
                str(task), settings, f"{times[task].images:,}", duration(times[task].seconds)
            )
    return rows


def recipe(config: Config) -> str:
    """How a run is trained, in one line: "adam 0.001, decay 0.0001, step at 26, 53, batch 128, 80 epochs; lambda=1"."""
    optimizer, schedule, train = config.optimizer, config.schedule, config.train
    changes: str = schedule.name
    if schedule.name == "step":
        changes += f" ×{schedule.factor:g} at {', '.join(f'{m:g}' for m in schedule.milestones)}"
    if schedule.warmup_epochs:
        changes += f" after {schedule.warmup_epochs:g} epochs of warm-up"
    length = f"{train.epochs} epochs" if train.steps is None else f"{train.steps:,} steps"
    words = [f"{optimizer.name} {optimizer.lr:g}", f"decay {optimizer.weight_decay:g}", changes]
    words += [f"batch {train.batch_size}", length]
    options = [
        f"{key.rstrip('_')}={toml.value(value)}" for key, value in config.method.options.items()
    ]
    return ", ".join(words) + "".join(f"; {option}" for option in options)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def study(out: Path, budget: str) -> str:
    """The study of FairKL, best first by validation accuracy: Markdown; empty if nothing of it is finished."""
    runs = {cell.setting: runs_of(cell, out, budget) for cell in cells(STUDY)}
    finished = {
        setting: [record for record in of if record.finished] for setting, of in runs.items()
    }
    found = [(setting, of) for setting, of in finished.items() if of]
    found.sort(
        key=lambda row: -statistics.fmean(_last(record)["valid"]["cell-mean"] for record in row[1])
    )
    lines = [
        "| FairKL | validation | test | conflicting | worst group | similarity, same label | other label | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for setting, records in found:
        of = lambda split, name, records=records: interval(
            [100 * _last(record)[split][name] for record in records]
        )
        accuracies = [
            of("valid", "cell-mean"),
            *(of("test", name) for name in ("cell-mean", "conflicting", "worst-group")),
        ]
        alike = [
            f"{statistics.fmean(_similarity(record, sign) for record in records):.2f}"
            for sign in SIGNS
        ]
        lines.append(f"| {setting} | {' | '.join(accuracies + alike)} | {len(records)} |")
    return "\n".join(lines) + "\n" if found else ""


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval of the mean by Student's t, within 0 and 100; of one value the value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.1f}"
    half = (
        float(student.ppf(0.975, len(values) - 1))
        * statistics.stdev(values)
        / math.sqrt(len(values))
    )
    return f"{mean:.1f} ({max(mean - half, 0.0):.1f}–{min(mean + half, 100.0):.1f})"


def _last(record: RunRecord) -> dict[str, Any]:
    assert record.result is not None
    return record.result["records"]["last"]


def _similarity(record: RunRecord, sign: str) -> float:
    """Mean over all such pairs of the test set: where both signs are near 1, everything has collapsed into one point."""
    assert record.result is not None
    sets = [
        one for name, one in record.result["similarity"]["sets"].items() if name.startswith(sign)
    ]
    return float(
        sum(one["mean"] * one["pairs"] for one in sets) / sum(one["pairs"] for one in sets)
    )
