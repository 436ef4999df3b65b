"""Measure what each method costs: seconds of a short training relative to cross-entropy's.

    python -m benchmarks.methods                  all that suit biased-mnist-mini, ten minutes
    python -m benchmarks.methods --methods lff,dfa
    python -m benchmarks.methods --write          also write costs.json, which the cards read

A run trains on 160 digits in batches of 64, with the network of biased-mnist-mini on one thread. It
has as many epochs as the preset, so that stages before the method proper keep their share. What a
method does between epochs counts; evaluation does not. Each method takes turns with cross-entropy,
and the figure is the median of the ratios.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from fairmargin import config as configuration
from fairmargin.loop import fit
from fairmargin.methods import METHODS, catalog
from fairmargin.methods.base import Unsuited
from fairmargin.runs import build
from fairmargin.runtime import memory

# Leaves 160 samples to train on.
SETTINGS = ["data.train=500", "data.test=100", "data.valid_fraction=0.72"]
COSTS = Path(catalog.__file__).with_name("costs.json")


def seconds(method: str) -> float:
    """Return how long one training takes."""
    config = configuration.load(dataset="biased-mnist-mini", method=method, overrides=SETTINGS)
    data = build.data(config)
    training = build.training(config, build.method(config, data), data, torch.device("cpu"))
    start = time.perf_counter()
    fit(training, config.train.epochs)
    return time.perf_counter() - start


def relative_cost(method: str, rounds: int) -> float:
    """Return the median over `rounds` of the method's time divided by cross-entropy's."""
    ratios = [seconds(method) / seconds("ce") for _ in range(rounds)]
    return round(statistics.median(ratios), 2)


def main() -> None:
    """Print the costs, and write them if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default=",".join(METHODS), help="names, with commas")
    parser.add_argument("--rounds", type=int, default=2, help="ratios behind each median")
    parser.add_argument(
        "--write", action="store_true", help=f"update these methods in {COSTS.name}"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_memory()
    seconds("ce")
    found = dict(catalog.COSTS) | {"ce": 1.0}
    for method in options.methods.split(","):
        if method == "ce":
            continue
        try:
            found[method] = relative_cost(method, options.rounds)
        except Unsuited as error:
            print(f"{method:24} –     {error}")
            continue
        print(f"{method:24} {found[method]:.2f}", flush=True)
        if options.write:
            COSTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
