"""How often a classifier is right: six conventions that papers call "accuracy", and group by group.

A cell, or group, is a pair (label y, bias b). Samples of unknown bias (−1) belong to none and count
in "plain" only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

NAMES = ("plain", "cell-mean", "aligned", "conflicting", "worst-group", "train-weighted")
MEANINGS = {
    "plain": "The share of all test samples that are right, each counted once.",
    "cell-mean": "The mean of the accuracies of the (label, bias) groups, each counted once.",
    "aligned": (
        "The share that is right of the samples in groups that the training set over-represents."
    ),
    "conflicting": (
        "The share that is right of the samples in the other groups, where the shortcut misleads."
    ),
    "worst-group": (
        "The accuracy of the (label, bias) group with the lowest one, "
        "among those with enough test samples."
    ),
    "train-weighted": (
        "The mean of the groups' accuracies, "
        "each weighted by the group's number of training samples."
    ),
}
# Test samples that a group needs for its accuracy to mean much.
LEAST = 10
# Draws of the bootstrap held at a time.
DRAWS = 1 << 22


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, which contains it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Groups:
    """Test samples, right answers and Wilson interval of every group; each [classes, biases].

    The interval is NaN where a group has no samples.
    """

    n: Tensor
    correct: Tensor
    low: Tensor
    high: Tensor


def aligned_cells(counts: Tensor) -> Tensor:
    """Return which groups the training set over-represents, bool [classes, biases].

    In them b is more frequent in class y than overall:

    counts[y, b] / Σ_b counts[y, b]  >  Σ_y counts[y, b] / Σ counts

    Args:
        counts: [classes, biases] of the training set.
    """
    counts = counts.double()  # exact up to 2⁵³, and so are the products below
    return counts * counts.sum() > counts.sum(1, keepdim=True) * counts.sum(0, keepdim=True)


def accuracies(
    predicted: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    counts: Tensor,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    least: int = LEAST,
) -> tuple[dict[str, Interval], list[str]]:
    """Return the accuracies of `NAMES` with percentile-bootstrap intervals, and warnings.

    Args:
        predicted: [N] classes; −1 for no answer, which is never right.
        labels: [N] classes.
        bias: [N] values, −1 for unknown; None leaves "plain" only.
        counts: [classes, biases] of the training set.
        resamples: of the bootstrap, stratified by group. Where it has no spread, because every
            group is all right or all wrong, the interval is Wilson's. Inside a group, drawing
            answers with replacement is a draw from a binomial distribution, so a thousand resamples
            cost a few milliseconds whatever N is.
        confidence: of the intervals.
        least: test samples that a group needs to be eligible for "worst-group".

    A name is absent when no sample can say anything about it.
    """
    if resamples < 1:
        raise ValueError(
            f"resamples must be at least 1; got {resamples}. values() gives accuracies without "
            "intervals"
        )
    _check_confidence(confidence)
    table = _Table.of(predicted, labels, bias, counts, least)
    point = table.conventions(table.correct / table.n)
    drawn = _bootstrap(table, resamples, seed)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    found = {}
    for name, value in point.items():
        estimate = float(value)
        low, high = np.quantile(drawn[name], tails)
        # Every group all right or all wrong: resampling shows no doubt, but there is some.
        if np.ptp(drawn[name]) == 0:
            size = torch.tensor(table.effective_size(name))
            low, high = wilson(estimate * size, size, confidence)
        found[name] = Interval(estimate, min(float(low), estimate), max(float(high), estimate))
    return found, table.warnings(least)


def values(
    predicted: Tensor, labels: Tensor, bias: Tensor | None, counts: Tensor, *, least: int = LEAST
) -> dict[str, float]:
    """Return what `accuracies` does, without intervals.

    Args:
        predicted: [N] classes; −1 for no answer, which is never right.
        labels: [N] classes.
        bias: [N] values, −1 for unknown; None leaves "plain" only.
        counts: [classes, biases] of the training set.
        least: test samples that a group needs to be eligible for "worst-group".
    """
    table = _Table.of(predicted, labels, bias, counts, least)
    found = table.conventions(table.correct / table.n)
    return {name: float(value) for name, value in found.items()}


@dataclass(frozen=True)
class _Table:
    """The cells that have test samples, and what each convention wants of them.

    Samples of unknown bias are a cell of each class.

    Args:
        n: [cells] samples.
        correct: [cells] right answers.
        weights: [cells], not normalized, of every convention that is a weighted mean.
        eligible: [cells] bool: where the worst group is looked for.
        enough: eligible ones have `least` samples.
        left_out: share of the training samples whose group has no test samples.
    """

    n: np.ndarray
    correct: np.ndarray
    weights: dict[str, np.ndarray]
    eligible: np.ndarray
    enough: bool
    left_out: float

    @staticmethod
    def of(
        predicted: Tensor, labels: Tensor, bias: Tensor | None, counts: Tensor, least: int
    ) -> "_Table":
        n, correct = _tally(predicted, labels, bias, *counts.shape)  # [classes, biases + 1]
        there = n > 0
        known = np.zeros(n.shape, bool)
        known[:, :-1] = True
        aligned = np.zeros(n.shape, bool)
        aligned[:, :-1] = aligned_cells(counts).cpu().numpy()
        trained = np.zeros(n.shape)
        trained[:, :-1] = counts.cpu().numpy()
        weights = {
            "plain": n,
            "cell-mean": known,
            "aligned": n * aligned,
            "conflicting": n * (known & ~aligned),
            "train-weighted": trained,
        }
        weights = {name: weight[there].astype(np.float64) for name, weight in weights.items()}
        large = known & (n >= max(least, 1))
        eligible = large if large.any() else known
        return _Table(
            n=n[there],
            correct=correct[there],
            weights={name: weight for name, weight in weights.items() if weight.any()},
            eligible=eligible[there],
            enough=bool(large.any()),
            left_out=float(trained[~there].sum() / max(trained.sum(), 1)),
        )

    def conventions(self, share: np.ndarray) -> dict[str, np.ndarray]:
        """Each convention's value, in the order of `NAMES`; share [..., cells] of right answers."""
        found = {
            name: (share @ weight / weight.sum()).clip(0, 1)
            for name, weight in self.weights.items()
        }
        if self.eligible.any():
            found["worst-group"] = share[..., self.eligible].min(-1)
        return {name: found[name] for name in NAMES if name in found}

    def effective_size(self, name: str) -> float:
        """Number of samples whose plain share of right answers would vary as much.

        1 / Σ w²/n, with weights that add up to 1.
        """
        if name == "worst-group":
            share = np.where(self.eligible, self.correct / self.n, np.inf)
            return float(self.n[share == share.min()].min())
        w = self.weights[name] / self.weights[name].sum()
        return float(1 / (w**2 / self.n).sum())

    def warnings(self, least: int) -> list[str]:
        said = []
        if self.eligible.any() and not self.enough:
            said.append(
                f"no group has {least} test samples; the worst-group accuracy is the lowest of "
                "all groups"
            )
        if "train-weighted" in self.weights and self.left_out > 0:
            said.append(
                f"the train-weighted accuracy leaves out {self.left_out:.1%} of the training "
                "samples, "
                "whose groups have no test samples"
            )
        return said


