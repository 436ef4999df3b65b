"""Read WebDataset tars: members that share a key, the name up to its first dot, are one sample.

A tar is never unpacked. Its headers are read once; images stay where they are and are read when
they are needed (`members`). Text and JSON are read, nothing else: a pickle is not even opened.
"""

import glob
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from fairmargin.data.archives import BadArchive
from fairmargin.data.decode import EXTENSIONS
from fairmargin.data.drafts import (
    NOWHERE,
    SPLITS,
    Columns,
    Draft,
    Sample,
    bias_positions,
    combine,
    parse_weight,
    split_position,
)
from fairmargin.data.members import MAX_IMAGE_BYTES, member_path, read_bytes
from fairmargin.data.problems import BadManifest, RowProblem
from fairmargin.data.table import cell_text, find_column

ENDING = ".tar"
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
MAX_SHARDS = 100_000
MAX_MEMBERS = 20_000_000
# A label or the facts about an image; longer ones are refused.
MAX_TEXT_BYTES = 1 << 20
# A header with long names; what a damaged one asks for may be anything.
MAX_HEADER_BYTES = 1 << 20
MAX_LABEL = 200
# Where the label is, if no field has the default name.
LABELS = ("cls", "txt")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass
class _Key:
    """The members of one sample.

    Args:
        name: SHARD/KEY, for messages.
        members: ending → offset, size and name in the tar.
        fields: values that were asked for, as text.
        unsafe: what is wrong with the name of a member; then nothing else is looked at.
    """

    name: str
    members: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    unsafe: str = ""
    faults: list[str] = field(default_factory=list)


def is_pattern(path: Path | str) -> bool:
    """Tell whether this is a pattern of tar files, such as shards-{000..003}.tar or train-*.tar.

    Args:
        path: what the user named.
    """
    text = str(path)
    named = text.lower().endswith(ENDING) and re.search(r"[*?[{]", text) is not None
    return named and not Path(text).exists()


def shards(path: Path) -> list[Path]:
    """Return the tar files of a path, in order; none if it is something else.

    Args:
        path: a tar file, a folder of them (or of folders of them), or a pattern.
    """
    if is_pattern(path):
        return _matching(str(path))
    if path.is_dir():
        named = "*.[tT][aA][rR]"
        found = [file for level in (named, f"*/{named}") for file in path.glob(level)]
        tars = sorted(file for file in found if file.is_file() and file.name[0] != ".")
        return [] if tars and has_image_files(path) else tars
    if path.name.lower().endswith(COMPRESSED) and path.is_file():
        raise ValueError(
            f"{path} is compressed, and images are read from their places in a tar file; "
            "decompress it to a plain .tar file first"
        )
    return [path] if path.suffix.lower() == ENDING and path.is_file() else []


def has_image_files(folder: Path) -> bool:
    """Tell whether images lie in folders below this one: tars or tables are beside them by chance.

    Args:
        folder: of people's own data.
    """
    levels = ("*/*", "*/*/*", "*/*/*/*")
    return any(file.suffix.lower() in EXTENSIONS for level in levels for file in folder.glob(level))


def plain_name(path: Path) -> str:
    """Return a name for data: that of the file or folder, or what a pattern has beside its signs.

    Args:
        path: of people's own data.
    """
    if path.is_dir():
        return path.resolve().name
    if not is_pattern(path):
        return path.stem
    words = re.sub(r"\{[^{}]*\}|\[[^]]*\]|[*?]", "", path.stem).strip("-_. ")
    return words or path.resolve().parent.name


