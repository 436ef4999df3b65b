"""Read Parquet and Arrow tables that hold the images themselves, as Hugging Face lays them out.

The bytes of each image are written once into a folder below the user's cache, as they are; from
there they are checked and decoded like any other files (`decode`). WebDataset tars are read by
`webdataset`, which unpacks nothing.
"""

import hashlib
import importlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmargin.data.drafts import (
    NOWHERE,
    SPLITS,
    Columns,
    Draft,
    Sample,
    bias_positions,
    combine,
    parse_weight,
    place,
    split_position,
)
from fairmargin.data.problems import BadManifest, RowProblem
from fairmargin.data.sources import data_root
from fairmargin.data.table import cell_text, find_column
from fairmargin.data.webdataset import has_image_files, shard_drafts, shards
from fairmargin.runtime.limits import check_unpacked

PARQUET = (".parquet", ".pq")
ENDINGS = (*PARQUET, ".arrow")
# Rows in memory at a time, and bytes of theirs if each were as long as all of its column.
ROWS = 256
AT_ONCE = 256 << 20
# Images are compressed already: tables that unpack to so many times their size hold something else.
TIMES = 10
# Written last: a folder without it is not whole.
COMPLETE = "complete"


@dataclass(frozen=True)
class Embedded:
    """Samples of data that hold the images themselves.

    Args:
        unpacked: folder into which the images were written; None if they stay where they are.
        marked: the data tell which samples are for the test.
    """

    drafts: list[Draft]
    unpacked: Path | None
    marked: bool


def holds_images(path: Path) -> bool:
    """Tell whether these are tables or WebDataset tars with images inside.

    Args:
        path: of people's own data: a file, a folder of them, or a pattern of tars.
    """
    files = _files(path)
    tars = shards(path)
    if not files and not tars:
        return False
    # A folder of image files may have a table of something else beside them.
    if path.is_dir() and has_image_files(path):
        return False
    if tars and files:
        raise ValueError(
            f"{path} holds tar files and tables with images; put them into folders of their own"
        )
    if tars:
        return True
    try:
        return _image_column(_schema(files[0])) is not None
    except ValueError:
        # Read as a table of paths, which says what is wrong.
        if files == [path] and path.suffix.lower() in PARQUET:
            return False
        raise


def embedded_drafts(path: Path, columns: Columns) -> Embedded:
    """Return the drafts of all rows, after unpacking the images of tables.

    A split comes from a column, or from the names: train-00000-of-00002.parquet, train/0.arrow.

    Args:
        path: a file, a folder of files, or a pattern of tars.
        columns: which columns say what.
    """
    if shards(path):
        drafts, marked = shard_drafts(path, columns)
        return Embedded(drafts, None, marked)
    files = _files(path)
    splits = {file: _split_of(file, path) for file in files}
    target = data_root(None) / "unpacked" / _digest(files)
    _unpack(files, target)
    drafts = []
    for number, file in enumerate(files):
        drafts += _rows(file, splits[file], columns, target / str(number))
    marked = path.is_dir() or columns.split in _schema(path).names or splits[path] is not None
    return Embedded(drafts, target, marked)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix.lower() in ENDINGS else []
    # NAME/train-0.parquet, NAME/data/train-0.parquet, NAME/train/data-0.arrow (save_to_disk).
    found = [file for pattern in ("*", "*/*") for file in path.glob(pattern)]
    files = [file for file in found if file.suffix.lower() in ENDINGS and file.is_file()]
    # datasets keeps results of map() beside the data.
    return sorted(file for file in files if not file.name.startswith(("cache-", ".")))


def _split_of(file: Path, root: Path) -> str | None:
    """The split that a name tells; None for a table given by itself whose name tells none."""
    words = [re.split(r"[-_.]", file.name)[0], file.parent.name]
    for word in words:
        if word.casefold() in SPLITS:
            return SPLITS[word.casefold()]
    if file == root:
        return None
    if root.is_dir() and (root / "state.json").is_file():
        return None
    raise BadManifest(
        [RowProblem(None, str(file), "its name does not tell its split")],
        str(root),
        "call it train-…, validation-… or test-…, move it away, or give the file alone",
    )


def _arrow(name: str, file: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f'{file}: tables with images need an extra: pip install "fairmargin[parquet]"'
        ) from None


def _open(file: Path) -> Any:
    """A reader with `schema_arrow` (Parquet) or `schema` (Arrow)."""
    arrow = _arrow("pyarrow", file)
    try:
        if file.suffix.lower() in PARQUET:
            return _arrow("pyarrow.parquet", file).ParquetFile(file)
        mapped = arrow.memory_map(str(file))
        ipc = _arrow("pyarrow.ipc", file)
        try:
            return ipc.open_stream(mapped)
        except arrow.ArrowInvalid:
            return ipc.open_file(mapped)
    except (OSError, ValueError) as error:
        problem = RowProblem(None, str(file), f"not a Parquet or Arrow table: {error}")
        raise BadManifest([problem], str(file)) from error


def _schema(file: Path) -> Any:
    reader = _open(file)
    return reader.schema_arrow if hasattr(reader, "schema_arrow") else reader.schema


