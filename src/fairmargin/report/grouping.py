"""Which runs belong together, and how a group is told from others by its settings."""

import json
import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmargin.report.runs import COLOURS, Group, Part, method_name
from fairmargin.report.svg import short
from fairmargin.runs.record import DATA, RESULT, RunError, RunRecord

# The colour of all methods that have no charts.
REST = 6
# Settings in which the runs of one method may differ.
NOT_COMPARED = {
    "seed", "root", "device", "workers", "compile", "channels_last",
    "checkpoint_seconds", "keep", "log_steps", "tensorboard", "trackers",
    "tracked_images",
}  # fmt: skip
# Settings of the data that belong to the method; any other one makes it another dataset.
OF_THE_METHOD = {
    "data.sampler", "data.bias", "data.scores", "data.score_features",
    "data.clusters", "data.clusters_of",
}  # fmt: skip

# Entries of data.json that a report cannot do without.
NEEDED = ("class_names", "sizes")

Settings = dict[str, Any]


def read_runs(
    folders: Iterable[Path], say: Callable[[str], None] = warnings.warn
) -> list[RunRecord]:
    """Read run folders, each once, with all that a report needs of them.

    One that cannot be read is left out, unless none can.

    Args:
        folders: of runs, finished or not.
        say: is told what is left out, and why.
    """
    records, wrong = [], []
    for folder in dict.fromkeys(Path(folder).resolve() for folder in folders):
        try:
            records.append(_read(folder))
        except RunError as found:
            wrong.append(found)
    if wrong and not records:
        raise wrong[0]
    for error in wrong:
        say(f"left out: {error}")
    return records


def _read(folder: Path) -> RunRecord:
    """Read a run. One that has a result and no description of its data is not whole."""
    record = RunRecord.read(folder, begun=True)
    if not record.finished:
        return record
    missing = [name for name in NEEDED if not record.data.get(name)]
    if not record.data or missing:
        lacks = f"no {DATA}" if not record.data else f"a {DATA} without {' and '.join(missing)}"
        raise RunError(
            f"{folder} has a {RESULT} and {lacks}: it is not whole. Copy the run folder again"
        )
    # Looked at now, so that a damage is noticed here.
    _ = record.outcome
    return record


def parts_of(runs: Sequence[RunRecord], named: Sequence[str] = ()) -> list[Part]:
    """Sort finished runs into one part for each dataset and one group for each method.

    Datasets and methods stay in the order given; many methods are ranked, best first. Colours go
    by rank over all parts, so that the best method has the first colour everywhere.

    Args:
        runs: finished ones.
        named: methods that always have charts.
    """
    parts = []
    for same in _alike(runs, _data_settings):
        dataset = same[0].dataset
        others = [run for run in runs if run.dataset == dataset]
        title = dataset + _difference(same[0], others, _data_settings)
        parts.append(Part(dataset, title, _groups(same), tuple(named)))
    ranking = _ranking(parts)
    charted = {group.name for part in parts for group in part.charted.groups}
    drawn = [name for name in ranking if name in charted]
    colours = dict.fromkeys(ranking, REST)
    colours |= {name: k % COLOURS for k, name in enumerate(drawn)}
    slugs = _slugs(ranking)
    coloured = []
    for part in parts:
        groups = [
            replace(group, colour=colours[group.name], slug=slugs[group.name])
            for group in part.in_order
        ]
        coloured.append(replace(part, groups=groups))
    return coloured


