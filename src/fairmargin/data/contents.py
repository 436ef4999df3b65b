"""Digests of what image files hold, so that an image exchanged at equal size is noticed.

A file is read once: as it is decoded. What is known of it is kept in the user's own cache, by path,
size, times and inode, so that a folder that has not changed costs a look at each file's entry, and
none at its content. The cache is never in a run folder or beside the data, which may come from
somebody else. Without a cache, everything is read again.
"""

import contextlib
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairmargin.data.members import MAX_IMAGE_BYTES, located
from fairmargin.runtime.whole import open_plain, write_atomically

# Names the folder of the cache; "none" for no cache.
VARIABLE = "FAIRMARGIN_DIGESTS"
FORMAT = 1
# A file that was changed later than this before it was read could be changed once more without
# another time, on file systems with coarse clocks. It is read again the next time.
SETTLED_NS = 2_000_000_000
# More than ten million files.
LARGEST_CACHE = 2 << 30


class Seen(NamedTuple):
    """What is known of a file's content."""

    # Size, times, inode and device of the file when it was read.
    mark: str
    # SHA-256 of its content; empty if it could not be read.
    digest: str
    # Whether a later change would change the mark too.
    settled: bool = True


def read_seen(path: Path) -> tuple[bytes | None, Seen]:
    """Return the content of an image file and what is known of it; None if it is too large.

    Args:
        path: of a file, or of a member of a tar.
    """
    file, offset, size = located(path)
    # Without a buffer: a file is read at once. Not waiting: a pipe would be waited for, for ever.
    with open(file, "rb", buffering=0, opener=_not_waiting) as stream:
        facts = os.fstat(stream.fileno())
        if not stat.S_ISREG(facts.st_mode):
            return None, Seen("", "", settled=False)
        wanted = facts.st_size if size is None else size
        if wanted > MAX_IMAGE_BYTES:
            return None, _large(stream, facts, size)
        if offset:
            stream.seek(offset)
        content = stream.read(wanted) or b""
    if len(content) < wanted:
        # A tar that was cut, or a file that is being written: whoever decodes it says so.
        return None, Seen(_mark(facts), "", settled=False)
    return content, Seen(_mark(facts), hashlib.sha256(content).hexdigest(), _settled(facts))


def contents_hash(paths: Iterable[Path], source: Path, seen: Mapping[Path, Seen]) -> str:
    """Return the SHA-256 of the contents of files, in their order; names are not in it.

    Args:
        paths: of files, or of members of tars. One that cannot be read counts as empty.
        source: the table or folder that names them; its cache is used and brought up to date.
        seen: what has been read just now.
    """
    cache = _cache_file(source)
    known = {} if cache is None else _load(cache)
    now: dict[str, Seen] = {}
    whole = hashlib.sha256()
    marks: dict[Path, str] = {}
    for path in paths:
        name = os.fspath(path)
        found = seen.get(path) or _unchanged(path, known.get(name), marks) or _read(path)
        now[name] = found
        whole.update(f"{found.digest}\n".encode())
    if cache is not None:
        kept = {name: found for name, found in now.items() if found.settled and found.digest}
        if kept != known:
            _save(cache, kept)
    return whole.hexdigest()


def user_cache() -> Path:
    """Return the folder of the user's own caches of FairMargin."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache, "fairmargin")
    home = Path.home()
    caches = {"darwin": home / "Library" / "Caches", "win32": home / "AppData" / "Local"}
    return caches.get(sys.platform, home / ".cache") / "fairmargin"


def _not_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read(path: Path) -> Seen:
    try:
        return read_seen(path)[1]
    # ValueError: the name holds a zero byte.
    except (OSError, ValueError):
        return Seen("", "", settled=False)


def _large(stream: Any, facts: os.stat_result, size: int | None) -> Seen:
    """A file that should not be in memory as a whole; members of that size are refused anyway."""
    if size is not None:
        return Seen(_mark(facts), "", settled=False)
    digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Seen(_mark(facts), digest, _settled(facts))


def _unchanged(path: Path, before: Seen | None, marks: dict[Path, str]) -> Seen | None:
    """What was known of a file, if it is still the same; many members share a tar's mark."""
    if before is None:
        return None
    file, _, _ = located(path)
    if file not in marks:
        try:
            marks[file] = _mark(os.stat(file))
        except (OSError, ValueError):
            marks[file] = ""
    return before if before.mark == marks[file] else None


def _mark(facts: os.stat_result) -> str:
    return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino} {facts.st_dev}"


def _settled(facts: os.stat_result) -> bool:
    return time.time_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) > SETTLED_NS


def _cache_file(source: Path) -> Path | None:
    """Where the cache of a source is; None if there is to be none."""
    named = os.environ.get(VARIABLE)
    if named == "none":
        return None
    try:
        folder = Path(named).expanduser() if named else user_cache() / "digests"
    # There is no home.
    except RuntimeError:
        return None
    name = hashlib.sha256(os.fsencode(os.path.abspath(source))).hexdigest()[:16]
    return folder / f"{name}.json"


def _load(cache: Path) -> dict[str, Seen]:
    """Read a cache; empty if it is not there or damaged, or if others could have written it."""
    try:
        with open_plain(cache, "rb") as file:
            facts = os.fstat(file.fileno())
            if not _own(facts) or facts.st_size > LARGEST_CACHE:
                return {}
            content = json.loads(file.read())
        if content["format"] != FORMAT:
            return {}
        return {name: _entry(*entry) for name, entry in content["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _entry(mark: object, digest: object) -> Seen:
    if not (isinstance(mark, str) and isinstance(digest, str) and len(digest) == 64):
        raise ValueError("no entry of a cache")
    return Seen(mark, digest)


def _own(facts: os.stat_result) -> bool:
    """True if nobody but this user could have written a file."""
    if not hasattr(os, "getuid"):
        return True
    return facts.st_uid == os.getuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _save(cache: Path, files: Mapping[str, Seen]) -> None:
    """Write a cache; one that cannot be written is done without."""
    entries = {name: (seen.mark, seen.digest) for name, seen in files.items()}
    text = json.dumps({"format": FORMAT, "files": entries}, separators=(",", ":"))
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(cache, text.encode("ascii"), mode=0o600)
