"""What run folders hold, and which runs belong together: seeds of a method, methods on a dataset. Only files are read."""

import json
import statistics
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmargin.evaluate.accuracy import MEANINGS
from fairmargin.report import figures

CLASSIFIERS = {
    "own": "own classifier",
    "probe": "linear probe",
    "knn": "nearest neighbours",
    "linear": "linear evaluation",
}
# Display name of each part of a method's name, written from the methods' cards.
METHOD_NAMES: dict[str, str] = json.loads(
    (files("fairmargin") / "methods" / "titles.json").read_text("utf-8")
)
COLOURS = 8  # and so many methods at most have charts of their own; of more, some are chosen:
BEST, REST = 4, 6  # the best of them, a baseline and the worst; the colour of all the others
BASELINE = "ce"
NOT_COMPARED = {  # settings in which the runs of one method may differ
    "seed", "root", "device", "workers", "compile", "channels_last", "checkpoint_seconds", "keep", "log_steps", "tensorboard",
}  # fmt: skip
OF_THE_METHOD = {  # the other settings of the data make it another dataset
    "data.sampler", "data.bias", "data.scores", "data.score_features", "data.clusters", "data.clusters_of",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a run folder holds. `result` is None while the run is not finished."""

    folder: Path
    config: dict[str, Any]
    config_text: str
    environment: dict[str, Any]
    data: dict[str, Any]
    events: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def finished(self) -> bool:
        return bool(self.result)

    @property
    def method(self) -> str:
        return str(
            self.result.get("method") or self.config.get("method", {}).get("name", "unknown method")
        )

    @property
    def dataset(self) -> str:
        named = (
            self.data.get("name")
            or self.result.get("dataset")
            or self.config.get("data", {}).get("name")
        )
        return str(named or "unknown dataset")

    @property
    def seed(self) -> int:
        return int(self.result.get("seed", self.config.get("seed", 0)))

    @cached_property
    def test(self) -> dict[str, NDArray[Any]]:
        return _arrays(self.folder / "test.npz")

    @cached_property
    def examples(self) -> dict[str, NDArray[Any]]:
        return _arrays(self.folder / "examples.npz")

    def judged(self, classifier: str) -> dict[str, Any] | None:
        return self.result["test"].get(classifier)

    def evaluations(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") == "evaluation"]

    def steps(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") == "train"]


def read_run(folder: Path) -> Run:
    """The text files of a run folder; arrays are read when they are asked for."""
    config = folder / "config.toml"
    if not config.is_file():
        raise ValueError(
            f"{folder} is not a run folder: it has no config.toml. Give a folder that a training wrote"
        )
    text = config.read_text(encoding="utf-8")
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{config} is not valid TOML: {error}. Run the training again, or leave this run out"
        ) from error
    result = _json(folder / "result.json")
    data = _json(folder / "data.json")
    if result and not data:
        raise ValueError(
            f"{folder} has a result.json and no data.json: it is not whole. Copy the run folder again"
        )
    return Run(
        folder,
        settings,
        text,
        _json(folder / "environment.json"),
        data,
        _events(folder / "metrics.jsonl"),
        result,
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not valid JSON: {error}. Copy the run folder again, or leave this run out"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} holds a {type(content).__name__} and should hold an object; it is not a run's file"
        )
    return content


def _events(path: Path) -> list[dict[str, Any]]:
    """All whole lines: a run that was killed, or is still going on, may end in half a line."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [event for event in events if isinstance(event, dict)]


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


# Grouping


@dataclass(frozen=True)
class Group:
    """The finished runs of a method on a dataset; they differ in their seed only."""

    name: str
    runs: tuple[Run, ...]
    colour: int = 0
    slug: str = ""

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def dash(self) -> str:
        return figures.DASHES[self.colour]

    def judged(self, classifier: str) -> list[dict[str, Any]]:
        return [judged for run in self.runs if (judged := run.judged(classifier))]

    def accuracy(self, classifier: str, name: str) -> "Estimate | None":
        found = [
            judged["accuracy"][name]
            for judged in self.judged(classifier)
            if name in judged["accuracy"]
        ]
        return (
            estimate([one["value"] for one in found], found[0].get("low"), found[0].get("high"))
            if found
            else None
        )


@dataclass(frozen=True)
class Estimate:
    """A value with its interval: mean ± sample deviation over seeds, or the interval measured for a single seed."""

    value: float
    low: float | None = None
    high: float | None = None
    spread: float | None = None


def estimate(
    values: Sequence[float | None], low: float | None = None, high: float | None = None
) -> Estimate | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Estimate(known[0], low, high)
    mean, spread = statistics.fmean(known), statistics.stdev(known)
    return Estimate(mean, mean - spread, mean + spread, spread)


@dataclass(frozen=True)
class Part:
    """All that is said about one dataset."""

    dataset: str
    title: str
    groups: list[Group]

    @property
    def data(self) -> dict[str, Any]:
        return self.groups[0].first.data

    @cached_property
    def charted(self) -> "Part":
        """The same with the groups that are shown in detail: of a few all; of many the best, a baseline and the worst."""
        if len(self.groups) <= COLOURS:
            return self
        ranked = self.ranked
        baselines = [group for group in ranked if group.first.method == BASELINE]
        chosen = {group.name for group in (*ranked[:BEST], *baselines[:1], ranked[-1])}
        return replace(self, groups=[group for group in ranked if group.name in chosen])

    @property
    def in_order(self) -> list[Group]:
        """As given, which is how a few are compared; many are looked up in a ranking."""
        return self.groups if len(self.groups) <= COLOURS else self.ranked

    @property
    def ranked(self) -> list[Group]:
        """Best first by the headline accuracy."""
        return sorted(self.groups, key=lambda group: -self.headline_of(group).value)

    @cached_property
    def headline(self) -> tuple[str, str]:
        """(classifier, accuracy) that the first run names, if every run has it."""
        named = self.groups[0].first.result["headline"]
        wanted = named["classifier"], named["accuracy"]
        everywhere = all(group.accuracy(*wanted) is not None for group in self.groups)
        return wanted if everywhere else ("own", "plain")

    def headline_of(self, group: Group) -> Estimate:
        found = group.accuracy(*self.headline)
        if found is None:
            where = ", ".join(str(run.folder) for run in group.runs)
            raise ValueError(
                f"{where}: result.json has no {' '.join(self.headline)} accuracy; evaluate the run again"
            )
        return found

    @cached_property
    def accuracies(self) -> list[str]:
        named = {
            name: None
            for group in self.groups
            for run in group.runs
            for judged in run.result["test"].values()
            for name in judged["accuracy"]
        }
        return [name for name in MEANINGS if name in named] + [
            name for name in named if name not in MEANINGS
        ]

    @cached_property
    def classifiers(self) -> list[str]:
        named = {
            name: None for group in self.groups for run in group.runs for name in run.result["test"]
        }
        return [name for name in CLASSIFIERS if name in named] + [
            name for name in named if name not in CLASSIFIERS
        ]

    @property
    def class_names(self) -> list[str]:
        return [str(name) for name in self.data["class_names"]]

    @property
    def bias_names(self) -> list[str]:
        return [str(name) for name in self.data.get("bias_names") or ()]

    @property
    def counts(self) -> NDArray[np.int64] | None:
        """Training samples [classes, biases]."""
        return np.asarray(self.data["counts"], np.int64) if self.bias_names else None

    @cached_property
    def aligned(self) -> NDArray[np.bool_] | None:
        """Cells that training over-represents, by the rule of `evaluate.accuracy.aligned_cells`."""
        if self.counts is None:
            return None
        counts = self.counts.astype(np.float64)
        return counts * counts.sum() > counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True)


