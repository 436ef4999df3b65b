"""Where a model fails, found without bias labels: groups of like samples of a class that are wrong more often than the rest.

Samples are split at random into two halves. On the first, the embeddings of each class are clustered, and clusters that
look worse than the rest of their class are proposed. On the second, every proposal is tested (one-sided exact test of
Fisher, corrected over the proposals by Holm's method). Clusters are made from embeddings alone, and the half that
proposes never confirms, so a model whose mistakes are random has a slice reported with probability `alpha` at most.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import hypergeom
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from fairmargin.audit.section import Progress, silent
from fairmargin.evaluate.accuracy import wilson

CHOICES = (2, 4, 8, 16)  # clusters of a class
LEAST = 10  # samples of a slice in each half, without which its error rate is hardly a number
SMALLEST = 4 * LEAST  # samples of a class that is looked at: a slice and a rest in each half
MARGIN = 0.05  # by which a slice's error rate exceeds that of the rest; less may be significant and still not matter
PROMISING = 0.1  # p on the first half below which a cluster is proposed
WIDTH = 32  # directions of largest spread inside the classes, in which clusters are looked for
FITTED, JUDGED = (
    2000,
    1000,
)  # samples of a class that clusters are fitted to, and that silhouettes are taken of
SPREAD = 20_000  # samples that the directions are taken from
ROWS = 8192  # projected at a time

Array = NDArray[np.float32]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class ErrorRate:
    """A share of wrong answers with Wilson's 95 % interval."""

    n: int
    wrong: int
    value: float
    low: float
    high: float

    @staticmethod
    def of(wrong: int, n: int) -> "ErrorRate":
        low, high = wilson(torch.tensor(wrong), torch.tensor(n))
        return ErrorRate(n, wrong, wrong / n, float(low), float(high))


@dataclass(frozen=True)
class Slice:
    """Samples of one class that lie together and are wrong more often than the rest of the class."""

    label: int
    members: Index  # positions, of both halves, the most central first
    mistakes: Index  # the wrong ones among them
    discovery: ErrorRate  # on the half that proposed it, where it was chosen for being high
    confirmation: ErrorRate  # on the other half: the number to believe
    rest: ErrorRate  # the rest of the class, on the other half
    p: float  # on the other half
    corrected: float  # for the number of slices tested


@dataclass(frozen=True)
class Slices:
    """Those that were confirmed, the one with the highest error rate first, and how they were looked for."""

    found: tuple[Slice, ...]
    rejected: tuple[Slice, ...]  # proposed on the first half, not confirmed on the second
    clusters: dict[int, int]  # of each class that was clustered
    left_out: tuple[int, ...]  # classes with too few samples
    alpha: float

    @property
    def tested(self) -> int:
        return len(self.found) + len(self.rejected)


def find_slices(
    embeddings: Array,
    labels: Index,
    predicted: Index,
    *,
    clusters: int | None = None,
    alpha: float = 0.05,
    margin: float = MARGIN,
    least: int = LEAST,
    seed: int = 0,
    progress: Progress = silent,
) -> Slices:
    """Slices of a model with these answers.

    Args:
        embeddings: [N, D]; of the model, or better of another one (docs/embeddings.md says why).
        labels: [N] classes from 0 up.
        predicted: [N] classes; −1 for no answer, which is wrong.
        clusters: of each class; None chooses from 2, 4, 8 and 16 by silhouette.
        alpha: probability of reporting any slice when mistakes are random.
        margin: least difference between the error rates of a slice and of the rest of its class.
        least: samples that a slice has in each half.
        seed: of the halves and of the clusters.
    """
    _check(embeddings, labels, predicted, clusters, alpha)
    random = np.random.default_rng(seed)
    first = _halves(labels, random)
    directions = _directions(embeddings, labels, np.flatnonzero(first), random)
    wrong = predicted != labels
    proposals, used, left_out = [], {}, []
    classes = np.unique(labels)
    for done, y in enumerate(classes.tolist()):
        progress("looking for slices", done, len(classes))
        members = np.flatnonzero(labels == y)
        most = int(min(first[members].sum(), (~first[members]).sum())) // least
        if most < 2:
            left_out.append(y)
        elif wrong[members[first[members]]].any():
            x = _projected(embeddings, members, directions)
            cluster, distance, used[y] = _clustered(x, first[members], clusters, most, random)
            half = _Halves(y, members, cluster, distance, first[members], wrong[members])
            proposals += list(half.proposals(least, margin))
    progress("looking for slices", len(classes), len(classes))
    return _confirmed(proposals, alpha, margin, used, left_out)


def _check(
    embeddings: Array, labels: Index, predicted: Index, clusters: int | None, alpha: float
) -> None:
    if embeddings.ndim != 2 or not len(embeddings):
        raise ValueError(
            f"embeddings must have shape [N, D] with N ≥ 1; got {list(embeddings.shape)}"
        )
    for name, ids in (("labels", labels), ("predicted", predicted)):
        if ids.shape != (len(embeddings),):
            raise ValueError(
                f"{name} must have shape [{len(embeddings)}], one for each embedding; got {list(ids.shape)}"
            )
    if clusters is not None and clusters < 2:
        raise ValueError(f"clusters must be at least 2, or None to choose; got {clusters}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, like 0.05; got {alpha}")


def _halves(labels: Index, random: np.random.Generator) -> NDArray[np.bool_]:
    """[N] whether a sample belongs to the first half: every other one of each class, in random order."""
    order = random.permutation(len(labels))
    order = order[labels[order].argsort(kind="stable")]
    first = np.zeros(len(labels), bool)
    first[order[::2]] = True
    return first


