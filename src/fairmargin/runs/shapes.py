"""What the files of a run folder have to look like: one description, and one message for a damage.

    problem(json.loads(text), RESULT)      # "test.own.accuracy.plain.value is …", or None

Reports, checks and audits may then rely on what they read. Entries that are not described are let
through, so that older and newer versions read each other's folders. Needs no PyTorch.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What is wrong with a value at a place, such as "headline.classifier is 3, not a text"; or None.
# The last argument tells whether needed entries may be missing.
Shape = Callable[[Any, str, bool], str | None]


def number(value: Any, place: str, partial: bool = False) -> str | None:
    """A finite number."""
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    # Python's whole numbers have no end, and compare with inf as finite.
    if fine and abs(value) <= sys.float_info.max:
        return None
    return _wrong(value, place, "a finite number")


def share(value: Any, place: str, partial: bool = False) -> str | None:
    """A number from 0 to 1."""
    wrong = number(value, place)
    if wrong or not 0 <= value <= 1:
        return wrong or _wrong(value, place, "a number from 0 to 1")
    return None


def whole(value: Any, place: str, partial: bool = False) -> str | None:
    """A whole number, 0 or more, that fits into 64 bits."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
        return None
    return _wrong(value, place, "a whole number, 0 or more")


def text(value: Any, place: str, partial: bool = False) -> str | None:
    """A text."""
    return None if isinstance(value, str) else _wrong(value, place, "a text")


@dataclass(frozen=True)
class Maybe:
    """What is described, or null."""

    shape: Shape

    def __call__(self, value: Any, place: str, partial: bool = False) -> str | None:
        return None if value is None else self.shape(value, place, partial)


@dataclass(frozen=True)
class ListOf:
    """A list of equal things.

    Args:
        lengths: how many there may be; empty for any number.
    """

    shape: Shape
    lengths: tuple[int, ...] = ()

    def __call__(self, value: Any, place: str, partial: bool = False) -> str | None:
        if not isinstance(value, list):
            return _wrong(value, place, "a list")
        if self.lengths and len(value) not in self.lengths:
            return f"{place} has {len(value)} entries, not {' or '.join(map(str, self.lengths))}"
        found = (self.shape(item, f"{place}[{i}]", partial) for i, item in enumerate(value))
        return next((wrong for wrong in found if wrong), None)


@dataclass(frozen=True)
class Rows:
    """A list of lists of one length."""

    shape: Shape

    def __call__(self, value: Any, place: str, partial: bool = False) -> str | None:
        wrong = ListOf(ListOf(self.shape))(value, place, partial)
        if not wrong and len({len(row) for row in value}) > 1:
            return f"{place} has rows of different lengths"
        return wrong


@dataclass(frozen=True)
class MapOf:
    """Equal things by name."""

    shape: Shape
    least: int = 0

    def __call__(self, value: Any, place: str, partial: bool = False) -> str | None:
        if not isinstance(value, dict):
            return _wrong(value, place, "an object")
        if len(value) < self.least and not partial:
            return f"{place} is empty"
        found = (self.shape(item, _inside(place, name), partial) for name, item in value.items())
        return next((wrong for wrong in found if wrong), None)


@dataclass(frozen=True)
class Table:
    """Certain entries, some of which may be missing."""

    needed: Mapping[str, Shape]
    others: Mapping[str, Shape] = field(default_factory=dict)

    def __call__(self, value: Any, place: str, partial: bool = False) -> str | None:
        if not isinstance(value, dict):
            return _wrong(value, place, "an object")
        for name in self.needed:
            if name not in value and not partial:
                return f"{_inside(place, name)} is missing"
        for name, shape in {**self.needed, **self.others}.items():
            wrong = shape(value[name], _inside(place, name), partial) if name in value else None
            if wrong:
                return wrong
        return None


