"""From an .npz file, or a dict of arrays, to what an audit of a model needs; or a message that says what is wrong."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEYS = (
    "embeddings",
    "features",
    "labels",
    "bias",
    "logits",
    "predicted",
    "class_names",
    "bias_names",
    "counts",
)
UNKNOWN = -1
MOST_ZEROS = 0.1  # share of zero rows above which they are no accident

Values = NDArray[Any]


@dataclass(frozen=True)
class Arrays:
    """One row for each sample."""

    embeddings: NDArray[np.float32]  # [N, D]
    labels: Tensor  # [N]
    bias: Tensor | None  # [N]; −1: unknown. None: nobody wrote it down
    predicted: Tensor | None  # [N]; −1: no answer. None: there are embeddings only
    class_names: tuple[str, ...]
    bias_names: tuple[str, ...]
    counts: Tensor | None  # [classes, biases] of the training set, where known
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


def read(source: Path | str | Mapping[str, Any]) -> Arrays:
    """Checked arrays.

    Labels and bias may be text, also as bytes. Integers are positions in `class_names` and `bias_names` where those are given;
    without, each value that occurs is a class, and named by itself.
    """
    given, said = (
        (dict(source), "the arrays")
        if isinstance(source, Mapping)
        else (_load(Path(source)), str(source))
    )
    given = {key: _text(key, np.asarray(value)) for key, value in given.items()}
    if objects := [key for key, value in given.items() if value.dtype.hasobject]:
        raise ValueError(
            f"{said}: {objects[0]} holds Python objects; give numbers, or text as dtype=str"
        )
    warnings = _ignored(given)
    if "predicted" in given:  # what the model answered counts, whatever its logits say
        given.pop("logits", None)
    embeddings = _embeddings(given, said, warnings)
    labels = _column(given, "labels", len(embeddings))
    if labels is None:
        raise ValueError(
            f'{said} has no "labels"; it has {_listed(given)}. Give one class for each embedding'
        )
    answers = _answers(given, len(embeddings))
    if labels.dtype.kind == "i" and labels.min() < 0:
        raise ValueError(
            f"labels must be ≥ 0; got {labels.min()}. Leave out samples of unknown class"
        )
    y, predicted, classes = _classes(
        labels, answers, given.get("logits"), _names(given, "class_names")
    )
    bias, biases = _biases(_column(given, "bias", len(embeddings)), _names(given, "bias_names"))
    if len(np.unique(y)) < 2:
        raise ValueError(
            f"all {len(y)} labels are {classes[int(y[0])]!r}; an audit compares classes and needs two"
        )
    return Arrays(
        embeddings,
        torch.from_numpy(y),
        None if bias is None else torch.from_numpy(bias),
        None if predicted is None else torch.from_numpy(predicted),
        classes,
        biases,
        _counts(given, len(classes), len(biases)),
        tuple(warnings),
    )


def _load(path: Path) -> dict[str, Values]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give an .npz with embeddings and labels")
    try:
        with np.load(path, allow_pickle=False) as stored:
            if not hasattr(stored, "files"):
                raise ValueError("it holds one array without a name")
            return {key: stored[key] for key in stored.files}
    except Exception as error:  # zip, array header, pickle: each has its own
        raise ValueError(
            f"{path} cannot be read as an .npz of plain arrays ({error}); "
            "write it with numpy.savez(path, embeddings=…, labels=…), text as dtype=str"
        ) from error


def _text(key: str, values: Values) -> Values:
    """Bytes as the text they spell."""
    if values.dtype.kind != "S":
        return values
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{key} holds bytes that are not UTF-8 text ({error.reason}); give text as dtype=str"
        ) from error


def _listed(given: Mapping[str, Values]) -> str:
    return ", ".join(given) or "nothing"


def _ignored(given: Mapping[str, Values]) -> list[str]:
    said = []
    for key in given:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            said.append(
                f'the array "{key}" is not used' + (f'; did you mean "{near[0]}"?' if near else "")
            )
    return said


def _embeddings(given: Mapping[str, Values], said: str, warnings: list[str]) -> NDArray[np.float32]:
    names = [name for name in ("embeddings", "features") if name in given]
    if len(names) != 1:
        found = (
            'both "embeddings" and "features"; leave one out'
            if names
            else f"{_listed(given)}. Add an array [N, D]"
        )
        raise ValueError(f'{said} needs one array of "embeddings" (or "features"); it has {found}')
    x = given[names[0]]
    if x.ndim != 2 or not x.size:
        raise ValueError(
            f"{names[0]} must have shape [N, D]; got {list(x.shape)}. Flatten what a sample is to a vector"
        )
    if x.dtype.kind not in "fiu":
        raise ValueError(f"{names[0]} must be numbers; got {x.dtype}")
    x = np.ascontiguousarray(x, np.float32)
    finite = np.isfinite(x.sum(1, dtype=np.float64))  # a NaN or inf always reaches the sum
    if not finite.all():
        raise ValueError(
            f"{names[0]} has NaN or inf in {(~finite).sum()} of {len(x)} rows (first: row {int(finite.argmin())}); "
            "leave those samples out, or export them again"
        )
    if zeros := int((~x.any(1)).sum()):
        told = f"{zeros} of {len(x)} rows of {names[0]} are zeros"
        if zeros > MOST_ZEROS * len(x):
            raise ValueError(
                f"{told}; export one embedding for each sample, in the order of the labels"
            )
        warnings.append(f"{told}: they have no direction, and every cosine with them counts as 0")
    return x


def _column(given: Mapping[str, Values], name: str, length: int) -> Values | None:
    if name not in given:
        return None
    values = given[name]
    if values.shape != (length,):
        raise ValueError(
            f"{name} must have shape [{length}], one for each embedding; got {list(values.shape)}"
        )
    if values.dtype.kind == "f":
        if not np.array_equal(values, np.round(values)):
            raise ValueError(
                f"{name} must be integers or text, one class for each sample; got {values.dtype} fractions"
            )
        values = values.astype(np.int64)
    return values.astype(np.int64) if values.dtype.kind in "biu" else values


def _answers(given: Mapping[str, Values], length: int) -> Values | None:
    logits = given.get("logits")
    if logits is None:
        return _column(given, "predicted", length)
    if (
        logits.ndim != 2
        or len(logits) != length
        or logits.dtype.kind not in "fiu"
        or logits.shape[1] < 2
    ):
        raise ValueError(
            f"logits must have shape [{length}, classes], one row for each embedding; got {list(logits.shape)}"
        )
    top = logits.max(1)
    return np.where(np.isfinite(top), logits.argmax(1), UNKNOWN)


def _names(given: Mapping[str, Values], key: str) -> tuple[str, ...] | None:
    return tuple(map(str, given[key].ravel())) if key in given else None


def _classes(
    labels: Values, answers: Values | None, logits: Values | None, names: tuple[str, ...] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, tuple[str, ...]]:
    """Labels and answers as positions in the classes' names."""
    if logits is not None:
        if labels.dtype.kind == "U" and names is None:
            raise ValueError(
                "labels are text and logits are columns; give class_names in the columns' order"
            )
        names = names or tuple(map(str, range(logits.shape[1])))
        if len(names) != logits.shape[1]:
            raise ValueError(
                f"there are {len(names)} class_names for {logits.shape[1]} columns of logits"
            )
    if names is None and answers is not None and labels.dtype.kind != answers.dtype.kind:
        raise ValueError(
            f"labels are {labels.dtype} and predicted are {answers.dtype}; give both in the same words"
        )
    if names is None:
        seen = labels if answers is None else np.concatenate([labels, answers[_known(answers)]])
        values = np.unique(seen)
        names, y = tuple(map(str, values)), np.searchsorted(values, labels)
        predicted = None if answers is None else _coded(answers, values)
        return y.astype(np.int64), predicted, names
    y = _positions(labels, names, "labels", "class_names")
    if answers is None or logits is not None:
        return y, answers, names
    return y, _positions(answers, names, "predicted", "class_names"), names


