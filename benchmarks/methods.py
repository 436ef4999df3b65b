"""What each method costs: seconds of a short training relative to cross-entropy's.

    python -m benchmarks.methods                  every method that biased-mnist-mini suits, about ten minutes
    python -m benchmarks.methods --methods lff,dfa
    python -m benchmarks.methods --write          the same, and into the table of `fairmargin list methods`

160 digits in batches of 64, as many epochs as the preset of biased-mnist-mini has, so that stages before the training
proper keep their share; its network, one thread; evaluation is left out. Every method takes turns with cross-entropy, and
the figure is the median of the ratios. What a method does between epochs counts.
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

SETTINGS = ["data.train=500", "data.test=100", "data.valid_fraction=0.72"]  # 160 to train on
COSTS = Path(catalog.__file__).with_name("costs.json")


def seconds(method: str) -> float:
    config = configuration.load(dataset="biased-mnist-mini", method=method, overrides=SETTINGS)
    data = build.data(config)
    training = build.training(config, build.method(config, data), data, torch.device("cpu"))
    start = time.perf_counter()
    fit(training, config.train.epochs)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help=f"into {COSTS.name}, whose other entries stay"
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
            found[method] = round(
                statistics.median(seconds(method) / seconds("ce") for _ in range(options.rounds)), 2
            )
        except Unsuited as error:
            print(f"{method:24} –     {error}")
            continue
        print(f"{method:24} {found[method]:.2f}", flush=True)
        if options.write:
            COSTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
