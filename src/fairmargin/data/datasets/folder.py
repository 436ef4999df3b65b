"""People's own images as a dataset, from a manifest or an image folder that `manifest` checks."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.augment import Augment, augmented
from fairmargin.data.bias import count_cells
from fairmargin.data.contents import Seen, contents_hash
from fairmargin.data.decode import Decoder, Mode
from fairmargin.data.divide import check_test, divide
from fairmargin.data.drafts import (
    NOWHERE,
    Columns,
    Draft,
    column_names,
    folder_drafts,
    manifest_drafts,
)
from fairmargin.data.embedded import embedded_drafts, holds_images
from fairmargin.data.manifest import Check, Manifest, check_drafts
from fairmargin.data.split import ArraySplit, Data, FileSplit
from fairmargin.data.values import BiasKind, parts_of, scaled_values, with_bins
from fairmargin.data.views import IMAGENET, plain
from fairmargin.data.webdataset import plain_name


def build(
    path: Path,
    *,
    image_size: int = 64,
    mode: Mode = "crop",
    augment: Augment | bool = "crop-flip",
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    path_column: str = "path",
    label_column: str = "label",
    bias_columns: Sequence[str] | str = ("bias",),
    bias_kind: BiasKind = "labels",
    bias_bins: int = 4,
    split_column: str | None = "split",
    weight_column: str | None = None,
    base: Path | None = None,
    bias_level: bool = False,
    valid_fraction: float = 0.1,
    test_fraction: float | None = None,
    test_needed: bool = True,
    seed: int = 0,
    check_files: Check = "decode",
    skip_bad: bool = False,
    workers: int | None = None,
    memory_limit: int = 512 * 2**20,
    largest_image: float | None = None,
) -> Data:
    """Make a dataset of a manifest, an image folder, or tables or tars with images inside.

    Other arguments as in `manifest.read_manifest` and `manifest.read_folder`.

    Args:
        image_size: side of the square that every image is brought to, by `mode` (see
            `decode.Decoder`).
        augment: how training images are changed at random; `augment.MEANINGS` says what each does.
        mean: of each channel, subtracted from values in [0, 1]; by default ImageNet's, or that of
            a pretrained network which says it.
        std: of each channel, by which they are divided; by default as for `mean`.
        bias_kind: "continuous" reads the columns of the bias as numbers, such as ages: methods that
            can take them (FairKL) see the numbers, and all else sees bins.
        bias_bins: how many bins each of these columns has, between quantiles of the training rows.
        weight_column: of the sample weights, by which training draws its samples (see
            `samplers.InProportion`); finite numbers from 0 up in every training row. None: every
            sample alike.
        base: the folder that a manifest's paths start from and may not leave; its own by default.
        valid_fraction: share of every (label, bias) cell of the training samples to hold out, when
            none are marked as validation.
        test_fraction: the same for the test split, needed when none are marked as test. It is drawn
            first, and does not depend on the seed.
        test_needed: False accepts samples of which none are for the test, which is enough for an
            audit. Training needs some.
        seed: of the validation split.
        memory_limit: bytes; smaller sets are decoded once and kept in memory, whatever
            `check_files` says.
        largest_image: megapixels; larger pictures are refused before they are decoded. By default
            `$FAIRMARGIN_LARGEST_IMAGE`, or 100.
    """
    path = Path(path)
    decoder = Decoder(image_size, mode, largest_image)
    drafts, unpacked = drafts_of(
        path,
        path_column=path_column,
        label_column=label_column,
        bias_columns=bias_columns,
        split_column=split_column,
        weight_column=weight_column,
        base=base,
        bias_level=bias_level,
    )
    check_choice(bias_kind, "data.bias_kind", get_args(BiasKind))
    notes: dict[str, str] = {}
    if bias_kind == "continuous":
        notes = with_bins(drafts, column_names(bias_columns), bias_bins)
    # Checked now, because decoding may take hours, and again when bad rows are out.
    marked = any(draft.sample.split == "test" for draft in drafts)
    check_test(path, marked, test_fraction, test_needed)
    in_memory = len(drafts) * math.prod(decoder.shape) <= memory_limit
    keeper = decoder if in_memory else None
    seen: dict[Path, Seen] = {}
    paths = draft_paths(drafts)
    manifest, decoded = check_drafts(
        drafts,
        path,
        check_files,
        skip_bad=skip_bad,
        workers=workers,
        decoder=keeper,
        largest=largest_image,
        seen=seen,
    )
    # With "exists", images are not read before they are trained on.
    images = contents_hash(paths, path, seen) if check_files == "decode" else None
    marked = any(sample.split == "test" for sample in manifest.samples)
    check_test(path, marked, test_fraction, test_needed)

    labels, bias = _encode(manifest)
    splits = [sample.split for sample in manifest.samples]
    where, held_out = divide(splits, labels, bias, valid_fraction, test_fraction, seed)
    notes |= held_out
    values = None
    if bias_kind == "continuous":
        values = scaled_values(manifest.samples, where["train"])

    def split(name: str) -> ArraySplit | FileSplit:
        index = where[name]
        paths = [manifest.samples[i].path for i in index.tolist()]
        names = [manifest.samples[i].file for i in index.tolist()]
        known = bias[index] if bool((bias[index] >= 0).any()) else None
        numbers = None if values is None else values[index]
        if not in_memory:
            return FileSplit(paths, labels[index], decoder, known, names=names, bias_values=numbers)
        pixels = np.empty((len(paths), *decoder.shape), np.uint8)
        for i, file in enumerate(paths):
            pixels[i] = decoded[file]
        return ArraySplit(
            torch.from_numpy(pixels), labels[index], known, names=names, bias_values=numbers
        )

    train = split("train")
    if weight_column is not None:
        given = torch.tensor([sample.weight for sample in manifest.samples], dtype=torch.double)
        weights = given[where["train"]]
        notes["weights"] = _check_weights(
            weights, train.labels, manifest.class_names, weight_column
        )
        train = replace(train, weights=weights)
    if unpacked is not None:
        notes["unpacked"] = str(unpacked)
    if manifest.warnings:
        notes["warnings"] = "\n".join(manifest.warnings)
    if manifest.skipped:
        notes["skipped"] = "\n".join(map(str, manifest.skipped))
    classes, biases = len(manifest.class_names), len(manifest.bias_names)
    info = DataInfo(
        name=plain_name(path),
        class_names=manifest.class_names,
        bias_names=manifest.bias_names,
        image_shape=decoder.shape,
        counts=count_cells(train.labels, train.bias, classes, biases),
        notes={"source": str(path), "resize": mode, **notes},
        bias_parts=parts_of(manifest.samples, manifest.bias_names),
    )
    normalization = (mean or IMAGENET[0], std or IMAGENET[1])
    train_views = augmented(augment, image_size, *normalization)
    valid, test = split("valid"), split("test")
    return Data(train, valid, test, info, train_views, plain(*normalization), images=images)


def draft_paths(drafts: Sequence[Draft]) -> list[Path]:
    """Return the files that drafts name, each once, in their order.

    Args:
        drafts: of `drafts_of`.
    """
    named = dict.fromkeys(draft.sample.path for draft in drafts)
    return [path for path in named if path != NOWHERE]


def images_hash(path: Path, options: Mapping[str, Any]) -> str | None:
    """Return the digest of the images that a table or folder names, as `build` finds it.

    Files that are as they were when they were last read are not read again.

    Args:
        path: of the table or folder.
        options: of `build`; with check_files="exists" images are not read, and None is returned.
    """
    if options.get("check_files", "decode") != "decode":
        return None
    known = inspect.signature(drafts_of).parameters
    drafts, _ = drafts_of(path, **{name: x for name, x in options.items() if name in known})
    return contents_hash(draft_paths(drafts), path, {})


def drafts_of(
    path: Path,
    *,
    path_column: str = "path",
    label_column: str = "label",
    bias_columns: Sequence[str] | str = ("bias",),
    split_column: str | None = "split",
    weight_column: str | None = None,
    base: Path | None = None,
    bias_level: bool = False,
) -> tuple[list[Draft], Path | None]:
    """List what a table or folder says of its images, without opening any; arguments as in `build`.

    Returns:
        The drafts, and the folder that images inside a table were unpacked to.
    """
    if holds_images(path):
        columns = Columns(label_column, bias_columns, split_column, weight_column)
        embedded = embedded_drafts(path, columns)
        return embedded.drafts, embedded.unpacked
    if path.is_dir():
        if weight_column is not None:
            raise ValueError(
                f"data.weight_column={weight_column} names a column and {path} is a folder of "
                "images, which has none; give a table, or leave it out"
            )
        return folder_drafts(path, bias_level), None
    named = (path_column, label_column, bias_columns, split_column)
    return manifest_drafts(path, *named, base, weight_column), None


def _encode(manifest: Manifest) -> tuple[Tensor, Tensor]:
    """(labels, bias), each [N], as positions among the names; −1: unknown."""
    classes = {name: k for k, name in enumerate(manifest.class_names)}
    biases = {name: b for b, name in enumerate(manifest.bias_names)}
    biases[""] = -1
    labels = torch.tensor([classes[sample.label] for sample in manifest.samples])
    bias = torch.tensor([biases[sample.bias] for sample in manifest.samples])
    return labels, bias


def _check_weights(weights: Tensor, labels: Tensor, classes: Sequence[str], column: str) -> str:
    """Refuse weights of which a class has none above 0; return a sentence about them."""
    total = torch.zeros(len(classes), dtype=torch.double).index_add(0, labels, weights)
    if not bool((total > 0).any()):
        raise ValueError(
            f'every training sample has weight 0 in the column "{column}"; '
            "give at least some a weight above 0"
        )
    never = [
        name for name, sum_of_class in zip(classes, total.tolist(), strict=True) if not sum_of_class
    ]
    if never:
        raise ValueError(
            f"every training sample of class {', '.join(never)} has weight 0 in the column "
            f'"{column}", so a model cannot learn it; give some a weight above 0, or remove the '
            "class"
        )
    effective = float(weights.sum() ** 2 / weights.square().sum())
    zeros = int((weights == 0).sum())
    unused = f", {zeros:,} of them 0" if zeros else ""
    return (
        f'column "{column}": {float(weights.min()):.3g} to {float(weights.max()):.3g}{unused}; '
        f"{len(weights):,} samples, worth {effective:,.0f} equal ones"
    )
