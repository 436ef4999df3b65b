"""Estimate how long a campaign takes: time a few steps of each kind of run on generated images."""

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

# Timed steps, after a first one that is not timed.
STEPS = 3
# A probe's batch has at most so many images, or so many pixels if that is more: it must fit into
# memory.
BATCH_IMAGES = 32
BATCH_PIXELS = 2**17


@dataclass(frozen=True)
class Estimate:
    """Training images of a run, and the seconds they take, without evaluation."""

    images: int
    seconds: float


def estimates(tasks: Sequence[Task], folder: Path) -> dict[Task, Estimate]:
    """Estimate each task, with one probe for each dataset, network and method.

    Args:
        folder: where the generated images are kept.
    """
    rates: dict[tuple[str, ...], float] = {}
    found = {}
    for task in tasks:
        config = _probe_config(task, folder)
        network = config.network
        kind = (config.data.name, network.name, str(network.options), config.method.name)
        if kind not in rates:
            rates[kind] = _seconds_per_image(config)
        images = _training_images(task)
        found[task] = Estimate(images, images * rates[kind])
    return found


def _training_images(task: Task) -> int:
    """How many images the run sees in all; its steps may end it before its epochs do."""
    config = task.cell.config(task.budget, task.seed, task.extra)
    images = config.train.epochs * budgets.TRAINING_IMAGES[config.data.name]
    if config.train.steps is None:
        return images
    return min(images, config.train.steps * config.train.batch_size)


def _probe_config(task: Task, folder: Path) -> Config:
    dataset = task.cell.config(task.budget, task.seed).data.name
    extra = [*task.extra, *synthetic_root(folder, dataset)]
    extra += extra_data_roots(task.cell, extra)
    config = task.cell.config(task.budget, task.seed, extra)
    return configuration.override(config, ["train.precision=float32"])


def _seconds_per_image(config: Config) -> float:
    device = build.device(config.train.device)
    data = build.data(config)
    _, height, width = data.info.image_shape
    most = max(BATCH_IMAGES, BATCH_PIXELS // (height * width))
    changes = [f"train.batch_size={min(config.train.batch_size, most)}"]
    if config.train.steps is not None:
        # There are fewer generated images than real ones: without more epochs, the epochs would end
        # the run before its steps.
        changes.append(f"train.epochs={config.train.steps}")
    config = configuration.override(config, changes)
    training = build.training(config, build.method(config, data), data, device)
    ends: list[float] = []
    images: list[int] = []

    def note(batch: Batch) -> None:
        ends.append(time.perf_counter())
        images.append(len(batch))

    fit(training, config.train.epochs, steps=STEPS + 1, after_step=note)
    steps = zip(ends, ends[1:], images[1:], strict=False)
    return statistics.median((end - start) / number for start, end, number in steps)
