"""Which samples make an epoch, in which order and in which batches.

All depends on (seed, epoch) and on nothing else.
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fairmargin.data.bias import count_cells

# Streams of random numbers that share a seed.
ORDER, PIXELS, WEIGHTS = 0, 1, 2


def seeded(stream: int, *key: int) -> torch.Generator:
    """Return a generator for this key.

    Neighbouring keys give unrelated numbers, which seeds such as seed + epoch would not.

    Args:
        stream: ORDER, PIXELS or WEIGHTS.
        key: for example a seed, an epoch and the number of a batch.
    """
    state = np.random.SeedSequence((stream, *key)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


class Sampler(ABC):
    """An order of samples for every epoch, cut into batches."""

    @abstractmethod
    def indices(self, epoch: int) -> Tensor:
        """Return the positions [m] in the split that make this epoch, in order.

        Args:
            epoch: with the sampler's seed, decides the order.
        """

    def batches(self, epoch: int, batch_size: int, drop_last: bool = False) -> list[Tensor]:
        """Return the positions of an epoch, batch by batch.

        Args:
            drop_last: leave out a last batch that the samples do not fill.
        """
        indices = self.indices(epoch)
        kept = len(indices)
        if drop_last:
            kept -= kept % batch_size
        return list(indices[:kept].split(batch_size)) if kept else []


@dataclass(frozen=True)
class InOrder(Sampler):
    """Every sample once, in the order of the split."""

    n: int

    def indices(self, epoch: int) -> Tensor:
        return torch.arange(self.n)


@dataclass(frozen=True)
class Shuffled(Sampler):
    """Every sample once, in random order."""

    n: int
    seed: int = 0

    def indices(self, epoch: int) -> Tensor:
        return torch.randperm(self.n, generator=seeded(ORDER, self.seed, epoch))


@dataclass(frozen=True)
class ClassBalanced(Sampler):
    """Samples drawn with replacement, every class equally often."""

    labels: Tensor
    seed: int = 0

    def indices(self, epoch: int) -> Tensor:
        return _draw(1 / _count_same(self.labels), seeded(ORDER, self.seed, epoch))


@dataclass(frozen=True)
class GroupBalanced(Sampler):
    """Samples drawn with replacement, every (class, bias) group equally often.

    The samples of a class with unknown bias are a group too.
    """

    labels: Tensor
    bias: Tensor
    seed: int = 0

    def indices(self, epoch: int) -> Tensor:
        """Positions of an epoch, drawn with replacement, every group as often."""
        return _draw(self.weights, seeded(ORDER, self.seed, epoch))

    @property
    def weights(self) -> Tensor:
        """1/n of each sample's group, [N]."""
        return 1 / _count_same(self.labels, self.bias)


@dataclass(frozen=True)
class Weighted(Sampler):
    """Samples drawn with replacement, in proportion to `weights`.

    Args:
        ratio: clip weights at this many times the smallest positive one; None does not clip.
    """

    weights: Tensor
    ratio: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_weights(self.weights)
        if self.ratio is not None and self.ratio < 1:
            raise ValueError(
                "ratio must be at least 1 (all weights equal), or None for no clip; "
                f"got {self.ratio}"
            )

    def indices(self, epoch: int) -> Tensor:
        """Draw as many positions as there are weights."""
        weights = self.weights
        if self.ratio is not None:
            weights = weights.clamp(max=self.ratio * float(weights[weights > 0].min()))
        return _draw(weights, seeded(ORDER, self.seed, epoch))


