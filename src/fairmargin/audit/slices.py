"""Find where a model fails, without bias labels.

A slice is a group of similar samples of one class that are wrong more often than the rest of it.

Samples are split at random into two halves. On the first, the embeddings of each class are
clustered, and clusters that look worse than the rest of their class are proposed. On the second,
every proposal is tested (one-sided exact test of Fisher, corrected over the proposals by Holm's
method). Clusters are made from embeddings alone, and the half that proposes never confirms, so a
model whose mistakes are random has a slice reported with probability `alpha` at most.
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

# Numbers of clusters of a class that are tried.
CHOICES = (2, 4, 8, 16)
# Least samples of a slice in each half; with fewer its error rate says hardly anything.
LEAST = 10
# Least samples of a class that is looked at: a slice and a rest in each half.
SMALLEST = 4 * LEAST
# Least difference of error rates; a smaller one may be significant and still not matter.
MARGIN = 0.05
# A cluster is proposed if its p on the first half is at most this.
PROMISING = 0.1
# Directions of largest spread inside the classes, in which clusters are looked for.
WIDTH = 32
# Samples of a class that clusters are fitted to.
FITTED = 2000
# Samples of a class that silhouettes are computed from.
JUDGED = 1000
# Samples that the directions are computed from.
SPREAD = 20_000
# Rows that are projected at a time.
ROWS = 8192

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
        """Return the rate of `wrong` answers out of n."""
        low, high = wilson(torch.tensor(wrong), torch.tensor(n))
        return ErrorRate(n, wrong, wrong / n, float(low), float(high))


@dataclass(frozen=True)
class Slice:
    """Samples of one class that lie together and are wrong more often than the rest of the class.

    Args:
        label: the class.
        members: positions, of both halves, the most central first.
        mistakes: the wrong ones among them.
        discovery: error rate on the half that proposed it, where it was chosen for being high.
        confirmation: error rate on the other half: the number to believe.
        rest: error rate of the rest of the class, on the other half.
        p: on the other half.
        corrected: p corrected for the number of slices tested.
    """

    label: int
    members: Index
    mistakes: Index
    discovery: ErrorRate
    confirmation: ErrorRate
    rest: ErrorRate
    p: float
    corrected: float


@dataclass(frozen=True)
class Slices:
    """The slices of a model.

    Args:
        found: confirmed ones, the highest error rate first.
        rejected: proposed on the first half, not confirmed on the second.
        clusters: number of clusters of each class that was clustered.
        left_out: classes with too few samples.
        alpha: level of the corrected p-values.
    """

    found: tuple[Slice, ...]
    rejected: tuple[Slice, ...]
    clusters: dict[int, int]
    left_out: tuple[int, ...]
    alpha: float

    @property
    def tested(self) -> int:
        """How many slices were proposed and tested."""
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
    """Find the slices of a model with these answers.

    Args:
        embeddings: [N, D]; of the model, or better of another one (docs/embeddings.md says why).
        labels: [N] classes from 0 up.
        predicted: [N] classes; −1 for no answer, which is wrong.
        clusters: of each class; None chooses from 2, 4, 8 and 16 by silhouette.
        alpha: probability of reporting any slice when mistakes are random.
        margin: least difference between the error rates of a slice and of the rest of its class.
        least: samples that a slice has in each half.
        seed: of the halves and of the clusters.
        progress: called after each class.
    """
    _check(embeddings, labels, predicted, clusters, alpha)
    random = np.random.default_rng(seed)
    first = _halves(labels, random)
    directions = _directions(embeddings, labels, np.flatnonzero(first), random)
    wrong = predicted != labels
    proposals: list[Slice] = []
    used: dict[int, int] = {}
    left_out: list[int] = []
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
                f"{name} must have shape [{len(embeddings)}], one for each embedding; "
                f"got {list(ids.shape)}"
            )
    if clusters is not None and clusters < 2:
        raise ValueError(f"clusters must be at least 2, or None to choose; got {clusters}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, like 0.05; got {alpha}")


def _halves(labels: Index, random: np.random.Generator) -> NDArray[np.bool_]:
    """Return [N], True for samples of the first half: every other one of each class, at random."""
    order = random.permutation(len(labels))
    order = order[labels[order].argsort(kind="stable")]
    first = np.zeros(len(labels), bool)
    first[order[::2]] = True
    return first


def _directions(
    embeddings: Array, labels: Index, among: Index, random: np.random.Generator
) -> Array:
    """Return [D, ≤ WIDTH] orthonormal directions in which samples of a class differ most.

    The spread is pooled over the classes.
    """
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
    """Scale rows to length 1, because losses and audits compare cosines; zero rows stay zero."""
    # In float32 the squares of large entries would be infinite.
    length = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    return np.divide(
        x, length, casting="same_kind", out=np.zeros(x.shape, np.float32), where=length > 0
    )


def _projected(embeddings: Array, members: Index, directions: Array) -> Array:
    starts = range(0, len(members), ROWS)
    return np.concatenate([_unit(embeddings[members[k : k + ROWS]]) @ directions for k in starts])


def _clustered(
    x: Array, first: NDArray[np.bool_], clusters: int | None, most: int, random: np.random.Generator
) -> tuple[Index, Array, int]:
    """Return (cluster of each sample, its distance from the centre, number of clusters).

    Centres come from the first half.
    """
    fitted = x[first]
    if len(fitted) > FITTED:
        fitted = fitted[random.choice(len(fitted), FITTED, replace=False)]
    # K-means warns about more clusters than different samples.
    distinct = len(np.unique(fitted, axis=0))
    wanted = CHOICES if clusters is None else (clusters,)
    choices = {min(k, most, distinct) for k in wanted}
    best = _best_means(fitted, sorted(choices), random)
    if best is None:
        return np.zeros(len(x), np.int64), np.zeros(len(x), np.float32), 1
    distance = best.transform(x)
    return distance.argmin(1), distance.min(1), len(best.cluster_centers_)


def _best_means(x: Array, choices: list[int], random: np.random.Generator) -> KMeans | None:
    """Return the clusters with the largest silhouette; None if all samples are alike."""
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
        """Yield clusters that look bad on the first half, without looking at the second."""
        for k in np.unique(self.cluster):
            inside = self.cluster == k
            if self._smallest_part(inside) < least:
                continue
            here, others, p = self._compared(inside, self.first)
            if p <= PROMISING and here.value >= others.value + margin:
                yield self._slice(inside, here)

    def _smallest_part(self, inside: NDArray[np.bool_]) -> int:
        """Return the number of samples inside or outside, in the half where it is lowest."""
        sizes = []
        for half in (self.first, ~self.first):
            sizes += [int((inside & half).sum()), int((~inside & half).sum())]
        return min(sizes)

    def _slice(self, inside: NDArray[np.bool_], discovery: ErrorRate) -> Slice:
        confirmation, rest, p = self._compared(inside, ~self.first)
        order = np.flatnonzero(inside)[self.distance[inside].argsort(kind="stable")]
        wrong = order[self.wrong[order]]
        members, mistakes = self.members[order], self.members[wrong]
        return Slice(self.label, members, mistakes, discovery, confirmation, rest, p, p)

    def _compared(
        self, inside: NDArray[np.bool_], half: NDArray[np.bool_]
    ) -> tuple[ErrorRate, ErrorRate, float]:
        """Return (error rate inside, error rate outside, p) on one half.

        p = P(as many mistakes inside or more | mistakes fall at random)
        """
        n = int(half.sum())
        there = int((inside & half).sum())
        wrong = int((self.wrong & half).sum())
        wrong_there = int((self.wrong & inside & half).sum())
        p = float(hypergeom.sf(wrong_there - 1, n, wrong, there))
        here = ErrorRate.of(wrong_there, there)
        others = ErrorRate.of(wrong - wrong_there, n - there)
        return here, others, min(p, 1.0)


def _confirmed(
    proposals: list[Slice], alpha: float, margin: float, used: dict[int, int], left_out: list[int]
) -> Slices:
    corrected = holm([one.p for one in proposals])
    judged = [replace(one, corrected=p) for one, p in zip(proposals, corrected, strict=True)]
    judged.sort(key=lambda one: (-one.confirmation.value, one.corrected))
    found: list[Slice] = []
    rejected: list[Slice] = []
    for one in judged:
        differs = one.confirmation.value >= one.rest.value + margin
        holds = one.corrected <= alpha and differs
        (found if holds else rejected).append(one)
    return Slices(tuple(found), tuple(rejected), used, tuple(left_out), alpha)


def holm(p: list[float]) -> list[float]:
    """Correct p-values for their number (Holm, 1979).

    The k-th smallest of m is multiplied by m − k + 1, and is never below the one before it.

    Args:
        p: in any order, which the result keeps.
    """
    m = len(p)
    found = [0.0] * m
    highest = 0.0
    for k, i in enumerate(sorted(range(m), key=p.__getitem__)):
        highest = max(highest, min(1.0, (m - k) * p[i]))
        found[i] = highest
    return found
