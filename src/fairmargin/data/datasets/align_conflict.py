"""The archive layout of Lee et al. (NeurIPS 2021).

Corrupted CIFAR-10, coloured MNIST, bFFHQ, Dogs & Cats and BAR share it:

    <folder>/<ratio>/align/<class>/*     <folder>/<ratio>/conflict/<class>/*     training images
    <folder>/train/align/<class>/*       <folder>/train/conflict/<ratio>/<class>/*   the same in BAR
    <folder>/test/<class>/*  or  <folder>/test/*
    <folder>/<ratio>/valid   or  <folder>/valid, likewise in class folders or flat

Labels are in the file names, `<anything>_<target>_<bias>.<ext>`; bias k belongs to class k.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells, is_aligned
from fairmargin.data.geometry import Geometry, image_files
from fairmargin.data.sources import MissingData
from fairmargin.data.split import ArraySplit, Data, FileSplit, Split, ValidFrom
from fairmargin.data.views import Views

TestSubset = Literal["all", "conflict"]
# Images up to this size are decoded once and kept: 50,000 of 32×32 take 154 MB.
IN_MEMORY = 64
_NAME = re.compile(r".*_(\d+)_(\d+)\.[^._]+")
_LAYOUT = (
    "<ratio>/align/<class>/*, <ratio>/conflict/<class>/* and test/, "
    "with files named <anything>_<target>_<bias>.<ext>"
)


def build(
    folder: Path,
    ratio_folder: str,
    name: str,
    class_names: tuple[str, ...],
    bias_names: tuple[str, ...],
    size: int,
    train_views: Views,
    eval_views: Views,
    *,
    test_subset: TestSubset = "all",
    valid: ValidFrom = "from-train",
    valid_fraction: float = 0.1,
    seed: int = 0,
    by_folder: bool = False,
) -> Data:
    """Build one ratio of an archive.

    Args:
        ratio_folder: the share of conflicting samples as the archive writes it, such as "0.5pct".
        size: side in pixels to which every image is stretched.
        test_subset: "all", or "conflict" for the test images with target ≠ bias; all are then the
            extra test "all".
        valid: "from-train" holds out `valid_fraction` of every (target, bias) cell; "own" reads the
            archive's folder, which may hold aligned samples only and then cannot tell a debiased
            model from a biased one.
        seed: of the validation split.
        by_folder: take the bias of training images from their folders, because the names do not
            hold it: images in align/ have their class's own bias, the others that of the next
            class.
    """
    check_choice(test_subset, "test_subset", get_args(TestSubset))
    check_choice(valid, "valid", get_args(ValidFrom))
    ratio = folder / ratio_folder
    limits = len(class_names), len(bias_names)
    aligned = _files([ratio / "align", folder / "train" / "align"], "align images")
    conflict_folders = [ratio / "conflict", folder / "train" / "conflict" / ratio_folder]
    conflicting = _files(conflict_folders, "conflict images")
    whole = _read(aligned + conflicting, *limits, size)
    in_conflict = torch.arange(len(whole)) >= len(aligned)
    if by_folder:
        whole = replace(whole, bias=(whole.labels + in_conflict) % limits[1])
    test = _read(_files([folder / "test"], "test images"), *limits, size)
    extra_tests: dict[str, Split] = {}
    if test_subset == "conflict":
        extra_tests["all"] = test
        test = test.subset((~_aligned(test)).nonzero().flatten())
        if not len(test):
            raise MissingData(
                f"{folder / 'test'} holds no image with target ≠ bias; take test_subset='all'"
            )
    train: ArraySplit | FileSplit
    held_out: ArraySplit | FileSplit
    if valid == "own":
        own = _files([ratio / "valid", folder / "valid"], "valid images")
        train, held_out = whole, _read(own, *limits, size)
    else:
        train, held_out = whole.hold_out(valid_fraction, seed=seed)
    notes = {
        "source": f"{folder.name}/{ratio_folder}",
        "archive": f"{len(aligned)} aligned, {len(conflicting)} conflicting",
        "train": _tally(train),
        "valid": f"{_tally(held_out)} ({valid})",
        "test": f"{_tally(test)} ({test_subset})",
    }
    misplaced = int((_aligned(whole) == in_conflict).sum())
    if misplaced:
        notes["misplaced"] = (
            f"{misplaced} training files whose name contradicts align/conflict; the name counts"
        )
    counts = count_cells(train.labels, train.bias, *limits)
    info = DataInfo(name, class_names, bias_names, (3, size, size), counts, notes)
    return Data(train, held_out, test, info, train_views, eval_views, extra_tests)


def _files(places: list[Path], what: str) -> list[Path]:
    """List the images of the first place that has any, directly inside or one folder deeper."""
    for place in places:
        if not place.is_dir():
            continue
        folders = [place, *(Path(entry) for entry in os.scandir(place) if entry.is_dir())]
        found: list[Path] = []
        for folder in folders:
            found += image_files(folder)
        if found:
            return sorted(found)
    looked = " or ".join(map(str, places))
    raise MissingData(f"no {what} under {looked}; expected layout: {_LAYOUT}{_siblings(places[0])}")


def _siblings(place: Path) -> str:
    """Name the closest folder that exists, and what it holds.

    That tells a wrong ratio from a wrong root.
    """
    present = next((parent for parent in place.parents if parent.is_dir()), None)
    inside = []
    if present is not None:
        inside = sorted(entry.name for entry in os.scandir(present) if entry.is_dir())
    return f". {present} holds the folders: {', '.join(inside[:12]) or 'none'}"


def _read(paths: list[Path], classes: int, biases: int, size: int) -> ArraySplit | FileSplit:
    labels, bias = torch.tensor([_labels(path, classes, biases) for path in paths]).unbind(1)
    split = FileSplit(paths, labels, Geometry(size, stretch=True), bias)
    if size > IN_MEMORY:
        return split
    return ArraySplit(split.images(torch.arange(len(paths))), labels, bias)


def _labels(path: Path, classes: int, biases: int) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise MissingData(
            f"{path} carries no labels: expected a name <anything>_<target>_<bias>.<ext>"
        )
    target, bias = int(match[1]), int(match[2])
    if target >= classes or bias >= biases:
        raise MissingData(
            f"{path} says target {target}, bias {bias}; "
            f"there are {classes} classes and {biases} biases"
        )
    return target, bias


def _aligned(split: ArraySplit | FileSplit) -> Tensor:
    assert split.bias is not None
    return is_aligned(split.labels, split.bias)


def _tally(split: ArraySplit | FileSplit) -> str:
    aligned = int(_aligned(split).sum())
    return f"{aligned} aligned, {len(split) - aligned} conflicting"