def shard_drafts(path: Path, columns: Columns) -> tuple[list[Draft], bool]:
    """Return the drafts of all samples, and whether the tars tell their splits.

    Args:
        path: a tar file, a folder of them, or a pattern.
        columns: names of JSON fields, or endings of text members. Without a field "label", the
            label is in `cls` or `txt`.
    """
    files = shards(path)
    splits = {file: _split_of(file) for file in files}
    untold = [file for file in files if splits[file] is None]
    if untold and len(untold) < len(files):
        raise BadManifest(
            [RowProblem(None, str(untold[0]), "its name does not tell its split")],
            str(path),
            "call it train-…, val-… or test-…, as the others are, or leave it out",
        )
    keys = {file: _keys(file) for file in files}
    _check_number(path, sum(len(found) for found in keys.values()))
    header = _read_fields(keys, columns)
    label = columns.label
    if label == "label" and label not in header:
        label = next((name for name in LABELS if name in header), label)
    find_column(path, header, label, "label_column")
    bias = [header[at] for at in bias_positions(path, header, columns.bias)]
    split_at = split_position(path, header, columns.split)
    split = None if split_at is None else header[split_at]
    if columns.weight is not None:
        find_column(path, header, columns.weight, "weight_column")
    texts = list(dict.fromkeys([label, *bias, *filter(None, (split, columns.weight))]))
    drafts = []
    for file, found in keys.items():
        for key in found:
            _read_texts(key, file, texts)
            written = splits[file] or "train" if split is None else key.fields.get(split, "")
            drafts.append(_draft(key, file, label, bias, written, columns.weight))
    return drafts, split is not None or not untold


def shard_images(path: Path) -> list[Path]:
    """Return the images of tar files as paths of members, whatever else their keys have.

    Args:
        path: a tar file, a folder of them, or a pattern.
    """
    found = []
    for file in shards(path):
        for key in _keys(file):
            ending = _image(key)
            if ending is not None:
                found.append(member_path(file, *key.members[ending]))
    return found


def shard_fields(path: Path, images: Sequence[Path]) -> dict[str, list[str]]:
    """Return the JSON fields of these images that hold text or a number, as columns.

    Args:
        path: a tar file, a folder of them, or a pattern.
        images: paths of members.
    """
    values: dict[Path, dict[str, Any]] = {}
    for file in shards(path):
        for key in _keys(file):
            ending = _image(key)
            if ending is not None:
                values[member_path(file, *key.members[ending])] = _json(key, file)
    names: dict[str, None] = {}
    for image in images:
        names.update(dict.fromkeys(values[image]))
    return {
        name: [_text(values[image].get(name)) or "" for image in images]
        for name in names
        if all(_text(values[image].get(name)) is not None for image in images)
    }


def _draft(
    key: _Key, file: Path, label: str, bias: list[str], written: str, weight: str | None
) -> Draft:
    if key.unsafe:
        return Draft(Sample(None, key.name, NOWHERE, "", "", ""), [key.unsafe])
    faults = list(key.faults)
    where = NOWHERE
    name = key.name
    ending = _image(key)
    if ending is not None:
        where = member_path(file, *key.members[ending])
        name = f"{file.name}/{key.members[ending][2]}"
        if key.members[ending][1] > MAX_IMAGE_BYTES:
            faults.append(f"an image of more than {MAX_IMAGE_BYTES:,} bytes")
    else:
        faults.append(_no_image(key))
    marked = key.fields.get(label, "")
    if not marked:
        faults.append(f'no label: "{label}" is missing or empty')
    elif len(marked) > MAX_LABEL or "\n" in marked:
        faults.append(f'no label: "{label}" is a text of {len(marked)} characters')
    split = SPLITS.get(written.casefold(), "")
    if not split:
        faults.append(f'unknown split "{written}" (train, valid or test)')
    found = parse_weight(None if weight is None else key.fields.get(weight, ""), split)
    if isinstance(found, str):
        faults.append(found)
        found = 0.0
    cells = tuple(key.fields.get(each, "").strip() for each in bias)
    return Draft(Sample(None, name, where, marked, combine(cells), split, found, cells), faults)


def _image(key: _Key) -> str | None:
    """The ending of the image: "jpg", or one of several words such as "rgb.jpg"."""
    exact = [ending for ending in key.members if f".{ending}" in EXTENSIONS]
    if not exact:
        last = {ending: f".{ending.rpartition('.')[2]}" for ending in key.members}
        exact = [ending for ending in key.members if last[ending] in EXTENSIONS]
    return exact[0] if len(exact) == 1 else None