@dataclass(frozen=True)
class InProportion(Sampler):
    """As many samples as there are, each in proportion to its weight, in random order.

    n·w/Σw is how often a sample comes in an epoch: rounded down or up at random, so that the mean
    over epochs is exact (systematic sampling). With equal weights every sample comes once, as in
    `Shuffled`; one of weight 0 never comes.

    Args:
        weights: [N], of the samples.
        groups: [N, …] values that make the groups; every group comes equally often, and weights
            decide within it. None takes all samples together.
    """

    weights: Tensor
    groups: Tensor | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_weights(self.weights)
        if self.groups is not None and not bool((self._group_totals > 0).all()):
            raise ValueError(
                "balanced batches need every group, and there is a group whose samples all have "
                "weight 0; give some of them a weight above 0, remove them, or set "
                "data.sampler=shuffled"
            )

    def indices(self, epoch: int) -> Tensor:
        """Positions of an epoch: those of each sample, floor or ceiling of its share."""
        generator = seeded(ORDER, self.seed, epoch)
        n = len(self.weights)
        # In random order, since neighbors share what is rounded.
        order = torch.randperm(n, generator=generator)
        ends = self._shares[order].cumsum(0)
        start = torch.rand((), generator=generator, dtype=torch.double)
        # Positions start, start + 1, … below the end: a sample gets those within its share.
        below = (ends - start).ceil().clamp(min=0, max=n).long()
        below[-1] = n
        times = below.diff(prepend=torch.zeros(1, dtype=torch.long))
        drawn = order.repeat_interleave(times)
        return drawn[torch.randperm(n, generator=generator)]

    @cached_property
    def _group_totals(self) -> Tensor:
        """Sum of the weights in the group of each sample, [N]."""
        assert self.groups is not None
        _, group = self.groups.unique(dim=0, return_inverse=True)
        totals = torch.zeros(int(group.max()) + 1, dtype=torch.double)
        return totals.index_add(0, group, self.weights.double())[group]

    @cached_property
    def _shares(self) -> Tensor:
        """How often each sample comes in an epoch, on average, [N]; their sum is N."""
        weights = self.weights.double()
        if self.groups is not None:
            weights = weights / self._group_totals
        return len(weights) * weights / weights.sum()


def _check_weights(weights: Tensor) -> None:
    valid = weights.isfinite() & (weights >= 0)
    if not valid.all() or not (weights > 0).any():
        raise ValueError("sampling weights must be finite, none negative and at least one above 0")


def bias_weights(labels: Tensor, bias: Tensor) -> Tensor:
    """Return 1 / p̂(b | y) of each sample, [N] (Hong & Yang, NeurIPS 2021).

    Unknown bias counts as one more value.

    Args:
        labels: [N].
        bias: [N]; −1 is unknown.
    """
    return _count_same(labels) / _count_same(labels, bias)


