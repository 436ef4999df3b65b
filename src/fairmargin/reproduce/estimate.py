"""How long a campaign would take: a few steps of each kind of run, on generated images of the right size."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairmargin import config as configuration
from fairmargin.batch import Batch
from fairmargin.config import Config
from fairmargin.loop import fit
from fairmargin.reproduce import budgets
from fairmargin.reproduce.campaign import Task, extra_data_roots, synthetic_root
from fairmargin.runs import build

STEPS = 3  # timed, after one that is not
BATCH, PIXELS = (
    32,
    2**17,
)  # images, or pixels if that is more: at most so many in a batch, for memory's sake


@dataclass(frozen=True)
class Estimate:
    """Of a run: seconds of training, without evaluation."""

    images: int
    seconds: float


def estimates(tasks: Sequence[Task], folder: Path) -> dict[Task, Estimate]:
    """One probe for each dataset, network and method; `folder` takes the generated images."""
    rates: dict[tuple[str, ...], float] = {}
    found = {}
    for task in tasks:
        config = _config(task, folder)
        kind = (
            config.data.name,
            config.network.name,
            str(config.network.options),
            config.method.name,
        )
        if kind not in rates:
            rates[kind] = _seconds_per_image(config)
        real = task.cell.config(task.budget, task.seed, task.extra)
        whole = real.train.epochs * budgets.TRAINING_IMAGES[real.data.name]
        images = (
            whole
            if real.train.steps is None
            else min(whole, real.train.steps * real.train.batch_size)
        )
        found[task] = Estimate(images, images * rates[kind])
    return found


def _config(task: Task, folder: Path) -> Config:
    extra = [
        *task.extra,
        *synthetic_root(folder, task.cell.config(task.budget, task.seed).data.name),
    ]
    extra += extra_data_roots(task.cell, extra)
    config = task.cell.config(task.budget, task.seed, extra)
    return configuration.override(config, ["train.precision=float32"])


def _seconds_per_image(config: Config) -> float:
    device = build.device(config.train.device)
    data = build.data(config)
    _, height, width = data.info.image_shape
    size = min(config.train.batch_size, max(BATCH, PIXELS // (height * width)))
    changes = [f"train.batch_size={size}"]
    if config.train.steps is not None:
        changes.append(
            f"train.epochs={config.train.steps}"
        )  # fewer images: the steps still end the run, and not its epochs
    config = configuration.override(config, changes)
    training = build.training(config, build.method(config, data), data, device)
    ends: list[float] = []
    images: list[int] = []

    def note(batch: Batch) -> None:
        ends.append(time.perf_counter())
        images.append(len(batch))

    fit(training, config.train.epochs, steps=STEPS + 1, after_step=note)
    return statistics.median(
        (b - a) / n for a, b, n in zip(ends, ends[1:], images[1:], strict=False)
    )
