"""Configurations, tasks and an engine for tests of many runs."""

import os
from dataclasses import dataclass, field
from importlib.util import find_spec

import pytest

from fairmargin import config as configuration

SMALL = [
    "data.train=80",
    "data.test=32",
    "train.epochs=3",
    "train.batch_size=8",
    "train.log_steps=2",
    "train.device=cpu",
    "evaluate.classifiers=['own']",
    "evaluate.resamples=1",
]
METHODS = ("ce", "supcon")
SEEDS = (0, 1)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra fairmargin[ray]")
posix = pytest.mark.skipif(os.name != "posix", reason="sends signals")


def configs(*changes, methods=METHODS, seeds=SEEDS):
    """A small configuration for each method and seed."""
    found = []
    for method in methods:
        for seed in seeds:
            overrides = [*SMALL, *changes]
            config = configuration.load(
                dataset="planted", method=method, seed=seed, overrides=overrides
            )
            found.append(config)
    return found


# Tasks that workers import.


def square(number):
    return number * number


def no_threes(number):
    if number == 3:
        raise ValueError("three is not allowed")
    return number


@dataclass
class Backwards:
    """Stands for workers: runs the last task first, in this process."""

    alone = False
    asked: list = field(default_factory=list)

    def map(self, function, tasks):
        for index, task in reversed(list(enumerate(tasks))):
            self.asked.append(task)
            try:
                yield index, function(task)
            except Exception as error:
                yield index, error