def parts_of(runs: Sequence[Run]) -> list[Part]:
    """Datasets in the order given; methods too, or best first if they are many. Colours by rank, so that the best method has
    the first one everywhere.
    """
    parts = []
    for same in _alike(runs, _data_settings):
        title = same[0].dataset + _difference(
            same[0], [run for run in runs if run.dataset == same[0].dataset], _data_settings
        )
        parts.append(Part(same[0].dataset, title, _groups(same)))
    ranks: dict[str, list[float]] = {}
    for part in parts:
        for group in part.groups:
            ranks.setdefault(group.name, []).append(part.headline_of(group).value)
    order = sorted(ranks, key=lambda name: -statistics.fmean(ranks[name]))
    slugs = _slugs(order)
    charted = {group.name for part in parts for group in part.charted.groups}
    drawn = [name for name in order if name in charted]
    colours = dict.fromkeys(order, REST) | {name: k % COLOURS for k, name in enumerate(drawn)}
    look: Callable[[Group], Group] = lambda group: replace(
        group, colour=colours[group.name], slug=slugs[group.name]
    )
    return [replace(part, groups=[look(group) for group in part.in_order]) for part in parts]


def _groups(runs: Sequence[Run]) -> list[Group]:
    groups = []
    for method in dict.fromkeys(run.method for run in runs):
        mine = [run for run in runs if run.method == method]
        for same in _alike(mine, _method_settings):
            _check_seeds(same)
            name = method_name(method) + _difference(same[0], mine, _method_settings)
            groups.append(Group(name, tuple(sorted(same, key=lambda run: run.seed))))
    return groups


