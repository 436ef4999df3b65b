"""Files that are written whole or not at all, and that are never reached through a link.

A folder may come from somebody else: a symbolic link in it could lead to any file of this machine,
and whoever writes through it overwrites that file. Needs no PyTorch.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO

# Ends of names that only processes of ours leave behind, when they are killed while writing.
PART = ".part"
# Errors of the system for which it matters how much space there is.
NO_SPACE = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


class LinkError(OSError):
    """A name inside a folder is a link, or something else than a plain file or folder."""


class WriteError(OSError):
    """A file could not be written; the message names it and says why."""

    def __init__(self, path: Path, size: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error), str(path))
        self.message = write_failure(error, path, size)

    def __str__(self) -> str:
        return self.message


def refuse_links(folder: Path) -> None:
    """Raise a LinkError if anything below a folder is a link, a device or a pipe.

    Args:
        folder: may itself be reached through links, which its user chose; it need not exist.
    """
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            entries = list(os.scandir(place))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False):
                raise LinkError(_refusal(Path(entry.path)))


def open_plain(path: Path, mode: str) -> IO[bytes]:
    """Open a plain file as `open(path, mode)` does, in binary; a LinkError if it is none.

    A file that has other names, too, is refused where it would be changed: hard links lead out of a
    folder as symbolic ones do.

    Args:
        path: its last part is never followed if it is a link.
        mode: of `open`, with "b" and without "w", which would empty a file before it is looked at.
    """
    try:
        # Not waiting: a pipe without a writer would be waited for, for ever.
        file: IO[bytes] = open(path, mode, opener=_without_following)  # noqa: SIM115
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise LinkError(_refusal(path)) from None
        raise
    facts = os.fstat(file.fileno())
    if not stat.S_ISREG(facts.st_mode):
        file.close()
        raise LinkError(_refusal(path))
    if file.writable() and facts.st_nlink > 1:
        file.close()
        raise LinkError(
            f"{path} is a hard link: the same file has other names, and what is written here would "
            "change it there. Put a copy in its place, or remove it"
        )
    return file


def write_atomically(path: Path, *parts: bytes | memoryview, mode: int | None = None) -> None:
    """Write the parts, one after another, to the file `path`.

    Afterwards the file holds all of them, or what it held before. A link at `path` is replaced, not
    followed; a device or a pipe is refused, because it would be replaced too. Errors of the system
    become a `WriteError`, which names the file.

    Args:
        path: in a folder that exists.
        parts: contents of the file.
        mode: its permissions, such as 0o600; those of a new file by default.
    """
    _refuse_special(path, sum(map(len, parts)))
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        # What a killed process with this number has left, or somebody else has put here.
        remove([temporary])
        with open_plain(temporary, "xb") as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        remove([temporary])
        if isinstance(error, OSError) and not isinstance(error, LinkError):
            raise WriteError(path, sum(map(len, parts)), error) from error
        raise
    _sync_folder(path.parent)


def _refuse_special(path: Path, size: int) -> None:
    """Raise a WriteError for /dev/null and the like: whoever may would put a file in its place."""
    try:
        mode = os.stat(path).st_mode
    # It is not there, or its name cannot be one: writing says so.
    except (OSError, ValueError):
        mode = stat.S_IFREG
    plain = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    folder = os.path.realpath(path.parent)
    # /dev/stdout is a link, and what it leads to may well be a file.
    if not plain or folder == "/dev" or folder.startswith("/proc/"):
        said = OSError(errno.EINVAL, "it is a device or a pipe; give the name of a file")
        raise WriteError(path, size, said)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: Path, text: str) -> Path:
    """Write a text file whole, make its folder if there is none, and return its path.

    Args:
        path: of the file.
        text: its content, written as UTF-8.
    """
    write_bytes(path, text.encode("utf-8"))
    return path


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole, and make its folder if there is none.

    Args:
        path: of the file.
        content: of the file.
    """
    _refuse_special(path, len(content))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        plain = OSError(errno.ENOTDIR, f"{path.parent} is a file, not a folder")
        raise WriteError(path, len(content), plain) from error
    except OSError as error:
        raise WriteError(path, len(content), error) from error
    write_atomically(path, content)


def remove(paths: Iterable[Path]) -> None:
    """Remove files; what cannot be removed now is left for another save."""
    for path in list(paths):
        with contextlib.suppress(OSError):
            path.unlink()


def write_failure(error: OSError, path: Path, size: int) -> str:
    """Return a message about a file of `size` bytes that could not be written.

    Args:
        error: what the system said.
        path: of the file.
        size: of the file in bytes.
    """
    said = f"cannot write {path}: {error.strerror or error}"
    if error.errno not in NO_SPACE:
        return said
    space = _free_bytes(path.parent)
    free = "" if space is None else f", {_in_units(space)} are free"
    return f"{said} (it needs {_in_units(size)}{free})"


def _without_following(path: str, flags: int) -> int:
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags | extra, 0o666)


def _refusal(path: Path) -> str:
    kind = "a symbolic link" if path.is_symlink() else "neither a file nor a folder"
    return (
        f"{path} is {kind}, and files of a run are never reached through one: it could lead to "
        "any file of this machine. Put a copy in its place, or remove it"
    )


def _sync_folder(folder: Path) -> None:
    """Make sure that a rename has reached the disk; some file systems cannot be asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _free_bytes(folder: Path) -> int | None:
    """Free bytes in the nearest folder that exists."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def _in_units(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
