"""What each method costs: seconds of a short training relative to cross-entropy's.

    python -m benchmarks.methods                  every method that biased-mnist-mini suits, about ten minutes
    python -m benchmarks.methods --methods lff,dfa

1,024 digits, four epochs, batches of 64, the network of biased-mnist-mini; evaluation is left out. Every method takes
turns with cross-entropy, and the figure is the median of the ratios. What a method does between epochs counts.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from fairmargin import allocator, assemble
from fairmargin import config as configuration
from fairmargin.methods import METHODS
from fairmargin.methods.base import Unsuited
from fairmargin.train import fit

SETTINGS = ["data.train=1024", "data.test=100", "data.valid_fraction=0.1", "train.epochs=4"]


def seconds(method: str) -> float:
    config = configuration.load(dataset="biased-mnist-mini", method=method, overrides=SETTINGS)
    data = assemble.data(config)
    training = assemble.training(config, assemble.method(config, data), data, torch.device("cpu"))
    start = time.perf_counter()
    fit(training, config.train.epochs)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a JSON file, updated")
    options = parser.parse_args()
    allocator.keep_memory()
    seconds("ce")
    found = json.loads(options.out.read_text("utf-8")) if options.out and options.out.exists() else {}
    for method in options.methods.split(","):
        try:
            found[method] = round(statistics.median(seconds(method) / seconds("ce") for _ in range(options.rounds)), 2)
        except Unsuited as error:
            print(f"{method:24} –     {error}")
            continue
        print(f"{method:24} {found[method]:.2f}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
