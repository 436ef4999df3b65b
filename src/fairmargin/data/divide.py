"""Divide people's own samples into train, valid and test."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fairmargin.data.bias import split_off
from fairmargin.data.drafts import column_of_splits


def check_test(path: Path, marked: bool, fraction: float | None, needed: bool) -> None:
    """Refuse data without test samples, or with two ways to get them.

    Args:
        path: the data, for the message.
        marked: whether some samples are marked as test.
        fraction: the share to hold out for the test, if one was given.
        needed: False accepts data without test samples.
    """
    if marked and fraction is not None:
        raise ValueError(f"{path} marks its test samples; leave test_fraction={fraction} out")
    if needed and not marked and not fraction:
        raise ValueError(
            f"{path} marks no usable test samples; {_which_column(path)}hold out a fifth with "
            '--set data.test_fraction=0.2 ("data show": --test-fraction 0.2)'
        )


def _which_column(path: Path) -> str:
    """Return how to mark test samples, or to name the column that does."""
    if path.is_dir():
        return 'put some into a folder "test", or '
    if path.suffix == ".npz":
        return 'add an array "split" with the words train, valid and test, or '
    name = column_of_splits(path)
    which = "the column that does"
    if name is not None:
        which = f'the column "{name}", which seems to mark them,'
    return (
        f"name {which} with --set data.split_column={name or 'NAME'} "
        f'("data show": --split-column {name or "NAME"}), or '
    )


def divide(
    splits: Sequence[str],
    labels: Tensor,
    bias: Tensor,
    valid_fraction: float,
    test_fraction: float | None,
    seed: int,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Indices of each split, and notes on how the held-out ones were made.

    Marked samples stay where they are; where a split has none, it is held out from train.

    Args:
        splits: "train", "valid" or "test" of each sample.
        labels: [N].
        bias: [N], −1 for unknown.
        valid_fraction: share of each (label, bias) cell to hold out, if none is marked as valid.
        test_fraction: the same for the test split; None if some are marked.
        seed: of the validation split.
    """
    where = {}
    for name in ("train", "valid", "test"):
        index = [i for i, split in enumerate(splits) if split == name]
        where[name] = torch.tensor(index, dtype=torch.long)
    notes = {}
    # Test before valid, with a seed of its own: trials that differ in their seed are tested on the
    # same samples.
    for name, fraction, draw in (("test", test_fraction, 0), ("valid", valid_fraction, seed)):
        if len(where[name]) or fraction is None:
            notes[name] = "as marked"
            continue
        rest = where["train"]
        kept, out = split_off(labels[rest], bias[rest], fraction, seed=draw)
        where["train"], where[name] = rest[kept], rest[out]
        notes[name] = f"{fraction:g} of every (label, bias) cell of train, seed {draw}"
    return where, notes
