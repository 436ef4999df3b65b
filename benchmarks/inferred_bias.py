"""How often inferred bias labels are the planted ones, on conflicting samples.

python -m benchmarks.inferred_bias [DATASET]             mnist-mini by default

For each kind of planted shortcut: the labels of the audit's strongest attribute, and the answers of
each capturing model after a few epochs.
"""

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from torch import Tensor

from fairmargin import config as configuration
from fairmargin.bias import audited, capture
from fairmargin.data import Split
from fairmargin.runs import build

KINDS = ("patch:0.95", "colour:0.95", "brightness:0.95")
CAPTURES = ("colours-and-places", "simple-conv-1")
EPOCHS = 8


def followed(split: Split, said: Tensor) -> str:
    """Return how often conflicting samples are told as the bias says, and as the label says."""
    assert split.bias is not None
    at = split.bias != split.labels
    bias = float((said[at] == split.bias[at]).float().mean())
    label = float((said[at] == split.labels[at]).float().mean())
    return f"{100 * bias:.1f} % ({100 * label:.1f} %)"


def main(dataset: str = "mnist-mini") -> None:
    """Print a row for each planted shortcut and each way to infer it."""
    print("| planted | inferred by | conflicting told as the bias (as the label): train | test |")
    print("|---|---|---|---|")
    for kind in KINDS:
        changes = [f"data.inject={kind}"]
        config = configuration.load(dataset=dataset, method="ce", overrides=changes)
        data = build.data(config)
        found = audited.infer(config, data, "")
        parts = {"train": data.train, "test": data.test}
        cells = [followed(split, found.labels[name]) for name, split in parts.items()]
        print(f"| {kind} | {found.title} | {' | '.join(cells)} |", flush=True)
        for name in CAPTURES:
            short = [*changes, f"train.epochs={EPOCHS}", "evaluate.every=0"]
            chosen = capture.configuration(dataset=dataset, capture=name, overrides=short)
            with tempfile.TemporaryDirectory() as folder:
                made = capture.make(chosen, Path(folder) / "run", console=Console(quiet=True))
            cells = [followed(s, made.splits[n].logits.argmax(1)) for n, s in parts.items()]
            print(f"| {kind} | `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