def _tally(
    predicted: Tensor, labels: Tensor, bias: Tensor | None, classes: int, biases: int
) -> tuple[np.ndarray, np.ndarray]:
    """(samples, right answers) of each cell [classes, biases + 1].

    The last column is unknown bias.
    """
    _check_range(labels, "labels", 0, classes)
    if len(predicted) != len(labels):
        raise ValueError(
            f"there are {len(predicted)} predictions for {len(labels)} labels; "
            "give one for each sample"
        )
    if bias is None:
        bias = torch.full_like(labels, -1)
    _check_range(bias, "bias", -1, biases)
    if len(bias) != len(labels):
        raise ValueError(
            f"there are {len(bias)} bias values for {len(labels)} labels; "
            "use −1 where it is unknown"
        )
    cell = labels.long() * (biases + 1) + torch.where(bias < 0, biases, bias).long()

    def count(cells: Tensor) -> np.ndarray:
        number = torch.bincount(cells, minlength=classes * (biases + 1))
        counted: np.ndarray = number.view(classes, biases + 1).cpu().numpy()
        return counted

    return count(cell), count(cell[predicted == labels])


def _bootstrap(table: _Table, resamples: int, seed: int) -> dict[str, np.ndarray]:
    """[resamples] values of each convention."""
    random = np.random.default_rng(seed)
    n, p = table.n, table.correct / table.n
    at_once = max(1, DRAWS // max(len(n), 1))
    parts = []
    for start in range(0, resamples, at_once):
        size = (min(at_once, resamples - start), len(n))
        parts.append(table.conventions(random.binomial(n, p, size=size) / n))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def group_table(
    predicted: Tensor,
    labels: Tensor,
    bias: Tensor,
    classes: int,
    biases: int,
    *,
    confidence: float = 0.95,
) -> Groups:
    """Return every group's test samples, right answers, and Wilson interval of its accuracy.

    Args:
        predicted: [N] classes; −1 for no answer.
        labels: [N] classes.
        bias: [N] values; −1 for unknown, which leaves a sample out.
        classes: number of classes.
        biases: number of bias values.
    """
    tallied = _tally(predicted, labels, bias, classes, biases)
    n, correct = (torch.from_numpy(cells[:, :-1].copy()) for cells in tallied)
    low, high = wilson(correct, n, confidence)
    return Groups(n, correct, low, high)


def wilson(correct: Tensor, n: Tensor, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return (low, high) of Wilson's score interval of a share (1927); NaN where n = 0.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n),   z the normal quantile

    Args:
        correct: right answers.
        n: answers, of the same shape.
        confidence: of the interval, between 0 and 1.
    """
    _check_confidence(confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    n = n.double()
    p = correct / n
    centre = p + z**2 / (2 * n)
    half = z * (p * (1 - p) / n + z**2 / (4 * n**2)).sqrt()
    scale = 1 + z**2 / n
    low, high = (centre - half) / scale, (centre + half) / scale
    return low.clamp(0, 1), high.clamp(0, 1)


def small_groups(
    n: Tensor,
    *,
    least: int = LEAST,
    class_names: Sequence[str] | None = None,
    bias_names: Sequence[str] | None = None,
) -> list[str]:
    """Return sentences about groups with few test samples or none.

    Args:
        n: [classes, biases] test samples of each group.
        least: fewer are few.
        class_names: for the sentences; numbers without.
        bias_names: likewise.
    """
    said = []
    small, empty = (n > 0) & (n < least), int((n == 0).sum())
    if small.any():
        y, b = divmod(int(torch.where(small, n, least).argmin()), n.shape[1])
        label = y if class_names is None else class_names[y]
        cue = b if bias_names is None else bias_names[b]
        has = "has" if small.sum() == 1 else "have"
        said.append(
            f"{int(small.sum())} of {n.numel()} groups {has} fewer than {least} test samples; "
            f"the smallest, (label={label}, bias={cue}), has {int(n[y, b])}"
        )
    if empty:
        has = "has" if empty == 1 else "have"
        said.append(f"{empty} of {n.numel()} groups {has} no test samples")
    return said


def equalised_odds_gap(
    predicted: Tensor, labels: Tensor, bias: Tensor, *, least: int = LEAST
) -> float | None:
    """Return how much the answers depend on the bias at a fixed true class.

    max over y and c of  max_b P(ŷ=c | y, b) − min_b P(ŷ=c | y, b)

    over groups of at least `least` samples. With two classes it is the larger of the differences of
    true- and of false-positive rates. None when no class has two such groups.

    Args:
        predicted: [N] classes; −1 for no answer, which is an outcome too.
        labels: [N] classes.
        bias: [N] values; −1 for unknown, which leaves a sample out.
        least: samples that a group needs to count.
    """
    gaps = []
    outcomes = int(predicted.max()) + 2 if len(predicted) else 0  # no answer (−1) is an outcome too
    for y in labels.unique():
        chosen = (labels == y) & (bias >= 0)
        _, group, size = bias[chosen].unique(return_inverse=True, return_counts=True)
        cell = group * outcomes + predicted[chosen] + 1
        counted = torch.bincount(cell, minlength=len(size) * outcomes).view(len(size), outcomes)
        rates = (counted / size[:, None].double())[size >= least]  # [groups, outcomes]
        if len(rates) >= 2:
            gaps.append(float((rates.amax(0) - rates.amin(0)).max()))
    return max(gaps, default=None)


def _check_range(values: Tensor, name: str, low: int, stop: int) -> None:
    if len(values) and not low <= int(values.min()) <= int(values.max()) < stop:
        raise ValueError(
            f"{name} must be from {low} to {stop - 1}, as the training counts have it; "
            f"got values from {int(values.min())} to {int(values.max())}"
        )


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, like 0.95; got {confidence}")