@dataclass(frozen=True)
class BiasAware(Sampler):
    """Every class in a batch comes with at least `per_batch` conflicting pairs.

    A conflicting pair has the same class and different known bias. Batches are cut from a shuffled
    epoch. Where a class lacks pairs, random conflicting samples of it take the places of the
    batch's last samples, which move on to the next batch. An epoch has as many batches as a
    shuffled one, so what moves past its end is left out of this epoch. A class with fewer than
    `per_batch` samples outside its main bias gets only that many pairs, and one with a single bias
    value none.
    """

    labels: Tensor
    bias: Tensor
    per_batch: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_batch < 1:
            raise ValueError(f"per_batch must be at least 1; got {self.per_batch}")
        present = torch.bincount(self.labels, minlength=len(self._wanted)) > 0
        alone = (present & (self._wanted == 0)).nonzero()[:, 0].tolist()
        if alone:
            warnings.warn(
                f"no conflicting pairs exist in class {', '.join(map(str, alone))}: all its "
                "samples of known bias have one value; add samples that break the correlation, "
                "or expect no conflicting positives there",
                stacklevel=3,
            )

    def indices(self, epoch: int) -> Tensor:
        """Return the shuffled epoch, before conflicting samples are put in."""
        return torch.randperm(len(self.labels), generator=seeded(ORDER, self.seed, epoch))

    def batches(self, epoch: int, batch_size: int, drop_last: bool = False) -> list[Tensor]:
        """Return the positions of an epoch, batch by batch, with conflicting samples put in.

        Args:
            drop_last: leave out a last batch that the samples do not fill.
        """
        smallest = self.per_batch + 1 + int((self.bias < 0).any())
        if batch_size < smallest:
            raise ValueError(
                f"{self.per_batch} pairs per class need a batch of at least {smallest}; "
                f"got {batch_size}"
            )
        generator = seeded(ORDER, self.seed, epoch)
        queue = torch.randperm(len(self.labels), generator=generator)
        full, rest = divmod(len(queue), batch_size)
        sizes = [batch_size] * full
        if rest and not drop_last:
            sizes.append(max(rest, smallest))
        batches = []
        for size in sizes:
            natural = queue[: self._fitting(queue[:size], size)]
            queue = queue[len(natural) :]
            batches.append(self._complete(natural, size, generator))
        return batches

    @cached_property
    def _wanted(self) -> Tensor:
        """Conflicting samples that a class's part of a batch must hold, [classes]."""
        counts = self._counts(torch.arange(len(self.labels)))
        return (counts.sum(1) - counts.amax(1)).clamp(max=self.per_batch)

    @cached_property
    def _shape(self) -> tuple[int, int]:
        return int(self.labels.max()) + 1, max(int(self.bias.max()) + 1, 1)

    def _counts(self, index: Tensor) -> Tensor:
        """Samples of each (class, known bias) cell among these, [classes, biases]."""
        return count_cells(self.labels[index], self.bias[index], *self._shape)

    def _missing(self, index: Tensor) -> Tensor:
        """Samples to add for each class, [classes].

        That is one of known bias if there is none, and what is wanted outside the main bias.
        """
        counts = self._counts(index)
        present = torch.bincount(self.labels[index], minlength=len(counts)) > 0
        conflicting = counts.sum(1) - counts.amax(1)
        missing = (self._wanted - conflicting).clamp(min=0) + (counts.sum(1) == 0)
        return missing * (present & (self._wanted > 0))

    def _fitting(self, samples: Tensor, size: int) -> int:
        """How many of `samples`, from the first, fit in a batch together with what they miss."""
        m = len(samples)
        # One more sample never lowers the sum of samples and missing ones, and raises it by at most
        # per_batch + 2, so these jumps do not skip the answer.
        while (over := m + int(self._missing(samples[:m]).sum()) - size) > 0:
            m -= max(1, over // (self.per_batch + 2))
        return m

    def _complete(self, natural: Tensor, size: int, generator: torch.Generator) -> Tensor:
        """Add the conflicting samples that are missing, and shuffle."""
        batch = natural
        counts = self._counts(natural)
        order, ends = self._by_cell
        for y, missing in enumerate(self._missing(natural).tolist()):
            if not missing:
                continue
            # Samples of unknown bias end where those of the first known bias start.
            bounds = ends[y].tolist()
            unknown, last = bounds[0], bounds[-1]
            if counts[y].sum() == 0:
                first = _pick(order[unknown:last], batch, 1, generator)
                batch = torch.cat([batch, first])
                main = int(self.bias[first])
                missing -= 1
            else:
                main = int(counts[y].argmax())
            others = torch.cat([order[unknown : bounds[main]], order[bounds[main + 1] : last]])
            batch = torch.cat([batch, _pick(others, batch, missing, generator)])
        # The next sample may have brought a new class that misses more than the places left; these
        # places go to classes that are here.
        spare = size - len(batch)
        for i in torch.randint(len(natural), (spare,), generator=generator).tolist():
            y = int(self.labels[natural[i]])
            start = ends[y - 1, -1] if y else 0
            members = order[start : ends[y, -1]]
            batch = torch.cat([batch, _pick(members, batch, 1, generator)])
        return batch[torch.randperm(len(batch), generator=generator)]

    @cached_property
    def _by_cell(self) -> tuple[Tensor, Tensor]:
        """(order, ends): samples by class, then by bias, unknown first; and where each cell ends.

        `ends` is [classes, 1 + biases].
        """
        classes, biases = self._shape
        cell = self.labels * (1 + biases) + self.bias + 1
        ends = torch.bincount(cell, minlength=classes * (1 + biases)).cumsum(0)
        return cell.argsort(stable=True), ends.view(classes, 1 + biases)


def _pick(pool: Tensor, batch: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Pick `number` at random from `pool`, none of which is in `batch`."""
    pool = pool[~torch.isin(pool, batch)]
    return pool[torch.randperm(len(pool), generator=generator)[:number]]


def _count_same(*attributes: Tensor) -> Tensor:
    """Count how many samples share each sample's values, [N]; double, to be divided."""
    values = torch.stack(attributes, 1)
    _, group, size = values.unique(dim=0, return_inverse=True, return_counts=True)
    return size[group].double()


def _draw(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw as many positions as there are weights, by inverting the cumulative sum."""
    total = weights.double().cumsum(0)
    u = torch.rand(len(weights), generator=generator, dtype=torch.double) * total[-1]
    return torch.searchsorted(total, u, right=True).clamp(max=len(weights) - 1)
