"""Files inside tar files, as paths: SHARD.tar/OFFSET+SIZE/NAME names SIZE bytes from OFFSET on.

Such a path is a plain value, so splits, worker processes and digests treat it like any other. The
bytes are read from the tar file when they are needed. NAME is for people: nothing is opened by it.
"""

import io
import os
import re
from pathlib import Path
from typing import BinaryIO

# An image is read as a whole before it is decoded.
MAX_IMAGE_BYTES = 256 << 20
_MEMBER = re.compile(r"(.+\.tar)[/\\](\d+)\+(\d+)[/\\](.+)", re.DOTALL | re.IGNORECASE)


def member_path(shard: Path, offset: int, size: int, name: str) -> Path:
    """Return the path of a member.

    Args:
        shard: the tar file.
        offset: of the member's first byte in the tar file.
        size: in bytes.
        name: in the tar file, without "..".
    """
    return shard / f"{offset}+{size}" / name


def is_member(path: Path) -> bool:
    """Tell whether a path names bytes inside a tar file."""
    return _parts(path) is not None


def shown(path: Path) -> Path:
    """Return the path as people write it: SHARD.tar/NAME. Other paths stay.

    Args:
        path: of a member, or of a file.
    """
    parts = _parts(path)
    return path if parts is None else parts[0] / parts[3]


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of a member.

    Args:
        path: of a member, or of a file.
    """
    parts = _parts(path)
    return path.stat().st_size if parts is None else parts[2]


def located(path: Path) -> tuple[Path, int, int | None]:
    """Return (file, offset, size) of the bytes that a path names; None is up to the file's end.

    Args:
        path: of a member, or of a file.
    """
    parts = _parts(path)
    return (path, 0, None) if parts is None else parts[:3]


def open_bytes(path: Path) -> Path | BinaryIO:
    """Return what Pillow can open: the path of a file, or the bytes of a member.

    Args:
        path: of a member, or of a file.
    """
    parts = _parts(path)
    if parts is None:
        return path
    return io.BytesIO(read_bytes(*parts[:3], most=MAX_IMAGE_BYTES))


def read_bytes(shard: Path, offset: int, size: int, most: int) -> bytes:
    """Return the bytes of a member.

    Args:
        shard: the tar file.
        offset: of the first byte.
        size: how many.
        most: refuse more than this.
    """
    if size > most:
        raise ValueError(f"{size:,} bytes, more than the {most:,} allowed")
    with open(shard, "rb") as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) < size:
        raise ValueError("the tar file ends before it; it has been cut or replaced")
    return content


def _parts(path: Path) -> tuple[Path, int, int, str] | None:
    """(shard, offset, size, name); None if this is a path of a file."""
    # Most paths are of files, and end here.
    text = os.fspath(path)
    if ".tar" not in text and ".TAR" not in text:
        return None
    found = _MEMBER.fullmatch(text)
    if found is None:
        return None
    return Path(found[1]), int(found[2]), int(found[3]), found[4]