def _ranking(parts: Sequence[Part]) -> list[str]:
    """Names of all methods, by their mean headline accuracy over the parts, best first."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for group in part.groups:
            values.setdefault(group.name, []).append(part.headline_of(group).value)
    return sorted(values, key=lambda name: -statistics.fmean(values[name]))


def _groups(runs: Sequence[RunRecord]) -> list[Group]:
    groups: list[Group] = []
    for method in dict.fromkeys(run.method for run in runs):
        mine = [run for run in runs if run.method == method]
        for same in _alike(mine, _method_settings):
            _check_seeds(same)
            name = method_name(method) + _difference(same[0], mine, _method_settings)
            name = _unique(name, [group.name for group in groups])
            groups.append(Group(name, tuple(sorted(same, key=lambda run: run.seed))))
    return groups


def _unique(name: str, taken: Sequence[str]) -> str:
    """Return the name, with a number if a long one was cut to what another has."""
    number = 2
    unique = name
    while unique in taken:
        unique = f"{name} {number}"
        number += 1
    return unique


def _alike(
    runs: Sequence[RunRecord], settings: Callable[[RunRecord], Settings]
) -> list[list[RunRecord]]:
    """Put runs with equal settings together, in the order given."""
    alike: dict[str, list[RunRecord]] = {}
    for run in runs:
        key = json.dumps(settings(run), sort_keys=True, default=str)
        alike.setdefault(key, []).append(run)
    return list(alike.values())


def _data_settings(run: RunRecord) -> Settings:
    """Return what two runs on one dataset have in common."""
    found: Settings = {"dataset": run.dataset}
    for name, value in _settings(run).items():
        if name.startswith("data.") and name not in OF_THE_METHOD:
            found[name] = value
    for name in ("class_names", "bias_names", "image_shape"):
        found[name] = run.data.get(name)
    # Runs that were judged by different inferred groups cannot be compared.
    inferred = run.data.get("bias") or {}
    if inferred.get("groups"):
        found["groups"] = inferred["source"]
    return found


def _method_settings(run: RunRecord) -> Settings:
    """Return what two seeds of one method have in common: all that changes what is learned."""
    found: Settings = {}
    for name, value in _settings(run).items():
        if not name.startswith(("evaluate.", "data.")) or name in OF_THE_METHOD:
            found[name] = value
    return found


def _settings(run: RunRecord) -> Settings:
    """Return the configuration by dotted names, without seed and places on disk."""
    flat: Settings = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{prefix}.{key}" if prefix else key, inner)
        elif prefix.rsplit(".", 1)[-1] not in NOT_COMPARED:
            flat[prefix] = value

    collect("", run.config)
    # People's own images are all called "folder"; their hash tells them apart.
    source = run.data_hashes.get("source")
    if source:
        flat["data.source"] = source[:8]
    return flat


def _difference(
    run: RunRecord, others: Sequence[RunRecord], settings: Callable[[RunRecord], Settings]
) -> str:
    """Return " (epsilon 0.25)", the settings in which a run differs from the others, or "".

    Only what this run was given is told: where another has scores and this one none, the other
    says so.
    """
    mine = settings(run)
    theirs = [settings(other) for other in others]
    names = dict.fromkeys(name for one in theirs for name in one)
    differ = [name for name in names if any(one.get(name) != mine.get(name) for one in theirs)]
    told = [f"{name.rsplit('.', 1)[-1]} {mine[name]}" for name in differ if name in mine]
    return f" ({short(', '.join(told), 60)})" if told else ""


def _check_seeds(runs: Sequence[RunRecord]) -> None:
    seen: dict[int, Path] = {}
    for run in runs:
        if run.seed in seen:
            raise ValueError(
                f"{seen[run.seed]} and {run.path} are both {run.method} on {run.dataset} with "
                f"seed {run.seed} and one configuration; they would be counted as two seeds. "
                "Give one of them"
            )
        seen[run.seed] = run.path


def _slugs(names: Iterable[str]) -> dict[str, str]:
    """Return a different ASCII name for each name."""
    slugs: dict[str, str] = {}
    for name in names:
        words = "".join(map(_letter, name.replace("ε", "eps").lower())).split()
        slug = "-".join(words) or "method"
        slugs[name] = slug if slug not in slugs.values() else f"{slug}-{len(slugs)}"
    return slugs


def _letter(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else " "
