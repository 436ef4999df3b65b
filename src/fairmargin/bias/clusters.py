"""Bias labels from clusters of a capturing model's features."""

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.vectors import unit

RESTARTS = 10  # of k-means


def number_of_clusters(number: int | None, of: str, classes: int) -> int:
    """Two of each class tell its usual samples from the others; over all, a shortcut has about a value for each class."""
    check_choice(of, "data.clusters_of", ("class", "all"))
    return number or {"class": 2, "all": classes}[of]


def cluster(
    features: Mapping[str, Tensor], labels: Mapping[str, Tensor], number: int, *, of: str, seed: int
) -> dict[str, Tensor]:
    """[N] pseudo bias labels from k-means on unit features, fitted to the training samples; the largest cluster is 0.

    `of` "class": each class is clustered for itself, and the same number in two classes says only that the clusters have
    the same rank; "all": all samples together, and the same number is the same cluster.
    """
    found = {name: torch.zeros(len(y), dtype=torch.long) for name, y in labels.items()}
    for y in labels["train"].unique() if of == "class" else [None]:
        chosen = {
            name: torch.ones_like(own).bool() if y is None else own == y
            for name, own in labels.items()
        }
        members = {name: mask.nonzero()[:, 0] for name, mask in chosen.items()}
        x = {name: unit(features[name][index].double()) for name, index in members.items()}
        assign = _k_means(x["train"], number, seed)
        for name, index in members.items():
            if len(index):
                found[name][index] = assign(x[name])
    return found


def _k_means(x: Tensor, number: int, seed: int) -> Callable[[Tensor], Tensor]:
    """From rows to their cluster, 0 the largest."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    fitted = KMeans(min(number, len(x)), n_init=RESTARTS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # fewer distinct rows than clusters: some stay empty
        fitted.fit(x.numpy())
    sizes = torch.bincount(torch.from_numpy(fitted.labels_).long(), minlength=fitted.n_clusters)
    rank = sizes.argsort(descending=True, stable=True).argsort()
    return lambda rows: rank[torch.from_numpy(fitted.predict(rows.numpy())).long()]
