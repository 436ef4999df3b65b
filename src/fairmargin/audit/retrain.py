"""Does training remove a planted shortcut?

Compares cross-entropy with `fairmargin`, the default method, which gets the planted bias labels.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from fairmargin import evaluate
from fairmargin.audit._dataset import drawn
from fairmargin.audit.section import Found, Progress, Section, Table, silent
from fairmargin.batch import Batch
from fairmargin.config import Config
from fairmargin.data.bias import count_cells
from fairmargin.data.split import ArraySplit, Data, FileSplit
from fairmargin.loop import Diverged, fit
from fairmargin.runs import build

METHODS = ("ce", "fairmargin")
SHOWN = ("aligned", "conflicting", "cell-mean")


def retrain(
    config_of: Callable[[str], Config],
    data: Data,
    *,
    samples: int,
    seed: int,
    progress: Progress = silent,
) -> dict[str, dict[str, float]]:
    """Train each method and return its accuracies on the test split, where the shortcut is no help.

    Args:
        config_of: the configuration of a method; its dataset is not built, `data` is used.
        data: with the planted shortcut.
        samples: how many training samples at most, drawn as the audit draws them.
        seed: of that draw.
        progress: called at every step.
    """
    data = _reduced(data, samples, seed)
    return {name: _trained(name, config_of(name), data, progress) for name in METHODS}


def _reduced(data: Data, samples: int, seed: int) -> Data:
    if len(data.train) <= samples or not isinstance(data.train, ArraySplit | FileSplit):
        return data
    train = data.train.subset(torch.from_numpy(drawn(len(data.train), samples, seed)))
    info = data.info
    counts = count_cells(train.labels, train.bias, info.num_classes, info.num_biases)
    return replace(data, train=train, info=replace(info, counts=counts))


def _trained(name: str, config: Config, data: Data, progress: Progress) -> dict[str, float]:
    device = build.device(config.train.device)
    method = build.method(config, data)
    training = build.training(config, method, data, device)
    total = min(config.train.epochs * len(training.loader), config.train.steps or 1 << 62)

    def report(batch: Batch) -> None:
        progress(f"training {name}", training.step, total)

    try:
        fit(training, config.train.epochs, steps=config.train.steps, after_step=report)
    except Diverged as error:
        raise ValueError(f"{name} diverged: {error}") from error
    size = config.evaluate.batch_size
    return evaluate.quick(
        method, data.test, data.eval_views, data.info, batch_size=size, device=device
    )


def with_retraining(found: Found, accuracy: dict[str, dict[str, float]]) -> Found:
    """Add what training made of the shortcut to the findings, after their first section.

    Args:
        found: the outcome of the audit.
        accuracy: of each method, as `retrain` returns it.
    """
    numbers = {**found.json, "cure": accuracy}
    sections = [*found.sections[:1], _section(accuracy), *found.sections[1:]]
    return replace(found, json=numbers, sections=sections)


def _section(accuracy: dict[str, dict[str, float]]) -> Section:
    lead = (
        "Both methods saw the same pictures with the planted shortcut; the second was also told "
        "the planted value of each. In the test pictures every value is equally likely. "
        "“Conflicting” are test pictures on which the shortcut misleads. "
        "One seed; the last epoch."
    )
    head = ["method", *(f"{name}, %" for name in SHOWN)]
    rows = []
    for name, values in accuracy.items():
        rows.append([name, *(_percent(values, key) for key in SHOWN)])
    return Section("cure", "Does training remove it?", lead, tables=[Table(head, rows, (1, 2, 3))])


def _percent(values: dict[str, float], key: str) -> str:
    return f"{100 * values[key]:.1f}" if key in values else "–"
