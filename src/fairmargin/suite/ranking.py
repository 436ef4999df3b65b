"""The arithmetic of a ranking: ranks, their uncertainty, and which methods cannot be told apart.

Everything is a function of numbers, without files or methods.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

# Of all intervals and tests.
CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Measured:
    """Accuracies in percent of one method on one task.

    Args:
        values: one for each seed.
        test_error: standard error of one value, from the number of test samples.
    """

    values: tuple[float, ...]
    test_error: float = 0.0

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.values))

    @property
    def error(self) -> float:
        """Standard error of the mean: between seeds, or of the test samples with one seed."""
        if len(self.values) < 2:
            return self.test_error
        return float(np.std(self.values, ddof=1) / math.sqrt(len(self.values)))

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval: Student's t over seeds, normal for one seed."""
        tail = (1 + CONFIDENCE) / 2
        if len(self.values) < 2:
            return float(stats.norm.ppf(tail)) * self.test_error
        return float(stats.t.ppf(tail, len(self.values) - 1)) * self.error


def ranks(means: Sequence[float]) -> list[float]:
    """Return the rank of each accuracy, 1 for the highest; equal ones share the mean of theirs.

    Args:
        means: accuracies of the methods on one task.
    """
    return [float(rank) for rank in stats.rankdata([-value for value in means])]


def critical_difference(methods: int, tasks: int) -> float:
    """Return by how much mean ranks must differ for two methods to be told apart (Nemenyi, 1963).

    q √(k(k+1) / 6N),   q the studentized range's quantile over √2  (Demšar, JMLR 2006)

    Args:
        methods: k, how many are ranked.
        tasks: N, on how many.
    """
    if methods < 2:
        return 0.0
    q = stats.studentized_range.ppf(CONFIDENCE, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * tasks)))


def letters(mean_ranks: Sequence[float], difference: float) -> list[str]:
    """Return letters for each method; two that share one cannot be told apart.

    Args:
        mean_ranks: in any order.
        difference: the critical one.
    """
    order = sorted(range(len(mean_ranks)), key=lambda i: mean_ranks[i])
    # Longest stretches of the order that are no wider than the difference.
    stretches: list[tuple[int, int]] = []
    for start in range(len(order)):
        stop = start
        while stop + 1 < len(order):
            if mean_ranks[order[stop + 1]] - mean_ranks[order[start]] > difference:
                break
            stop += 1
        if not stretches or stop > stretches[-1][1]:
            stretches.append((start, stop))
    found = [""] * len(mean_ranks)
    for k, (start, stop) in enumerate(stretches):
        for place in range(start, stop + 1):
            found[order[place]] += _letter(k)
    return found


def _letter(k: int) -> str:
    return chr(ord("a") + k) if k < 26 else f"({k + 1})"


def rank_intervals(
    table: Sequence[Sequence[Measured]], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[tuple[float, float]]:
    """Return the 95 % bootstrap interval of each method's mean rank, over tasks and seeds.

    Tasks are drawn with replacement, and in each task seeds. With one seed the value varies as the
    number of test samples lets it.

    Args:
        table: for each task, what each method got.
        resamples: how often.
        seed: of the draws.
    """
    random = np.random.default_rng(seed)
    tasks, methods = len(table), len(table[0])
    # [resamples, tasks, methods]: accuracies with other seeds.
    drawn = np.empty((resamples, tasks, methods))
    for i, row in enumerate(table):
        for j, at in enumerate(row):
            drawn[:, i, j] = _resampled(at, resamples, random)
    ranked = stats.rankdata(-drawn, axis=2)
    chosen = random.integers(tasks, size=(resamples, tasks))
    means = np.take_along_axis(ranked, chosen[:, :, None], 1).mean(1)  # [resamples, methods]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _resampled(at: Measured, resamples: int, random: np.random.Generator) -> np.ndarray:
    if len(at.values) < 2:
        return at.mean + random.normal(0, 1, resamples) * at.test_error
    values = np.array(at.values)
    picked = random.integers(len(values), size=(resamples, len(values)))
    mean: np.ndarray = values[picked].mean(1)
    return mean


def as_good_as_best(row: Sequence[Measured]) -> list[bool]:
    """Tell which methods of a task are the best, or cannot be told from it.

    |difference| ≤ q √(e₁² + e₂²), with the standard errors of both means. q is Student's quantile
    with the seeds of both but two, and the normal one where a method has one seed.

    Args:
        row: what each method got on the task.
    """
    best = max(row, key=lambda at: at.mean)
    return [best.mean - at.mean <= _noise(best, at) for at in row]


def _noise(one: Measured, other: Measured) -> float:
    """Return the largest difference of two means that may be chance."""
    tail = (1 + CONFIDENCE) / 2
    freedom = len(one.values) + len(other.values) - 2
    alone = min(len(one.values), len(other.values)) < 2
    quantile = stats.norm.ppf(tail) if alone else stats.t.ppf(tail, freedom)
    return float(quantile) * math.hypot(one.error, other.error)


def cost(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """Return how many times longer runs take than those of a reference: a geometric mean.

    Args:
        seconds: of each task.
        reference: of the same tasks.
    """
    ratios = [mine / theirs for mine, theirs in zip(seconds, reference, strict=True)]
    return float(stats.gmean(ratios))
