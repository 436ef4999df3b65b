"""Small runs for tests: how they are configured, started, interrupted and compared."""

import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from fairmargin import config as configuration
from fairmargin.run import run
from fairmargin.runs import recorder
from fairmargin.runs.record import RunRecord

SMALL = [
    "data.train=500",
    "data.test=300",
    "network.name=simple-conv-3",
    "network.stride=2",
    "network.widths=[4, 8]",
    "train.epochs=3",
    "train.batch_size=25",
    "train.log_steps=5",
    "train.device=cpu",
    "evaluate.resamples=50",
]
# Checksums cover files with times in them.
TIMES = {"seconds", "images_per_second", "sha256"}


def words(*changes, method="eps-supinfonce+fairkl", out):
    options = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return [
        "train",
        "--dataset",
        "biased-mnist-mini",
        "--method",
        method,
        "--out",
        str(out),
        *options,
    ]


def config(*changes, method="eps-supinfonce+fairkl", seed=0):
    return configuration.load(
        None, dataset="biased-mnist-mini", method=method, seed=seed, overrides=[*SMALL, *changes]
    )


def silently(*changes, out, **options):
    return run(config(*changes, **options), out, console=Console(quiet=True))


def start(*arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "fairmargin", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def assert_same_run(a, b):
    for name in ("weights.safetensors", "best.safetensors"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    first, second = RunRecord.read(a), RunRecord.read(b)
    assert without_times(first.metrics) == without_times(second.metrics)
    assert without_times(first.result) == without_times(second.result)
    for name in ("test", "examples"):
        for key, array in first.arrays(name).items():
            assert np.array_equal(array, second.arrays(name)[key]), (name, key)


def train_in_process(out):
    """Train one run from beginning to end in a process of its own."""
    process = start(*words(out=out))
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return out


def checkpoint_steps(out):
    return sorted(
        int(path.stem.split("-")[1]) for path in (out / "checkpoints").glob("step-*.ckpt")
    )


def interrupted(out, *changes, steps=(7, 20), there=None, **options):
    """A run that stopped, with checkpoints at two steps, or `there`, at the steps given."""

    class Stop(Exception):
        pass

    original = recorder.Recorder.after_step

    def after_step(self, batch):
        original(self, batch)
        if self.training.step in steps:
            self.save()
        if self.training.step == max(steps):
            raise Stop

    recorder.Recorder.after_step = after_step
    try:
        with pytest.raises(Stop):
            silently(*changes, out=out, **options)
    finally:
        recorder.Recorder.after_step = original
    assert checkpoint_steps(out) == sorted(there or steps)
