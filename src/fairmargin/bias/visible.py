"""What a run's method may know of the bias: labels, nothing, scores or clusters."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.bias import score_file
from fairmargin.bias.clusters import ClustersOf, cluster, number_of_clusters
from fairmargin.config import Config, dataset_name, load, toml
from fairmargin.data import OWN, Data, Split
from fairmargin.data.bias import count_cells
from fairmargin.runtime import distributed

# Default of data.clusters_of: a cluster is the same shortcut in every class (docs/scores.md).
CLUSTERED: ClustersOf = "all"


@dataclass(frozen=True)
class VisibleBias:
    """What a method may know of the bias. Evaluation always uses the dataset's own labels.

    Args:
        splits: "train" and "valid", with the bias labels that the method may see and no others.
        features: of a capturing model, for the same splits; empty if the method sees none.
    """

    info: DataInfo
    splits: dict[str, Split]
    features: dict[str, Tensor] = field(default_factory=dict)


def visible_bias(config: Config, data: Data) -> VisibleBias:
    """Decide what a run's method may know of the bias, by `data.bias`.

    A run calls this once: scores are read from a file, and clusters are fitted.

    Args:
        config: the run's configuration.
        data: the dataset with all its bias labels.
    """
    info = replace(data.info, train_size=len(data.train))
    splits = {"train": data.train, "valid": data.valid}
    if config.data.bias == "labels":
        return VisibleBias(info, splits)
    info = replace(info, bias_names=(), counts=info.counts[:, :0])
    hidden = {name: _relabelled(split, None) for name, split in splits.items()}
    if config.data.bias == "none":
        return VisibleBias(info, hidden)
    features = _scores(config, data)
    if config.data.bias == "scores":
        info = replace(info, bias_features=features["train"].shape[1])
        return VisibleBias(info, hidden, features)
    of = config.data.clusters_of or CLUSTERED
    names = _cluster_names(config, info)
    labels = {name: split.labels for name, split in splits.items()}
    found = cluster(features, labels, len(names), of=of, seed=config.seed)
    # All processes take those of the first, because machines may round differently.
    found = distributed.from_first_rank(found)
    counts = count_cells(data.train.labels, found["train"], info.num_classes, len(names))
    pseudo = {name: _relabelled(split, found[name]) for name, split in splits.items()}
    return VisibleBias(replace(info, bias_names=names, counts=counts), pseudo)


def recorded_info(config: Config, info: DataInfo, trained: Mapping[str, Any]) -> DataInfo:
    """Return what the method of a finished run knew, which decides the shapes of its weights.

    No score file is needed.

    Args:
        info: facts about the data that the method is built for now.
        trained: `data.json` of the run.
    """
    info = replace(info, train_size=trained["sizes"]["train"])
    if config.data.bias == "labels":
        counts = torch.tensor(trained["counts"], dtype=torch.long)
        return replace(info, bias_names=tuple(trained["bias_names"]), counts=counts)
    names = _cluster_names(config, info) if config.data.bias == "clusters" else ()
    # What training made of its counts is loaded with the weights, so any counts will do.
    counts = torch.ones(info.num_classes, len(names), dtype=torch.long)
    features = int(config.data.bias == "scores")
    return replace(info, bias_names=names, counts=counts, bias_features=features)


def _relabelled(split: Any, bias: Tensor | None) -> Split:
    if not is_dataclass(split):
        raise TypeError(
            f"the bias labels of a {type(split).__name__} cannot be replaced; make it a dataclass"
        )
    relabelled: Any = replace(split, bias=bias)  # type: ignore[type-var]
    return relabelled


def _cluster_names(config: Config, info: DataInfo) -> tuple[str, ...]:
    of = config.data.clusters_of or CLUSTERED
    number = number_of_clusters(config.data.clusters, of, info.num_classes)
    return tuple(f"cluster {k}" for k in range(number))


def _scores(config: Config, data: Data) -> dict[str, Tensor]:
    """Read the features that data.scores holds for these samples."""
    given = config.data.scores
    file = score_file.locate(given, dataset_name(config), config.seed)
    if given is None and not file.is_file():
        # Where scores of people's own images lay in 0.1.0.
        old = score_file.locate(None, config.data.name, config.seed)
        file = old if old.is_file() else file
    if not file.is_file():
        out = "" if given is None else f" --out {shlex.quote(str(file.parent))}"
        raise ValueError(
            f"--bias {config.data.bias} needs {file}, and there is no such file. "
            f"Make it: {_scores_command(config)}{out}"
        )
    found = score_file.read(file)
    # A file that is named itself may be of another seed.
    seed = None if given == file else config.seed
    if why := score_file.mismatch(found, data, seed):
        raise ValueError(
            f"{file} belongs to something else: {why}. "
            f"Make others: {_scores_command(config)} --out OTHER, "
            "and train with --set data.scores=OTHER"
        )
    return score_file.features(found, config.data.score_features or "raw")


def _scores_command(config: Config) -> str:
    """Return the command that makes the scores of this run's data."""
    chosen = config.data
    dataset = str(chosen.root) if chosen.name in OWN else chosen.name
    usual = load(dataset=dataset, method=config.method.name).data.options
    changes = {key: value for key, value in chosen.options.items() if usual.get(key) != value}
    if chosen.root is not None and chosen.name not in OWN:
        changes["root"] = str(chosen.root)
    words = ["fairmargin", "scores", "--dataset", dataset, "--seed", str(config.seed)]
    for key, value in changes.items():
        words += ["--set", f"data.{key}={toml.value(value)}"]
    return shlex.join(words)