GROUPS = Table({"n": Rows(whole), "correct": Rows(whole)}, {
    "low": Rows(Maybe(share)), "high": Rows(Maybe(share)),
})  # fmt: skip
BIN = Table({"confidence": Maybe(number), "accuracy": Maybe(number), "n": whole})
JUDGED = Table(
    {
        # A value that was not finite is written as null.
        "accuracy": MapOf(Table({"value": Maybe(share)}, {
            "low": Maybe(share), "high": Maybe(share),
        })),
        "n": whole,
        "groups": Maybe(GROUPS),
        "equalised_odds_gap": Maybe(share),
        "warnings": ListOf(text),
    },
    {
        "calibration": Maybe(Table({"ece": Maybe(number), "bins": ListOf(BIN)}, {
            "nll": Maybe(number), "brier": Maybe(number),
        })),
        "iterations": Maybe(whole),
    },
)  # fmt: skip
ACCURACIES = MapOf(Maybe(number))
SIMILARITY = Table({
    "edges": ListOf(number),
    "sets": MapOf(Table({
        "pairs": whole, "mean": Maybe(number), "std": Maybe(number), "counts": ListOf(number),
    })),
}, {
    "kl": MapOf(Maybe(number)),
    "samples": whole,
})  # fmt: skip
LINK = Table({"closer": text, "farther": text, "share": Maybe(number)})
RECORD = Table({"epoch": whole}, {"step": whole, "valid": ACCURACIES, "test": ACCURACIES})
RESULT = Table(
    {
        "test": MapOf(JUDGED, least=1),
        "headline": Table({"classifier": text, "accuracy": text}),
        "epochs": whole,
        "steps": whole,
        "seconds": number,
    },
    {
        "method": text,
        "dataset": text,
        "seed": whole,
        "reported": text,
        "records": Maybe(MapOf(RECORD)),
        "extra_tests": Maybe(MapOf(MapOf(JUDGED))),
        "similarity": Maybe(SIMILARITY),
        "ordering": Maybe(Table({"links": ListOf(LINK), "total": Maybe(number)})),
        "warnings": Maybe(ListOf(text)),
    },
)
SECTION = Table({}, {"name": text})
CONFIG = Table({}, {
    "seed": whole, "data": SECTION, "method": SECTION, "network": SECTION,
    "train": Table({}), "evaluate": Table({}),
})  # fmt: skip
DATA = Table({}, {
    "name": text,
    "class_names": ListOf(text),
    "bias_names": Maybe(ListOf(text)),
    "image_shape": ListOf(whole),
    "counts": Maybe(Rows(whole)),
    "sizes": MapOf(whole),
    "notes": Maybe(MapOf(text)),
})  # fmt: skip
ENVIRONMENT = Table({}, {
    "fairmargin": text, "python": text, "torch": text, "numpy": text,
    "platform": text, "device": text, "command": text, "started": text,
    "threads": whole, "world_size": whole,
    "git": Maybe(Table({}, {"commit": text})),
    "data": Maybe(MapOf(text)),
    "parent": Maybe(Table({})),
})  # fmt: skip
TRAIN = Table({"step": whole}, {
    "epoch": whole,
    "lr": MapOf(Maybe(number)),
    "terms": Maybe(ACCURACIES),
    # Two counts of positives, and two of negatives where FairKL looks at these too.
    "pairs": Maybe(ListOf(number, lengths=(2, 4))),
    "seconds": Maybe(number),
    "images_per_second": Maybe(number),
})  # fmt: skip
EVALUATION = Table({"step": whole, "epoch": whole}, {
    "valid": Maybe(ACCURACIES), "test": Maybe(ACCURACIES), "similarity": Maybe(SIMILARITY),
})  # fmt: skip
EVENTS: dict[str, Shape] = {"train": TRAIN, "evaluation": EVALUATION}


def problem(value: Any, shape: Shape, *, partial: bool = False) -> str | None:
    """Return what is wrong with the content of a file, or None.

    Args:
        value: what was read.
        shape: one of this module, such as `RESULT`.
        partial: look only at what is there; needed entries may be missing.
    """
    return shape(value, "", partial)


def problem_of_event(event: Any) -> str | None:
    """Return what is wrong with a line of metrics.jsonl, or None.

    Args:
        event: what was read.
    """
    named = event.get("event")
    shape = EVENTS.get(named) if isinstance(named, str) else None
    return None if shape is None else shape(event, "", True)


def problem_between(result: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """Return where a result does not fit the description of its data, or None.

    Both fit their own shapes.

    Args:
        result: result.json.
        data: data.json.
    """
    classes, biases = data.get("class_names"), data.get("bias_names")
    if classes is None:
        return None
    wanted = (len(classes), len(biases)) if biases else None
    counts = data.get("counts")
    if wanted and counts is None:
        return "there are names of biases and no counts"
    if wanted and counts is not None and _size(counts) != wanted:
        return f"counts has {_size(counts)} rows and columns, and the names make {wanted}"
    tests = {"test": result["test"], **(result.get("extra_tests") or {})}
    for place, judged in tests.items():
        for name, one in judged.items():
            if one["groups"] and not wanted:
                return f"{place}.{name} has groups, and there are no names of biases"
            for entry, rows in (one["groups"] or {}).items():
                if isinstance(rows, list) and wanted and _size(rows) != wanted:
                    return (
                        f"{place}.{name}.groups.{entry} has {_size(rows)} rows and columns, and "
                        f"the names make {wanted}"
                    )
    classifier = result["headline"]["classifier"]
    if classifier not in result["test"]:
        return f"headline.classifier is {classifier!r}, which was not tested"
    if result["headline"]["accuracy"] not in result["test"][classifier]["accuracy"]:
        return f"headline.accuracy is {result['headline']['accuracy']!r}, which was not measured"
    return None


def problem_of_arrays(
    arrays: Mapping[str, NDArray[Any]], data: Mapping[str, Any] | None = None
) -> str | None:
    """Return what is wrong with the arrays of test.npz, or None.

    Args:
        arrays: by name.
        data: data.json, whose names the numbers stand for.
    """
    dimensions = {"labels": 1, "predicted": 1, "bias": 1, "logits": 2, "features": 2}
    lengths = {}
    for name, wanted in dimensions.items():
        if name not in arrays:
            continue
        if arrays[name].ndim != wanted:
            return f"{name} has {arrays[name].ndim} dimensions, not {wanted}"
        kind = np.integer if wanted == 1 else np.floating
        if not np.issubdtype(arrays[name].dtype, kind):
            return f"{name} holds {arrays[name].dtype}"
        lengths[name] = len(arrays[name])
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {n}" for name, n in lengths.items())
        return f"its arrays have different lengths: {said}"
    for name, names in (("labels", "class_names"), ("bias", "bias_names")):
        known = (data or {}).get(names)
        if known is not None and name in arrays and arrays[name].max(initial=0) >= len(known):
            return f"{name} has the value {arrays[name].max()}, and there are {len(known)} names"
    return None


def _size(rows: list[list[Any]]) -> tuple[int, int]:
    return len(rows), len(rows[0]) if rows else 0


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else str(name)


def _wrong(value: Any, place: str, wanted: str) -> str:
    said = "null" if value is None else f"{value!r}"
    if len(said) > 30:
        said = said[:27] + "…"
    return f"{place or 'its content'} is {said}, not {wanted}"
