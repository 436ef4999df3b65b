"""Sums over the sets of pairs that FairKL compares, three ways.

Over ordered pairs i ≠ j with distance d_ij = 2 − 2 z_i·z_j the sets are A⁺ (same label, same bias), C⁺ (same label,
other bias), A⁻ and C⁻ (other label); of each we need Σw, Σw·d and Σw·d², in float64 because E[d²] − E[d]² cancels.

`_sums_by_pairs` visits the distances a chunk of anchors at a time: any weights, any function of d. With bias labels the
sets are differences of groups, C⁺ = label − cell, A⁻ = bias − cell, C⁻ = all − label − bias + cell (`_combine`), and
the sums over a group come from the matrix of similarities (`_MatrixSums`, small batches) or (`_CellSums`) from
  m_k = Σ z_i and M_k = Σ z_i z_iᵀ over each (label, bias) cell k:
  Σ_{i,j∈k} z_i·z_j = ‖m_k‖²,   Σ_{i,j∈k} (z_i·z_j)² = ‖M_k‖²,
which is N·D² work instead of N²·D, exact, and adds up across processes.

On accelerators float64 is slow or missing, and to count cells is to wait for the device: the sums come from centred.py,
but for batches so large that cells pay nevertheless (limits.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairmargin.losses._centred import centred_sums, pooled
from fairmargin.losses._limits import limits_of
from fairmargin.losses._pairs import equality
from fairmargin.runtime import distributed
from fairmargin.vectors import settled, unit

DISTANCE_FLOOR = 1e-4  # below which log d is not taken: duplicates have d = 0

Measure = Callable[[Tensor], Tensor]  # of the distances d, what is added up in their place

COUNT, MASS, FIRST, SECOND = range(4)  # of the sums: pairs in the set, Σw, Σw·x, Σw·x²
FROM_SIMILARITIES = [
    [1, 1, 2, 4],
    [0, 0, -2, -8],
    [0, 0, 0, 4],
]  # (count, Σs, Σs²) → these, for d = 2 − 2s
FROM_HALF_DISTANCES = [
    [1, 1, 0, 0],
    [0, 0, -2, 0],
    [0, 0, 0, 4],
]  # and (count, Σr, Σr²), for d = −2r


def log_distance(d: Tensor) -> Tensor:
    """log d, of distances of at least `DISTANCE_FLOOR`."""
    return d.clamp_min(DISTANCE_FLOOR).log()


def absolute_similarity(d: Tensor) -> Tensor:
    """|s|, from d = 2 − 2s."""
    return (1 - d / 2).abs()


def set_sums(
    z: Tensor,
    y: Tensor,
    cue: Tensor,
    signs: int,
    anchors: bool,
    measure: Measure | None,
    unit_norm: bool,
    across_ranks: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int | Tensor, Tensor | None]:
    """(count, Σw, Σwx, Σwx²) of A⁺, C⁺[, A⁻, C⁻]: [1 or anchors, sets, 4], x = measure(d), or d itself without one.

    Gives (z, y, cue of this rank's samples with known bias, the sums, how many such samples there are on all ranks,
    what the sums are about: p [1 or anchors, sets] for Σw(x−p) and Σw(x−p)², None for 0).
    """
    limits = limits_of(z)
    by_labels = not cue.is_floating_point() and not torch.compiler.is_compiling()
    # On an accelerator samples of unknown bias stay, as while a compiler traces, unless cells are worth a look. Ranks must
    # not choose by their own number of rows: they would wait for different collectives.
    worth_a_look = len(z) > limits.matrix and measure is None and not (across_ranks or chunk)
    labelled = by_labels and (limits.host or worth_a_look)
    if labelled and not bool((known := cue >= 0).all()):
        z, y, cue = z[known], y[known], cue[known]
    by_groups = labelled and measure is None and chunk is None
    few = limits.host and len(z) <= limits.matrix and not across_ranks
    scaled = unit if unit_norm else (lambda rows: rows)
    if by_groups and few:
        # _MatrixSums adds up in float64 by itself.
        z = scaled(z.to(limits.scalars) if anchors else z)
        sums = (
            _combine(_matrix_by_anchor(z, y, cue, signs))
            if anchors
            else _MatrixSums.apply(z, y, cue, signs)
        )
        return z, y, cue, sums, len(z), None
    if by_groups:
        cells = _cells(y, cue, across_ranks)
        # Few cells: N·D² work. With about as many cells as samples the M_k would outgrow the features themselves.
        if cells.number * z.shape[1] <= 4 * max(cells.samples, 1):
            z = scaled(z.to(limits.scalars))
            groups = (_cells_by_anchor if anchors else _CellSums.apply)(
                z, cells, signs, across_ranks
            )
            return z, y, cue, _combine(groups), cells.samples, None
    z = scaled(z.to(precise(z)))
    all_z, all_y, all_cues = distributed.gather(z, y, cue) if across_ranks else (z, y, cue)
    # While a compiler traces, samples of unknown bias are still there: they are in no pair, and are not counted either.
    number = len(all_z) if labelled or cue.is_floating_point() else (all_cues >= 0).sum()
    if limits.host:
        return (
            z,
            y,
            cue,
            _sums_by_pairs(all_z, all_y, all_cues, signs, anchors, measure, chunk),
            number,
            None,
        )
    sums, pivot = centred_sums(all_z, all_y, all_cues, signs, measure, unit_norm, chunk)
    if not anchors:
        sums, pivot = pooled(sums, pivot)
    return z, y, cue, sums, number, pivot


def precise(z: Tensor) -> torch.dtype:
    """What pairs are computed in: float64 where it is fast."""
    return torch.float64 if limits_of(z).host else z.dtype


def _sums_by_pairs(
    z: Tensor,
    y: Tensor,
    cue: Tensor,
    signs: int,
    anchors: bool,
    measure: Measure | None,
    chunk: int | None,
) -> Tensor:
    n = len(z)
    size = chunk or max(1, limits_of(z).pairs // max(n, 1))
    if n <= size:
        return _pair_sums(z, y, cue, z, y, cue, 0, signs, anchors, measure)
    parts = []
    for start in range(0, n, size):
        r = slice(start, start + size)
        # Recomputed in the backward pass: memory for one chunk of distances, not for all.
        part = checkpoint(
            _pair_sums,
            z[r],
            y[r],
            cue[r],
            z,
            y,
            cue,
            start,
            signs,
            anchors,
            measure,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        parts.append(part)
    return torch.cat(parts) if anchors else torch.stack(parts).sum(0)


def _pair_sums(
    z_a: Tensor,
    y_a: Tensor,
    cue_a: Tensor,
    z: Tensor,
    y: Tensor,
    cue: Tensor,
    start: int,
    signs: int,
    anchors: bool,
    measure: Measure | None,
) -> Tensor:
    """Sums of the anchors `start …` against all rows."""
    x = 2 - 2 * z_a @ z.T  # [c, N]
    if measure is not None:
        x = measure(x)
    aligned, known = _alignment(cue_a, cue, z.dtype)
    known = (
        known - torch.eye(len(z), dtype=z.dtype, device=z.device)[start : start + len(z_a)] * known
    )  # no self-pairs
    same = (y_a[:, None] == y[None, :]).to(z.dtype)
    sets = []
    for label in (same, 1 - same)[:signs]:
        pair = label * known
        sets += [pair * aligned, pair * (1 - aligned)]
    dims = (1,) if anchors else (0, 1)
    x2 = x * x
    sums = [
        torch.stack(
            [(w > 0).sum(dims).to(x.dtype), w.sum(dims), (w * x).sum(dims), (w * x2).sum(dims)], -1
        )
        for w in sets
    ]
    stacked = torch.stack(sums, -2)
    return stacked if anchors else stacked[None]


def _alignment(cue_a: Tensor, cue: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """How much each pair shares the bias, and whether that is known; both [c, N]."""
    if cue.is_floating_point():
        aligned = settled((cue_a @ cue.T).clamp(0, 1)).to(dtype)
        return aligned, torch.ones_like(aligned)
    known = (cue_a[:, None] >= 0) & (cue[None, :] >= 0)
    return (cue_a[:, None] == cue[None, :]).to(dtype), known.to(dtype)


# With bias labels: (count, Σs, Σs²) over the ordered pairs that share the (label, bias) cell, the label[, the bias,
# nothing], self-pairs included, and last over the self-pairs alone: [groupings + 1, 3], or [n, …] by anchor.


def _combine(groups: Tensor) -> Tensor:
    """The sums of the sets from those of the groupings, by inclusion and exclusion; d = 2 − 2s."""
    left, right = _combination(groups)
    sums = left @ groups @ right
    return sums if sums.ndim == 3 else sums[None]


def _combination(like: Tensor) -> tuple[Tensor, Tensor]:
    """Groupings → sets, A⁺ = cell − self, C⁺ = label − cell, …; and (count, Σs, Σs²) → (count, count, Σd, Σd²)."""
    sets = [[1, 0, -1], [-1, 1, 0]]
    if like.shape[-2] == 5:
        sets = [[1, 0, 0, 0, -1], [-1, 1, 0, 0, 0], [-1, 0, 1, 0, 0], [1, -1, -1, 1, 0]]
    return like.new_tensor(sets), like.new_tensor(FROM_SIMILARITIES)


def _same(y: Tensor, b: Tensor, dtype: torch.dtype, signs: int) -> list[Tensor]:
    """The groupings as N×N matrices of zeros and ones."""
    label, bias = equality(y, y, dtype), equality(b, b, dtype)
    return (
        [bias.mul_(label), label]
        if signs == 1
        else [label * bias, label, bias, torch.ones_like(label)]
    )


def self_pairs(z: Tensor) -> Tensor:
    norm2 = z.square().sum(1)
    return torch.stack([torch.ones_like(norm2), norm2, norm2.square()], -1)


def _matrix_by_anchor(z: Tensor, y: Tensor, b: Tensor, signs: int) -> Tensor:
    s = z @ z.T
    of = [
        torch.stack([m.sum(1), (m * s).sum(1), (m * s * s).sum(1)], -1)
        for m in _same(y, b, z.dtype, signs)
    ]
    return torch.stack([*of, self_pairs(z)], -2)


class _MatrixSums(torch.autograd.Function):
    """Sums over the batch from the matrix of r = s − 1 = −d/2: for small batches. ∂/∂z = 2(Σ_g (ḡ₁ + 2ḡ₂r)·same_g) z.

    In the features' own precision, added up in float64, and in place where it can be: at these sizes the time goes into
    fresh memory and single operations. Of r and not of s, because squares of numbers near 1 lose what tells them apart.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, b: Tensor, signs: int) -> Tensor:
        r = (z @ z.T).sub_(1)
        same = _same(y, b, z.dtype, signs)
        ctx.save_for_backward(z, y, b, r, *same)
        add_up = partial(torch.sum, dtype=precise(z))
        buffer, itself = torch.empty_like(r), r.diagonal()
        sums = [
            itself.new_tensor(len(z), dtype=precise(z)),
            add_up(itself),
            add_up(itself.square()),
        ]
        for mask in reversed(same):
            torch.mul(mask, r, out=buffer)
            sums = [mask.sum().to(precise(z)), add_up(buffer), add_up(buffer.mul_(r)), *sums]
        groups = torch.stack(sums).view(-1, 3)
        ctx.left, ctx.right = _combination(groups)[0], groups.new_tensor(FROM_HALF_DISTANCES)
        return (ctx.left @ groups @ ctx.right)[None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, y, b, r, *same = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants second derivatives: the same sums, by autograd
            again = _combine(_matrix_by_anchor(z.to(precise(z)), y, b, len(same) // 2).sum(0))
            return torch.autograd.grad(again, z, grad, create_graph=True)[0], None, None, None
        _, first, second = (2 * (ctx.left.T @ grad[0] @ ctx.right.T)).T.tolist()
        G = same[0] * (2 * second[0])
        for mask, factor in zip(same[1:], second[1:-1], strict=True):
            G.add_(mask, alpha=2 * factor)
        G.mul_(r)
        for mask, factor in zip(same, first[:-1], strict=True):
            G.add_(mask, alpha=factor)
        G.diagonal().add_(r.diagonal(), alpha=2 * second[-1]).add_(first[-1])
        return G @ z, None, None, None


@dataclass(frozen=True)
class _Cells:
    """Partition of the samples (of all ranks) by (label, bias)."""

    of: Tensor  # [n] cell of each local sample
    label: Tensor  # [K] index of each cell's label
    bias: Tensor  # [K] index of each cell's bias
    number: int  # K
    samples: int  # over all ranks

    def groupings(self, signs: int) -> list[tuple[Tensor, int]]:
        """Which group each cell belongs to [K], and how many there are: by cell, label[, bias, nothing]."""
        cell, everything = (
            torch.arange(self.number, device=self.of.device),
            torch.zeros_like(self.label),
        )
        return [
            (g, int(g.max()) + 1 if len(g) else 0)
            for g in (cell, self.label, self.bias, everything)[: 2 * signs]
        ]


def _cells(y: Tensor, b: Tensor, across_ranks: bool) -> _Cells:
    everyone, mine = torch.stack([y, b], 1), slice(None)
    if across_ranks:
        everyone, mine = distributed.gather_with_place(everyone)
    unique, of = everyone.unique(dim=0, return_inverse=True)
    label, bias = (unique[:, column].unique(return_inverse=True)[1] for column in (0, 1))
    return _Cells(of[mine], label, bias, len(unique), len(everyone))


def _split(z: Tensor, of: Tensor, number: int) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """(order that sorts the rows by group, the rows of each group, how many each has)."""
    order, sizes = of.argsort(), torch.bincount(of, minlength=number)
    return order, z[order].split(sizes.tolist()) if number else (), sizes


def _cell_moments(parts: tuple[Tensor, ...], sizes: Tensor, z: Tensor) -> list[Tensor]:
    """n [K], m [K, D] and M [K, D, D] of the cells."""
    if not parts:
        return [z.new_zeros(0, *z.shape[1:] * k) for k in range(3)]
    return [
        sizes.to(z.dtype),
        torch.stack([p.sum(0) for p in parts]),
        torch.stack([p.T @ p for p in parts]),
    ]


def _regroup(x: Tensor, group: Tensor, number: int) -> Tensor:
    return x.new_zeros(number, *x.shape[1:]).index_add(0, group, x)


class _CellSums(torch.autograd.Function):
    """Sums over the batch, of all ranks if asked, from the cells' moments: linear in N.

    ∂/∂z_i = Σ_g (2ḡ₁ m_g + 4ḡ₂ M_g z_i) over the groups g that hold i: one more product for each cell.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, cells: _Cells, signs: int, across_ranks: bool) -> Tensor:
        order, parts, sizes = _split(z, cells.of, cells.number)
        moments = _cell_moments(parts, sizes, z)
        if across_ranks:
            moments = [distributed.all_reduce_sum(x) for x in moments]
        ctx.cells, ctx.signs, ctx.across_ranks, ctx.parts = cells, signs, across_ranks, parts
        ctx.save_for_backward(order, *moments[1:])
        groups = torch.stack(
            [_regroup(x, *g).square().sum() for g in cells.groupings(signs) for x in moments]
        )
        itself = self_pairs(z).sum(0)
        itself = distributed.all_reduce_sum(itself) if across_ranks else itself
        return torch.cat([groups, itself]).view(-1, 3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "FairKL of a large batch keeps its first derivative only, so it cannot be differentiated twice; "
                f"use a batch of at most {limits_of(grad).matrix} rows, or drop create_graph=True"
            )
        order, m, M = ctx.saved_tensors
        if ctx.across_ranks:
            grad = distributed.all_reduce_sum(grad)
        v, A = torch.zeros_like(m), torch.zeros_like(M)
        for (group, number), g in zip(ctx.cells.groupings(ctx.signs), grad[:-1], strict=True):
            v += 2 * g[1] * _regroup(m, group, number)[group]
            A += 4 * g[2] * _regroup(M, group, number)[group]
        gradient = m.new_empty(len(order), m.shape[1])
        if ctx.parts:
            z = torch.cat(ctx.parts)
            itself = (2 * grad[-1, 1] + 4 * grad[-1, 2] * z.square().sum(1, keepdim=True)) * z
            gradient[order] = itself + torch.cat(
                [torch.addmm(*vAz) for vAz in zip(v, ctx.parts, A, strict=True)]
            )
        return gradient, None, None, None


def _cells_by_anchor(z: Tensor, cells: _Cells, signs: int, across_ranks: bool) -> Tensor:
    """For anchor i: z_i·m_g and z_iᵀM_g z_i."""
    _, parts, sizes = _split(z, cells.of, cells.number)
    moments = _cell_moments(parts, sizes, z)
    if across_ranks:
        moments = [distributed.all_reduce_sum(x) for x in moments]
    of = []
    for group, number in cells.groupings(signs):
        n, m, M = (_regroup(x, group, number) for x in moments)
        mine = group[cells.of]
        order, parts, _ = _split(z, mine, number)
        second = z.new_zeros(len(z))
        if parts:
            quadratic = torch.cat(
                [((part @ Mg) * part).sum(1) for part, Mg in zip(parts, M, strict=True)]
            )
            second = second.index_put((order,), quadratic)
        of.append(torch.stack([n[mine], (z * m[mine]).sum(1), second], -1))
    return torch.stack([*of, self_pairs(z)], -2)
