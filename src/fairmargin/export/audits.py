"""What audits of a run and of its data found, in plain words, for a model card."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmargin.audit.model_page import verdict
from fairmargin.audit.page import NUMBERS
from fairmargin.audit.places import folder_of_dataset, folder_of_path
from fairmargin.runs.record import RunError, RunRecord, read_json

# Attributes that are named in a list.
NAMED = 5
# How far two printings of one accuracy may be apart.
SAME = 1e-6

Json = Mapping[str, Any]
Named = str | Path | Sequence[str | Path]


def audit_section(record: RunRecord, given: Named = ()) -> str:
    """Return a section of a card: findings of audits of a run and its data, or how to make them.

    Args:
        record: of a finished run.
        given: file audit.json, or a folder that holds one, or several. If none is given, those that
            `fairmargin audit` wrote where it does by default, and RUN/audit.json.
    """
    named = [given] if isinstance(given, str | Path) else given
    files = [_file(Path(one)) for one in named] or _default_files(record)
    found: dict[str, Json] = {}
    for file in files:
        read = _read(file)
        reason = _mismatch(record, read)
        if reason and named:
            raise RunError(f"{file} {reason}; name another one, or leave --audit out")
        if not reason:
            found.setdefault(read["kind"], read)
    parts = ["## Audit"]
    parts += [tell(found[kind]) for kind, tell in TELL.items() if kind in found]
    if not found:
        parts.append(
            "No audit of this model or of its data was found. One tells what gives the label away "
            f"and where the model is weak: `{_command(record)}`, then write this card again."
        )
    return "\n\n".join(parts)


def _file(path: Path) -> Path:
    """Return the file of numbers that a user means: itself, beside its page, or in a folder."""
    if path.is_dir():
        path = path / NUMBERS
    if path.suffix in (".html", ".htm"):
        path = path.with_suffix(".json")
    if not path.is_file():
        raise RunError(f"there is no audit {path}; make one: fairmargin audit --help")
    return path


def _default_files(record: RunRecord) -> list[Path]:
    """Return the files in the default places; of the run itself first, then of its data."""
    data = record.config.get("data") or {}
    root = Path(data["root"]) if data.get("name") == "folder" and data.get("root") else None
    inject = data.get("inject")
    places = [record.path, folder_of_path(record.path), folder_of_dataset(record.dataset, root)]
    if isinstance(inject, str) and inject != "none":
        places.insert(2, folder_of_dataset(record.dataset, root, inject))
    return [place / NUMBERS for place in places if (place / NUMBERS).is_file()]


def _read(file: Path) -> Json:
    """Return an audit of a dataset or a run; raise RunError for anything else."""
    read = read_json(file) or {}
    wanted = WANTED.get(str(read.get("kind")))
    if wanted is None:
        raise RunError(
            f"{file} is no audit of a dataset or a run; give one that "
            '"fairmargin audit" wrote for one of these'
        )
    missing = [key for key in wanted if key not in read]
    if missing:
        raise RunError(f"{file} has no {' and no '.join(missing)}; audit again")
    return read


def _mismatch(record: RunRecord, read: Json) -> str:
    """Return why an audit is not of this run or its data; empty if it is."""
    result = record.outcome
    if read["kind"] == "dataset":
        same = read.get("dataset") == record.dataset
        known = set(map(str, record.data["class_names"]))
        if not same or not set(map(str, read.get("classes", ()))) <= known:
            return f"is an audit of {read.get('dataset')}, and this run is on {record.dataset}"
        return ""
    facts = [(read.get(key), result[key]) for key in ("method", "dataset", "seed")]
    judged = result["test"].get("own")
    if any(one != other for one, other in facts):
        return "is an audit of another run: " + ", ".join(str(one) for one, _ in facts)
    if judged is not None and read.get("classifier") == "own":
        before = float(read["accuracy"]["plain"]["value"])
        now = float(judged["accuracy"]["plain"]["value"])
        if abs(before - now) > SAME:
            return "is an audit of this run as it was before it was trained again"
    return ""


def _of_data(read: Json) -> str:
    attributes = read["attributes"]
    chance = f"{100 / max(len(read['classes']), 1):.0f} %"
    shortcuts = [one for one in attributes if one["verdict"] == "shortcut"]
    leaders = [one for one in shortcuts if one.get("echo_of") is None]
    echoes = [one for one in shortcuts if one.get("echo_of") is not None]
    correlates = [one for one in attributes if one["verdict"] == "correlate"]
    lines = [f"**Training data.** {len(attributes)} simple attributes were looked at.", ""]
    for one in leaders:
        said = f"{one['name']} tells the class {_right(one)} of the time; chance is {chance}."
        lines.append(f"- Shortcut: {said}")
    if echoes:
        lines.append(f"- The same is told by: {_names(echoes)}.")
    if not shortcuts:
        lines.append("- None of them is a shortcut: none tells the class nearly as well.")
    if correlates:
        shown = [f"{one['name']} ({_right(one)})" for one in correlates[:NAMED]]
        more = f" and {len(correlates) - NAMED} more" if len(correlates) > NAMED else ""
        listed = ", ".join(shown) + more
        lines.append(
            f"- Right more often than chance, but weak or about the object itself: {listed}."
        )
    return "\n".join(lines + _warnings(read))


def _of_run(read: Json) -> str:
    lines = [f"**Model.** {verdict(dict(read))}"]
    slices = (read.get("slices") or {}).get("found") or ()
    if slices:
        lines.append("")
    for one in slices:
        name = read["class_names"][one["class"]]
        wrong, rest = one["confirmation"]["value"], one["rest_of_class"]["value"]
        lines.append(
            f"- A weak slice of class {name}: {100 * wrong:.0f} % wrong, "
            f"of the rest of the class {100 * rest:.0f} %."
        )
    return "\n".join(lines + _warnings(read))


def _warnings(read: Json) -> list[str]:
    return [f"- Note: {text.rstrip('.')}." for text in read.get("warnings") or ()]


def _right(one: Json) -> str:
    return f"{100 * one['balanced_accuracy']:.0f} %"


def _names(found: Sequence[Json]) -> str:
    names = [one["name"] for one in found]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _command(record: RunRecord) -> str:
    """Return how to audit a run, without the path of this machine."""
    path, here = record.path.resolve(), Path.cwd()
    inside = path.relative_to(here) if path.is_relative_to(here) else Path(path.name)
    return f"fairmargin audit {shlex.quote(inside.as_posix())}"


# By kind: how an audit is told, and the entries that are needed for it.
TELL = {"dataset": _of_data, "run": _of_run}
WANTED = {
    "dataset": ("dataset", "classes", "attributes"),
    "run": (
        *("method", "dataset", "seed", "classifier", "accuracy", "groups", "counts"),
        *("class_names", "bias_names", "bias_readable", "slices"),
    ),
}
