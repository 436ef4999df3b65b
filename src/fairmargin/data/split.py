"""One split of a dataset (train, valid or test), held in memory or read from files, and the three of them together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.data.bias import split_off
from fairmargin.data.hashes import data_hash
from fairmargin.data.views import Views


class Split(Protocol):
    """Samples with labels; pixels are fetched by index."""

    @property
    def labels(self) -> Tensor: ...  # [N] int64

    @property
    def bias(self) -> Tensor | None: ...  # [N] int64, −1: unknown; None: no sample has one

    def __len__(self) -> int: ...

    def images(self, index: Tensor) -> Tensor:
        """uint8 [n, C, H, W], all of one size."""
        ...


@dataclass(frozen=True)
class ArraySplit:
    """Small images: all pixels in memory as one uint8 tensor, a batch is one indexing operation."""

    pixels: Tensor  # uint8 [N, C, H, W]
    labels: Tensor
    bias: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, index: Tensor) -> Tensor:
        return self.pixels.index_select(0, index)  # many times faster than pixels[index]

    def subset(self, index: Tensor) -> "ArraySplit":
        return ArraySplit(
            self.pixels[index], self.labels[index], None if self.bias is None else self.bias[index]
        )

    def hold_out(self, fraction: float, *, seed: int) -> tuple["ArraySplit", "ArraySplit"]:
        """(train, valid): `fraction` of every (label, bias) cell is held out; 0 keeps all where it is."""
        kept, held_out = split_off(self.labels, self.bias, fraction, seed=seed)
        return (self.subset(kept) if len(held_out) else self), self.subset(held_out)


@dataclass(frozen=True)
class FileSplit:
    """Images decoded when they are asked for, each by `decode` into uint8 [C, H, W] of one size."""

    paths: Sequence[Path]
    labels: Tensor
    decode: Callable[[Path], Tensor]
    bias: Tensor | None = None
    still: Callable[[Path], Tensor] | None = (
        None  # how evaluation decodes, if training crops from larger pictures
    )

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, index: Tensor) -> Tensor:
        return torch.stack([self.decode(self.paths[i]) for i in index.tolist()])

    def subset(self, index: Tensor) -> "FileSplit":
        paths = [self.paths[i] for i in index.tolist()]
        bias = None if self.bias is None else self.bias[index]
        return replace(self, paths=paths, labels=self.labels[index], bias=bias)

    def to_crop_from(self, decode: Callable[[Path], Tensor]) -> "FileSplit":
        """Decoded by `decode` for training, and as before for evaluation."""
        return replace(self, decode=decode, still=self.decode)


def as_evaluated(split: Split) -> Split:
    """The same samples, decoded as evaluation wants them: for probes, neighbours and whatever else looks at training data."""
    if isinstance(split, FileSplit) and split.still is not None:
        return replace(split, decode=split.still, still=None)
    return split


@dataclass(frozen=True)
class Data:
    """A dataset ready for training. `valid` comes from the training data; `test` never chooses anything."""

    train: Split
    valid: Split
    test: Split
    info: DataInfo
    train_views: Views  # from uint8 batches to float inputs, with augmentation
    eval_views: Views  # the same without
    extra_tests: dict[str, Split] = field(default_factory=dict)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Digests of the train, valid and test samples; pixels are read once, when first asked for."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: data_hash(split) for name, split in splits.items()}
