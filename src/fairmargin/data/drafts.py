"""Read the rows of a table, or the images of a folder, with the faults that they show themselves.

`manifest` checks the files, and decides what is accepted.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairmargin.data.decode import EXTENSIONS
from fairmargin.data.problems import BadManifest, RowProblem
from fairmargin.data.table import DELIMITERS, find_column, find_column_if_there, read_table

SPLITS = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
# Bias cells that mean "unknown", in upper or lower case.
UNKNOWN = ("", "?", "unknown", "nan")
# Path of a row that names no file we may look at.
NOWHERE = Path()


@dataclass(frozen=True, slots=True)
class Sample:
    """One image with what is written about it.

    Args:
        row: its row in the table; None in a folder.
        file: the path as written.
        bias: empty if unknown.
        split: "train", "valid" or "test".
        weight: how often training draws it, beside others.
        bias_cells: what the columns of the bias say, one text for each.
        bias_values: the same as numbers, if the bias is continuous; NaN for unknown.
    """

    row: int | None
    file: str
    path: Path
    label: str
    bias: str
    split: str
    weight: float = 1.0
    bias_cells: tuple[str, ...] = ()
    bias_values: tuple[float, ...] = ()


@dataclass
class Draft:
    """A sample, and what is wrong with it."""

    sample: Sample
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table say what.

    Args:
        bias: several are combined; of the default "bias", none is fine.
        split: None uses the names of the files alone.
        weight: of the sample weights; None for none.
    """

    label: str = "label"
    bias: Sequence[str] | str = ("bias",)
    split: str | None = "split"
    weight: str | None = None

    @property
    def bias_names(self) -> tuple[str, ...]:
        """The names of the columns of the bias."""
        return column_names(self.bias)


def manifest_drafts(
    path: Path,
    path_column: str,
    label_column: str,
    bias_columns: Sequence[str] | str,
    split_column: str | None,
    root: Path | None,
    weight_column: str | None = None,
) -> list[Draft]:
    """Read a table into drafts with the faults that its rows show.

    Other arguments as in `manifest.read_manifest`.

    Args:
        root: the folder that paths start from and may not leave; the manifest's own if None.
        weight_column: of the sample weights; None for none.
    """
    path = Path(path)
    header, rows = read_table(path)
    path_at = find_column(path, header, path_column, "path_column")
    label_at = find_column(path, header, label_column, "label_column")
    bias_at = bias_positions(path, header, bias_columns)
    split_at = split_position(path, header, split_column)
    weight_at = None
    if weight_column is not None:
        weight_at = find_column(path, header, weight_column, "weight_column")
    folder = path.parent if root is None else root
    base = Path(os.path.abspath(folder))

    drafts = []
    for row, cells in rows:
        if len(cells) != len(header):
            file = cells[path_at] if path_at < len(cells) else ""
            reason = f"{len(cells)} cells where the header has {len(header)}"
            drafts.append(Draft(Sample(row, file, NOWHERE, "", "", ""), [reason]))
            continue
        faults = []
        file = cells[path_at]
        label = cells[label_at].strip()
        found = place(file, base, rooted=root is not None)
        if isinstance(found, str):
            faults.append(found)
            found = NOWHERE
        if not label:
            faults.append("empty label")
        written = "train" if split_at is None else cells[split_at].strip()
        split = SPLITS.get(written.casefold(), "")
        if not written:
            faults.append("empty split")
        elif not split:
            faults.append(f'unknown split "{written}" (train, valid or test)')
        # Decoding puts this character in place of broken bytes.
        if any("\ufffd" in cell for cell in cells):
            faults.append("not UTF-8 text")
        weight = parse_weight(None if weight_at is None else cells[weight_at], split)
        if isinstance(weight, str):
            faults.append(weight)
            weight = 0.0
        marked = tuple(cells[at].strip() for at in bias_at)
        bias = combine(marked)
        drafts.append(Draft(Sample(row, file, found, label, bias, split, weight, marked), faults))
    return drafts


def column_of_splits(path: Path) -> str | None:
    """Return the column of a text table whose cells are words such as train and test, if any.

    Args:
        path: a .csv or .tsv file; None is returned for everything else.
    """
    if path.suffix.lower() not in DELIMITERS or not path.is_file():
        return None
    header, rows = read_table(path)
    for at, name in enumerate(header):
        words = {cells[at].strip().casefold() for _, cells in rows if len(cells) == len(header)}
        if "test" in words and words <= SPLITS.keys():
            return name
    return None


