"""Groups of samples from what a reference model says: published algorithms, as pure functions.

    JTT      {i : argmax f(x_i) ≠ y_i}
    EIIL     the two environments that violate invariance most
    GEORGE   clusters of the features of each class, their number by silhouette
    SPARE    clusters of the outputs of each class early in training
    XRM      samples that the twin which did not see them calls by another class

`reference.py` trains the models; nothing here does.
"""

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fairmargin.bias.clusters import fit_clusters

# EIIL's released code: steps and rate of Adam.
EIIL_STEPS, EIIL_RATE = 10_000, 1e-3
# Largest number of clusters in a class that is tried.
MOST = 10
# Samples of a class that silhouettes are computed from: the time grows with their square.
LOOKED_AT = 1000


def error_set(logits: Tensor, labels: Tensor) -> Tensor:
    """Return which samples a model gets wrong, 1 or 0 [N] (Liu et al., JTT, ICML 2021).

    Args:
        logits: [N, K].
        labels: [N].
    """
    return (logits.argmax(1) != labels).long()


def slopes(logits: Tensor, labels: Tensor) -> Tensor:
    """Return g_i = d/dw CE(w·f(x_i), y_i) at w = 1, [N] double: Σ_k p_k f_k − f_y.

    Args:
        logits: f(x) [N, K].
        labels: [N].
    """
    f = logits.double()
    expected = (f.softmax(1) * f).sum(1)
    return expected - f.gather(1, labels[:, None])[:, 0]


def environments(
    logits: Tensor,
    labels: Tensor,
    *,
    seed: int,
    steps: int = EIIL_STEPS,
    rate: float = EIIL_RATE,
) -> Tensor:
    """Return EIIL's environment of each sample, [N] (Creager et al., ICML 2021, Eq. 6).

        maximise over q ∈ (0, 1)^N   ½ (mean_i q_i g_i)² + ½ (mean_i (1 − q_i) g_i)²

    which is the IRMv1 penalty of two environments, by Adam on the logits of q from N(0, 1). A
    sample is in environment 1 if q_i > ½. The larger environment is 0.

    Note: two environments of unequal slope are the optimum, so it is the sign of g_i. Adam reaches
    it where |g_i| is not tiny; a sample without slope stays where it was drawn.

    Args:
        logits: of the reference model [N, K].
        labels: [N].
        seed: of the draw.
        steps: of Adam.
        rate: of Adam.
    """
    g = slopes(logits, labels)
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(len(g), generator=generator, dtype=torch.float64)
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, steps + 1):
        q = w.sigmoid()
        a, b = (q * g).mean(), ((1 - q) * g).mean()
        # Of −½a² − ½b², which Adam descends.
        gradient = (b - a) * g * q * (1 - q) / len(g)
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.001)
        size = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
        w -= rate * first / (1 - 0.9**step) / size
    return _largest_first((w > 0).long())


def environments_like(groups: Tensor, train: Tensor, others: Tensor) -> Tensor:
    """Return the environment of samples that were not part of the ascent, [M].

    EIIL says nothing of them. The optimum is a sign of the slope, so theirs decides.

    Args:
        groups: [N] of the training samples.
        train: g [N] of the training samples.
        others: g [M].
    """
    positive = groups[train > 0]
    of_positive = int(positive.double().mean().round()) if len(positive) else 0
    return torch.where(others > 0, of_positive, 1 - of_positive)


def clusters_by_silhouette(
    features: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    *,
    seed: int,
    number: int | None = None,
    each_cluster: bool = True,
) -> tuple[dict[str, Tensor], float]:
    """Cluster each class for itself; return the cluster of each sample, and the mean silhouette.

    GEORGE (Sohoni et al., NeurIPS 2020) clusters features, and takes the number of clusters whose
    silhouettes are largest, as a mean over clusters. SPARE (Yang et al., AISTATS 2024) clusters the
    outputs of an early network, and takes the mean over samples.
    Note: k-means, as SPARE; GEORGE reduces the features first, and takes k-means or a mixture of
    Gaussians, and splits clusters of high loss again.

    Args:
        features: [N, G] of "train", to which clusters are fitted, and of other splits.
        labels: [N] of the same splits.
        seed: of k-means, and of the samples that silhouettes are computed from.
        number: of clusters of each class; None chooses from 2 to MOST.
        each_cluster: the mean over clusters, each counted once.
    """
    found = {name: torch.zeros(len(y), dtype=torch.long) for name, y in labels.items()}
    scores = []
    for y in labels["train"].unique():
        members = {name: (own == y).nonzero()[:, 0] for name, own in labels.items()}
        x = {name: features[name][index].double() for name, index in members.items()}
        assign, score = _best_clusters(x["train"], number, seed, each_cluster)
        scores.append(score)
        for name, index in members.items():
            if len(index):
                found[name][index] = assign(x[name])
    return found, float(np.mean(scores))


def _best_clusters(
    x: Tensor, number: int | None, seed: int, each_cluster: bool
) -> tuple[Callable[[Tensor], Tensor], float]:
    """Return the clusters of one class with the largest silhouette, and that silhouette."""
    different = len(x.unique(dim=0))
    most = min(MOST, different - 1, len(x) - 1)
    tried = range(2, most + 1) if number is None else [min(number, different)]
    best: tuple[Callable[[Tensor], Tensor], float] = (_all_in_one, -1.0)
    for k in tried:
        assign = fit_clusters(x, k, seed)
        score = mean_silhouette(x, assign(x), seed=seed, each_cluster=each_cluster)
        if score > best[1] or number is not None:
            best = assign, score
    return best


def _all_in_one(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.long)


def mean_silhouette(x: Tensor, groups: Tensor, *, seed: int, each_cluster: bool) -> float:
    """Return the mean silhouette of up to LOOKED_AT samples; −1 if they are of one cluster.

    Args:
        x: [N, G].
        groups: [N].
        seed: of the samples that are looked at.
        each_cluster: the mean over clusters of their means, so that small ones count.
    """
    from sklearn.metrics import silhouette_samples

    drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:LOOKED_AT]
    own = groups[drawn]
    there = own.unique()
    if not 2 <= len(there) < len(drawn):
        return -1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each = torch.from_numpy(silhouette_samples(x[drawn].numpy(), own.numpy()))
    if not each_cluster:
        return float(each.mean())
    return float(torch.stack([each[own == k].mean() for k in there]).mean())


def cross_mistakes(twins: Tensor, labels: Tensor, seen_by_first: Tensor | None) -> Tensor:
    """Return XRM's environment of each sample, 1 or 0 [N] (Pezeshki et al., ICML 2024).

    A training sample is in environment 1 if the twin that did not learn from it is wrong; a sample
    that neither learned from, if one of them is.

    Args:
        twins: logits of both, [2, N, K].
        labels: [N], as they were given.
        seen_by_first: [N], whether the first twin learned from a sample; None: neither did.
    """
    wrong = twins.argmax(2) != labels  # [2, N]
    if seen_by_first is None:
        return wrong.any(0).long()
    return torch.where(seen_by_first, wrong[1], wrong[0]).long()


def _largest_first(groups: Tensor) -> Tensor:
    """Return groups 0 and 1 with the larger one as 0."""
    return 1 - groups if 2 * int(groups.sum()) > len(groups) else groups
