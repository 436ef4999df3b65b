"""Unpack tar, tar.gz and zip files without trusting them.

Everything that was asked for is unpacked, or nothing is. Refused are paths that leave the folder,
links, devices, the same name twice, more entries or bytes than allowed (as declared and as really
read), and anything cut short or damaged.
"""

import gzip
import io
import os
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

MAX_ENTRIES = 100_000
MAX_BYTES = 2 << 30
CHUNK = 1 << 20
# First bytes of such files; PK 5 6 is a zip without entries.
_GZIP = b"\x1f\x8b"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
# What the standard library raises for damaged archives.
_BROKEN = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
)


class BadArchive(ValueError):
    """An archive or compressed file that is damaged, or that asks for something unsafe."""


@dataclass(frozen=True)
class _Entry:
    name: str
    size: int  # as declared
    kind: str  # "file", "folder", or what else it is
    open: Callable[[], IO[bytes] | None]


def read_bare(path: Path, *, max_bytes: int = MAX_BYTES, unpack: bool = True) -> Iterator[bytes]:
    """Read the content of a file in chunks.

    Args:
        max_bytes: refuse content larger than this.
        unpack: decompress the file if it is a gzip file, whatever its name.
    """
    total = 0
    try:
        with path.open("rb") as raw:
            stream: BinaryIO = raw
            if unpack and raw.peek(2)[:2] == _GZIP:
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw))
            while chunk := stream.read(CHUNK):
                total += len(chunk)
                if total > max_bytes:
                    raise BadArchive(
                        f"{path}: refused, its content is larger than {max_bytes:,} bytes"
                    )
                yield chunk
    except _BROKEN as error:
        raise BadArchive(
            f"{path}: truncated or damaged gzip file ({error}). Delete it and get it again"
        ) from error


def extract(
    archive: Path,
    into: Path,
    *,
    only: Collection[str] | None = None,
    max_entries: int = MAX_ENTRIES,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Unpack into the new folder `into`, which appears whole at the end or not at all.

    Args:
        only: names of the files to keep; each must be there. None keeps every file.
        max_entries: most entries the archive may have, kept or not.
        max_bytes: most bytes its files may have together, kept or not.
    """
    if into.exists():
        raise FileExistsError(f"{into} exists; archives are only unpacked into a new folder")
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".unpack-", dir=into.parent, ignore_cleanup_errors=True
    ) as temporary:
        # A folder of its own: the one TemporaryDirectory made is closed to other users.
        content = Path(temporary, "content")
        content.mkdir()
        try:
            kept = _unpack(archive, content, only, max_entries, max_bytes)
        except _BROKEN as error:
            raise BadArchive(
                f"{archive}: truncated or damaged archive ({error}). Delete it and get it again"
            ) from error
        absent = sorted(set(only or ()) - kept)
        if absent:
            raise BadArchive(f"{archive}: refused, it does not hold {', '.join(absent)}")
        os.replace(content, into)


def _unpack(
    archive: Path, content: Path, only: Collection[str] | None, max_entries: int, max_bytes: int
) -> set[str]:
    def refuse(why: str) -> BadArchive:
        return BadArchive(f"{archive}: refused, {why}")

    seen: set[str] = set()
    kept: set[str] = set()
    declared = written = 0
    with closing(_entries(archive, max_entries, max_bytes)) as entries:
        for number, entry in enumerate(entries, 1):
            if number > max_entries:
                raise refuse(f"more than {max_entries:,} entries")
            name = _safe_name(entry.name)
            if name is None:
                raise refuse(f"the path {entry.name!r} leads outside the folder or is not portable")
            if entry.kind not in ("file", "folder"):
                raise refuse(
                    f"{entry.name!r} is a {entry.kind}; only files and folders are unpacked"
                )
            # Folders are made together with their files.
            if entry.kind == "folder":
                continue
            if name in seen:
                raise refuse(f"{name!r} is in it twice")
            seen.add(name)
            declared += entry.size
            if declared > max_bytes:
                raise refuse(f"its files are larger than {max_bytes:,} bytes together")
            if only is not None and name not in only:
                continue
            source = entry.open()
            if source is None:
                raise refuse(f"{name!r} has no content")
            try:
                (content / name).parent.mkdir(parents=True, exist_ok=True)
                target = (content / name).open("xb")
            except (FileExistsError, NotADirectoryError) as error:
                raise refuse(
                    f"{name!r} is both a file and a folder, or there twice in another spelling"
                ) from error
            with source, target:
                while chunk := source.read(CHUNK):
                    written += len(chunk)
                    if written > max_bytes:
                        raise refuse(f"its files hold more than the {max_bytes:,} bytes allowed")
                    target.write(chunk)
            if (content / name).stat().st_size != entry.size:
                raise refuse(f"{name!r} is not as long as declared")
            kept.add(name)
    return kept


def _safe_name(name: str) -> str | None:
    """Return the path relative to the folder, or None when it is not one on every system."""
    path = PurePosixPath(name)
    # A colon would name a drive or a stream on Windows.
    if path.is_absolute() or ".." in path.parts or re.search(r"[\\\x00:]", name):
        return None
    return str(path)


def _entries(archive: Path, max_entries: int, max_bytes: int) -> Generator[_Entry, None, None]:
    with archive.open("rb") as raw:
        start = raw.peek(4)[:4]
        if start in _ZIP:
            yield from _zip_entries(raw)
        else:
            stream: BinaryIO = raw
            if start[:2] == _GZIP:
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw))
            # A generous bound for all headers, with long names and padding.
            headers = 4096 * max_entries + CHUNK
            yield from _tar_entries(_Bounded(stream, max_bytes + headers, archive))


def _zip_entries(raw: BinaryIO) -> Iterator[_Entry]:
    with zipfile.ZipFile(raw) as file:
        for info in file.infolist():
            mode = stat.S_IFMT(info.external_attr >> 16)
            kind = "folder" if info.is_dir() else "file"
            if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = "link" if mode == stat.S_IFLNK else "device"
            elif info.flag_bits & 1:
                kind = "file under a password"
            yield _Entry(info.orig_filename, info.file_size, kind, partial(file.open, info))


def _tar_entries(stream: "_Bounded") -> Iterator[_Entry]:
    # "r|": one pass, no seeking back.
    with tarfile.open(fileobj=stream, mode="r|") as file:
        for member in file:
            kind = "folder" if member.isdir() else "file"
            if member.issym() or member.islnk():
                kind = "link"
            elif member.issparse() or not (member.isdir() or member.isreg()):
                kind = "device or other special entry"
            yield _Entry(member.name, member.size, kind, partial(file.extractfile, member))
    # Read to the end, where gzip has its checksum.
    while stream.read(CHUNK):
        pass


class _Bounded(io.RawIOBase):
    """A stream that raises BadArchive after `limit` bytes.

    Declared sizes can be wrong, and the headers alone can be too large.
    """

    def __init__(self, stream: BinaryIO, limit: int, archive: Path) -> None:
        self.stream = stream
        self.left = limit
        self.limit = limit
        self.archive = archive

    def read(self, size: int = -1) -> bytes:
        # One byte more than allowed, to notice that there is more.
        most = self.left + 1
        if 0 <= size < most:
            most = size
        data = self.stream.read(most)
        self.left -= len(data)
        if self.left < 0:
            raise BadArchive(
                f"{self.archive}: refused, it unpacks to more than {self.limit:,} bytes"
            )
        return data
