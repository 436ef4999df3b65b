"""Read and check embeddings with their labels, from an .npz file or a dict.

Training on embeddings and the audit of a model take the same names.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmargin.runtime.limits import check_arrays

KEYS = (
    "embeddings", "features", "labels", "bias", "logits", "predicted",
    "class_names", "bias_names", "counts", "split", "names",
)  # fmt: skip
# Short names, as scikit-learn has them.
SHORT = {"X": "features", "y": "labels"}
UNKNOWN = -1
# A larger share of zero rows is a mistake of the export.
MOST_ZEROS = 0.1

Values = NDArray[Any]


@dataclass(frozen=True)
class Arrays:
    """Embeddings and what is known of each sample; one row for each.

    Args:
        embeddings: [N, D].
        labels: [N] positions in `class_names`.
        bias: [N] positions in `bias_names`, −1 for unknown; None if nobody wrote it down.
        predicted: [N] positions in `class_names`, −1 for no answer; None if there are none.
        class_names: of all classes.
        bias_names: of all values of the bias.
        counts: [classes, biases] of the training set; None if not known.
        split: of each sample, as written; None if nobody wrote it down.
        warnings: sentences about what was unusual.
        names: of the samples, such as their files; None if nobody wrote them down.
        confidence: [N] probability of the predicted class; None without logits.
    """

    embeddings: NDArray[np.float32]
    labels: Tensor
    bias: Tensor | None
    predicted: Tensor | None
    class_names: tuple[str, ...]
    bias_names: tuple[str, ...]
    counts: Tensor | None
    split: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    confidence: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.labels)


def read(source: Path | str | Mapping[str, Any], *, least_classes: int = 2) -> Arrays:
    """Read and check arrays.

    Labels and bias may be text, also as bytes. Integers are positions in `class_names` and
    `bias_names` if those are given; otherwise each value that occurs is a class, named by itself.

    Args:
        source: an .npz file, or a dict of arrays; `audit_arrays` lists their names.
        least_classes: how many must occur among the labels.
    """
    if isinstance(source, Mapping):
        raw, said = dict(source), "the arrays"
    else:
        raw, said = _load(Path(source)), str(source)
    for short, name in SHORT.items():
        if short in raw and name in raw:
            raise ValueError(f'{said} has both "{short}" and "{name}"; leave one out')
    given = {SHORT.get(key, key): _text(key, np.asarray(value)) for key, value in raw.items()}
    objects = [key for key, value in given.items() if value.dtype.hasobject]
    if objects:
        raise ValueError(
            f"{said}: {objects[0]} holds Python objects; give numbers, or text as dtype=str"
        )
    # Neither numbers nor text: times, complex numbers, records.
    others = [key for key, value in given.items() if value.dtype.kind not in "biufU"]
    if others:
        kind = given[others[0]].dtype
        raise ValueError(f"{said}: {others[0]} holds {kind}; give numbers, or text as dtype=str")
    warnings = _ignored(given)
    logits = given.get("logits")
    # What the model answered counts, whatever its logits say.
    if "predicted" in given:
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
    if len(np.unique(y)) < least_classes:
        raise ValueError(
            f"all {len(y)} labels are {classes[int(y[0])]!r}; telling classes apart needs two"
        )
    return Arrays(
        embeddings,
        torch.from_numpy(y),
        None if bias is None else torch.from_numpy(bias),
        None if predicted is None else torch.from_numpy(predicted),
        classes,
        biases,
        _counts(given, len(classes), len(biases)),
        _splits(given, len(embeddings)),
        tuple(warnings),
        _sample_names(given, len(embeddings)),
        None if predicted is None else _confidence(logits, predicted),
    )


def read_vectors(path: Path) -> NDArray[np.float32]:
    """Read the embeddings of an .npz file, [N, D]; labels need not be there.

    Args:
        path: of the file.
    """
    given = {SHORT.get(key, key): value for key, value in _load(path).items()}
    return _embeddings(given, str(path), [])


def split_words(path: Path) -> list[str]:
    """Return the words of the array "split" of an .npz file, or none; no other array is read."""
    check_arrays(path)
    with np.load(path, allow_pickle=False) as stored:
        if "split" not in stored.files:
            return []
        return [str(word) for word in _text("split", stored["split"]).ravel()]


def _load(path: Path) -> dict[str, Values]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give an .npz with embeddings and labels")
    check_arrays(path)
    try:
        with np.load(path, allow_pickle=False) as stored:
            if not hasattr(stored, "files"):
                raise ValueError("it holds one array without a name")
            return {key: stored[key] for key in stored.files}
    # The zip file, the array's header and pickle each raise errors of their own.
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as an .npz of plain arrays ({error}); "
            "write it with numpy.savez(path, embeddings=…, labels=…), text as dtype=str"
        ) from error


def _text(key: str, values: Values) -> Values:
    """Decode bytes as UTF-8 text; other values stay."""
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
    """Return a warning for each array that nothing uses."""
    warnings = []
    for key in given:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            warnings.append(f'the array "{key}" is not used{hint}')
    return warnings


def _embeddings(given: Mapping[str, Values], said: str, warnings: list[str]) -> NDArray[np.float32]:
    names = [name for name in ("embeddings", "features") if name in given]
    if len(names) != 1:
        found = f"{_listed(given)}. Add an array [N, D]"
        if names:
            found = 'both "embeddings" and "features"; leave one out'
        raise ValueError(
            f'{said} needs one array of "embeddings" (or "features", or "X"); it has {found}'
        )
    x = given[names[0]]
    if x.ndim != 2 or not x.size:
        raise ValueError(
            f"{names[0]} must have shape [N, D]; got {list(x.shape)}. "
            "Flatten what a sample is to a vector"
        )
    if x.dtype.kind not in "fiu":
        raise ValueError(f"{names[0]} must be numbers; got {x.dtype}")
    x = np.ascontiguousarray(x, np.float32)
    # A NaN or inf always reaches the sum.
    finite = np.isfinite(x.sum(1, dtype=np.float64))
    if not finite.all():
        raise ValueError(
            f"{names[0]} has NaN or inf in {(~finite).sum()} of {len(x)} rows "
            f"(first: row {int(finite.argmin())}); leave those samples out, or export them again"
        )
    zeros = int((~x.any(1)).sum())
    if zeros:
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
                f"{name} must be integers or text, one class for each sample; "
                f"got {values.dtype} fractions"
            )
        values = values.astype(np.int64)
    return values.astype(np.int64) if values.dtype.kind in "biu" else values


def _answers(given: Mapping[str, Values], length: int) -> Values | None:
    logits = given.get("logits")
    if logits is None:
        return _column(given, "predicted", length)
    shaped = logits.ndim == 2 and len(logits) == length and logits.shape[1] >= 2
    if not shaped or logits.dtype.kind not in "fiu":
        raise ValueError(
            f"logits must have shape [{length}, classes], one row for each embedding; "
            f"got {list(logits.shape)}"
        )
    top = logits.max(1)
    return np.where(np.isfinite(top), logits.argmax(1), UNKNOWN)


def _names(given: Mapping[str, Values], key: str) -> tuple[str, ...] | None:
    return tuple(map(str, given[key].ravel())) if key in given else None


def _classes(
    labels: Values, answers: Values | None, logits: Values | None, names: tuple[str, ...] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, tuple[str, ...]]:
    """Return labels and answers as positions in the names of the classes, and those names."""
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
            f"labels are {labels.dtype} and predicted are {answers.dtype}; "
            "give both in the same words"
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
    """Return positions in `names`; −1 for −1 or an empty text."""
    if values.dtype.kind == "U":
        missing = set(map(str, np.unique(values[_known(values)]))) - set(names)
        if missing:
            raise ValueError(
                f"{name} holds {sorted(missing)[0]!r}, which is not in {names_key}: "
                f"{', '.join(names)}"
            )
        place = {word: k for k, word in enumerate(names)}
        return np.array([place.get(str(value), UNKNOWN) for value in values], np.int64)
    if values.min() < UNKNOWN or values.max() >= len(names):
        raise ValueError(
            f"{name} must be from 0 to {len(names) - 1}, positions in the {len(names)} "
            f"{names_key}; got values from {values.min()} to {values.max()}"
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
            f"bias must be ≥ 0, or −1 for unknown; got {among[0]}. Recode it from 0 up"
        )
    return _coded(values, among), tuple(map(str, among))


def _counts(given: Mapping[str, Values], classes: int, biases: int) -> Tensor | None:
    counts = given.get("counts")
    if counts is None or not biases:
        return None
    if counts.shape != (classes, biases) or counts.dtype.kind not in "iu":
        raise ValueError(
            f"counts must be integers [{classes} classes, {biases} biases], the training samples "
            f"of each group; got {counts.dtype} {list(counts.shape)}"
        )
    return torch.from_numpy(counts.astype(np.int64))


def _sample_names(given: Mapping[str, Values], length: int) -> tuple[str, ...] | None:
    if "names" not in given:
        return None
    values = given["names"]
    if values.shape != (length,):
        raise ValueError(
            f"names must have shape [{length}], one for each embedding; got {list(values.shape)}"
        )
    return tuple(map(str, values))


def _confidence(logits: Values | None, predicted: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Return the probability of each prediction; NaN where there is none."""
    if logits is None or logits.ndim != 2 or logits.shape[0] != len(predicted):
        return None
    if predicted.max(initial=-1) >= logits.shape[1]:
        return None
    finite = np.isfinite(logits).all(1) & (predicted >= 0)
    z = np.where(finite[:, None], logits, 0).astype(np.float64)
    shares = np.exp(z - z.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    own = shares[np.arange(len(predicted)), predicted.clip(min=0)]
    return np.where(finite, own, np.nan).astype(np.float32)


def _splits(given: Mapping[str, Values], length: int) -> tuple[str, ...] | None:
    if "split" not in given:
        return None
    values = given["split"]
    if values.shape != (length,) or values.dtype.kind != "U":
        raise ValueError(
            f"split must be text [{length}], train, valid or test for each embedding; "
            f"got {values.dtype} {list(values.shape)}"
        )
    return tuple(map(str, values))