def _known(values: Values) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = values != "" if values.dtype.kind == "U" else values != UNKNOWN
    return known


def _coded(values: Values, among: Values) -> NDArray[np.int64]:
    return np.where(_known(values), np.searchsorted(among, values), UNKNOWN).astype(np.int64)


def _positions(
    values: Values, names: tuple[str, ...], name: str, names_key: str
) -> NDArray[np.int64]:
    """Positions in `names`; −1 for −1 or an empty text."""
    if values.dtype.kind == "U":
        if missing := set(map(str, np.unique(values[_known(values)]))) - set(names):
            raise ValueError(
                f"{name} holds {sorted(missing)[0]!r}, which is not in {names_key}: {', '.join(names)}"
            )
        place = {word: k for k, word in enumerate(names)}
        return np.array([place.get(str(value), UNKNOWN) for value in values], np.int64)
    if values.min() < UNKNOWN or values.max() >= len(names):
        raise ValueError(
            f"{name} must be from 0 to {len(names) - 1}, positions in the {len(names)} {names_key}; "
            f"got values from {values.min()} to {values.max()}"
        )
    return values.astype(np.int64)


def _biases(
    values: Values | None, names: tuple[str, ...] | None
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    if values is None or not _known(values).any():
        return None, ()
    if names is not None:
        return _positions(values, names, "bias", "bias_names"), names
    among = np.unique(values[_known(values)])
    if among.dtype.kind != "U" and among[0] < 0:
        raise ValueError(
            f"bias must be ≥ 0, or −1 for unknown; got {among[0]}. Recode the attribute from 0 up"
        )
    return _coded(values, among), tuple(map(str, among))


def _counts(given: Mapping[str, Values], classes: int, biases: int) -> Tensor | None:
    counts = given.get("counts")
    if counts is None or not biases:
        return None
    if counts.shape != (classes, biases) or counts.dtype.kind not in "iu":
        raise ValueError(
            f"counts must be integers [{classes} classes, {biases} biases], the training samples of each group; "
            f"got {counts.dtype} {list(counts.shape)}"
        )
    return torch.from_numpy(counts.astype(np.int64))
