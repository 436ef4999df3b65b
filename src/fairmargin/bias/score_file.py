"""The file of bias scores: what a capturing model made of every sample.

scores.safetensors:  {train, valid, test}.features [N, G]   .logits [N, K]   .labels [N]

Its metadata says, as JSON, what the scores belong to: hashes of the splits, dataset, seed, the
capturing model and its accuracies. Scores are read by position, and refused for other data.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.config import Config, dataset_name
from fairmargin.config.schema import ScoreFeatures
from fairmargin.data.split import Data, Split
from fairmargin.runtime.files import load_weights, save_weights
from fairmargin.vectors import unit

FILE = "scores.safetensors"
# Key of the metadata.
ENTRY = "fairmargin scores"
FOLDER = Path("runs") / "scores"
# What a training run sees; "test" is there for people to look at.
READ = ("train", "valid")
# Samples of each class to compare with, as in Hong & Yang.
REFERENCES = 1024
LEAST_RARITY = 1e-6


@dataclass(frozen=True)
class Answers:
    """What the capturing model says of one split, in its order."""

    features: Tensor  # [N, G], as they leave the encoder
    logits: Tensor  # [N, K]
    labels: Tensor  # [N], of the dataset


@dataclass(frozen=True)
class Captured:
    """The content of a score file.

    Args:
        facts: "dataset", "options", "seed", "capture", "hashes", "accuracy", "cosines" and
            "fairmargin".
    """

    splits: dict[str, Answers]
    facts: dict[str, Any]


# How the answers of a split are read, given also those of the training split. Post-ReLU cosines lie
# in [0, 1] and need not come near 0 for samples of different bias; then even a conflicting pair
# counts as aligned by its cosine. Centred features of different bias point away from each other.
FEATURES: dict[ScoreFeatures, Callable[[Answers, Answers], Tensor]] = {
    "raw": lambda x, train: x.features,
    "centred": lambda x, train: x.features - train.features.mean(0),
    "probabilities": lambda x, train: x.logits.softmax(1),
}


def write(file: Path, splits: Mapping[str, Answers], facts: Mapping[str, Any]) -> Path:
    """Write the file; if that fails, none is left.

    Args:
        facts: see `Captured`.
    """
    for name, x in splits.items():
        _check_finite(x.features, f"the features of the {name} samples")
        _check_finite(x.logits, f"the logits of the {name} samples")
    tensors = {}
    for name, x in splits.items():
        for part, tensor in vars(x).items():
            tensors[f"{name}.{part}"] = tensor
    return save_weights(file, tensors, {ENTRY: json.dumps(dict(facts), ensure_ascii=False)})


def read(file: Path) -> Captured:
    """Read a score file.

    Args:
        file: what `write` wrote; other files are refused.
    """
    tensors, metadata = load_weights(file)
    if ENTRY not in metadata:
        raise ValueError(
            f'{file} was not written by "fairmargin scores"; give the folder that it wrote'
        )
    names = dict.fromkeys(key.partition(".")[0] for key in tensors)
    splits = {}
    for name in names:
        features, logits = tensors[f"{name}.features"], tensors[f"{name}.logits"]
        splits[name] = Answers(features, logits, tensors[f"{name}.labels"])
    return Captured(splits, json.loads(metadata[ENTRY]))


def locate_for(config: Config) -> Path:
    """Return the score file that a run uses: the one it names, else where `scores` puts it.

    Args:
        config: of the run.
    """
    given = config.data.scores
    file = locate(given, dataset_name(config), config.seed)
    if given is None and not file.is_file():
        # Where scores of people's own images lay in 0.1.0.
        old = locate(None, config.data.name, config.seed)
        return old if old.is_file() else file
    return file


def locate(given: Path | None, dataset: str, seed: int) -> Path:
    """Return the score file that a run reads, which may not exist.

    Args:
        given: `data.scores`: the file itself, its folder, or a folder that holds seed-SEED; None
            for the default folder.
        dataset: name of the dataset.
    """
    if given is None:
        return FOLDER / dataset.replace(":", "-") / f"seed-{seed}" / FILE
    if given.is_file():
        return given
    inner = given / f"seed-{seed}"
    if inner.is_dir() and not (given / FILE).is_file():
        return inner / FILE
    return given / FILE


def mismatch(captured: Captured, data: Data, seed: int | None) -> str:
    """Say why these are not the scores of these samples in this order; empty if they are.

    Args:
        seed: the run's; None accepts any.
    """
    splits = {"train": data.train, "valid": data.valid}
    facts = captured.facts
    differing = [name for name in READ if facts["hashes"].get(name) != data.hashes[name]]
    reasons = []
    for what, mine in (("dataset", data.info.name), ("seed", seed)):
        if mine is not None and facts[what] != mine:
            reasons.append(f"{what} {facts[what]}, not {mine}")
    if differing:
        name = differing[0]
        difference = _difference(captured.splits[name].labels, splits[name])
        reasons.append(f"{difference} in the {name} split")
    return "; ".join(reasons)


def _difference(labels: Tensor, split: Split) -> str:
    if len(labels) != len(split):
        return f"{len(labels)} samples, not {len(split)}"
    if torch.equal(labels, split.labels):
        return "other pixels, files or bias labels"
    same = torch.equal(labels.sort().values, split.labels.sort().values)
    return "the samples in another order" if same else "samples of other classes"


def features(captured: Captured, kind: ScoreFeatures) -> dict[str, Tensor]:
    """Return the features [N, G] of the training and the validation split, as losses take them.

    They are finite, and no row is all zeros.

    Args:
        kind: how the answers are read: "raw", "centred" or "probabilities".
    """
    check_choice(kind, "data.score_features", FEATURES)
    found = {}
    for name in READ:
        x = FEATURES[kind](captured.splits[name], captured.splits["train"])
        _check_finite(x, f"the scores of the {name} samples")
        zero = (x == 0).all(1).nonzero()[:, 0]
        if len(zero):
            raise ValueError(
                f"{len(zero)} of {len(x)} {name} samples have scores that are all 0 "
                f"(first: sample {int(zero[0])}), and would conflict with everything: the last "
                "ReLU of the capturing model is dead for them. Read the scores with --set "
                "data.score_features=centred, or train another model: fairmargin scores --capture …"
            )
        found[name] = x
    return found


def _check_finite(x: Tensor, what: str) -> None:
    bad = (~x.isfinite()).flatten(1).any(1).nonzero()[:, 0]
    if len(bad):
        raise ValueError(
            f"{what} are not finite in {len(bad)} of {len(x)} rows (first: sample {int(bad[0])}); "
            "the capturing model has diverged: train it again with a lower optimizer.lr"
        )


def rarity(features: Tensor, labels: Tensor, *, seed: int) -> Tensor:
    """Return how unusual each sample's bias is for its class, [N].

    That is the mean of 1 − cos to random samples of the same class.

    Args:
        features: [N, G].
        seed: of the samples to compare with.
    """
    z = unit(features.double())
    found = torch.zeros(len(labels), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for y in labels.unique():
        index = (labels == y).nonzero()[:, 0]
        drawn = index[torch.randint(len(index), (REFERENCES,), generator=generator)]
        # The mean of cosines is the product with the mean.
        found[index] = 1 - z[index] @ z[drawn].mean(0)
    # Equal features have the distance 0 up to rounding; weights must not all be 0.
    return found.clamp_min(LEAST_RARITY)