def _batches(file: Path, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
    """Rows in parts, with these columns only."""
    reader = _open(file)
    if hasattr(reader, "iter_batches"):
        for batch in reader.iter_batches(_rows_at_once(reader.metadata), columns=columns):
            yield _python(file, batch)
        return
    if hasattr(reader, "num_record_batches"):
        reader = map(reader.get_batch, range(reader.num_record_batches))
    for batch in reader:
        chosen = batch.select(columns)
        for start in range(0, chosen.num_rows, ROWS):
            yield _python(file, chosen.slice(start, ROWS))


def _rows_at_once(metadata: Any) -> int:
    """Rows that fit into memory, whatever they hold: a Parquet file can repeat a long value."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    longest = max((column.total_uncompressed_size for column in columns), default=1)
    return min(max(AT_ONCE // max(longest, 1), 1), ROWS)


def _python(file: Path, batch: Any) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows
    # Dates after the year 9999, time zones that nobody knows, text that is not UTF-8.
    except (ValueError, OverflowError) as error:
        problem = RowProblem(None, str(file), f"a value of it cannot be read: {error}")
        raise BadManifest([problem], str(file)) from error


def _image_column(schema: Any) -> str | None:
    """The column with bytes, or a struct of bytes and path; "image" and "img" go first."""
    kinds = importlib.import_module("pyarrow.types")
    found = []
    for field in schema:
        kind = field.type
        if kinds.is_struct(kind):
            inside = {kind.field(i).name for i in range(kind.num_fields)}
            if "bytes" in inside:
                found.append(field.name)
        elif kinds.is_binary(kind) or kinds.is_large_binary(kind):
            found.append(field.name)
    return min(
        found, key=lambda name: (name not in ("image", "img"), found.index(name)), default=None
    )


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Names of the columns that are ClassLabels, from Hugging Face's note in the schema."""
    try:
        noted = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = noted.get("info", {}).get("features", {})
        return {
            name: list(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, AttributeError, KeyError, TypeError):
        # A note that cannot be read says nothing.
        return {}


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        found = file.stat()
        # The time of the change, too: it cannot be set back, as that of the content can.
        times = f"{found.st_mtime_ns}\0{found.st_ctime_ns}\0{found.st_ino}"
        line = f"{file.absolute()}\0{found.st_size}\0{times}\n"
        # A name on the disk need not be UTF-8.
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _unpack(files: Sequence[Path], target: Path) -> None:
    """Write the bytes of every image to TARGET/FILE/ROW, whole or not at all.

    Raises `TooLarge` if that is much more than the tables are.
    """
    if (target / COMPLETE).is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="part-") as folder:
        part = Path(folder) / "images"
        for number, file in enumerate(files):
            written = 0
            column = _needed_image_column(file)
            inside = part / str(number)
            inside.mkdir(parents=True)
            row = 0
            for batch in _batches(file, [column]):
                for cells in batch:
                    row += 1
                    content = _bytes(cells[column])
                    if not content:
                        continue
                    written += len(content)
                    if written > TIMES * file.stat().st_size:
                        check_unpacked(file, written)
                    (inside / str(row)).write_bytes(content)
        (part / COMPLETE).touch()
        try:
            part.rename(target)
        except OSError:
            # Another process was faster.
            if not (target / COMPLETE).is_file():
                raise


def _needed_image_column(file: Path) -> str:
    schema = _schema(file)
    column = _image_column(schema)
    if column is None:
        reason = f"no column of images; the columns are {', '.join(schema.names)}"
        raise BadManifest([RowProblem(None, str(file), reason)], str(file))
    return column


def _bytes(cell: Any) -> bytes | None:
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    return content if isinstance(content, bytes) else None


def _rows(file: Path, split: str | None, columns: Columns, images: Path) -> list[Draft]:
    schema = _schema(file)
    header = list(schema.names)
    image = _needed_image_column(file)
    find_column(file, header, columns.label, "label_column")
    bias = [header[at] for at in bias_positions(file, header, columns.bias)]
    split_at = split_position(file, header, columns.split)
    split_column = None if split_at is None else header[split_at]
    if columns.weight is not None:
        find_column(file, header, columns.weight, "weight_column")
    wanted = [columns.label, *bias, *filter(None, (split_column, columns.weight))]
    named = {name: names for name, names in _class_names(schema).items() if name in wanted}

    def word(cells: dict[str, Any], column: str) -> str:
        value = cells[column]
        names = named.get(column)
        if names is not None and isinstance(value, int):
            return names[value] if 0 <= value < len(names) else ""
        return cell_text(value).strip()

    drafts = []
    row = 0
    paths = _has_path(schema, image)
    if paths:
        # Parquet can give the path without the bytes beside it.
        wanted.append(f"{image}.path" if file.suffix.lower() in PARQUET else image)
    for batch in _batches(file, list(dict.fromkeys(wanted))):
        for cells in batch:
            row += 1
            faults = []
            where = images / str(row)
            if not where.is_file():
                given = cells[image].get("path") if paths and cells[image] else None
                found = place(given or "", file.parent.absolute(), rooted=True)
                where = NOWHERE if isinstance(found, str) else found
                if isinstance(found, str):
                    faults.append(found if given else "no image")
            label = word(cells, columns.label)
            if not label:
                faults.append("empty label")
            written = word(cells, split_column) if split_column else (split or "train")
            known = SPLITS.get(written.casefold(), "")
            if not known:
                faults.append(f'unknown split "{written}" (train, valid or test)')
            weight = parse_weight(columns.weight and word(cells, columns.weight), known)
            if isinstance(weight, str):
                faults.append(weight)
                weight = 0.0
            marked = tuple(word(cells, name) for name in bias)
            name = f"{file.name}, image {row}"
            sample = Sample(row, name, where, label, combine(marked), known, weight, marked)
            drafts.append(Draft(sample, faults))
    return drafts


def _has_path(schema: Any, image: str) -> bool:
    kind = schema.field(image).type
    number = getattr(kind, "num_fields", 0)
    return "path" in {kind.field(i).name for i in range(number)}
