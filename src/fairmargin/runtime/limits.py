"""How much a file from outside may unpack to. Limits can be raised; each message says how.

A compressed file of some megabytes can hold gigabytes of zeros, and a table of some kilobytes can
repeat a long value a million times.
"""

import os
import zipfile
from pathlib import Path

# Variable, and the limit without it: gibibytes of arrays or a table, megapixels of a picture.
ARRAYS = ("FAIRMARGIN_LARGEST_ARRAYS", 4.0)
IMAGE = ("FAIRMARGIN_LARGEST_IMAGE", 100.0)
# The key of a configuration that wins over the variable.
IMAGE_KEY = "data.largest_image"
GIB, MEGAPIXEL = 1 << 30, 1_000_000


class TooLarge(ValueError):
    """A file unpacks to more than the limit; the message says how to raise it."""


def limit(of: tuple[str, float]) -> float:
    """Return a limit: that of its variable, or the usual one.

    Args:
        of: `ARRAYS` or `IMAGE`.
    """
    name, usual = of
    text = os.environ.get(name)
    if not text:
        return usual
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not found > 0:
        raise ValueError(f"{name} must be a number above 0; got {text!r}")
    return found


def check_arrays(file: Path) -> None:
    """Raise `TooLarge` if an .npz file unpacks to more than the limit; nothing is unpacked.

    Args:
        file: that exists. One that is no zip file is left to whoever reads it.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return
    check_unpacked(file, size)


def check_unpacked(file: Path, size: int) -> None:
    """Raise `TooLarge` if what a file unpacks to is more than the limit for arrays.

    Args:
        file: for the message.
        size: in bytes, or a lower bound.
    """
    most = limit(ARRAYS)
    if size > most * GIB:
        raise TooLarge(
            f"{file} unpacks to {size / GIB:.1f} GiB, more than {most:g}; if you trust it, raise "
            f"the limit with {ARRAYS[0]}={-(-size // GIB)}"
        )


def problem_of_size(width: int, height: int, largest: float | None = None) -> str | None:
    """Return why a picture of so many pixels is not read; None if it is.

    Args:
        width: in pixels.
        height: in pixels.
        largest: in megapixels, the limit of a configuration; by default that of the variable.
    """
    most = limit(IMAGE) if largest is None else largest
    megapixels = width * height / MEGAPIXEL
    if megapixels <= most:
        return None
    needed = -(-width * height // MEGAPIXEL)
    return (
        f"it has {megapixels:,.0f} megapixels, more than {most:g}; if you trust it, raise the "
        f"limit with --set {IMAGE_KEY}={needed}, or with the variable {IMAGE[0]}={needed}"
    )