def parse_weight(text: str | None, split: str) -> float | str:
    """Return the weight of a sample, or what is wrong with it; 1 where weights do not matter.

    Args:
        text: as written; None if there are no weights.
        split: only training samples are weighted.
    """
    if text is None or split != "train":
        return 1.0
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        return f'the weight "{text.strip()}" is no finite number from 0 up'
    return weight


def column_names(columns: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of columns, given as a list or as text: "a" or "a,b".

    Args:
        columns: empty for none.
    """
    if not isinstance(columns, str):
        return tuple(columns)
    return tuple(name.strip() for name in columns.split(",") if name.strip())


def bias_positions(path: Path, header: list[str], columns: Sequence[str] | str) -> list[int]:
    """Return where the columns of the bias are; the default one may be missing.

    Args:
        path: the table, for the message.
        header: of the table.
        columns: their names.
    """
    names = list(column_names(columns))
    # The default column may be missing.
    find = find_column_if_there if names == ["bias"] else find_column
    positions = [find(path, header, name, "bias_columns") for name in names]
    return [at for at in positions if at is not None]


def split_position(path: Path, header: list[str], column: str | None) -> int | None:
    """Return where the column of the split is; None if it is missing, as the default one may be.

    Args:
        path: the table, for the message.
        header: of the table.
        column: its name.
    """
    if column is None:
        return None
    # The default column may be missing.
    find = find_column_if_there if column == "split" else find_column
    return find(path, header, column, "split_column")


def place(file: str, base: Path, rooted: bool) -> Path | str:
    """Return the file's path, or the reason why we do not look there.

    Links in the root may lead out of it: its owner put them there.

    Args:
        file: the path as written.
        base: the folder that paths start from and may not leave.
        rooted: refuse absolute paths.
    """
    if not file:
        return "empty path"
    if os.path.isabs(file):
        if rooted:
            return f"an absolute path; write it from the root {base}"
        return Path(os.path.normpath(file))
    place = Path(os.path.normpath(base / file))
    if place == base or not place.is_relative_to(base):
        return f"leads outside the root {base}"
    return place


def combine(values: Iterable[str]) -> str:
    """Return several values of the bias as one; empty if any is unknown."""
    parts = [value.strip() for value in values]
    return "" if any(part.casefold() in UNKNOWN for part in parts) else "×".join(parts)


def folder_drafts(root: Path, bias_level: bool) -> list[Draft]:
    """List the images of a folder, laid out as `manifest.read_folder` says, as drafts.

    Args:
        bias_level: the folder below the class is the bias.
    """
    root = Path(root)
    if not root.is_dir():
        raise BadManifest([RowProblem(None, str(root), "no such folder")], str(root))
    base = Path(os.path.abspath(root))
    folders = [path.name for path in base.iterdir() if path.is_dir()]
    top = [SPLITS.get(name.casefold(), "") for name in folders if not name.startswith(".")]
    has_splits = "train" in top or (bool(top) and all(top))
    drafts = []
    for path in sorted(_images(base)):
        inside = path.relative_to(base).parts
        split = "train"
        levels = inside[:-1]  # class, perhaps bias, …
        if has_splits:
            split = SPLITS.get(inside[0].casefold(), "")
            levels = inside[1:-1]
        faults = []
        if not levels:
            faults.append("an image outside any class folder")
        elif not split:
            faults.append(
                f'folder "{inside[0]}" is beside the splits but is not train, valid or test'
            )
        label = levels[0] if levels else ""
        bias = combine([levels[1]]) if bias_level and len(levels) > 1 else ""
        drafts.append(Draft(Sample(None, "/".join(inside), path, label, bias, split), faults))
    if not drafts:
        fault = "no images in it; put them into one folder for each class"
        raise BadManifest([RowProblem(None, str(root), fault)], str(root))
    return drafts


def _images(base: Path) -> Iterator[Path]:
    """All images below a folder. Linked folders are followed, unless they lead upwards."""
    for folder, folders, files in os.walk(base, followlinks=True):
        here = Path(folder)
        ends = {name for name in folders if here.resolve().is_relative_to((here / name).resolve())}
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ends]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in EXTENSIONS:
                yield here / name
