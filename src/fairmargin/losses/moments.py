"""Sums over the four sets of pairs that FairKL compares, from which their moments follow.

Over ordered pairs i ≠ j with distance d_ij = 2 − 2 z_i·z_j the sets are
  A⁺ same label, same bias      C⁺ same label, other bias
  A⁻ other label, same bias     C⁻ other label, other bias
Of each set we need Σw, Σw·d and Σw·d², in float64 because E[d²] − E[d]² cancels.

`set_sums` chooses one of three ways:
- by groups (`_groups.py`), for bias labels: the sets are differences of groups of samples;
- by pairs, below: visits the distances a chunk of anchors at a time. Any weights (`_alignment.py`),
  any function of d;
- centred (`_centred.py`), on accelerators, where float64 is slow or missing and where counting
  groups means waiting for the device. Very large batches go by groups nevertheless (`_limits.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairmargin.losses._alignment import Alike, alignment, is_known
from fairmargin.losses._centred import centred_sums, pooled, recomputed
from fairmargin.losses._groups import (
    MatrixSums,
    cell_sums,
    combine,
    find_cells,
    matrix_sums_by_anchor,
)
from fairmargin.losses._limits import limits_of, pair_dtype
from fairmargin.losses.divergences import Measure
from fairmargin.runtime import distributed
from fairmargin.vectors import unit

# Positions in the last axis of the sums: number of pairs in the set, Σw, Σw·x, Σw·x².
COUNT, MASS, FIRST, SECOND = range(4)


@dataclass(frozen=True)
class SetSums:
    """Sums over the sets of pairs, and the samples that they were taken over.

    Args:
        z: [n, D] features of this rank's samples, those of known bias where they could be chosen.
        y: [n] labels of the same samples.
        cue: [n] bias labels, [n, G] bias features or [n, k] values of the same samples.
        sums: [1 or anchors, sets, 4], see `COUNT`, `MASS`, `FIRST` and `SECOND`.
        samples: how many samples of known bias there are on all ranks.
        pivot: p [1 or anchors, sets] if the sums are Σw(x−p) and Σw(x−p)²; None if they are about
            0.
    """

    z: Tensor
    y: Tensor
    cue: Tensor
    sums: Tensor
    samples: int | Tensor
    pivot: Tensor | None = None


def set_sums(
    z: Tensor,
    y: Tensor,
    cue: Tensor,
    *,
    negatives: bool = False,
    alike: Alike | None = None,
    by_anchor: bool = False,
    measure: Measure | None = None,
    unit_norm: bool = True,
    across_ranks: bool = False,
    chunk: int | None = None,
) -> SetSums:
    """Return (count, Σw, Σwx, Σwx²) of A⁺ and C⁺, and of A⁻ and C⁻ with `negatives`.

    Args:
        z: [N, D] features.
        y: [N] labels.
        cue: [N] bias labels, −1 for unknown; or [N, G] unit bias features; or, for a kernel, [N, k]
            values in units of their bandwidth, NaN for unknown.
        alike: how two cues are compared; None takes "labels" for integers and "cosine" for others.
        by_anchor: sums for each anchor instead of for the whole batch.
        measure: x = measure(d); None takes x = d.
        unit_norm: scale the features to length 1 first.
        across_ranks: sum over the samples of all processes.
        chunk: anchors handled at a time where pairs are visited; None chooses.
    """
    limits = limits_of(z)
    signs = 2 if negatives else 1
    if alike is None:
        alike = "cosine" if cue.is_floating_point() else "labels"
    has_labels = alike == "labels" and not torch.compiler.is_compiling()
    # On an accelerator samples of unknown bias stay, as while a compiler traces, unless cells are
    # worth a look. Ranks must not choose by their own number of rows: they would wait for different
    # collectives.
    worth_a_look = len(z) > limits.matrix and measure is None and not (across_ranks or chunk)
    labelled = has_labels and (limits.host or worth_a_look)
    if labelled:
        known = cue >= 0
        if not bool(known.all()):
            z, y, cue = z[known], y[known], cue[known]
    by_groups = labelled and measure is None and chunk is None
    few = limits.host and len(z) <= limits.matrix and not across_ranks
    if by_groups and few:
        if by_anchor:
            z = _scaled(z.to(limits.scalars), unit_norm)
            sums = combine(matrix_sums_by_anchor(z, y, cue, signs))
        else:
            # It adds up in float64 by itself.
            z = _scaled(z, unit_norm)
            sums = MatrixSums.apply(z, y, cue, signs)
        return SetSums(z, y, cue, sums, len(z))
    if by_groups:
        cells = find_cells(y, cue, across_ranks)
        if cells.are_few(z.shape[1]):
            z = _scaled(z.to(limits.scalars), unit_norm)
            groups = cell_sums(z, cells, signs, by_anchor, across_ranks)
            return SetSums(z, y, cue, combine(groups), cells.samples)
    z = _scaled(z.to(pair_dtype(z)), unit_norm)
    all_z, all_y, all_cues = distributed.gather(z, y, cue) if across_ranks else (z, y, cue)
    # Of values, and while a compiler traces, samples of unknown bias are still there: they are in
    # no pair, and are not counted either.
    all_known = labelled or alike == "cosine"
    samples = len(all_z) if all_known else is_known(all_cues, alike).sum()
    if limits.host:
        sums = _sums_by_pairs(all_z, all_y, all_cues, alike, signs, by_anchor, measure, chunk)
        return SetSums(z, y, cue, sums, samples)
    sums, pivot = centred_sums(all_z, all_y, all_cues, alike, signs, measure, unit_norm, chunk)
    if not by_anchor:
        sums, pivot = pooled(sums, pivot)
    return SetSums(z, y, cue, sums, samples, pivot)


def _scaled(z: Tensor, unit_norm: bool) -> Tensor:
    return unit(z) if unit_norm else z


def _sums_by_pairs(
    z: Tensor,
    y: Tensor,
    cue: Tensor,
    alike: Alike,
    signs: int,
    by_anchor: bool,
    measure: Measure | None,
    chunk: int | None,
) -> Tensor:
    n = len(z)
    size = chunk or max(1, limits_of(z).pairs // max(n, 1))
    how = (alike, signs, by_anchor, measure)
    if n <= size:
        return _pair_sums(z, y, cue, z, y, cue, 0, *how)
    parts = []
    for start in range(0, n, size):
        r = slice(start, start + size)
        parts.append(recomputed(_pair_sums, z[r], y[r], cue[r], z, y, cue, start, *how))
    return torch.cat(parts) if by_anchor else torch.stack(parts).sum(0)


def _pair_sums(
    z_a: Tensor,
    y_a: Tensor,
    cue_a: Tensor,
    z: Tensor,
    y: Tensor,
    cue: Tensor,
    start: int,
    alike: Alike,
    signs: int,
    by_anchor: bool,
    measure: Measure | None,
) -> Tensor:
    """Sums of the anchors (z_a, y_a, cue_a), which are the rows `start …`, against all rows."""
    x = 2 - 2 * z_a @ z.T  # [c, N]
    if measure is not None:
        x = measure(x)
    aligned, known = alignment(cue_a, cue, alike, z.dtype)
    itself = torch.eye(len(z), dtype=z.dtype, device=z.device)[start : start + len(z_a)]
    known = known - itself * known  # no self-pairs
    same = (y_a[:, None] == y[None, :]).to(z.dtype)
    weights = []
    for label in (same, 1 - same)[:signs]:
        pair = label * known
        weights += [pair * aligned, pair * (1 - aligned)]
    dims = (1,) if by_anchor else (0, 1)
    x2 = x * x
    sums = []
    for w in weights:
        count = (w > 0).sum(dims).to(x.dtype)
        sums.append(torch.stack([count, w.sum(dims), (w * x).sum(dims), (w * x2).sum(dims)], -1))
    stacked = torch.stack(sums, -2)
    return stacked if by_anchor else stacked[None]
