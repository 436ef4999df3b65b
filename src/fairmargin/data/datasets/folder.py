"""People's own data: a manifest (CSV, TSV, Parquet) or a folder of images. One report of all problems, no half-loading.

Every row becomes a draft that collects its faults: from the row itself, from the other rows, from its file. Only when
all is known are the drafts accepted, refused together, or (`skip_bad`) sorted out.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells, split_off
from fairmargin.data.decode import EXTENSIONS, Decoder, UnreadableImage, check_file, open_rgb
from fairmargin.data.split import ArraySplit, Data, FileSplit, Split
from fairmargin.data.table import (
    BadManifest,
    Problem,
    find_column,
    find_column_if_there,
    read_table,
)

SPLITS = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
UNKNOWN = ("", "?", "unknown", "nan")  # bias cells that say nothing, in any case of letters
CHECKS = ("decode", "exists")
NOWHERE = Path()  # a row that names no file we may look at


@dataclass(frozen=True, slots=True)
class Sample:
    row: int | None
    file: str  # as written
    path: Path
    label: str
    bias: str  # empty: unknown
    split: str  # train, valid or test


@dataclass(frozen=True)
class Manifest:
    """Checked samples, in the order of the rows."""

    samples: tuple[Sample, ...]
    class_names: tuple[str, ...]
    bias_names: tuple[str, ...]
    skipped: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass
class _Draft:
    sample: Sample
    faults: list[str] = field(default_factory=list)


Looked = np.ndarray | str | None  # pixels; the reason why there are none; or nothing to say


def read_manifest(
    path: Path,
    *,
    path_column: str = "path",
    label_column: str = "label",
    bias_columns: Sequence[str] = ("bias",),
    split_column: str | None = "split",
    root: Path | None = None,
    check_files: str = "decode",
    skip_bad: bool = False,
    workers: int | None = None,
) -> Manifest:
    """Read and check a table of samples; raises `BadManifest` with every problem.

    Args:
        bias_columns: several are combined into one attribute; () for none. The default may be missing from the table.
        split_column: None, or the default missing from the table: all samples are for training.
        root: the folder that paths start from, and may not leave; the manifest's own if not given.
        check_files: "decode" opens every image, "exists" only looks whether it is there.
        skip_bad: leave bad rows out (`Manifest.skipped`) and go on.
        workers: processes that decode; 0 or 1: this one.
    """
    check_choice(check_files, "check_files", CHECKS)
    drafts = _manifest_drafts(
        Path(path), path_column, label_column, bias_columns, split_column, root
    )
    return _check(drafts, path, partial(_look, check=check_files), skip_bad, workers)[0]


def read_folder(
    path: Path,
    *,
    bias_level: bool = False,
    check_files: str = "decode",
    skip_bad: bool = False,
    workers: int | None = None,
) -> Manifest:
    """Read and check `<path>/{train,valid,test}/<class>/…` or `<path>/<class>/…` (all for training).

    Args:
        bias_level: the folder below the class is the bias: `train/<class>/<bias>/x.png`.
    """
    check_choice(check_files, "check_files", CHECKS)
    return _check(
        _folder_drafts(Path(path), bias_level),
        path,
        partial(_look, check=check_files),
        skip_bad,
        workers,
    )[0]


def build(
    path: Path,
    *,
    image_size: int = 64,
    mode: str = "crop",
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
    check_files: str = "decode",
    skip_bad: bool = False,
    workers: int | None = None,
    memory_limit: int = 512 * 2**20,
) -> Data:
    """A manifest file or an image folder as a dataset; see `read_manifest` and `read_folder` for what they share.

    Args:
        image_size: side of the square that every image is brought to, by `mode` (see `decode.Decoder`).
        base: the folder that a manifest's paths start from, and may not leave; its own if not given.
        valid_fraction: of every (label, bias) cell of the training samples, when none are marked as validation.
        test_fraction: the same for the test split, needed when none are marked as test. Drawn first, whatever the seed.
        test_needed: False takes samples of which none are for the test as they are: for an audit. Training needs some.
        seed: of the validation split.
        memory_limit: bytes; smaller sets are decoded once and kept in memory (so `check_files` has no say).
    """
    from fairmargin.data.views import IMAGENET, crop_flip, plain

    path, decoder = Path(path), Decoder(image_size, mode)
    check_choice(check_files, "check_files", CHECKS)
    if path.is_dir():
        drafts = _folder_drafts(path, bias_level)
    else:
        drafts = _manifest_drafts(path, path_column, label_column, bias_columns, split_column, base)
    marked = any(draft.sample.split == "test" for draft in drafts)
    _check_test(path, marked, test_fraction, test_needed)  # before hours of decoding
    in_memory = len(drafts) * math.prod(decoder.shape) <= memory_limit
    look = partial(_look, check=check_files, decoder=decoder if in_memory else None)
    manifest, decoded = _check(drafts, path, look, skip_bad, workers)
    _check_test(
        path, any(sample.split == "test" for sample in manifest.samples), test_fraction, test_needed
    )

    labels, bias = _encode(manifest)
    where, notes = _divide(manifest, labels, bias, valid_fraction, test_fraction, seed)

    def split(index: Tensor) -> Split:
        paths = [manifest.samples[i].path for i in index.tolist()]
        known = bias[index] if bool((bias[index] >= 0).any()) else None
        if not in_memory:
            return FileSplit(paths, labels[index], decoder, known)
        pixels = np.empty((len(paths), *decoder.shape), np.uint8)
        for i, p in enumerate(paths):
            pixels[i] = decoded[p]
        return ArraySplit(torch.from_numpy(pixels), labels[index], known)

    train, valid, test = (split(where[name]) for name in ("train", "valid", "test"))
    if manifest.warnings:
        notes["warnings"] = "\n".join(manifest.warnings)
    if manifest.skipped:
        notes["skipped"] = "\n".join(map(str, manifest.skipped))
    info = DataInfo(
        name=path.resolve().name if path.is_dir() else path.stem,
        class_names=manifest.class_names,
        bias_names=manifest.bias_names,
        image_shape=decoder.shape,
        counts=count_cells(
            train.labels, train.bias, len(manifest.class_names), len(manifest.bias_names)
        ),
        notes={"source": str(path), "resize": mode, **notes},
    )
    return Data(
        train,
        valid,
        test,
        info,
        crop_flip(image_size, image_size // 8, *IMAGENET),
        plain(*IMAGENET),
    )


def natural_order(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once: by value if all are numbers, else with "a2" before "a10"."""
    unique = set(names)
    if all(
        re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", name, re.IGNORECASE) for name in unique
    ):
        return tuple(sorted(unique, key=lambda name: (float(name), name)))
    parts = lambda name: [
        int(p) if p.isdecimal() else p.casefold() for p in re.split(r"(\d+)", name)
    ]
    return tuple(sorted(unique, key=lambda name: (parts(name), name)))


