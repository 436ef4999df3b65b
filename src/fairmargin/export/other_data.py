"""Evaluate a run on data that it has not seen: a table, an image folder, or embeddings.

The run's own preprocessing is used, as its folder says. Classes and biases are matched by name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmargin import evaluate
from fairmargin.batch import DataInfo
from fairmargin.data import own_path
from fairmargin.data.arrays import read
from fairmargin.data.datasets.embeddings import splits_of
from fairmargin.data.drafts import (
    SPLITS,
    Columns,
    Draft,
    column_names,
    folder_drafts,
    manifest_drafts,
)
from fairmargin.data.embedded import embedded_drafts, holds_images
from fairmargin.data.manifest import look_at_files
from fairmargin.data.preprocessing import Preprocessing, Vector
from fairmargin.data.problems import BadManifest, RowProblem
from fairmargin.data.split import ArraySplit, FileSplit, Split
from fairmargin.data.table import read_table
from fairmargin.data.views import plain
from fairmargin.evaluate import Judged
from fairmargin.export.model import Model

# Bytes of decoded images that are kept in memory; of more, each is decoded when it is needed.
MEMORY = 512 * 2**20
NAMED = 10  # in a message


@dataclass(frozen=True)
class TestSet:
    """Samples to evaluate on, with their classes and biases by name.

    Args:
        samples: pixels or vectors; its labels are positions in `classes`, its bias in `biases`.
        classes: names, in any order.
        biases: names; empty if the data say nothing of the bias.
        notes: what was left out.
    """

    __test__ = False  # no test of pytest

    samples: ArraySplit | FileSplit
    classes: tuple[str, ...]
    biases: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherData:
    """What a run's own classifier says of other data.

    Args:
        judged: accuracies and group table, as in result.json.
        info: classes and biases of the run, in the order of the group table.
        notes: sentences on what could not be matched.
        samples: how many were evaluated.
    """

    judged: Judged
    info: DataInfo
    samples: int
    notes: list[str] = field(default_factory=list)


def evaluate_on(
    model: Model,
    info: DataInfo,
    source: str | Path,
    *,
    options: Mapping[str, Any] | None = None,
    batch_size: int = 256,
    workers: int = 0,
    resamples: int = 1000,
) -> OtherData:
    """Evaluate a model's own classifier on a table, an image folder or an .npz file.

    Args:
        model: what `load` gave.
        info: the facts about its training data: classes, biases and their counts.
        source: without a split, all samples are tested; with one, those marked "test".
        options: of the dataset "folder": `label_column`, `bias_columns`, `skip_bad`, …
        batch_size: samples at a time.
        workers: processes that decode images.
        resamples: of the bootstrap for the intervals.
    """
    path = own_path(str(source))
    prepared = model.preprocessing
    if (path.suffix.lower() == ".npz") != prepared.takes_vectors:
        takes = "embeddings (.npz)" if prepared.takes_vectors else "a table or folder of images"
        raise ValueError(f"this run was trained on other data than {path} holds; give {takes}")
    if prepared.takes_vectors:
        found = _vectors(path, prepared)
    else:
        found = _images(path, prepared, options or {}, workers)
    split, notes = _matched(found, info, path)
    views = plain(prepared.mean, prepared.std)
    outputs = evaluate.collect(
        model.method,
        split,
        views,
        batch_size=batch_size,
        device=model.device,
        workers=workers,
    )
    judged = evaluate.judge(outputs.logits, outputs.labels, outputs.bias, info, resamples=resamples)
    return OtherData(judged, info, len(split), [*found.notes, *notes])


def _vectors(path: Path, prepared: Preprocessing) -> TestSet:
    arrays = read(path, least_classes=1)
    length = arrays.embeddings.shape[1]
    if isinstance(prepared.decoder, Vector) and length != prepared.decoder.length:
        raise ValueError(
            f"{path} holds vectors of {length} numbers and the run was trained on "
            f"{prepared.decoder.length}; make them with the same model"
        )
    index = torch.arange(len(arrays))
    if arrays.split is not None:
        splits = splits_of(arrays, path)
        index = torch.tensor([i for i, split in enumerate(splits) if split == "test"]).long()
        _refuse_nothing(path, len(index))
    samples = ArraySplit(torch.from_numpy(arrays.embeddings), arrays.labels, arrays.bias)
    return TestSet(samples.subset(index), arrays.class_names, arrays.bias_names)


def _images(
    path: Path, prepared: Preprocessing, options: Mapping[str, Any], workers: int
) -> TestSet:
    drafts = _drafts(path, options)
    decoder = prepared.decoder
    assert not isinstance(decoder, Vector)
    in_memory = len(drafts) * math.prod(decoder.shape) <= MEMORY
    keeper = decoder if in_memory else None
    looked = look_at_files(drafts, "decode", workers=workers, decoder=keeper)
    problems = [
        RowProblem(draft.sample.row, draft.sample.file, "; ".join(draft.faults))
        for draft in drafts
        if draft.faults
    ]
    good = [draft.sample for draft in drafts if not draft.faults]
    if problems and not (options.get("skip_bad") and good):
        advice = "--set data.skip_bad=true leaves these out" if good else ""
        raise BadManifest(problems, str(path), advice)
    classes = tuple(dict.fromkeys(sample.label for sample in good))
    biases = tuple(dict.fromkeys(sample.bias for sample in good if sample.bias))
    labels = torch.tensor([classes.index(sample.label) for sample in good])
    bias = torch.tensor([biases.index(s.bias) if s.bias else -1 for s in good])
    paths = [sample.path for sample in good]
    samples: ArraySplit | FileSplit = FileSplit(paths, labels, decoder, bias)
    if in_memory:
        pixels = np.stack([np.asarray(looked[file]) for file in paths])
        samples = ArraySplit(torch.from_numpy(pixels), labels, bias)
    notes = (f"left out: {len(problems)} rows, the first {problems[0]}",) if problems else ()
    return TestSet(samples, classes, biases, notes)


def _drafts(path: Path, options: Mapping[str, Any]) -> list[Draft]:
    """All samples of a folder or table without splits; else those that are marked as test."""
    if holds_images(path):
        bias = options.get("bias_columns", ("bias",))
        columns = Columns(options.get("label_column", "label"), bias)
        embedded = embedded_drafts(path, columns)
        drafts, marked = embedded.drafts, embedded.marked
    elif path.is_dir():
        drafts = folder_drafts(path, bool(options.get("bias_level", False)))
        marked = any(each.is_dir() and each.name.casefold() in SPLITS for each in path.iterdir())
    else:
        header, _ = read_table(path)
        split_column = options.get("split_column", "split")
        bias_columns = column_names(options.get("bias_columns", ("bias",)))
        # A table for testing may lack the columns of the training table, but not misspell them.
        if split_column not in header:
            split_column = "split"
        if not set(bias_columns) & set(header):
            bias_columns = ("bias",)
        drafts = manifest_drafts(
            path,
            options.get("path_column", "path"),
            options.get("label_column", "label"),
            bias_columns,
            split_column,
            options.get("base"),
        )
        marked = split_column in header
    if marked:
        # Rows whose split cannot be read stay, and are reported.
        drafts = [draft for draft in drafts if draft.sample.split in ("test", "")]
    _refuse_nothing(path, len(drafts))
    return drafts


def _refuse_nothing(path: Path, samples: int) -> None:
    if not samples:
        raise ValueError(
            f"{path} has no test samples; mark some as test, or give data without a split, "
            "of which all are tested"
        )


def _matched(found: TestSet, info: DataInfo, path: Path) -> tuple[Split, list[str]]:
    """The samples with the run's labels and biases, and what could not be matched."""
    samples = found.samples
    present = {found.classes[k] for k in samples.labels.unique().tolist()}
    unknown = sorted(present - set(info.class_names))
    if unknown:
        raise ValueError(
            f"{path} has classes that the run does not know: {_listed(unknown)}. It knows "
            f"{_listed(info.class_names)}; rename them, or leave their rows out"
        )
    notes = []
    missing = [name for name in info.class_names if name not in present]
    if missing:
        notes.append(f"no samples of {_listed(missing)}: nothing is said of these classes")
    to_label = torch.tensor([_place(name, info.class_names) for name in found.classes])
    labels = to_label[samples.labels]
    if samples.bias is None or not found.biases:
        return replace(samples, labels=labels, bias=None), notes
    known = [name for name in found.biases if name in info.bias_names]
    strange = [name for name in found.biases if name not in info.bias_names]
    if not known:
        trained = f"those of the run are {_listed(info.bias_names)}"
        if not info.bias_names:
            trained = "the run was trained without bias labels"
        notes.append(f"no accuracy by group: the bias is {_listed(strange)}, and {trained}")
        return replace(samples, labels=labels, bias=None), notes
    # The last one is for −1, unknown.
    to_bias = torch.tensor([*(_place(name, info.bias_names) for name in found.biases), -1])
    bias = to_bias[samples.bias]
    if strange:
        number = int(((bias < 0) & (samples.bias >= 0)).sum())
        notes.append(
            f"the run does not know the bias {_listed(strange)}: {number} samples count in plain "
            "accuracy only"
        )
    return replace(samples, labels=labels, bias=bias), notes


def _place(name: str, names: Sequence[str]) -> int:
    return list(names).index(name) if name in names else -1


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
