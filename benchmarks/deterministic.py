"""Do weights depend on threads, with `train.deterministic` and without, and what does it cost?

    python -m benchmarks.deterministic                  a small network, under a minute
    python -m benchmarks.deterministic --network resnet20 --method ce --steps 2 --rounds 2

Each round trains the same steps with 1 and 2 threads, without the mode and with it, in turn. Two
equal digests are equal weights, bit by bit. Seconds are those of the steps alone.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from rich.console import Console

from fairmargin import config as configuration
from fairmargin.batch import Batch
from fairmargin.loop import Training
from fairmargin.run import run
from fairmargin.runtime.whole import digest

THREADS = (1, 2)
SETTINGS = (
    "data.train=1000",
    "data.test=100",
    "train.epochs=1",
    "train.batch_size=100",
    "train.device=cpu",
    "evaluate.resamples=5",
    'evaluate.classifiers=["own"]',
)
SMALL = ("network.stride=2", "network.widths=[16, 32]")


def trained(options: argparse.Namespace, threads: int, mode: bool) -> tuple[str, float]:
    """Return the digest of the weights after a short training, and the seconds of its steps.

    Args:
        options: of the command line.
        threads: of the process.
        mode: `train.deterministic`.
    """
    torch.set_num_threads(threads)
    small = SMALL if options.network.startswith("simple-conv") else ()
    changes = [
        *SETTINGS,
        f"network.name={options.network}",
        *small,
        f"train.steps={options.steps}",
        f"train.deterministic={str(mode).lower()}",
    ]
    config = configuration.load(
        None, dataset="biased-mnist-mini", method=options.method, seed=0, overrides=changes
    )
    seconds = 0.0
    advance = Training.advance

    def timed(self: Training, batch: Batch, epoch: float) -> None:
        nonlocal seconds
        started = time.perf_counter()
        advance(self, batch, epoch)
        seconds += time.perf_counter() - started

    Training.advance = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            run(config, out, console=Console(quiet=True))
            return digest(out / "weights.safetensors")[:12], seconds
    finally:
        Training.advance = advance  # type: ignore[method-assign]


def main() -> None:
    """Print digests and seconds of every training, then the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--network", default="simple-conv-3")
    parser.add_argument("--method", default="eps-supinfonce+fairkl")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = defaultdict(set)
    ratios = defaultdict(list)
    for _ in range(options.rounds):
        for threads in THREADS:
            usual, before = trained(options, threads, False)
            same, after = trained(options, threads, True)
            found[threads, False].add(usual)
            found[threads, True].add(same)
            ratios[threads].append(after / before)
            print(f"{threads} threads: {usual} {before:.2f} s, deterministic {same} {after:.2f} s")
    for (threads, mode), digests in sorted(found.items()):
        print(f"{threads} threads, deterministic {mode}: {', '.join(sorted(digests))}")
    for threads, each in ratios.items():
        listed = ", ".join(f"{ratio:.2f}" for ratio in each)
        print(
            f"{threads} threads: time with / without {listed}; median {statistics.median(each):.2f}"
        )


if __name__ == "__main__":
    main()