def _manifest_drafts(
    path: Path,
    path_column: str,
    label_column: str,
    bias_columns: Sequence[str],
    split_column: str | None,
    root: Path | None,
) -> list[_Draft]:
    header, rows = read_table(path)
    path_at = find_column(path, header, path_column, "path_column")
    label_at = find_column(path, header, label_column, "label_column")
    biases = [bias_columns] if isinstance(bias_columns, str) else list(bias_columns)
    find = find_column_if_there if biases == ["bias"] else find_column
    bias_at = [
        at for name in biases if (at := find(path, header, name, "bias_columns")) is not None
    ]
    find = find_column_if_there if split_column == "split" else find_column
    split_at = None if split_column is None else find(path, header, split_column, "split_column")
    base = Path(os.path.abspath(path.parent if root is None else root))

    drafts = []
    for row, cells in rows:
        if len(cells) != len(header):
            file = cells[path_at] if path_at < len(cells) else ""
            reason = f"{len(cells)} cells where the header has {len(header)}"
            drafts.append(_Draft(Sample(row, file, NOWHERE, "", "", ""), [reason]))
            continue
        faults = []
        file, label = cells[path_at], cells[label_at].strip()
        place = _place(file, base, rooted=root is not None)
        if isinstance(place, str):
            faults.append(place)
        if not label:
            faults.append("empty label")
        written = "train" if split_at is None else cells[split_at].strip()
        split = SPLITS.get(written.casefold(), "")
        if not split:
            faults.append(
                f'unknown split "{written}" (train, valid or test)' if written else "empty split"
            )
        if any("\ufffd" in cell for cell in cells):  # what decoding puts in place of broken bytes
            faults.append("not UTF-8 text")
        bias = _combine(cells[at] for at in bias_at)
        drafts.append(
            _Draft(
                Sample(row, file, NOWHERE if isinstance(place, str) else place, label, bias, split),
                faults,
            )
        )
    return drafts


