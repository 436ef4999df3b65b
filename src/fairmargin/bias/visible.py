"""What a run's method may know of the bias: labels, nothing, or what a provider inferred."""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.bias.auto import choose_bias
from fairmargin.bias.clusters import number_of_clusters
from fairmargin.bias.inferred import Inferred, as_tensors, with_groups, without_labels
from fairmargin.bias.providers import CLUSTERED, PROVIDERS, parse
from fairmargin.config import Config
from fairmargin.data import Data, Split
from fairmargin.data.bias import count_cells


@dataclass(frozen=True)
class VisibleBias:
    """What a method may know of the bias. Evaluation uses the dataset's own labels, if it has any.

    Args:
        splits: "train" and "valid", with the bias labels that the method may see and no others.
        features: of a capturing model, for the same splits; empty if the method sees none.
        inferred: what a provider found; None if nothing was inferred.
        facts: what data.json of the run keeps of it; empty if nothing was inferred or chosen.
        proxy: what a proxy network calls the validation samples [N], where that chooses an epoch.
    """

    info: DataInfo
    splits: dict[str, Split]
    features: dict[str, Tensor] = field(default_factory=dict)
    inferred: Inferred | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    proxy: Tensor | None = None

    def grouped(self, data: Data) -> Data:
        """Return the data for evaluation: with inferred groups if they have no bias labels at all.

        Args:
            data: the dataset of the run.
        """
        if self.inferred is None or not _measures_groups(self.inferred, data):
            return data
        return with_groups(data, self.inferred.names, self.inferred.labels)


def visible_bias(
    config: Config, data: Data, before: Mapping[str, Any] | None = None
) -> VisibleBias:
    """Decide what a run's method may know of the bias, by `data.bias`.

    A run calls this once: scores are read from a file, clusters are fitted, pictures are measured.

    Args:
        config: the run's configuration.
        data: the dataset with all its bias labels.
        before: facts of an interrupted run, which goes on with what "auto" chose then.
    """
    found = _seen(config, data, before or {})
    if config.evaluate.select != "ula" or not len(data.valid):
        return found
    # Here, because a reference is an ordinary run, and runs know this file.
    from fairmargin.bias.reference import proxy_answers

    return replace(found, proxy=proxy_answers(config))


def _seen(config: Config, data: Data, before: Mapping[str, Any]) -> VisibleBias:
    """What the method sees, by `data.bias`."""
    source, why = _source(config, data, before)
    info = replace(data.info, train_size=len(data.train))
    splits = {"train": data.train, "valid": data.valid}
    chosen = {"source": source, "why": why} if why else {}
    if source == "labels":
        return VisibleBias(info, splits, facts=chosen)
    info = replace(info, bias_names=(), counts=info.counts[:, :0], bias_parts=())
    name, argument = parse(source)
    infer = PROVIDERS[name].infer
    if infer is None:
        hidden = {name: _relabelled(split, None) for name, split in splits.items()}
        return VisibleBias(info, hidden, facts=chosen)
    found = infer(config, data, argument)
    facts = found.facts(source, why)
    if _measures_groups(found, data):
        facts["groups"] = (
            f"the data have no bias labels, so accuracies by group, aligned and conflicting, are "
            f"by inferred ones: {found.title}"
        )
    seen = {name: _relabelled(split, found.labels.get(name)) for name, split in splits.items()}
    if found.labels:
        number = len(found.names)
        counts = count_cells(data.train.labels, found.labels["train"], info.num_classes, number)
        info = replace(info, bias_names=found.names, counts=counts)
    if found.features:
        info = replace(info, bias_features=found.features["train"].shape[1])
    return VisibleBias(info, seen, dict(found.features), found, facts)


def _measures_groups(found: Inferred, data: Data) -> bool:
    """True if accuracies by group are measured with inferred labels, for want of others."""
    return "test" in found.labels and without_labels(data)


def recorded_groups(data: Data, trained: Mapping[str, Any], labels: Mapping[str, Any]) -> Data:
    """Return the data with the groups by which a finished run was measured, if it inferred them.

    Args:
        data: the same dataset, built again.
        trained: `data.json` of the run.
        labels: arrays of its bias.npz.
    """
    recorded = trained.get("bias") or {}
    if not recorded.get("groups"):
        return data
    return with_groups(data, tuple(recorded["names"]), as_tensors(labels))


def _source(config: Config, data: Data, before: Mapping[str, Any]) -> tuple[str, str]:
    """Return (where the bias comes from, why if "auto" chose it)."""
    if config.data.bias != "auto":
        return config.data.bias, ""
    if before.get("source"):
        return before["source"], before["why"]
    choice = choose_bias(config, data)
    return choice.source, choice.why


def recorded_info(config: Config, info: DataInfo, trained: Mapping[str, Any]) -> DataInfo:
    """Return what the method of a finished run knew, which decides the shapes of its weights.

    No score file is needed.

    Args:
        info: facts about the data that the method is built for now.
        trained: `data.json` of the run.
    """
    info = replace(info, train_size=trained["sizes"]["train"])
    recorded = trained.get("bias") or {}
    source = recorded.get("source", config.data.bias)
    if source == "labels":
        counts = torch.tensor(trained["counts"], dtype=torch.long)
        return replace(info, bias_names=tuple(trained["bias_names"]), counts=counts)
    names = tuple(recorded.get("names", ()))
    features = recorded.get("features", int(source == "scores"))
    # Runs of versions that wrote no such facts.
    if not recorded and source == "clusters":
        of = config.data.clusters_of or CLUSTERED
        number = number_of_clusters(config.data.clusters, of, info.num_classes)
        names = tuple(f"cluster {k}" for k in range(number))
    # What training made of its counts is loaded with the weights, so any counts will do.
    counts = torch.ones(info.num_classes, len(names), dtype=torch.long)
    return replace(info, bias_names=names, counts=counts, bias_features=features)


def _relabelled(split: Any, bias: Tensor | None) -> Split:
    if not is_dataclass(split):
        raise TypeError(
            f"the bias labels of a {type(split).__name__} cannot be replaced; make it a dataclass"
        )
    # The values of a continuous bias are as visible as its labels.
    hidden = {"bias_values": None} if hasattr(split, "bias_values") else {}
    relabelled: Any = replace(split, bias=bias, **hidden)  # type: ignore[type-var]
    return relabelled
