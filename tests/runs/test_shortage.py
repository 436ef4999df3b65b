"""Memory runs out, or the system kills a process that reads images, in the middle of a command."""

import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.cli.errors import LOST
from fairmargin.data import manifest
from fairmargin.data.split import FileSplit
from fairmargin.evaluate import outputs
from fairmargin.runs import recorder
from fairmargin.runs.record import RunRecord
from tests.small_runs import checkpoint_steps

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills processes by signals")

SETTINGS = [
    "data.image_size=8",
    "data.memory_limit=0",
    "data.workers=0",
    "network.name=simple-conv-3",
    "network.widths=[4, 8]",
    "train.epochs=2",
    "train.batch_size=8",
    "train.device=cpu",
    "train.checkpoint_seconds=0",
    "evaluate.resamples=20",
    'evaluate.classifiers=["own"]',
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(0)
    for split, number in (("train", 20), ("test", 8)):
        for label in ("a", "b"):
            place = folder / split / label
            place.mkdir(parents=True)
            for i in range(number):
                pixels = chance.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")
    return folder


def fairmargin(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def train(pictures, out, *changes):
    options = [word for change in (*SETTINGS, *changes) for word in ("--set", change)]
    return fairmargin("train", "--dataset", pictures, "--method", "ce", "--out", out, *options)


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    done = train(pictures, out)
    assert done.exit_code == 0, done.output
    return out


def at_step(monkeypatch, number, action):
    """Do something after so many steps of the next run."""
    original = recorder.Recorder.after_step

    def after_step(self, batch):
        original(self, batch)
        if self.training.step == number:
            action()

    monkeypatch.setattr(recorder.Recorder, "after_step", after_step)


def kill_a_worker():
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)


def run_out():
    torch.empty(1 << 50, dtype=torch.uint8)


def no_memory(*_, **__):
    raise MemoryError


def same_weights(a, b):
    return all(
        (a / name).read_bytes() == (b / name).read_bytes()
        for name in ("weights.safetensors", "best.safetensors")
    )


# An error in a destructor would be printed with its traceback.
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "workers", "said"),
    [
        # PyTorch does not always learn by which signal it ended.
        (kill_a_worker, 1, "a process that reads images "),
        (run_out, 0, "there is not enough memory (1,048,576.0 GiB more were needed)"),
    ],
)
def test_a_run_says_so_and_goes_on_to_the_same_weights(
    whole, pictures, tmp_path, monkeypatch, action, workers, said
):
    """Before, it ended with a traceback."""
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        at_step(patched, 3, action)
        done = train(pictures, out, f"train.workers={workers}")
    assert done.exit_code == LOST, done.output
    assert isinstance(done.exception, SystemExit)
    assert said in done.output
    assert f"train.batch_size=8, evaluate.batch_size=256, train.workers={workers}" in done.output
    assert f"from step {checkpoint_steps(out)[-1]} with: fairmargin train --resume" in done.output
    again = fairmargin("train", "--resume", out, "--set", "train.workers=0")
    assert again.exit_code == 0, again.output
    assert same_weights(whole, out)
    assert RunRecord.read(out).result is not None


def test_an_image_is_not_blamed_for_a_lack_of_memory(pictures, tmp_path, monkeypatch):
    """Before, a sound image was to be repaired or removed."""
    monkeypatch.setattr(FileSplit, "images", no_memory)
    done = train(pictures, tmp_path / "run")
    assert done.exit_code == LOST, done.output
    assert "there is not enough memory, with train.batch_size=8" in done.output
    assert "nothing was saved yet" in done.output
    assert "repair or remove" not in done.output


def _killed(path):
    os.kill(os.getpid(), signal.SIGKILL)


class Doomed(ProcessPoolExecutor):
    """A pool whose processes are killed while they look at files."""

    def map(self, function, *iterables, **options):
        return super().map(_killed, *iterables, **options)


def test_a_killed_decoding_process_is_said(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "ProcessPoolExecutor", Doomed)
    monkeypatch.setattr(manifest, "ROWS_PER_PROCESS", 1)
    done = fairmargin("audit", pictures, "--out", tmp_path / "audit", "--set", "data.workers=2")
    assert done.exit_code == LOST, done.output
    assert "a process that reads images ended, most often because memory ran out" in done.output
    assert "data.workers" in done.output


def commands(whole, pictures, tmp_path):
    scores = [word for change in SETTINGS for word in ("--set", change)]
    return {
        "evaluate": ["evaluate", whole],
        "predict": ["predict", whole, pictures / "test" / "a"],
        "audit": ["audit", pictures, "--out", tmp_path / "audit"],
        "scores": ["scores", "--dataset", pictures, "--out", tmp_path / "scores", *scores],
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "predict", "audit", "scores"])
def test_every_command_says_that_memory_ran_out(whole, pictures, tmp_path, monkeypatch, command):
    monkeypatch.setattr(outputs, "collect", no_memory)
    monkeypatch.setattr("fairmargin.data.decode.Decoder.fit", no_memory)
    done = fairmargin(*commands(whole, pictures, tmp_path)[command])
    assert done.exit_code == LOST, done.output
    assert "there is not enough memory" in done.output
    assert "Free some memory" in done.output