def _place(file: str, base: Path, rooted: bool) -> Path | str:
    """Where the file is, or why we do not look there. Links in the root may lead out: its owner put them there."""
    if not file:
        return "empty path"
    if os.path.isabs(file):
        return (
            Path(os.path.normpath(file))
            if not rooted
            else f"an absolute path; write it from the root {base}"
        )
    place = Path(os.path.normpath(base / file))
    return (
        place if place.is_relative_to(base) and place != base else f"leads outside the root {base}"
    )


def _combine(values: Iterable[str]) -> str:
    parts = [value.strip() for value in values]
    return "" if any(part.casefold() in UNKNOWN for part in parts) else "×".join(parts)


def _folder_drafts(root: Path, bias_level: bool) -> list[_Draft]:
    if not root.is_dir():
        raise BadManifest([Problem(None, str(root), "no such folder")], str(root))
    base = Path(os.path.abspath(root))
    top = [
        SPLITS.get(f.name.casefold(), "")
        for f in base.iterdir()
        if f.is_dir() and not f.name.startswith(".")
    ]
    has_splits = "train" in top or (bool(top) and all(top))
    drafts = []
    for path in sorted(_images(base)):
        inside = path.relative_to(base).parts
        levels = inside[1:-1] if has_splits else inside[:-1]  # class, perhaps bias, …
        split = SPLITS.get(inside[0].casefold(), "") if has_splits else "train"
        faults = []
        if not levels:
            faults.append("an image outside any class folder")
        elif not split:
            faults.append(
                f'folder "{inside[0]}" stands beside the splits and is none of train, valid, test'
            )
        bias = _combine([levels[1]]) if bias_level and len(levels) > 1 else ""
        drafts.append(
            _Draft(
                Sample(None, "/".join(inside), path, levels[0] if levels else "", bias, split),
                faults,
            )
        )
    return drafts


def _images(base: Path) -> Iterator[Path]:
    """Linked folders are followed, except upwards, where there is no end."""
    for folder, folders, files in os.walk(base, followlinks=True):
        here = Path(folder)
        ends = {name for name in folders if here.resolve().is_relative_to((here / name).resolve())}
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ends]
        yield from (
            here / f
            for f in files
            if not f.startswith(".") and Path(f).suffix.lower() in EXTENSIONS
        )


def _look(path: Path, check: str, decoder: Decoder | None = None) -> Looked:
    """Runs in the workers. An array, because a tensor would travel through shared memory, which is often small."""
    try:
        if decoder is not None:
            return decoder(path).numpy()
        (open_rgb if check == "decode" else check_file)(path)
    except UnreadableImage as error:
        return str(error.args[-1])
    return None


def _look_at_all(
    look: Callable[[Path], Looked], paths: Sequence[Path], workers: int | None
) -> list[Looked]:
    """In order. Processes only where there is work for them: each has its start to pay for."""
    number = min(min(os.cpu_count() or 1, 16) if workers is None else workers, len(paths) // 128)
    if number < 2:
        return [look(path) for path in paths]
    with ProcessPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(look, paths, chunksize=32))