def _alike(runs: Sequence[Run], settings: Callable[[Run], dict[str, Any]]) -> list[list[Run]]:
    """Runs with equal settings together, in the order given."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(json.dumps(settings(run), sort_keys=True, default=str), []).append(run)
    return list(alike.values())


def _data_settings(run: Run) -> dict[str, Any]:
    """What makes two datasets the same one."""
    options = {
        name: value
        for name, value in _settings(run).items()
        if name.startswith("data.") and name not in OF_THE_METHOD
    }
    facts = {name: run.data.get(name) for name in ("class_names", "bias_names", "image_shape")}
    return {"dataset": run.dataset, **options, **facts}


def _method_settings(run: Run) -> dict[str, Any]:
    """What makes two runs seeds of one method: everything that changes what is learned."""
    return {
        name: value
        for name, value in _settings(run).items()
        if not name.startswith(("evaluate.", "data.")) or name in OF_THE_METHOD
    }


def _settings(run: Run) -> dict[str, Any]:
    """The configuration as dotted names; a seed or a place on disk does not count."""
    flat: dict[str, Any] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{prefix}.{key}" if prefix else key, inner)
        elif prefix.rsplit(".", 1)[-1] not in NOT_COMPARED:
            flat[prefix] = value

    collect("", run.config)
    source = (run.environment.get("data") or {}).get(
        "source"
    )  # of people's own images, all of which are called "folder"
    return flat | ({"data.source": source[:8]} if source else {})


def _difference(run: Run, others: Sequence[Run], settings: Callable[[Run], dict[str, Any]]) -> str:
    """ " (epsilon 0.25)": the settings in which a run differs from the others, if it does."""
    mine, theirs = settings(run), [settings(other) for other in others]
    names = dict.fromkeys(name for one in theirs for name in one)
    differ = [name for name in names if any(one.get(name) != mine.get(name) for one in theirs)]
    told = ", ".join(f"{name.rsplit('.', 1)[-1]} {mine.get(name, 'unset')}" for name in differ)
    return f" ({figures.short(told, 60)})" if told else ""


def _check_seeds(runs: Sequence[Run]) -> None:
    seen: dict[int, Path] = {}
    for run in runs:
        if run.seed in seen:
            raise ValueError(
                f"{seen[run.seed]} and {run.folder} are both {run.method} on {run.dataset} with seed {run.seed} and one "
                "configuration; they would be counted as two seeds. Give one of them"
            )
        seen[run.seed] = run.folder


def method_name(method: str) -> str:
    """ "eps-supinfonce+fairkl" → "ε-SupInfoNCE + FairKL"; parts that are not known stay as they are."""
    return " + ".join(METHOD_NAMES.get(part, part) for part in method.split("+"))


def _slugs(names: Iterable[str]) -> dict[str, str]:
    slugs: dict[str, str] = {}
    for name in names:
        plain = "".join(
            letter if letter.isascii() and letter.isalnum() else "-"
            for letter in name.replace("ε", "eps").lower()
        )
        slug = "-".join(part for part in plain.split("-") if part) or "method"
        slugs[name] = slug if slug not in slugs.values() else f"{slug}-{len(slugs)}"
    return slugs
