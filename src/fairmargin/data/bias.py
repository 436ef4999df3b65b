"""Bias attributes as pure functions.

They draw a bias at a given correlation with the label, count (label, bias) cells, and split a set
so that conflicting samples stay in proportion.
"""

import math

import numpy as np
import torch
from torch import Tensor


def assign_by_count(
    labels: np.ndarray,
    rho: float,
    random: np.random.RandomState,
    *,
    classes: int = 10,
    confusing: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Assign biases as Biased-MNIST does (Bahng et al., ICML 2020).

    Of the n samples of class y, a = floor(n·ρ) get bias y. The others are cut into chunks of
    ceil((n−a)/m) for the m candidates y+1 … y+m (mod classes), in random order. The output is
    ordered by bias, then permuted. The draws are those of the public codes, from one legacy NumPy
    stream, so the same seed gives the same dataset bit by bit.

    Args:
        rho: share of each class that gets its own bias.
        random: the stream to draw from; the call advances it.
        confusing: m, the number of other biases a class may get; all of them if None.

    Returns:
        (source, bias): for each output position, the index into `labels` and the bias.
    """
    m = classes - 1 if confusing is None else confusing
    if not 0 <= rho <= 1:
        raise ValueError(f"rho must lie in [0, 1]; got {rho}")
    if not 1 <= m <= classes - 1:
        raise ValueError(f"confusing labels must be from 1 to {classes - 1}; got {m}")
    # An empty chunk in each list, so that a bias without samples can be concatenated too.
    by_bias = [[np.zeros(0, np.int64)] for _ in range(classes)]
    for y in range(classes):
        index = np.flatnonzero(labels == y).astype(np.int64)
        random.shuffle(index)
        aligned = int(len(index) * rho)
        candidates = [(y + j) % classes for j in range(1, m + 1)]
        random.shuffle(candidates)
        by_bias[y].append(index[:aligned])
        rest = index[aligned:]
        size = max(1, math.ceil(len(rest) / m))
        for j, start in enumerate(range(0, len(rest), size)):
            by_bias[candidates[j]].append(rest[start : start + size])
    parts = [np.concatenate(chunks) for chunks in by_bias]
    source = np.concatenate(parts)
    bias = np.repeat(np.arange(classes, dtype=np.int64), [len(part) for part in parts])
    order = np.arange(len(source))
    random.shuffle(order)
    return source[order], bias[order]


def assign_by_milestones(labels: np.ndarray, aligned: float, *, classes: int = 10) -> np.ndarray:
    """Assign biases without any randomness (Nam et al., NeurIPS 2020).

    Of class y, in file order, a share `aligned` gets bias y and the other biases get equal shares:
    the i-th sample gets the smallest b whose rounded cumulative count exceeds i.

    Args:
        aligned: share of each class that gets its own bias.

    Returns:
        uint8 [N].
    """
    if not 0 <= aligned <= 1:
        raise ValueError(f"the aligned share must lie in [0, 1]; got {aligned}")
    ratio = np.full((classes, classes), (1 - aligned) / (classes - 1))
    np.fill_diagonal(ratio, aligned)
    bias = np.zeros(len(labels), np.uint8)
    for y in range(classes):
        index = np.flatnonzero(labels == y)
        milestones = np.round(len(index) * np.cumsum(ratio[y]))
        smallest = np.searchsorted(milestones, np.arange(len(index)), side="right")
        bias[index] = smallest.clip(max=classes - 1)
    return bias


def count_cells(labels: Tensor, bias: Tensor | None, classes: int, biases: int) -> Tensor:
    """Count the samples of each (label, bias) cell, [classes, biases].

    Samples of unknown bias (−1) are left out.

    Args:
        labels: [N].
        bias: [N]; None counts nothing.
        biases: number of bias values.
    """
    if bias is None or biases == 0:
        return torch.zeros(classes, biases, dtype=torch.long)
    known = bias >= 0
    cells = labels[known] * biases + bias[known]
    return torch.bincount(cells, minlength=classes * biases).view(classes, biases)


def format_cells(counts: Tensor) -> str:
    """Write the counts of all cells in one line, label by label: "3498 184 56 1057".

    Args:
        counts: as `count_cells` returns them.
    """
    return " ".join(map(str, counts.flatten().tolist()))


def split_off(
    labels: Tensor, bias: Tensor | None, fraction: float, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Hold out `fraction` of every (label, bias) cell, so conflicting samples stay in proportion.

    A cell too small for its share is drawn at random with that share, by largest remainders over
    all cells, so that the total is right. No cell is emptied.

    Args:
        bias: None treats every class as one cell.

    Returns:
        (kept, held out): indices in ascending order.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"the validation fraction must lie in [0, 1); got {fraction}")
    g = torch.Generator().manual_seed(seed)
    cue = torch.zeros_like(labels) if bias is None else bias + 1
    cells = torch.stack([labels, cue], 1)
    _, cell, size = cells.unique(dim=0, return_inverse=True, return_counts=True)
    wanted = size * fraction
    take = wanted.floor().long()
    short = round(len(labels) * fraction) - int(take.sum())
    room = take < size - 1
    # The tiny random term decides between equal remainders.
    remainder = wanted - take + 1e-6 * torch.rand(len(size), generator=g)
    remainder = torch.where(room, remainder, -1.0)
    best = remainder.argsort(descending=True)[: max(short, 0)]
    take[best[remainder[best] > 0]] += 1
    shuffled = torch.randperm(len(labels), generator=g)
    # Sorted by cell, in random order within each.
    order = shuffled[cell[shuffled].argsort(stable=True)]
    start = size.cumsum(0) - size
    place = torch.arange(len(labels)) - start[cell[order]]
    out = place < take[cell[order]]
    return order[~out].sort().values, order[out].sort().values


def is_aligned(labels: Tensor, bias: Tensor) -> Tensor:
    """Tell which samples are aligned, if bias k belongs to class k; unknown bias is not aligned.

    Args:
        labels: [N].
        bias: [N]; −1 is unknown.
    """
    return labels == bias
