"""People's own images as a dataset, from a manifest or an image folder that `manifest` checks."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.data.bias import count_cells
from fairmargin.data.decode import Decoder, Mode
from fairmargin.data.divide import check_test, divide
from fairmargin.data.drafts import folder_drafts, manifest_drafts
from fairmargin.data.embedded import Columns, embedded_drafts, holds_images
from fairmargin.data.manifest import Check, Manifest, check_drafts
from fairmargin.data.split import ArraySplit, Data, FileSplit, Split
from fairmargin.data.views import IMAGENET, crop_flip, plain


def build(
    path: Path,
    *,
    image_size: int = 64,
    mode: Mode = "crop",
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    path_column: str = "path",
    label_column: str = "label",
    bias_columns: Sequence[str] | str = ("bias",),
    split_column: str | None = "split",
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
) -> Data:
    """Make a dataset of a manifest file, an image folder, or tables with images inside.

    Other arguments as in `manifest.read_manifest` and `manifest.read_folder`.

    Args:
        image_size: side of the square that every image is brought to, by `mode` (see
            `decode.Decoder`).
        mean: of each channel, subtracted from values in [0, 1]; by default ImageNet's, or that of
            a pretrained network which says it.
        std: of each channel, by which they are divided; by default as for `mean`.
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
    """
    path = Path(path)
    decoder = Decoder(image_size, mode)
    unpacked = None
    if holds_images(path):
        columns = Columns(label_column, bias_columns, split_column)
        drafts, unpacked = embedded_drafts(path, columns)
    elif path.is_dir():
        drafts = folder_drafts(path, bias_level)
    else:
        drafts = manifest_drafts(path, path_column, label_column, bias_columns, split_column, base)
    # Checked now, because decoding may take hours, and again when bad rows are out.
    marked = any(draft.sample.split == "test" for draft in drafts)
    check_test(path, marked, test_fraction, test_needed)
    in_memory = len(drafts) * math.prod(decoder.shape) <= memory_limit
    keeper = decoder if in_memory else None
    manifest, decoded = check_drafts(
        drafts, path, check_files, skip_bad=skip_bad, workers=workers, decoder=keeper
    )
    marked = any(sample.split == "test" for sample in manifest.samples)
    check_test(path, marked, test_fraction, test_needed)

    labels, bias = _encode(manifest)
    splits = [sample.split for sample in manifest.samples]
    where, notes = divide(splits, labels, bias, valid_fraction, test_fraction, seed)

    def split(name: str) -> Split:
        index = where[name]
        paths = [manifest.samples[i].path for i in index.tolist()]
        names = [manifest.samples[i].file for i in index.tolist()]
        known = bias[index] if bool((bias[index] >= 0).any()) else None
        if not in_memory:
            return FileSplit(paths, labels[index], decoder, known, names=names)
        pixels = np.empty((len(paths), *decoder.shape), np.uint8)
        for i, file in enumerate(paths):
            pixels[i] = decoded[file]
        return ArraySplit(torch.from_numpy(pixels), labels[index], known, names)

    train = split("train")
    if unpacked is not None:
        notes["unpacked"] = str(unpacked)
    if manifest.warnings:
        notes["warnings"] = "\n".join(manifest.warnings)
    if manifest.skipped:
        notes["skipped"] = "\n".join(map(str, manifest.skipped))
    classes, biases = len(manifest.class_names), len(manifest.bias_names)
    name = path.resolve().name if path.is_dir() else path.stem
    info = DataInfo(
        name=name,
        class_names=manifest.class_names,
        bias_names=manifest.bias_names,
        image_shape=decoder.shape,
        counts=count_cells(train.labels, train.bias, classes, biases),
        notes={"source": str(path), "resize": mode, **notes},
    )
    normalization = (mean or IMAGENET[0], std or IMAGENET[1])
    train_views = crop_flip(image_size, image_size // 8, *normalization)
    return Data(train, split("valid"), split("test"), info, train_views, plain(*normalization))


def _encode(manifest: Manifest) -> tuple[Tensor, Tensor]:
    """(labels, bias), each [N], as positions among the names; −1: unknown."""
    classes = {name: k for k, name in enumerate(manifest.class_names)}
    biases = {name: b for b, name in enumerate(manifest.bias_names)}
    biases[""] = -1
    labels = torch.tensor([classes[sample.label] for sample in manifest.samples])
    bias = torch.tensor([biases[sample.bias] for sample in manifest.samples])
    return labels, bias