def _check(
    drafts: list[_Draft],
    source: Path,
    look: Callable[[Path], Looked],
    skip_bad: bool,
    workers: int | None,
) -> tuple[Manifest, dict[Path, np.ndarray]]:
    """The verdict on all drafts, and the pixels if `look` brings any."""
    first: dict[Path, Sample] = {}
    for draft in drafts:
        sample = draft.sample
        if (
            sample.path != NOWHERE
            and (other := first.setdefault(sample.path, sample)) is not sample
        ):
            leak = f", which is in {other.split}: a leak" if other.split != sample.split else ""
            conflict = f', whose label is "{other.label}"' if other.label != sample.label else ""
            draft.faults.append(f"the same file as row {other.row}{leak}{conflict}")
    looked = dict(zip(first, _look_at_all(look, list(first), workers), strict=True))
    for draft in drafts:
        if isinstance(reason := looked.get(draft.sample.path), str):
            draft.faults.append(reason)
    trained = Counter(d.sample.label for d in drafts if d.sample.split == "train" and not d.faults)
    for draft in drafts:
        if trained and not draft.faults and draft.sample.label not in trained:
            draft.faults.append(
                f'class "{draft.sample.label}" is in {draft.sample.split} but has no training sample'
            )

    problems = tuple(
        Problem(d.sample.row, d.sample.file, "; ".join(d.faults)) for d in drafts if d.faults
    )
    if problems and not (skip_bad and trained):
        advice = "skip_bad=True (--skip-bad) leaves these out and records them" if trained else ""
        raise BadManifest(problems, str(source), advice)
    if not trained:
        raise BadManifest([Problem(None, str(source), "no training samples")], str(source))
    samples = tuple(draft.sample for draft in drafts if not draft.faults)
    bias_names = natural_order(sample.bias for sample in samples if sample.bias)
    classes = natural_order(trained)
    warnings = tuple(
        f'class "{name}" has only one training sample' for name in classes if trained[name] < 2
    )
    pixels = {path: seen for path, seen in looked.items() if isinstance(seen, np.ndarray)}
    return Manifest(samples, classes, bias_names, problems, warnings), pixels


def _check_test(path: Path, marked: bool, fraction: float | None, needed: bool) -> None:
    if marked and fraction is not None:
        raise ValueError(f"{path} marks its test samples; leave test_fraction={fraction} out")
    if needed and not marked and not fraction:
        raise ValueError(
            f"{path} marks no usable test samples; mark some, or give test_fraction (0.2: hold out a fifth), "
            'on the command line with --set data.test_fraction=0.2 ("data show": --test-fraction 0.2)'
        )


def _encode(manifest: Manifest) -> tuple[Tensor, Tensor]:
    """labels [N] and bias [N] as positions among the names; −1: unknown."""
    classes = {name: k for k, name in enumerate(manifest.class_names)}
    biases = {"": -1, **{name: b for b, name in enumerate(manifest.bias_names)}}
    labels = torch.tensor([classes[sample.label] for sample in manifest.samples])
    return labels, torch.tensor([biases[sample.bias] for sample in manifest.samples])


def _divide(
    manifest: Manifest,
    labels: Tensor,
    bias: Tensor,
    valid_fraction: float,
    test_fraction: float | None,
    seed: int,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Indices of each split, and how the held-out ones came about. Marked samples stay; the others come from train."""
    marked = [sample.split for sample in manifest.samples]
    where = {
        name: torch.tensor([i for i, split in enumerate(marked) if split == name], dtype=torch.long)
        for name in ("train", "valid", "test")
    }
    notes = {}
    # Test before valid, with a seed of its own: trials that differ in their seed are tested on the same samples.
    for name, fraction, draw in (("test", test_fraction, 0), ("valid", valid_fraction, seed)):
        if len(where[name]) or fraction is None:
            notes[name] = "as marked"
            continue
        rest = where["train"]
        kept, out = split_off(labels[rest], bias[rest], fraction, seed=draw)
        where["train"], where[name] = rest[kept], rest[out]
        notes[name] = f"{fraction:g} of every (label, bias) cell of train, seed {draw}"
    return where, notes
