"""How much of a planted bias each reference model finds: `--bias jtt|eiil|george|spare|xrm`.

    python -m benchmarks.references                                 mnist-mini, two shortcuts
    python -m benchmarks.references --kinds patch:0.95 --epochs 4

A training sample is set apart if its group is not the largest of its class. Recall is the share of
the conflicting samples that are set apart; precision the share of conflicting ones among those.
"""

import argparse
import os
import tempfile

import torch
from torch import Tensor

from fairmargin import config as configuration
from fairmargin.bias import reference
from fairmargin.bias.reference import REFERENCES
from fairmargin.bias.visible import visible_bias
from fairmargin.runs import build
from fairmargin.runs.record import RunRecord

# A network of seconds; the run has 8 epochs.
SMALL = [
    "network.name=simple-conv-3",
    "network.stride=2",
    "network.widths=[16, 32, 64]",
    "network.places=true",
    "train.epochs=8",
    "train.batch_size=64",
    "train.device=cpu",
    "optimizer.lr=3e-3",
]


def set_apart(groups: Tensor, labels: Tensor) -> Tensor:
    """Return which samples are not in the largest group of their class, [N]."""
    found = torch.zeros(len(labels), dtype=torch.bool)
    for y in labels.unique():
        own = labels == y
        found |= own & (groups != torch.bincount(groups[own]).argmax())
    return found


def main() -> None:
    """Print a row for each shortcut and each reference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="mnist-mini")
    parser.add_argument("--kinds", default="colour:0.95,patch:0.95")
    parser.add_argument("--references", default=",".join(REFERENCES))
    parser.add_argument("--epochs", help="of references; their defaults otherwise")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| planted | `--bias` | epochs | set apart | recall | precision | told | seconds |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    more = [] if given.epochs is None else [f"data.reference_epochs={given.epochs}"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for kind in given.kinds.split(","):
            for name in given.references.split(","):
                config = configuration.load(
                    dataset=given.dataset,
                    method="group-dro",
                    bias=name,
                    seed=given.seed,
                    overrides=[*SMALL, *more, f"data.inject={kind}"],
                )
                data = build.data(config)
                bias = visible_bias(config, data)
                chosen = reference.configuration(config, REFERENCES[name])
                seconds = RunRecord.read(reference.folder_of(chosen)).outcome["seconds"]
                groups, labels = bias.splits["train"].bias, data.train.labels
                assert groups is not None
                assert data.train.bias is not None
                apart = set_apart(groups, labels)
                conflicting = data.train.bias != labels
                recall = float((apart & conflicting).sum() / conflicting.sum())
                precision = float((apart & conflicting).sum() / apart.sum().clamp_min(1))
                told = 100 * bias.facts["told"]["accuracy"]
                cells = [kind, f"`{name}`", str(chosen.train.epochs)]
                cells += [f"{100 * float(apart.float().mean()):.1f} %", f"{100 * recall:.0f} %"]
                cells += [f"{100 * precision:.0f} %", f"{told:.0f} %", f"{seconds:.0f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
