"""A first look at people's own images: what defaults are chosen by, before any image is decoded."""

import inspect
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from fairmargin.data.arrays import split_words
from fairmargin.data.datasets import folder
from fairmargin.data.decode import FORMATS, check_file
from fairmargin.data.drafts import SPLITS, Draft, column_of_splits
from fairmargin.data.members import open_bytes
from fairmargin.data.problems import BadManifest

# Files whose size in pixels is read, spread over the table.
LOOKED_AT = 48


@dataclass(frozen=True)
class OwnFacts:
    """What a table or folder of images shows at a first look.

    Args:
        images: training samples, those to be held out included.
        side: the median of the shorter sides, in pixels; None if no file could be opened.
        classes: how many labels there are.
        biases: how many values of the bias are known.
        known: share of the training samples whose bias is known.
        tests: samples that are marked for the test.
        splits_in: a column of another name that seems to mark the test samples.
    """

    images: int
    side: int | None
    classes: int
    biases: int
    known: float
    tests: int
    splits_in: str | None = None


def look(path: Path, options: Mapping[str, Any]) -> OwnFacts | None:
    """Return what defaults are chosen by; None if the table cannot be read.

    What is wrong with a table is said when the dataset is built, with every problem at once.

    Args:
        path: the table or folder.
        options: keywords of `folder.build`, such as other names of columns; others are ignored.
    """
    takes = inspect.signature(folder.drafts_of).parameters
    given = {key: _plain(value) for key, value in options.items() if key in takes}
    if given.get("base") is not None:
        given["base"] = Path(str(given["base"]))
    try:
        # A pattern of several files is no file itself.
        changed = path.stat().st_mtime_ns if path.exists() else 0
        return _look(path, changed, tuple(sorted(given.items())))
    except (BadManifest, ValueError, OSError, TypeError):
        return None


def _plain(value: Any) -> Any:
    """Return an option as the builder takes it, from TOML: "none" is nothing, a list a tuple."""
    if isinstance(value, list):
        return tuple(value)
    return None if value == "none" else value


@lru_cache(maxsize=8)
def _look(path: Path, changed: int, options: tuple[tuple[str, Any], ...]) -> OwnFacts:
    """`look`, kept until the file changes: every run of a comparison asks."""
    drafts, _ = folder.drafts_of(path, **dict(options))
    trained = [draft for draft in drafts if draft.sample.split == "train"]
    bias = [draft.sample.bias for draft in trained if draft.sample.bias]
    tests = sum(draft.sample.split == "test" for draft in drafts)
    return OwnFacts(
        images=len(trained),
        side=_side(drafts),
        classes=len({draft.sample.label for draft in trained}),
        biases=len(set(bias)),
        known=len(bias) / max(len(trained), 1),
        tests=tests,
        splits_in=None if tests else column_of_splits(path),
    )


def marks_test_vectors(path: Path) -> bool | None:
    """Return whether an .npz file marks some vectors for the test; None if it cannot be read."""
    try:
        words = split_words(path)
    # What is wrong with it is said when the dataset is built.
    except Exception:
        return None
    return any(SPLITS.get(word.strip().casefold()) == "test" for word in words)


def _side(drafts: list[Draft]) -> int | None:
    sides = []
    for draft in drafts[:: max(len(drafts) // LOOKED_AT, 1)]:
        try:
            check_file(draft.sample.path)
            # Reads the header, not the pixels.
            with Image.open(open_bytes(draft.sample.path), formats=FORMATS) as image:
                sides.append(min(image.size))
        # Pillow raises many kinds of errors; they are reported when the images are read.
        except Exception:
            continue
    return round(statistics.median(sides)) if sides else None
