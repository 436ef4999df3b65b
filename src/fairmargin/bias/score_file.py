"""What a bias-capturing model made of every sample: one file, read by position, refused where it does not belong.

scores.safetensors:  {train, valid, test}.features [N, G]   .logits [N, K]   .labels [N]
and as JSON in its metadata whose they are: hashes of the splits, dataset, seed, the capturing model and its accuracies.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.data.split import Data, Split
from fairmargin.runtime.files import load_weights, save_weights
from fairmargin.vectors import unit

FILE = "scores.safetensors"
ENTRY = "fairmargin scores"  # of the metadata
FOLDER = Path("runs") / "scores"
READ = ("train", "valid")  # what a training run sees; "test" is there to be looked at
REFERENCES = 1024  # Hong & Yang's, of each class
LEAST_RARITY = 1e-6


@dataclass(frozen=True)
class Answers:
    """Of the capturing model for one split, in its order."""

    features: Tensor  # [N, G] as they leave the encoder
    logits: Tensor  # [N, K]
    labels: Tensor  # [N] of the samples


@dataclass(frozen=True)
class Captured:
    splits: dict[str, Answers]
    facts: dict[
        str, Any
    ]  # "dataset", "options", "seed", "capture", "hashes", "accuracy", "cosines", "fairmargin"


# How the answers are read. Post-ReLU cosines lie in [0, 1] and need not come near 0 for samples of different bias; then
# even a conflicting pair counts as aligned by its cosine. Centred features of different bias point away from each other.
FEATURES: dict[
    str, Callable[[Answers, Answers], Tensor]
] = {  # (of the split, of the training split)
    "raw": lambda x, train: x.features,
    "centred": lambda x, train: x.features - train.features.mean(0),
    "probabilities": lambda x, train: x.logits.softmax(1),
}


def write(file: Path, splits: Mapping[str, Answers], facts: Mapping[str, Any]) -> Path:
    """The whole file or none."""
    for name, x in splits.items():
        _check_finite(x.features, f"the features of the {name} samples")
        _check_finite(x.logits, f"the logits of the {name} samples")
    tensors = {
        f"{name}.{part}": tensor for name, x in splits.items() for part, tensor in vars(x).items()
    }
    return save_weights(file, tensors, {ENTRY: json.dumps(dict(facts), ensure_ascii=False)})


def read(file: Path) -> Captured:
    tensors, metadata = load_weights(file)
    if ENTRY not in metadata:
        raise ValueError(
            f'{file} was not written by "fairmargin scores"; give the folder that it wrote'
        )
    names = dict.fromkeys(key.partition(".")[0] for key in tensors)
    splits = {
        name: Answers(*(tensors[f"{name}.{part}"] for part in ("features", "logits", "labels")))
        for name in names
    }
    return Captured(splits, json.loads(metadata[ENTRY]))


def locate(given: Path | None, dataset: str, seed: int) -> Path:
    """The file meant by `data.scores`: itself, in that folder, or in seed-SEED below it; there may be none."""
    if given is None:
        return FOLDER / dataset / f"seed-{seed}" / FILE
    if given.is_file():
        return given
    inner = given / f"seed-{seed}"
    return (inner if inner.is_dir() and not (given / FILE).is_file() else given) / FILE


def mismatch(captured: Captured, data: Data, seed: int | None) -> str:
    """Why these are not the scores of these samples in this order, with this seed unless None; empty: they are."""
    splits, facts = {"train": data.train, "valid": data.valid}, captured.facts
    differing = [name for name in READ if facts["hashes"].get(name) != data.hashes[name]]
    other = [
        f"{what} {facts[what]}, not {mine}"
        for what, mine in (("dataset", data.info.name), ("seed", seed))
        if mine is not None and facts[what] != mine
    ]
    if not differing:
        return "; ".join(other)
    name = differing[0]
    return "; ".join(
        [*other, f"{_difference(captured.splits[name].labels, splits[name])} in the {name} split"]
    )


def _difference(labels: Tensor, split: Split) -> str:
    if len(labels) != len(split):
        return f"{len(labels)} samples, not {len(split)}"
    if torch.equal(labels, split.labels):
        return "other pixels, files or bias labels"
    same = torch.equal(labels.sort().values, split.labels.sort().values)
    return "the samples in another order" if same else "samples of other classes"


def features(captured: Captured, kind: str) -> dict[str, Tensor]:
    """[N, G] of the training and the validation split, as losses take them: finite, and no row of zeros."""
    check_choice(kind, "data.score_features", FEATURES)
    found = {}
    for name in READ:
        x = FEATURES[kind](captured.splits[name], captured.splits["train"])
        _check_finite(x, f"the scores of the {name} samples")
        zero = (x == 0).all(1).nonzero()[:, 0]
        if len(zero):
            raise ValueError(
                f"{len(zero)} of {len(x)} {name} samples have scores that are all 0 (first: sample {int(zero[0])}), and "
                "would conflict with everything: the last ReLU of the capturing model is dead for them. Read the scores "
                "with --set data.score_features=centred, or train another model: fairmargin scores --capture …"
            )
        found[name] = x
    return found


def _check_finite(x: Tensor, what: str) -> None:
    bad = (~x.isfinite()).flatten(1).any(1).nonzero()[:, 0]
    if len(bad):
        raise ValueError(
            f"{what} are not finite in {len(bad)} of {len(x)} rows (first: sample {int(bad[0])}); the capturing model has "
            "diverged: train it again with a lower optimizer.lr"
        )


def rarity(features: Tensor, labels: Tensor, *, seed: int) -> Tensor:
    """[N] mean of 1 − cos to random samples of the same class: large where a sample's bias is unusual for its class."""
    z, found = unit(features.double()), torch.zeros(len(labels), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for y in labels.unique():
        index = (labels == y).nonzero()[:, 0]
        drawn = index[torch.randint(len(index), (REFERENCES,), generator=generator)]
        found[index] = 1 - z[index] @ z[drawn].mean(
            0
        )  # the mean of cosines is the cosine with the mean
    # Equal features have the distance 0 up to rounding, and somebody must be drawn.
    return found.clamp_min(LEAST_RARITY)
