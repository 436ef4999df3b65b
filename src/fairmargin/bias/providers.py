"""Where bias labels or features come from: every value of `data.bias`, in one table.

To add a provider: a function from (configuration, data, what follows the colon) to `Inferred`, in a
file of its own, and a row of `PROVIDERS`. `--bias NAME`, `fairmargin list biases`, run folders and
reports then know it.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from fairmargin.bias import audited, score_file
from fairmargin.bias.auto import capture_told
from fairmargin.bias.clusters import ClustersOf, cluster, number_of_clusters
from fairmargin.bias.commands import scores_command
from fairmargin.bias.inferred import Inferred, told_by_groups
from fairmargin.bias.score_file import Captured
from fairmargin.checks import check_choice
from fairmargin.config import Config
from fairmargin.data import Data
from fairmargin.runtime import distributed

# Default of data.clusters_of: a cluster is the same shortcut in every class (docs/scores.md).
CLUSTERED: ClustersOf = "all"

Infer = Callable[[Config, Data, str], Inferred]


@dataclass(frozen=True)
class Provider:
    """One way to know the bias.

    Args:
        gives: what a method sees, in a phrase.
        needs: what must be there before.
        infer: finds it out; None where there is nothing to find out.
        argument: what may follow the name and a colon; empty if nothing may.
    """

    gives: str
    needs: str = "nothing"
    infer: Infer | None = None
    argument: str = ""


def scores(config: Config, data: Data, argument: str) -> Inferred:
    """Return the features that `data.scores` holds for these samples."""
    found = _captured(config, data)
    features = score_file.features(found, config.data.score_features or "raw")
    measured = capture_told(found)
    return Inferred("scores", features=features, told=measured, warnings=_warnings(found))


def clusters(config: Config, data: Data, argument: str) -> Inferred:
    """Return clusters of these features as bias labels."""
    found = _captured(config, data)
    features = score_file.features(found, config.data.score_features or "raw")
    of = config.data.clusters_of or CLUSTERED
    number = number_of_clusters(config.data.clusters, of, data.info.num_classes)
    labels = {"train": data.train.labels, "valid": data.valid.labels}
    groups = cluster(features, labels, number, of=of, seed=config.seed)
    # All processes take those of the first, because machines may round differently.
    groups = distributed.from_first_rank(groups)
    names = tuple(f"cluster {k}" for k in range(number))
    # Clusters of each class for itself have no meaning across classes.
    measured = told_by_groups(groups, labels) if of == "all" else None
    return Inferred("clusters of scores", names, groups, told=measured, warnings=_warnings(found))


def audit(config: Config, data: Data, argument: str) -> Inferred:
    """Return the groups of an attribute of the audit as bias labels."""
    found = audited.infer(config, data, argument)
    return distributed.from_first_rank(found)


def values(config: Config, data: Data, argument: str) -> Inferred:
    """Return the real-valued bias of these samples as one feature."""
    found = {}
    for name, split in (("train", data.train), ("valid", data.valid)):
        given = getattr(split, "bias_values", None)
        if given is None:
            raise ValueError(
                f"--bias values needs samples whose bias is a real number and {config.data.name} "
                "has none that may be seen; take its labels: --bias labels"
            )
        found[name] = given.float()[:, None]
    return Inferred("values of the dataset", features=found)


PROVIDERS: dict[str, Provider] = {
    "labels": Provider("the dataset's own bias labels", needs="bias labels"),
    "values": Provider("the dataset's real-valued bias, as a feature", "a bias in numbers", values),
    "none": Provider("nothing"),
    "scores": Provider("features of a capturing model", '"fairmargin scores"', scores),
    "clusters": Provider("labels: clusters of these features", '"fairmargin scores"', clusters),
    "audit": Provider(
        "labels: the class that an attribute of the audit predicts; the strongest by default",
        "images",
        audit,
        argument="ATTRIBUTE",
    ),
    "auto": Provider("labels, audit, clusters, scores or none, by a rule (docs/scores.md)"),
}


def parse(text: str) -> tuple[str, str]:
    """Return (name, what follows the colon) of a value of `data.bias`; refuse unknown names.

    Args:
        text: such as "clusters" or "audit:border layout".
    """
    name, _, argument = text.partition(":")
    name, argument = name.strip(), argument.strip().strip("\"'")
    written = [n + (f":{p.argument}" if p.argument else "") for n, p in PROVIDERS.items()]
    check_choice(name, "bias", PROVIDERS if name else written)
    if argument and not PROVIDERS[name].argument:
        raise ValueError(f'--bias {name} takes nothing after a colon; got "{text}"')
    return name, argument


def in_a_path(text: str) -> str:
    """Return a value of `data.bias` as a part of a file name: "audit-border-layout"."""
    return re.sub(r"[^\w.]+", "-", text).strip("-")


def _warnings(found: Captured) -> tuple[str, ...]:
    """Return what was said about the use of these scores when they were made."""
    return tuple(found.facts.get("useless", ()))


def _captured(config: Config, data: Data) -> Captured:
    """Read the score file of these samples; refuse one of others."""
    given = config.data.scores
    file = score_file.locate_for(config)
    if not file.is_file():
        out = "" if given is None else f" --out {shlex.quote(str(file.parent))}"
        raise ValueError(
            f"--bias {config.data.bias} needs {file}, and there is no such file. "
            f"Make it: {scores_command(config)}{out}"
        )
    found = score_file.read(file)
    # A file that is named itself may be of another seed.
    seed = None if given == file else config.seed
    if why := score_file.mismatch(found, data, seed):
        raise ValueError(
            f"{file} belongs to something else: {why}. "
            f"Make others: {scores_command(config)} --out OTHER, "
            "and train with --set data.scores=OTHER"
        )
    return found
