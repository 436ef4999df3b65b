"""People's own images as a dataset, from a manifest or an image folder that `manifest` checks."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.data.bias import count_cells, split_off
from fairmargin.data.decode import Decoder, Mode
from fairmargin.data.drafts import folder_drafts, manifest_drafts
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
    bias_columns: Sequence[str] = ("bias",),
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
    """Make a dataset of a manifest file or an image folder.

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
    if path.is_dir():
        drafts = folder_drafts(path, bias_level)
    else:
        drafts = manifest_drafts(path, path_column, label_column, bias_columns, split_column, base)
    # Checked now, because decoding may take hours, and again when bad rows are out.
    marked = any(draft.sample.split == "test" for draft in drafts)
    _check_test(path, marked, test_fraction, test_needed)
    in_memory = len(drafts) * math.prod(decoder.shape) <= memory_limit
    keeper = decoder if in_memory else None
    manifest, decoded = check_drafts(
        drafts, path, check_files, skip_bad=skip_bad, workers=workers, decoder=keeper
    )
    marked = any(sample.split == "test" for sample in manifest.samples)
    _check_test(path, marked, test_fraction, test_needed)

    labels, bias = _encode(manifest)
    where, notes = _divide(manifest, labels, bias, valid_fraction, test_fraction, seed)

    def split(name: str) -> Split:
        index = where[name]
        paths = [manifest.samples[i].path for i in index.tolist()]
        known = bias[index] if bool((bias[index] >= 0).any()) else None
        if not in_memory:
            return FileSplit(paths, labels[index], decoder, known)
        pixels = np.empty((len(paths), *decoder.shape), np.uint8)
        for i, file in enumerate(paths):
            pixels[i] = decoded[file]
        return ArraySplit(torch.from_numpy(pixels), labels[index], known)

    train = split("train")
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


def _check_test(path: Path, marked: bool, fraction: float | None, needed: bool) -> None:
    if marked and fraction is not None:
        raise ValueError(f"{path} marks its test samples; leave test_fraction={fraction} out")
    if needed and not marked and not fraction:
        raise ValueError(
            f"{path} marks no usable test samples; mark some, or give test_fraction (0.2: hold out "
            "a fifth), on the command line with --set data.test_fraction=0.2 "
            '("data show": --test-fraction 0.2)'
        )


def _encode(manifest: Manifest) -> tuple[Tensor, Tensor]:
    """(labels, bias), each [N], as positions among the names; −1: unknown."""
    classes = {name: k for k, name in enumerate(manifest.class_names)}
    biases = {name: b for b, name in enumerate(manifest.bias_names)}
    biases[""] = -1
    labels = torch.tensor([classes[sample.label] for sample in manifest.samples])
    bias = torch.tensor([biases[sample.bias] for sample in manifest.samples])
    return labels, bias


def _divide(
    manifest: Manifest,
    labels: Tensor,
    bias: Tensor,
    valid_fraction: float,
    test_fraction: float | None,
    seed: int,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Indices of each split, and notes on how the held-out ones were made.

    Marked samples stay where they are; where a split has none, it is held out from train.
    """
    where = {}
    for name in ("train", "valid", "test"):
        index = [i for i, sample in enumerate(manifest.samples) if sample.split == name]
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
