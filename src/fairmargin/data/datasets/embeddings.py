"""Embeddings as a dataset: an .npz file of vectors that some other model has made."""

from pathlib import Path

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.data.arrays import Arrays, read
from fairmargin.data.bias import count_cells
from fairmargin.data.divide import check_test, divide
from fairmargin.data.drafts import SPLITS
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import plain

# Deviations below this share of the largest are those of a constant column: they do not divide.
CONSTANT = 1e-6


def build(
    path: Path,
    *,
    valid_fraction: float = 0.1,
    test_fraction: float | None = None,
    test_needed: bool = True,
    seed: int = 0,
) -> Data:
    """Make a dataset of an .npz file with `embeddings` (or `features`, `X`) and `labels` (or `y`).

    `bias` and `split` are read if they are there (`data.arrays`). Vectors are standardized with the
    mean and deviation of the training samples, column by column. There is no augmentation.

    Args:
        valid_fraction: share of every (label, bias) cell of the training samples to hold out, when
            none are marked as validation.
        test_fraction: the same for the test split, needed when none are marked as test. It is drawn
            first, and does not depend on the seed.
        test_needed: False accepts samples of which none are for the test. Training needs some.
        seed: of the validation split.
    """
    path = Path(path)
    arrays = read(path)
    splits = splits_of(arrays, path)
    check_test(path, "test" in splits, test_fraction, test_needed)
    vectors = torch.from_numpy(arrays.embeddings)  # [N, D]
    labels = arrays.labels
    bias = torch.full_like(labels, -1) if arrays.bias is None else arrays.bias
    where, notes = divide(splits, labels, bias, valid_fraction, test_fraction, seed)
    if not len(where["train"]):
        raise ValueError(f'{path} has no training samples; mark some as "train" in split')

    def split(name: str) -> ArraySplit:
        index = where[name]
        known = bias[index] if bool((bias[index] >= 0).any()) else None
        return ArraySplit(vectors[index], labels[index], known)

    train = split("train")
    views = plain(*_statistics(train.pixels))
    if arrays.warnings:
        notes["warnings"] = "\n".join(arrays.warnings)
    info = DataInfo(
        name=path.stem,
        class_names=arrays.class_names,
        bias_names=arrays.bias_names,
        image_shape=(vectors.shape[1],),
        counts=count_cells(
            train.labels, train.bias, len(arrays.class_names), len(arrays.bias_names)
        ),
        notes={"source": str(path), **notes},
    )
    return Data(train, split("valid"), split("test"), info, views, views)


def splits_of(arrays: Arrays, path: Path) -> list[str]:
    """Return "train", "valid" or "test" for each sample; all are for training if nobody says.

    Args:
        path: the file, for the message.
    """
    if arrays.split is None:
        return ["train"] * len(arrays)
    found = []
    for row, word in enumerate(arrays.split):
        name = SPLITS.get(word.strip().casefold())
        if name is None:
            raise ValueError(
                f'{path}: split holds "{word}" (first in row {row}); write train, valid or test'
            )
        found.append(name)
    return found


def _statistics(vectors: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, deviation) of each column; the deviation of a constant column is 1."""
    x = vectors.double()
    std = x.std(0, correction=0)
    std = torch.where(std > CONSTANT * x.abs().max(), std, 1.0)
    return tuple(x.mean(0).tolist()), tuple(std.tolist())
