"""Bias labels from clusters of a capturing model's features."""

import warnings
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.vectors import unit

# Each class for itself, or all samples together.
ClustersOf = Literal["class", "all"]
# Restarts of k-means.
RESTARTS = 10


def number_of_clusters(number: int | None, of: ClustersOf, classes: int) -> int:
    """Return the number of clusters.

    Args:
        number: what the user asked for. None takes two for each class, which tell its usual samples
            from the others; or, over all samples, as many as classes, because a shortcut has about
            one value for each class.
    """
    check_choice(of, "data.clusters_of", get_args(ClustersOf))
    return number or {"class": 2, "all": classes}[of]


def cluster(
    features: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    number: int,
    *,
    of: ClustersOf,
    seed: int,
) -> dict[str, Tensor]:
    """Make pseudo bias labels [N] by k-means on unit features; the largest cluster is 0.

    Args:
        features: [N, G] of each split; clusters are fitted to "train".
        labels: [N] of each split.
        number: of clusters, in each class with `of="class"`.
        of: "class" clusters each class for itself, and the same number in two classes says only
            that the clusters have the same rank; with "all", the same number is the same cluster.
    """
    found = {name: torch.zeros(len(y), dtype=torch.long) for name, y in labels.items()}
    groups = labels
    if of == "all":
        # Everything in one group.
        groups = {name: torch.zeros_like(y) for name, y in labels.items()}
    for group in groups["train"].unique():
        members = {name: (own == group).nonzero()[:, 0] for name, own in groups.items()}
        x = {name: unit(features[name][index].double()) for name, index in members.items()}
        assign = fit_clusters(x["train"], number, seed)
        for name, index in members.items():
            if len(index):
                found[name][index] = assign(x[name])
    return found


def fit_clusters(x: Tensor, number: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Fit k-means; return the function from rows to their cluster, of which 0 is the largest.

    Args:
        x: [N, G] double.
        number: of clusters, at most N.
        seed: of the restarts.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    fitted = KMeans(min(number, len(x)), n_init=RESTARTS, random_state=seed)
    with warnings.catch_warnings():
        # With fewer distinct rows than clusters some stay empty.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted.fit(x.numpy())
    sizes = torch.bincount(torch.from_numpy(fitted.labels_).long(), minlength=fitted.n_clusters)
    rank = sizes.argsort(descending=True, stable=True).argsort()
    return lambda rows: rank[torch.from_numpy(fitted.predict(rows.numpy())).long()]
