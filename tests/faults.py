"""Faults of the file system, injected: a kill, a full disk or a cut write at the n-th event.

Events are what changes a file below a folder: writes, flushes to disk, renames, removals. A killed
process does nothing more, so after a kill every further event fails as well, and the cleaning up of
`except` and `finally` changes nothing, as in a process that is gone.
"""

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

# kill: the process ends in the middle of the n-th event.
# full: from the n-th write on, the disk is full; half of that write still fits.
# cut: the n-th write alone ends in the middle, with an error of the disk.
KINDS = ("kill", "full", "cut")


class Killed(BaseException):
    """The process is gone. Nothing may catch this."""


class Faults:
    """Counts the events below a folder, and lets one of them fail.

    Args:
        folder: events elsewhere are not looked at.
        kind: one of KINDS.
        at: which event fails, from 0; None for none.
    """

    def __init__(self, folder: Path, kind: str = "kill", at: int | None = None) -> None:
        self.folder, self.kind, self.at = os.path.abspath(folder), kind, at
        # What happened, such as "write run/result.json".
        self.events: list[str] = []
        self.dead = self.full = False

    def watches(self, path: Any) -> bool:
        """Whether a path is below the folder."""
        if isinstance(path, int):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self.folder + os.sep)

    def meet(self, what: str, path: Any) -> bool:
        """Note an event; True if it is to fail now."""
        if self.dead:
            raise Killed
        if self.kind != "kill" and what != "write":
            return False
        self.events.append(f"{what} {os.path.relpath(os.fsdecode(path), self.folder)}")
        return len(self.events) - 1 == self.at

    def happen(self, what: str, path: Any) -> None:
        """Note an event that is no write, and die if this is the one."""
        if self.meet(what, path):
            self.dead = True
            raise Killed

    def write(self, file: Any, path: Any, content: Any) -> int:
        """Write to a file, or half of the content and then the fault."""
        struck = self.meet("write", path)
        if not struck and not self.full:
            return int(file.write(content))
        if struck:
            half = content[: len(content) // 2]
            if len(half):
                file.write(half)
            with contextlib.suppress(OSError):
                file.flush()
        if self.kind == "kill":
            self.dead = True
            raise Killed
        self.full = self.kind == "full"
        number = errno.ENOSPC if self.full else errno.EIO
        # As the system does it: without the name of the file.
        raise OSError(number, os.strerror(number))


class _File:
    """A file whose writes are events."""

    def __init__(self, file: Any, path: Any, faults: Faults) -> None:
        self._file, self._path, self._faults = file, path, faults

    def write(self, content: Any) -> int:
        return self._faults.write(self._file, self._path, content)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def truncate(self, size: int | None = None) -> int:
        self._faults.happen("truncate", self._path)
        return int(self._file.truncate(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_File":
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


@contextlib.contextmanager
def injected(faults: Faults) -> Iterator[Faults]:
    """Let the faults happen inside the `with` block, to everything that Python itself writes."""
    plain = {name: getattr(os, name) for name in ("replace", "rename", "unlink", "remove")}
    plain_open, plain_sync = builtins.open, os.fsync

    def opened(path: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        changes = set(mode) & set("wax+") and faults.watches(path)
        if changes and faults.dead:
            raise Killed
        file = plain_open(path, mode, *more, **options)
        return _File(file, path, faults) if changes else file

    def synced(descriptor: int) -> None:
        if faults.dead:
            raise Killed
        plain_sync(descriptor)

    def changed(name: str) -> Any:
        def change(path: Any, *more: Any, **options: Any) -> Any:
            if faults.watches(path):
                faults.happen(name, path)
            return plain[name](path, *more, **options)

        return change

    with contextlib.ExitStack() as stack:
        for place in (builtins, io):
            stack.enter_context(mock.patch.object(place, "open", opened))
        stack.enter_context(mock.patch.object(os, "fsync", synced))
        for name in plain:
            stack.enter_context(mock.patch.object(os, name, changed(name)))
        yield faults
