"""One split of a dataset (train, valid or test), in memory or in files; and all three together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.data.bias import split_off
from fairmargin.data.hashes import data_hash
from fairmargin.data.views import Views

# Where validation samples come from: the release's own, or held out from its training samples.
ValidFrom = Literal["own", "from-train"]


class Split(Protocol):
    """Samples with labels, whose pixels are fetched by index."""

    @property
    def labels(self) -> Tensor:
        """int64 [N]."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """int64 [N], −1 where unknown; None if no sample has one."""
        ...

    def __len__(self) -> int: ...

    def images(self, index: Tensor) -> Tensor:
        """Fetch pixels, uint8 [n, C, H, W], all of one size."""
        ...


@dataclass(frozen=True)
class ArraySplit:
    """Small images, all in memory as one uint8 tensor; a batch is one indexing operation.

    Embeddings are kept in the same way, as float32 [N, D].

    Args:
        weights: double [N], by which training draws samples; None if all are equal.
        bias_values: float [N, k], the bias as numbers, NaN where unknown; None if it is labels.
    """

    pixels: Tensor  # uint8 [N, C, H, W]
    labels: Tensor
    bias: Tensor | None = None
    weights: Tensor | None = None
    # Of the files that the pixels come from; None if they come from no files.
    names: Sequence[str] | None = None
    bias_values: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, index: Tensor) -> Tensor:
        """Fetch pixels, uint8 [n, C, H, W]."""
        # Many times faster than pixels[index].
        return self.pixels.index_select(0, index)

    def subset(self, index: Tensor) -> "ArraySplit":
        """Return the samples at these positions, in this order.

        Args:
            index: int64 [n].
        """
        bias = None if self.bias is None else self.bias[index]
        weights = None if self.weights is None else self.weights[index]
        values = None if self.bias_values is None else self.bias_values[index]
        names = _at(self.names, index)
        return ArraySplit(self.pixels[index], self.labels[index], bias, weights, names, values)

    def hold_out(self, fraction: float, *, seed: int) -> tuple["ArraySplit", "ArraySplit"]:
        """Split into (train, valid), with `fraction` of every (label, bias) cell held out.

        Args:
            fraction: share to hold out; 0 keeps all for training.
            seed: decides which samples are held out.
        """
        kept, held_out = split_off(self.labels, self.bias, fraction, seed=seed)
        # Nothing held out: no need to copy the pixels.
        train = self.subset(kept) if len(held_out) else self
        return train, self.subset(held_out)


@dataclass(frozen=True)
class FileSplit:
    """Images decoded when they are asked for.

    Args:
        decode: turns a file into uint8 [C, H, W], of one size for all files.
        still: how evaluation decodes, if training crops from larger pictures.
        weights: double [N], by which training draws samples; None if all are equal.
        names: of the files, as people know them; None takes the paths.
        bias_values: float [N, k], the bias as numbers, NaN where unknown; None if it is labels.
    """

    paths: Sequence[Path]
    labels: Tensor
    decode: Callable[[Path], Tensor]
    bias: Tensor | None = None
    still: Callable[[Path], Tensor] | None = None
    weights: Tensor | None = None
    names: Sequence[str] | None = None
    bias_values: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, index: Tensor) -> Tensor:
        """Decode these samples, uint8 [n, C, H, W]."""
        return torch.stack([self.decode(self.paths[i]) for i in index.tolist()])

    def subset(self, index: Tensor) -> "FileSplit":
        """Return the samples at these positions, in this order.

        Args:
            index: int64 [n].
        """
        paths = [self.paths[i] for i in index.tolist()]
        bias = None if self.bias is None else self.bias[index]
        weights = None if self.weights is None else self.weights[index]
        names = _at(self.names, index)
        values = None if self.bias_values is None else self.bias_values[index]
        found = replace(self, paths=paths, labels=self.labels[index], bias=bias, names=names)
        return replace(found, weights=weights, bias_values=values)

    def hold_out(self, fraction: float, *, seed: int) -> tuple["FileSplit", "FileSplit"]:
        """Split into (train, valid), with `fraction` of every (label, bias) cell held out.

        Args:
            fraction: share to hold out; 0 keeps all for training.
            seed: decides which samples are held out.
        """
        kept, held_out = split_off(self.labels, self.bias, fraction, seed=seed)
        return self.subset(kept), self.subset(held_out)

    def to_crop_from(self, decode: Callable[[Path], Tensor]) -> "FileSplit":
        """Return the split decoded by `decode` for training, and as before for evaluation.

        Args:
            decode: decodes larger pictures, from which views take random crops.
        """
        return replace(self, decode=decode, still=self.decode)


def _at(names: Sequence[str] | None, index: Tensor) -> list[str] | None:
    return None if names is None else [names[i] for i in index.tolist()]


def sample_names(split: Split) -> list[str] | None:
    """Return the names of a split's files, fit for any text file; None if it has no files.

    Args:
        split: of any kind.
    """
    names = getattr(split, "names", None)
    if names is None:
        names = getattr(split, "paths", None)
    if names is None:
        return None
    # A file's name need not be UTF-8.
    return [str(name).encode("utf-8", "backslashreplace").decode() for name in names]


def as_evaluated(split: Split) -> Split:
    """Return the same samples, decoded as for evaluation.

    For probes, neighbours and whatever else looks at training data without augmentation.
    """
    if isinstance(split, FileSplit) and split.still is not None:
        return replace(split, decode=split.still, still=None)
    return split


@dataclass(frozen=True)
class Data:
    """A dataset ready for training.

    `valid` comes from the training data. `test` is never used to choose anything.

    Args:
        train_views: turns uint8 batches into float inputs, with augmentation.
        eval_views: the same without augmentation.
        extra_tests: further test sets, by name.
        images: digest of the contents of people's own image files; None if they were not read.
    """

    train: Split
    valid: Split
    test: Split
    info: DataInfo
    train_views: Views
    eval_views: Views
    extra_tests: dict[str, Split] = field(default_factory=dict)
    images: str | None = None

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Digests of the train, valid and test samples, and of all images if they are files.

        The pixels of samples in memory are read at the first call.
        """
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        found = {name: data_hash(split) for name, split in splits.items()}
        return found if self.images is None else found | {"images": self.images}