def _no_image(key: _Key) -> str:
    images = [e for e in key.members if f".{e.rpartition('.')[2]}" in EXTENSIONS]
    if images:
        return f"{len(images)} images ({', '.join(images)}) where one is wanted"
    if key.links:
        return f"no image; its {key.links[0]} is a link or a device, which is not followed"
    return f"no image; it has {', '.join(key.members) or 'nothing'}"


def _read_fields(keys: dict[Path, list[_Key]], columns: Columns) -> list[str]:
    """Read the JSON of all keys, keep the columns that are asked for, and return all names."""
    wanted = {columns.label, *columns.bias_names, columns.split, columns.weight, *LABELS}
    header: dict[str, None] = {}
    for file, found in keys.items():
        for key in found:
            for name, value in _json(key, file).items():
                header[name] = None
                if name not in wanted:
                    continue
                text = _text(value)
                if text is None:
                    key.faults.append(f'"{name}" is a {type(value).__name__}, no text or number')
                else:
                    key.fields[name] = text
            others = [e for e in key.members if e != "json" and f".{e}" not in EXTENSIONS]
            header.update(dict.fromkeys(others))
    return list(header)


def _json(key: _Key, file: Path) -> dict[str, Any]:
    """The fields of a key's JSON member; empty if it has none. What is wrong becomes a fault."""
    text = _content(key, file, "json")
    if text is None:
        return {}
    try:
        found = json.loads(text)
    # RecursionError: brackets within brackets, without end.
    except (ValueError, RecursionError) as error:
        key.faults.append(f"its json cannot be read: {error}")
        return {}
    if not isinstance(found, dict):
        key.faults.append("its json holds no fields by name")
        return {}
    return found


def _read_texts(key: _Key, file: Path, names: Sequence[str]) -> None:
    """Add the text members of these endings to the fields; a JSON field of that name wins."""
    for name in names:
        text = None if name in key.fields else _content(key, file, name)
        if text is not None:
            key.fields[name] = text.strip()