def _directions(
    embeddings: Array, labels: Index, among: Index, random: np.random.Generator
) -> Array:
    """[D, at most WIDTH] orthonormal: where samples of a class differ most, pooled over the classes."""
    if len(among) > SPREAD:
        among = np.sort(random.choice(among, SPREAD, replace=False))
    z = _unit(embeddings[among])
    _, group, size = np.unique(labels[among], return_inverse=True, return_counts=True)
    mean = np.zeros((len(size), z.shape[1]), np.float32)
    np.add.at(mean, group, z)
    z -= (mean / size[:, None])[group]
    if z.shape[1] <= WIDTH:
        return np.eye(z.shape[1], dtype=np.float32)
    return np.linalg.eigh(z.T @ z)[1][:, : -WIDTH - 1 : -1].astype(np.float32)


def _unit(x: Array) -> Array:
    """Rows of length 1, where zero rows stay zero: cosines are what the losses and the rest of the audit look at."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.divide(x, length, out=np.zeros(x.shape, np.float32), where=length > 0)


def _projected(embeddings: Array, members: Index, directions: Array) -> Array:
    starts = range(0, len(members), ROWS)
    return np.concatenate([_unit(embeddings[members[k : k + ROWS]]) @ directions for k in starts])


def _clustered(
    x: Array, first: NDArray[np.bool_], clusters: int | None, most: int, random: np.random.Generator
) -> tuple[Index, Array, int]:
    """(cluster of each sample, its distance from the centre, how many clusters); centres come from the first half."""
    fitted = x[first]
    if len(fitted) > FITTED:
        fitted = fitted[random.choice(len(fitted), FITTED, replace=False)]
    distinct = len(np.unique(fitted, axis=0))  # k-means complains of more clusters than that
    choices = [min(k, most, distinct) for k in (CHOICES if clusters is None else (clusters,))]
    best = _best_means(fitted, sorted(set(choices)), random)
    if best is None:
        return np.zeros(len(x), np.int64), np.zeros(len(x), np.float32), 1
    distance = best.transform(x)
    return distance.argmin(1), distance.min(1), len(best.cluster_centers_)


def _best_means(x: Array, choices: list[int], random: np.random.Generator) -> KMeans | None:
    """The clusters with the largest silhouette; None where samples are all alike."""
    part = random.choice(len(x), min(JUDGED, len(x)), replace=False)
    best, top = None, -np.inf
    for k in choices:
        if k < 2:
            continue
        means = KMeans(k, n_init=2, random_state=int(random.integers(2**31))).fit(x)
        drawn = means.labels_[part]
        comparable = len(choices) > 1 and 2 <= len(np.unique(drawn)) < len(part)
        score = silhouette_score(x[part], drawn) if comparable else -1.0
        if score > top:
            best, top = means, score
    return best


@dataclass(frozen=True)
class _Halves:
    """The samples of one class, clustered."""

    label: int
    members: Index
    cluster: Index
    distance: Array
    first: NDArray[np.bool_]
    wrong: NDArray[np.bool_]

    def proposals(self, least: int, margin: float) -> Iterator[Slice]:
        """Clusters that the first half makes look bad; what the second half says is looked at afterwards."""
        for k in np.unique(self.cluster):
            inside = self.cluster == k
            if any(
                min((inside & half).sum(), (~inside & half).sum()) < least
                for half in (self.first, ~self.first)
            ):
                continue
            here, others, p = self._compared(inside, self.first)
            if p <= PROMISING and here.value >= others.value + margin:
                yield self._slice(inside, here)

    def _slice(self, inside: NDArray[np.bool_], discovery: ErrorRate) -> Slice:
        confirmation, rest, p = self._compared(inside, ~self.first)
        order = np.flatnonzero(inside)[self.distance[inside].argsort(kind="stable")]
        wrong = order[self.wrong[order]]
        return Slice(
            self.label,
            self.members[order],
            self.members[wrong],
            discovery,
            confirmation,
            rest,
            p,
            p,
        )

    def _compared(
        self, inside: NDArray[np.bool_], half: NDArray[np.bool_]
    ) -> tuple[ErrorRate, ErrorRate, float]:
        """Error rates inside and outside, and P(as many mistakes inside or more | mistakes fall at random)."""
        n, there = int(half.sum()), int((inside & half).sum())
        wrong, wrong_there = int((self.wrong & half).sum()), int((self.wrong & inside & half).sum())
        p = float(hypergeom.sf(wrong_there - 1, n, wrong, there))
        return (
            ErrorRate.of(wrong_there, there),
            ErrorRate.of(wrong - wrong_there, n - there),
            min(p, 1.0),
        )


def _confirmed(
    proposals: list[Slice], alpha: float, margin: float, used: dict[int, int], left_out: list[int]
) -> Slices:
    corrected = holm([one.p for one in proposals])
    judged = [replace(one, corrected=p) for one, p in zip(proposals, corrected, strict=True)]
    judged.sort(key=lambda one: (-one.confirmation.value, one.corrected))
    holds = [
        one.corrected <= alpha and one.confirmation.value >= one.rest.value + margin
        for one in judged
    ]
    return Slices(
        tuple(one for one, held in zip(judged, holds, strict=True) if held),
        tuple(one for one, held in zip(judged, holds, strict=True) if not held),
        used,
        tuple(left_out),
        alpha,
    )


def holm(p: list[float]) -> list[float]:
    """Corrected p-values (Holm, 1979): the k-th smallest of m times m − k + 1, never below the one before it."""
    m, found, highest = len(p), [0.0] * len(p), 0.0
    for k, i in enumerate(sorted(range(m), key=p.__getitem__)):
        highest = max(highest, min(1.0, (m - k) * p[i]))
        found[i] = highest
    return found
