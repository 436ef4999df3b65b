"""Bias labels from an attribute of the audit: `--bias audit:"border layout"`.

The label of a sample is the class that the attribute's value predicts, so a sample is aligned if
that is its own class, as it is where a bias label is the class whose shortcut a sample carries. The
predictor is the audit's: a small tree, or a table for categories. It is fitted to training samples
alone, and what it says of a training sample comes from one that was fitted to others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairmargin.bias.inferred import WEAK, Inferred, told
from fairmargin.checks import check_choice
from fairmargin.config import Config, override
from fairmargin.data import Data, Split
from fairmargin.data.own import FloatViews
from fairmargin.data.split import FileSplit, as_evaluated

if TYPE_CHECKING:
    from fairmargin.audit.attributes import Attribute

# Parts of the training set: each is told by a predictor that was fitted to the others.
FOLDS = 5
# All numbers about a picture at once.
TOGETHER = "blind model"


@dataclass(frozen=True)
class Shortcut:
    """What an audit of the training set found to tell the label, and how well.

    Args:
        name: of the attribute.
        accuracy: balanced, on samples that it was not fitted to.
        strength: share of the way from chance to perfect.
    """

    name: str
    accuracy: float
    strength: float


def infer(config: Config, data: Data, attribute: str) -> Inferred:
    """Return the groups of an attribute as bias labels of every split.

    Args:
        config: names the dataset, whose table may have further columns.
        data: the dataset; its bias labels are not looked at.
        attribute: its name as the audit shows it; empty for the audit's strongest shortcut.
    """
    check_pictures(data)
    name = attribute
    if not name:
        found = shortcuts(config, data)
        if not found:
            raise ValueError(
                "the audit finds no shortcut in these training images, so --bias audit has nothing "
                'to use; name an attribute: --bias audit:"border layout" ("fairmargin audit" lists '
                "all), or train a method that needs no bias labels"
            )
        name = found[0].name
    chosen = _chosen(config, data, name)
    groups = _groups(chosen, data, config.seed)
    measured = told(groups["train"], data.train.labels, "training")
    warnings = []
    if measured.strength < WEAK:
        warnings.append(
            f"the {chosen.name} tells {measured.text}: hardly more than a guess, so its groups "
            'say little of a shortcut; "fairmargin audit" shows what tells more'
        )
    names = tuple(f"like {name}" for name in data.info.class_names)
    return Inferred(f"audit's {chosen.name}", names, groups, told=measured, warnings=(*warnings,))


def shortcuts(config: Config, data: Data) -> list[Shortcut]:
    """Return what the audit calls a shortcut and can be used as bias labels, strongest first.

    Args:
        config: names the dataset.
        data: the dataset; only its training images and labels are looked at.
    """
    from fairmargin.audit._dataset import audit_data
    from fairmargin.audit.public import columns_of

    files = _as_files(config, data)
    try:
        found = audit_data(hidden(files), columns=columns_of(config, files), seed=config.seed)
    except ValueError:
        # Too few samples for an audit.
        return []
    known = _attributes(config, files, most=2)
    return [
        Shortcut(one["name"], one["balanced_accuracy"], one["strength"])
        for one in found.json["attributes"]
        if one["verdict"] == "shortcut" and one["name"] in known
    ]


def hidden(data: Data) -> Data:
    """Return the data without their bias labels, so that nothing can depend on them."""

    def without(split: Any) -> Any:
        return replace(split, bias=None)

    info = replace(data.info, bias_names=(), counts=data.info.counts[:, :0])
    return replace(data, train=without(data.train), info=info)


def has_pictures(data: Data) -> bool:
    """Return whether an audit could look at pictures."""
    return not (data.info.has_vectors or isinstance(data.eval_views, FloatViews))


def check_pictures(data: Data) -> None:
    """Refuse data in which an audit could not look at pictures."""
    if not has_pictures(data):
        raise ValueError(
            f"an audit measures uint8 images and {data.info.name} holds none; "
            "give bias labels, or train with --bias none"
        )


def _chosen(config: Config, data: Data, name: str) -> "Attribute":
    """Return the attribute of this name, of the samples of all splits one after another."""
    found = _attributes(config, data)
    if name not in found:
        # What only files and tables tell.
        found = _attributes(config, _as_files(config, data))
    # "border-layout", for those who do without quotes.
    spaced = name.replace("-", " ").strip()
    name = spaced if name not in found and spaced in found else name
    check_choice(name, "attribute of the audit", found)
    return found[name]


def _attributes(config: Config, data: Data, most: int | None = None) -> "dict[str, Attribute]":
    """Return the attributes of the samples of all splits one after another, by name.

    Args:
        most: look at this many pictures of each split, where only the names matter.
    """
    from fairmargin.audit.attributes import file_attributes, image_statistics, metadata_attributes

    measured = []
    for split in splits_of(data).values():
        index = torch.arange(min(len(split), most or len(split)))
        if len(index):
            seen = as_evaluated(split)
            measured.append([*image_statistics(seen, index)[0], *file_attributes(seen, index)])
    found = {same[0].name: _joined(same) for same in zip(*measured, strict=True)}
    numbers = [one for one in found.values() if one.kind != "category"]
    together = np.concatenate([one.values for one in numbers], 1)
    known, _ = metadata_attributes(_columns(config, data))
    found |= {one.name: one for one in known}
    found[TOGETHER] = replace(numbers[0], name=TOGETHER, family=TOGETHER, values=together)
    return found


def _joined(parts: "Sequence[Attribute]") -> "Attribute":
    """Return one attribute of the samples of several splits."""
    if parts[0].kind != "category":
        return replace(parts[0], values=np.concatenate([one.values for one in parts]))
    levels = tuple(dict.fromkeys(level for one in parts for level in one.levels))
    code = {level: k for k, level in enumerate(levels)}
    values = []
    for one in parts:
        to_joined = np.array([code[level] for level in one.levels], np.int64)
        values.append(to_joined[one.values])
    return replace(parts[0], values=np.concatenate(values), levels=levels)


def _columns(config: Config, data: Data) -> dict[str, list[str]]:
    """Return the other columns of the user's table, for the samples of all splits."""
    from fairmargin.audit.public import columns_of

    found: dict[str, list[str]] = {}
    for split in splits_of(data).values():
        for name, cells in columns_of(config, replace(data, train=split)).items():
            found.setdefault(name, []).extend(cells)
    return found


