"""Runs whose second process differs from the first in one thing; writes what became of each.

torchrun --nproc-per-node 2 tests/torchrun_ranks.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
from rich.console import Console

from fairmargin import config as configuration
from fairmargin.run import run
from fairmargin.runs import recorder
from fairmargin.runtime.agreement import RanksDifferError
from fairmargin.runtime.distributed import processes

SMALL = [
    "data.train=500",
    "data.test=100",
    "network.name=simple-conv-3",
    "network.stride=2",
    "network.widths=[4, 8]",
    "train.epochs=1",
    "train.batch_size=50",
    "train.device=cpu",
    "train.checkpoint_seconds=0",
    "evaluate.resamples=20",
    'evaluate.classifiers=["own"]',
]
# Settings of the second process alone.
SETTINGS = {
    "seed": ["seed=1"],
    "learning rate": ["players.main.lr=0.5"],
    "images": ["data.rho=0.5"],
    "test images": ["data.test=120"],
    "batch size": ["train.batch_size=40"],
    "option of the method": ["method.lambda=0.5"],
    "network": ["network.widths=[4, 16]"],
}


def flip(tensor):
    """Change the lowest bit of the first number."""
    whole = tensor.detach().view(-1)[:1].view(torch.int32)
    whole ^= 1


def weights(training):
    flip(next(training.method.parameters()))


def statistics(training):
    flip(next(b for name, b in training.method.named_buffers() if "running_mean" in name))


def momentum(training):
    state = training.players["main"].optimizer.state
    flip(
        next(t for entry in state.values() for t in entry.values() if torch.is_tensor(t) and t.ndim)
    )


def position(training):
    training.loader.epoch += 1


# What happens to the state of the second process after its second step.
FAULTS = {f.__name__: f for f in (weights, statistics, momentum, position)}


def outcome(config, out, fault=None):
    original = recorder.Recorder.after_step

    def after_step(self, batch):
        if self.training.step == 2 and fault is not None:
            fault(self.training)
        original(self, batch)

    recorder.Recorder.after_step = after_step
    try:
        run(config, out, console=Console(quiet=True))
    except RanksDifferError as error:
        return str(error)
    finally:
        recorder.Recorder.after_step = original
    return "trained"


def main(folder):
    second = os.environ["RANK"] == "1"
    found = {}
    with processes(torch.device("cpu")):
        for name in ("nothing", *SETTINGS, *FAULTS):
            changes = SETTINGS.get(name, []) if second else []
            config = configuration.load(
                None,
                dataset="biased-mnist-mini",
                method="eps-supinfonce+fairkl",
                seed=0,
                overrides=[*SMALL, *changes],
            )
            fault = FAULTS.get(name) if second else None
            found[name] = outcome(config, folder / name.replace(" ", "-"), fault)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
