"""Bias attributes as pure functions: draw one at a correlation with the label, count cells, keep conflicting samples in
proportion when a set is split."""

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
    """(source index, bias) of each output position: Biased-MNIST's assignment (Bahng et al., ICML 2020).

    For class y with n samples, floor(n·ρ) get bias y; the others are cut into chunks of ceil((n−a)/m) for the m candidates
    y+1 … y+m (mod classes), in random order. Output is ordered by bias, then permuted. The draws are those of the public
    codes, one legacy NumPy stream, so the same seed gives the same dataset bit by bit.
    """
    m = classes - 1 if confusing is None else confusing
    if not 0 <= rho <= 1:
        raise ValueError(f"rho must lie in [0, 1]; got {rho}")
    if not 1 <= m <= classes - 1:
        raise ValueError(f"confusing labels must be from 1 to {classes - 1}; got {m}")
    by_bias: list[list[np.ndarray]] = [[] for _ in range(classes)]
    for y in range(classes):
        index = np.flatnonzero(labels == y).astype(np.int64)
        random.shuffle(index)
        aligned = int(len(index) * rho)
        candidates = [(y + j) % classes for j in range(1, m + 1)]
        random.shuffle(candidates)
        by_bias[y].append(index[:aligned])
        rest = index[aligned:]
        size = math.ceil(len(rest) / m)
        for j, start in enumerate(range(0, len(rest), size) if size else ()):
            by_bias[candidates[j]].append(rest[start : start + size])
    parts = [np.concatenate(chunks) if chunks else np.zeros(0, np.int64) for chunks in by_bias]
    source = np.concatenate(parts)
    bias = np.repeat(np.arange(classes, dtype=np.int64), [len(part) for part in parts])
    order = np.arange(len(source))
    random.shuffle(order)
    return source[order], bias[order]


def assign_by_milestones(labels: np.ndarray, aligned: float, *, classes: int = 10) -> np.ndarray:
    """bias [N] without any randomness (Nam et al., NeurIPS 2020): of class y, in file order, a share `aligned` gets bias y
    and the others equal shares; the i-th sample gets the smallest b whose rounded cumulative count exceeds i."""
    if not 0 <= aligned <= 1:
        raise ValueError(f"the aligned share must lie in [0, 1]; got {aligned}")
    ratio = np.full((classes, classes), (1 - aligned) / (classes - 1))
    np.fill_diagonal(ratio, aligned)
    bias = np.zeros(len(labels), np.uint8)
    for y in range(classes):
        index = np.flatnonzero(labels == y)
        milestones = np.round(len(index) * np.cumsum(ratio[y]))
        bias[index] = np.searchsorted(milestones, np.arange(len(index)), side="right").clip(
            max=classes - 1
        )
    return bias


def count_cells(labels: Tensor, bias: Tensor | None, classes: int, biases: int) -> Tensor:
    """counts[y, b]; samples of unknown bias (−1) are left out."""
    if bias is None or biases == 0:
        return torch.zeros(classes, biases, dtype=torch.long)
    known = bias >= 0
    cells = labels[known] * biases + bias[known]
    return torch.bincount(cells, minlength=classes * biases).view(classes, biases)


def split_off(
    labels: Tensor, bias: Tensor | None, fraction: float, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """(kept, held out) indices in ascending order: `fraction` of every (label, bias) cell is held out, so conflicting samples
    stay in proportion. A cell too small for its share is drawn at random with that share, by largest remainders over
    all cells, so that the total is right; no cell is emptied."""
    if not 0 <= fraction < 1:
        raise ValueError(f"the validation fraction must lie in [0, 1); got {fraction}")
    g = torch.Generator().manual_seed(seed)
    cue = torch.zeros_like(labels) if bias is None else bias + 1
    _, cell, size = torch.stack([labels, cue], 1).unique(
        dim=0, return_inverse=True, return_counts=True
    )
    wanted = size * fraction
    take = wanted.floor().long()
    short = round(len(labels) * fraction) - int(take.sum())
    room = take < size - 1
    remainder = torch.where(room, wanted - take + 1e-6 * torch.rand(len(size), generator=g), -1.0)
    best = remainder.argsort(descending=True)[: max(short, 0)]
    take[best[remainder[best] > 0]] += 1
    shuffled = torch.randperm(len(labels), generator=g)
    order = shuffled[cell[shuffled].argsort(stable=True)]  # by cell, random inside
    start = size.cumsum(0) - size
    place = torch.arange(len(labels)) - start[cell[order]]
    out = place < take[cell[order]]
    return order[~out].sort().values, order[out].sort().values


def is_aligned(labels: Tensor, bias: Tensor) -> Tensor:
    """For datasets whose bias value k belongs to class k; unknown bias is not aligned."""
    return labels == bias
