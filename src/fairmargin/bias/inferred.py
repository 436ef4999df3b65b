"""Bias labels or bias features that were inferred, and how well they tell the label."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmargin.data.bias import count_cells
from fairmargin.data.split import Data, Split

# Below this share of the way from chance to perfect, groups say hardly anything about the label.
WEAK = 0.1
# Held-out samples for each class that are enough to say how well the label is told.
ENOUGH = 4


@dataclass(frozen=True)
class Told:
    """How often something tells the label of samples that it was not fitted to.

    Args:
        accuracy: balanced: every class counts alike.
        classes: number of classes.
        samples: on how many it was measured.
        of: what these samples are, in a few words.
    """

    accuracy: float
    classes: int
    samples: int
    of: str

    @property
    def chance(self) -> float:
        """Accuracy of a guess."""
        return 1 / self.classes

    @property
    def strength(self) -> float:
        """Share of the way from chance to perfect: 0 at chance, 1 if every label is told."""
        return (self.accuracy - self.chance) / (1 - self.chance)

    @property
    def error(self) -> float:
        """Standard error of the strength."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.samples) / (1 - self.chance)

    @property
    def text(self) -> str:
        """ "93 % of the training labels (chance 10 %)"."""
        chance = f"chance {100 * self.chance:.0f} %"
        return f"{100 * self.accuracy:.0f} % of the {self.of} labels ({chance})"

    def as_json(self) -> dict[str, Any]:
        """What data.json of a run and a score file keep."""
        return {**vars(self), "chance": self.chance, "strength": self.strength}


def told(predicted: Tensor, labels: Tensor, of: str) -> Told:
    """Return how often `predicted` is the label.

    Args:
        predicted: [N] classes.
        labels: [N].
        of: what the samples are, such as "training".
    """
    present = labels.unique()
    recalls = [float((predicted[labels == y] == y).float().mean()) for y in present]
    return Told(float(np.mean(recalls)), max(len(present), 2), len(labels), of)


def told_by_groups(groups: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> Told:
    """Return how well the commonest class of each group tells the label.

    The class is read off training samples, and judged on validation samples where there are
    enough, else on the training samples themselves.

    Args:
        groups: [N] of the splits "train" and "valid".
        labels: [N] of the same splits.
    """
    classes, number = int(labels["train"].max()) + 1, int(groups["train"].max()) + 1
    table = count_cells(labels["train"], groups["train"], classes, number).double()
    # Every class counts alike.
    answer = (table / table.sum(1, keepdim=True).clamp_min(1)).argmax(0)  # [groups]
    name = held_out(labels)
    said = answer[groups[name].clamp(0, number - 1)]
    return told(said, labels[name], "validation" if name == "valid" else "training")


def held_out(labels: Mapping[str, Tensor]) -> str:
    """Return the split to judge on: "valid" if it has enough samples, else "train"."""
    classes = len(labels["train"].unique())
    return "valid" if len(labels["valid"]) >= ENOUGH * classes else "train"


@dataclass(frozen=True)
class Inferred:
    """What a provider found out about the bias.

    Args:
        title: what it is, for people: "clusters of scores".
        names: of the bias values; empty if there are features only.
        labels: [N] of each split, at least "train" and "valid"; empty if there are features only.
        features: [N, G] of "train" and "valid".
        told: how well it tells the label; None if nothing was measured.
        warnings: sentences that limit its use.
    """

    title: str
    names: tuple[str, ...] = ()
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    features: Mapping[str, Tensor] = field(default_factory=dict)
    told: Told | None = None
    warnings: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """One line for terminals, reports and cards."""
        what = "labels" if self.names else "features"
        tells = "" if self.told is None else f"; tells {self.told.text}"
        return f"bias {what}: {self.title}{tells}"

    @property
    def digest(self) -> str:
        """Of all labels and features: a resumed run must have the same."""
        found = hashlib.sha256()
        for kind in (self.labels, self.features):
            for name in sorted(kind):
                found.update(name.encode())
                found.update(kind[name].contiguous().cpu().numpy().tobytes())
        return found.hexdigest()

    def facts(self, source: str, why: str = "") -> dict[str, Any]:
        """Return what data.json of a run keeps of it.

        Args:
            source: the value of `data.bias` that gives it.
            why: the reason, if it was chosen by "auto".
        """
        width = next((x.shape[1] for x in self.features.values()), 0)
        return {
            "source": source,
            "why": why,
            "sentence": self.sentence,
            "names": list(self.names),
            "features": width,
            "told": None if self.told is None else self.told.as_json(),
            "warnings": list(self.warnings),
            "digest": self.digest,
        }


def without_labels(data: Data) -> bool:
    """Return True if no sample of training, validation or test has a bias label."""
    return all(not has_labels(split) for split in (data.train, data.valid, data.test))


def has_labels(split: Split) -> bool:
    """Return True if some sample of a split has a bias label."""
    return split.bias is not None and bool((split.bias >= 0).any())


def with_groups(data: Data, names: tuple[str, ...], labels: Mapping[str, Tensor]) -> Data:
    """Return the data with inferred bias labels, for evaluation by group.

    Args:
        data: without bias labels of its own.
        names: of the inferred values.
        labels: [N] of "train", "valid", "test" and the further test sets.
    """

    def grouped(split: Any, name: str) -> Any:
        return replace(split, bias=labels[name])

    counts = count_cells(data.train.labels, labels["train"], data.info.num_classes, len(names))
    found = replace(
        data,
        train=grouped(data.train, "train"),
        valid=grouped(data.valid, "valid"),
        test=grouped(data.test, "test"),
        extra_tests={name: grouped(split, name) for name, split in data.extra_tests.items()},
        info=replace(data.info, bias_names=names, counts=counts),
    )
    # The samples are the same, and so are their digests.
    vars(found)["hashes"] = data.hashes
    return found


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the labels that a run folder keeps in bias.npz."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