def _as_files(config: Config, data: Data) -> Data:
    """Return people's own images as files, whose sizes and table can be looked at too."""
    from fairmargin.runs import build

    if config.data.name != "folder" or isinstance(data.train, FileSplit):
        return data
    # They were decoded and checked once already.
    changes = ["data.memory_limit=0", "data.check_files=exists"]
    return build.data(override(config, changes))


def splits_of(data: Data) -> dict[str, Split]:
    """Return all splits by name, the training samples first."""
    return {"train": data.train, "valid": data.valid, "test": data.test, **data.extra_tests}


def _groups(attribute: "Attribute", data: Data, seed: int) -> dict[str, Tensor]:
    """Return the class that the attribute predicts for each sample of each split.

    Args:
        attribute: of the samples of all splits one after another.
        seed: of the parts of the training set.
    """
    splits = splits_of(data)
    number = len(data.train)
    labels = np.zeros(sum(map(len, splits.values())), np.int64)
    labels[:number] = data.train.labels.numpy()
    fold = _folds(labels[:number], seed)
    everything = np.arange(number)
    predicted = np.zeros(len(labels), np.int64)
    for k in range(FOLDS):
        fit, rest = everything[fold != k], everything[fold == k]
        predicted[rest] = _predicted(attribute, labels, fit, rest, seed)
    others = np.arange(number, len(labels))
    predicted[others] = _predicted(attribute, labels, everything, others, seed)
    sizes = [len(split) for split in splits.values()]
    parts = torch.from_numpy(predicted).split(sizes)
    return dict(zip(splits, parts, strict=True))


def _predicted(
    attribute: "Attribute", labels: np.ndarray, fit: np.ndarray, rest: np.ndarray, seed: int
) -> np.ndarray:
    """Fit the audit's predictor to some samples; return the classes it says for others."""
    from fairmargin.audit import significance

    if not len(rest):
        return np.empty(0, np.int64)
    # A class without a sample to fit is never predicted.
    present = np.unique(labels[fit])
    compact = np.searchsorted(present, labels)
    if attribute.name == TOGETHER:
        said = significance.ask_together([attribute], compact, fit, rest, seed)
    else:
        said = significance.ask(attribute, compact, fit, rest, len(present))
    answer: np.ndarray = present[said.predicted]
    return answer


def _folds(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return the part of each sample; each class is spread evenly over the parts."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % FOLDS
    return fold