def _content(key: _Key, file: Path, ending: str) -> str | None:
    if ending not in key.members:
        return None
    offset, size, _ = key.members[ending]
    try:
        return read_bytes(file, offset, size, most=MAX_TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        key.faults.append(f"its {ending} is not UTF-8 text")
    except ValueError as error:
        key.faults.append(f"its {ending} has {error}")
    return None


def _text(value: Any) -> str | None:
    """A value as text, as a table would hold it; None for lists and tables."""
    return None if isinstance(value, list | dict) else cell_text(value).strip()


def _keys(shard: Path) -> list[_Key]:
    """The samples of a tar file, in its order."""
    found: dict[str, _Key] = {}
    number = 0
    with open(shard, "rb") as raw:
        for member in _members(raw, shard):
            number += 1
            _check_number(shard, number)
            if member.isdir():
                continue
            name = member.name.removeprefix("./")
            base = name.rpartition("/")[2]
            stem, _, ending = base.partition(".")
            # Hidden files, files without an ending, and WebDataset's own notes.
            if not stem or not ending or (base.startswith("__") and stem.endswith("__")):
                continue
            ending = ending.lower()
            whole = name.removesuffix(base) + stem
            key = found.setdefault(whole, _Key(f"{shard.name}/{_printed(whole)}"))
            if not _is_safe(name):
                why = "leads outside the tar file or cannot be printed"
                key.unsafe = key.unsafe or f"the path {_printed(name)!r} {why}"
            elif not member.isreg() or member.issparse():
                key.links.append(ending)
            elif ending in key.members:
                key.faults.append(f"{base} is in it twice")
            else:
                path = str(PurePosixPath(name))
                key.members[ending] = (member.offset_data, member.size, path)
    if not found:
        raise BadArchive(f"{shard}: no samples in it; leave it out, or make it again")
    return list(found.values())


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and _printed(name) == name


def _printed(name: str) -> str:
    """The name without signs that a terminal would obey; a backslash is a folder on Windows."""
    return "".join(sign if sign.isprintable() and sign != "\\" else "�" for sign in name)


class _Headers:
    """A tar file of which only headers are read: what asks for more at once is damaged."""

    def __init__(self, raw: BinaryIO, shard: Path) -> None:
        self.raw, self.shard = raw, shard
        self.seek, self.tell = raw.seek, raw.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise BadArchive(
                f"{self.shard}: refused, a header asks for {size:,} bytes, "
                f"more than the {MAX_HEADER_BYTES:,} allowed"
            )
        return self.raw.read(size)


def _members(raw: BinaryIO, shard: Path) -> Iterator[tarfile.TarInfo]:
    """All entries of a tar file that is whole; raise BadArchive for any other."""
    try:
        headers: Any = _Headers(raw, shard)
        file: Any
        with tarfile.open(fileobj=headers, mode="r:") as file:
            last = -1
            while (member := file.next()) is not None:
                # tarfile would keep them all.
                file.members.clear()
                if member.offset <= last or member.size < 0:
                    raise BadArchive(f"{shard}: refused, its headers lead backwards")
                last = member.offset
                yield member
            end = file.offset
    except BadArchive:
        raise
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise BadArchive(
            f"{shard}: truncated or damaged tar file ({error}); get it again"
        ) from error
    _check_end(raw, shard, end)


def _check_end(raw: BinaryIO, shard: Path, end: int) -> None:
    """Raise unless a tar file ends as it should: tarfile takes a damaged header for the end."""
    raw.seek(end)
    mark = raw.read(tarfile.BLOCKSIZE)
    if len(mark) < tarfile.BLOCKSIZE:
        raise BadArchive(f"{shard}: truncated, it has no end mark; get it again")
    if mark.strip(b"\0"):
        raise BadArchive(f"{shard}: damaged, there is no header at byte {end:,}; get it again")
    if raw.read(MAX_HEADER_BYTES).strip(b"\0"):
        raise BadArchive(
            f"{shard}: refused, there is more after its end, as when tar files are joined; "
            "keep them as several files"
        )


def _check_number(path: Path, number: int) -> None:
    if number > MAX_MEMBERS:
        raise BadArchive(f"{path}: refused, more than {MAX_MEMBERS:,} files in it")


def _split_of(shard: Path) -> str | None:
    """The split that the words of a name tell, or the name of its folder."""
    words = [*re.split(r"[-_.]", shard.stem), shard.parent.name]
    return next((SPLITS[word.casefold()] for word in words if word.casefold() in SPLITS), None)


def _matching(pattern: str) -> list[Path]:
    """The files of a pattern; each that braces name must be there."""
    found: dict[Path, None] = {}
    names = list(islice(_expanded(pattern), MAX_SHARDS + 1))
    if len(names) > MAX_SHARDS:
        raise ValueError(f"{pattern} stands for more than {MAX_SHARDS:,} files; name fewer")
    for each in names:
        if re.search(r"[*?[]", each):
            matches = sorted(Path(name) for name in glob.glob(each) if os.path.isfile(name))
        else:
            matches = [Path(each)]
        if not matches or not matches[0].is_file():
            raise ValueError(f"there is no {each}, which {pattern} stands for; check the path")
        found.update(dict.fromkeys(matches))
    return list(found)


def _expanded(pattern: str) -> Iterator[str]:
    """Write out braces as a shell does: {000..003} and {a,b}."""
    for braces in _BRACES.finditer(pattern):
        inside = braces[1]
        numbers = _RANGE.fullmatch(inside)
        if numbers is None and "," not in inside:
            continue
        choices: Iterator[str] = iter(inside.split(","))
        if numbers is not None:
            choices = _counted(numbers[1], numbers[2])
        for choice in choices:
            yield from _expanded(pattern[: braces.start()] + choice + pattern[braces.end() :])
        return
    yield pattern


def _counted(first: str, last: str) -> Iterator[str]:
    low, high = int(first), int(last)
    width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
    step = 1 if low <= high else -1
    return (f"{number:0{width}d}" for number in range(low, high + step, step))
