"""Digests of data, which tell whether a run's data has changed."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fairmargin.data.members import size_of
from fairmargin.data.webdataset import shards

if TYPE_CHECKING:
    from fairmargin.data.split import Split

# Images read at a time.
HASHED_AT_ONCE = 1024
# Of tar files: a few seconds' reading.
CONTENT_BYTES = 1 << 30


def data_hash(split: "Split") -> str:
    """Return the sha256 of a split's labels, bias, pixels, and weights and bias values if any.

    For a split of files (one with `paths`), the names below their common folder and the file sizes
    take the place of the pixels.
    """
    digest = hashlib.sha256()
    for name, values in (("labels", split.labels), ("bias", split.bias)):
        length = "none" if values is None else len(values)
        digest.update(f"{name} {length}\n".encode())
        if values is not None:
            digest.update(values.cpu().numpy().astype("<i8").tobytes())
    weights = getattr(split, "weights", None)
    if weights is not None:
        digest.update(b"weights\n" + weights.cpu().numpy().astype("<f8").tobytes())
    bias_values = getattr(split, "bias_values", None)
    if bias_values is not None:
        digest.update(b"bias values\n" + bias_values.cpu().numpy().astype("<f8").tobytes())
    paths = getattr(split, "paths", None)
    if paths is not None:
        for line in _names_and_sizes(paths):
            digest.update(line)
        return digest.hexdigest()
    for index in torch.arange(len(split)).split(HASHED_AT_ONCE):
        images = split.images(index)
        digest.update(f"{list(images.shape[1:])}\n".encode())
        digest.update(images.contiguous().numpy().data)
    return digest.hexdigest()


def source_hash(root: Path) -> str:
    """Return the sha256 of a table of images, or of the names and sizes of a folder's files.

    Of tar files, the content is taken up to `CONTENT_BYTES`, and names and sizes beyond.

    Args:
        root: the table, or the folder whose files are taken at any depth; or a pattern of tars.
    """
    digest = hashlib.sha256()
    files = shards(root)
    if files and sum(file.stat().st_size for file in files) <= CONTENT_BYTES:
        for file in files:
            with open(file, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()
    if not files and root.is_file():
        return hashlib.sha256(root.read_bytes()).hexdigest()
    files = files or sorted(path for path in root.rglob("*") if path.is_file())
    for line in _names_and_sizes(files):
        digest.update(line)
    return digest.hexdigest()


def _names_and_sizes(paths: Sequence[Path]) -> Iterator[bytes]:
    folder = os.path.commonpath([path.absolute().parent for path in paths]) if paths else ""
    for path in paths:
        name = path.absolute().relative_to(folder).as_posix()
        yield os.fsencode(name) + b"\0%d\n" % size_of(path)
