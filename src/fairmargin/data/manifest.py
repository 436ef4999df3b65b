"""Check people's own images, from a manifest (CSV, TSV, Parquet) or a folder of images.

Every row is a draft that collects its faults: from the row itself (`drafts`), from the other rows,
from its file. Only when all are known are the drafts accepted, refused together in one report, or
(`skip_bad`) sorted out. Nothing is loaded in part.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from fairmargin.checks import check_choice
from fairmargin.data.contents import Seen, read_seen
from fairmargin.data.decode import Decoder, UnreadableImage, check_file, open_rgb
from fairmargin.data.drafts import NOWHERE, Draft, Sample, folder_drafts, manifest_drafts
from fairmargin.data.geometry import Geometry
from fairmargin.data.problems import BadManifest, RowProblem
from fairmargin.data.table import natural_order
from fairmargin.runtime.safe_path import safe_path

Check = Literal["decode", "exists"]
# What looking at a file gives: its pixels, the reason why there are none, or nothing to say.
Looked = np.ndarray | str | None
# The same, and what is known of its content.
Found = tuple[Looked, Seen | None]
LEAVE_OUT = (
    'leave these out, and have them recorded, with --set data.skip_bad=true ("data show": '
    "--skip-bad)"
)
# Rows below which another process is not worth its start.
ROWS_PER_PROCESS = 128


@dataclass(frozen=True)
class Manifest:
    """Checked samples, in the order of the rows."""

    samples: tuple[Sample, ...]
    class_names: tuple[str, ...]
    bias_names: tuple[str, ...]
    skipped: tuple[RowProblem, ...] = ()
    warnings: tuple[str, ...] = ()


def read_manifest(
    path: Path,
    *,
    path_column: str = "path",
    label_column: str = "label",
    bias_columns: Sequence[str] | str = ("bias",),
    split_column: str | None = "split",
    root: Path | None = None,
    check_files: Check = "decode",
    skip_bad: bool = False,
    workers: int | None = None,
) -> Manifest:
    """Read and check a table of samples; raise `BadManifest` with every problem.

    Args:
        bias_columns: several, as a list or as "a,b", are combined into one attribute; () for none.
            The default may be missing from the table.
        split_column: None uses all samples for training, as does the default if the table lacks it.
        root: the folder that paths start from and may not leave; the manifest's own by default.
        check_files: "decode" opens every image, "exists" only checks that it is there.
        skip_bad: leave bad rows out (`Manifest.skipped`) and continue.
        workers: processes that decode; 0 or 1 decodes in this process.
    """
    drafts = manifest_drafts(path, path_column, label_column, bias_columns, split_column, root)
    manifest, _ = check_drafts(drafts, path, check_files, skip_bad=skip_bad, workers=workers)
    return manifest


def read_folder(
    path: Path,
    *,
    bias_level: bool = False,
    check_files: Check = "decode",
    skip_bad: bool = False,
    workers: int | None = None,
) -> Manifest:
    """Read and check `<path>/{train,valid,test}/<class>/…` or `<path>/<class>/…`.

    In the second form all samples are for training. Other arguments as in `read_manifest`.

    Args:
        bias_level: the folder below the class is the bias: `train/<class>/<bias>/x.png`.
    """
    drafts = folder_drafts(path, bias_level)
    manifest, _ = check_drafts(drafts, path, check_files, skip_bad=skip_bad, workers=workers)
    return manifest


def check_drafts(
    drafts: list[Draft],
    source: Path,
    check_files: Check,
    *,
    skip_bad: bool,
    workers: int | None,
    decoder: Decoder | None = None,
    largest: float | None = None,
    seen: dict[Path, Seen] | None = None,
) -> tuple[Manifest, dict[Path, np.ndarray]]:
    """Look at the files of all drafts, and accept the drafts or raise `BadManifest`.

    Other arguments as in `read_manifest`.

    Args:
        source: the table or folder, for the message.
        decoder: decodes every image, whatever `check_files` says.
        largest: megapixels above which an image is refused; see `decode.Decoder`.
        seen: takes the digests of the files that are decoded; None if nobody asks for them.

    Returns:
        The manifest, and the pixels of each file if there is a decoder.
    """
    looked = look_at_files(
        drafts, check_files, workers=workers, decoder=decoder, largest=largest, seen=seen
    )
    good = [draft.sample for draft in drafts if not draft.faults]
    trained = Counter(sample.label for sample in good if sample.split == "train")
    for draft in drafts:
        label, split = draft.sample.label, draft.sample.split
        if trained and not draft.faults and label not in trained:
            draft.faults.append(f'class "{label}" is in {split} but has no training sample')

    problems = tuple(
        RowProblem(draft.sample.row, draft.sample.file, "; ".join(draft.faults))
        for draft in drafts
        if draft.faults
    )
    if problems and not (skip_bad and trained):
        advice = LEAVE_OUT if trained else ""
        raise BadManifest(problems, str(source), advice)
    if not trained:
        raise BadManifest([RowProblem(None, str(source), "no training samples")], str(source))
    samples = tuple(draft.sample for draft in drafts if not draft.faults)
    class_names = natural_order(trained)
    bias_names = natural_order(sample.bias for sample in samples if sample.bias)
    single = [name for name in class_names if trained[name] < 2]
    warnings = tuple(f'class "{name}" has only one training sample' for name in single)
    pixels = {path: seen for path, seen in looked.items() if isinstance(seen, np.ndarray)}
    return Manifest(samples, class_names, bias_names, problems, warnings), pixels


def look_at_files(
    drafts: list[Draft],
    check_files: Check,
    *,
    workers: int | None,
    decoder: Decoder | Geometry | None = None,
    largest: float | None = None,
    seen: dict[Path, Seen] | None = None,
) -> dict[Path, Looked]:
    """Look once at the file of each draft; what is wrong with it is added to the draft's faults.

    Args:
        drafts: may name a file twice, which is a fault of the second.
        check_files: as in `read_manifest`.
        workers: as in `read_manifest`.
        decoder: decodes every image, whatever `check_files` says.
        largest: megapixels above which an image is refused; see `decode.Decoder`.
        seen: takes the digests of the files that are decoded; None if nobody asks for them.

    Returns:
        The pixels of each file if there is a decoder, or the reason why there are none.
    """
    check_choice(check_files, "check_files", get_args(Check))
    first = _note_duplicates(drafts)
    look = partial(
        _look, check=check_files, decoder=decoder, largest=largest, hashed=seen is not None
    )
    found = _look_at_all(look, list(first), workers)
    looked = {path: each for path, (each, _) in zip(first, found, strict=True)}
    if seen is not None:
        seen |= {path: s for path, (_, s) in zip(first, found, strict=True) if s is not None}
    for draft in drafts:
        reason = looked.get(draft.sample.path)
        if isinstance(reason, str):
            draft.faults.append(reason)
    return looked


def _note_duplicates(drafts: list[Draft]) -> dict[Path, Sample]:
    """Return the first sample of each file; every further one gets a fault."""
    first: dict[Path, Sample] = {}
    for draft in drafts:
        sample = draft.sample
        if sample.path == NOWHERE:
            continue
        other = first.setdefault(sample.path, sample)
        if other is sample:
            continue
        leak = f", which is in {other.split}: a leak" if other.split != sample.split else ""
        conflict = f', whose label is "{other.label}"' if other.label != sample.label else ""
        draft.faults.append(f"the same file as row {other.row}{leak}{conflict}")
    return first


def _look(
    path: Path,
    check: Check,
    decoder: Decoder | Geometry | None,
    largest: float | None,
    hashed: bool,
) -> Found:
    """Look at one file, in a worker process.

    Pixels are an array, because a tensor would travel through shared memory, which is often small.
    """
    seen = None
    try:
        if decoder is None and check == "exists":
            check_file(path)
            return None, None
        content = None
        if hashed:
            content, seen = _content(path)
        # Of what could not be read, the decoder says why.
        if decoder is not None:
            return decoder(path, content).numpy(), seen
        open_rgb(path, largest, content)
    except UnreadableImage as error:
        return str(error.args[-1]), seen
    return None, seen


def _content(path: Path) -> tuple[bytes | None, Seen | None]:
    """Read a file once for its pixels and its digest; (None, None) lets the decoder say why not."""
    try:
        content, seen = read_seen(path)
    # ValueError: the name holds a zero byte.
    except (OSError, ValueError):
        return None, None
    # An empty file is named as such.
    return content or None, seen


def _look_at_all(
    look: Callable[[Path], Found], paths: Sequence[Path], workers: int | None
) -> list[Found]:
    """Look at all files, in order, in several processes where that is worth their start."""
    if workers is None:
        workers = min(os.cpu_count() or 1, 16)
    number = min(workers, len(paths) // ROWS_PER_PROCESS)
    if number < 2:
        return [look(path) for path in paths]
    pool = ProcessPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,))
    with safe_path(), pool:
        return list(pool.map(look, paths, chunksize=32))
