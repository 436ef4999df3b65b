"""Sums over FairKL's sets of pairs from sums over groups of samples, for bias labels.

The sets are differences of groups: A⁺ = cell − self, C⁺ = label − cell, A⁻ = bias − cell and
C⁻ = all − label − bias + cell, where a cell is a pair (label, bias). For each grouping we find
(count, Σs, Σs²) over the ordered pairs that share the group, self-pairs included, and last over the
self-pairs alone: a tensor [groupings + 1, 3], or [n, …] by anchor. `combine` turns it into the sums
of the sets. The groupings are: by cell, by label[, by bias, everything].

Small batches take the sums from the matrix of similarities (`MatrixSums`). Larger ones take them
from m_k = Σ z_i and M_k = Σ z_i z_iᵀ over each cell k (`cell_sums`):

  Σ_{i,j∈k} z_i·z_j = ‖m_k‖²,   Σ_{i,j∈k} (z_i·z_j)² = ‖M_k‖²,

which is N·D² work instead of N²·D, exact, and adds up across processes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairmargin.losses._limits import limits_of, pair_dtype
from fairmargin.losses.pairs import equality
from fairmargin.runtime import distributed

# (count, Σs, Σs²) → (count, Σw, Σd, Σd²), for d = 2 − 2s.
FROM_SIMILARITIES = [[1, 1, 2, 4], [0, 0, -2, -8], [0, 0, 0, 4]]
# (count, Σr, Σr²) → the same, for d = −2r.
FROM_HALF_DISTANCES = [[1, 1, 0, 0], [0, 0, -2, 0], [0, 0, 0, 4]]
# Groupings and self-pairs → sets, for one sign and for both.
SETS_OF_ONE_SIGN = [[1, 0, -1], [-1, 1, 0]]
SETS_OF_BOTH_SIGNS = [[1, 0, 0, 0, -1], [-1, 1, 0, 0, 0], [-1, 0, 1, 0, 0], [1, -1, -1, 1, 0]]


def combine(groups: Tensor) -> Tensor:
    """Return the sums of the sets [1 or anchors, sets, 4] from those of the groupings.

    Args:
        groups: [groupings + 1, 3] or [anchors, groupings + 1, 3], self-pairs last.
    """
    sums = _sets_from_groups(groups) @ groups @ groups.new_tensor(FROM_SIMILARITIES)
    return sums if sums.ndim == 3 else sums[None]


def _sets_from_groups(groups: Tensor) -> Tensor:
    """The matrix that combines groupings into sets, by inclusion and exclusion."""
    both_signs = groups.shape[-2] == 5
    return groups.new_tensor(SETS_OF_BOTH_SIGNS if both_signs else SETS_OF_ONE_SIGN)


def self_pairs(z: Tensor) -> Tensor:
    """Return (1, s, s²) of each row with itself: [n, 3]."""
    norm2 = z.square().sum(1)
    return torch.stack([torch.ones_like(norm2), norm2, norm2.square()], -1)


def matrix_sums_by_anchor(z: Tensor, y: Tensor, b: Tensor, signs: int) -> Tensor:
    """Return the sums over the groupings for each anchor, from the matrix of similarities.

    Args:
        z: [N, D] unit features.
        y: [N] labels.
        b: [N] bias labels, all known.
        signs: 1 for the groupings of positives, 2 for those of negatives too.
    """
    s = z @ z.T

    def of_anchors(same: Tensor) -> Tensor:
        return torch.stack([same.sum(1), (same * s).sum(1), (same * s * s).sum(1)], -1)

    sums = [of_anchors(same) for same in _same_group(y, b, z.dtype, signs)]
    return torch.stack([*sums, self_pairs(z)], -2)


def _same_group(y: Tensor, b: Tensor, dtype: torch.dtype, signs: int) -> list[Tensor]:
    """The groupings as N×N matrices of zeros and ones."""
    label, bias = equality(y, y, dtype), equality(b, b, dtype)
    if signs == 1:
        return [bias.mul_(label), label]
    return [label * bias, label, bias, torch.ones_like(label)]


class MatrixSums(torch.autograd.Function):
    """The sums of the sets over the batch, from the matrix of r = s − 1 = −d/2; for small batches.

    ∂/∂z = 2(Σ_g (ḡ₁ + 2ḡ₂r)·same_g) z

    Products are in the features' own precision and are added up in float64, in place where
    possible: at these sizes the time goes into fresh memory and single operations. It takes r and
    not s, because squares of numbers near 1 lose what tells them apart.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, b: Tensor, signs: int) -> Tensor:
        """Sums of each set [1, sets, sums] of features [N, D]."""
        r = (z @ z.T).sub_(1)
        masks = _same_group(y, b, z.dtype, signs)
        ctx.save_for_backward(z, y, b, r, *masks)
        dtype = pair_dtype(z)
        add_up = partial(torch.sum, dtype=dtype)
        buffer, itself = torch.empty_like(r), r.diagonal()
        sums = [itself.new_tensor(len(z), dtype=dtype), add_up(itself), add_up(itself.square())]
        for mask in reversed(masks):
            torch.mul(mask, r, out=buffer)
            sums = [mask.sum().to(dtype), add_up(buffer), add_up(buffer.mul_(r)), *sums]
        groups = torch.stack(sums).view(-1, 3)
        ctx.left = _sets_from_groups(groups)
        ctx.right = groups.new_tensor(FROM_HALF_DISTANCES)
        return (ctx.left @ groups @ ctx.right)[None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient by the features."""
        z, y, b, r, *masks = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives are wanted: the same sums, by autograd
            by_anchor = matrix_sums_by_anchor(z.to(pair_dtype(z)), y, b, len(masks) // 2)
            again = combine(by_anchor.sum(0))
            return torch.autograd.grad(again, z, grad, create_graph=True)[0], None, None, None
        _, first, second = (2 * (ctx.left.T @ grad[0] @ ctx.right.T)).T.tolist()
        G = masks[0] * (2 * second[0])
        for mask, factor in zip(masks[1:], second[1:-1], strict=True):
            G.add_(mask, alpha=2 * factor)
        G.mul_(r)
        for mask, factor in zip(masks, first[:-1], strict=True):
            G.add_(mask, alpha=factor)
        G.diagonal().add_(r.diagonal(), alpha=2 * second[-1]).add_(first[-1])
        return G @ z, None, None, None


@dataclass(frozen=True)
class Cells:
    """Partition of the samples (of all ranks) by (label, bias).

    Args:
        of: [n] cell of each local sample.
        label: [K] index of each cell's label.
        bias: [K] index of each cell's bias.
        number: K.
        samples: number of samples over all ranks.
    """

    of: Tensor
    label: Tensor
    bias: Tensor
    number: int
    samples: int

    def are_few(self, width: int) -> bool:
        """Return whether cells pay for features of this width.

        With about as many cells as samples the M_k would outgrow the features themselves.
        """
        return self.number * width <= 4 * max(self.samples, 1)

    def groupings(self, signs: int) -> list[tuple[Tensor, int]]:
        """Return for each grouping the group of each cell [K], and the number of groups.

        Args:
            signs: 1 for cells and labels, 2 for biases and everything too.
        """
        cell = torch.arange(self.number, device=self.of.device)
        everything = torch.zeros_like(self.label)
        found = []
        for group in (cell, self.label, self.bias, everything)[: 2 * signs]:
            number = int(group.max()) + 1 if len(group) else 0
            found.append((group, number))
        return found


def find_cells(y: Tensor, b: Tensor, across_ranks: bool) -> Cells:
    """Return the cells of a batch with labels y and bias labels b.

    Args:
        y: [n] labels of this rank.
        b: [n] bias labels, all known.
        across_ranks: take the samples of all ranks.
    """
    everyone, mine = torch.stack([y, b], 1), slice(None)
    if across_ranks:
        everyone, mine = distributed.gather_with_place(everyone)
    unique, of = everyone.unique(dim=0, return_inverse=True)
    label = unique[:, 0].unique(return_inverse=True)[1]
    bias = unique[:, 1].unique(return_inverse=True)[1]
    return Cells(of[mine], label, bias, len(unique), len(everyone))


def cell_sums(z: Tensor, cells: Cells, signs: int, by_anchor: bool, across_ranks: bool) -> Tensor:
    """Return the sums over the groupings, of the batch or of each anchor, in time linear in N.

    Args:
        z: [n, D] features of this rank, in float64.
        cells: of the samples of all ranks.
        signs: 1 for the groupings of positives, 2 for those of negatives too.
        by_anchor: sums for each anchor instead of for the whole batch.
        across_ranks: add up over the processes.
    """
    if by_anchor:
        return _cells_by_anchor(z, cells, signs, across_ranks)
    return _CellSums.apply(z, cells, signs, across_ranks)


def _split(z: Tensor, of: Tensor, number: int) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """(order that sorts the rows by group, the rows of each group, how many each has)."""
    order, sizes = of.argsort(), torch.bincount(of, minlength=number)
    return order, z[order].split(sizes.tolist()) if number else (), sizes


def _cell_moments(
    parts: tuple[Tensor, ...], sizes: Tensor, z: Tensor, across_ranks: bool
) -> list[Tensor]:
    """n [K], m [K, D] and M [K, D, D] of the cells."""
    if parts:
        first = torch.stack([part.sum(0) for part in parts])
        second = torch.stack([part.T @ part for part in parts])
        moments = [sizes.to(z.dtype), first, second]
    else:
        moments = [z.new_zeros(0, *z.shape[1:] * k) for k in range(3)]
    if across_ranks:
        moments = [distributed.all_reduce_sum(x) for x in moments]
    return moments


def _regroup(x: Tensor, group: Tensor, number: int) -> Tensor:
    return x.new_zeros(number, *x.shape[1:]).index_add(0, group, x)


class _CellSums(torch.autograd.Function):
    """Sums over the batch, of all ranks if asked, from the cells' moments.

    ∂/∂z_i = Σ_g (2ḡ₁ m_g + 4ḡ₂ M_g z_i) over the groups g that hold i: one more product per cell.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, cells: Cells, signs: int, across_ranks: bool) -> Tensor:
        order, parts, sizes = _split(z, cells.of, cells.number)
        moments = _cell_moments(parts, sizes, z, across_ranks)
        ctx.cells, ctx.signs, ctx.across_ranks, ctx.parts = cells, signs, across_ranks, parts
        ctx.save_for_backward(order, *moments[1:])
        sums = []
        for group, number in cells.groupings(signs):
            sums += [_regroup(x, group, number).square().sum() for x in moments]
        itself = self_pairs(z).sum(0)
        itself = distributed.all_reduce_sum(itself) if across_ranks else itself
        return torch.cat([torch.stack(sums), itself]).view(-1, 3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "FairKL of a large batch keeps its first derivative only, so it cannot be "
                "differentiated twice; "
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
            others = [torch.addmm(*vAz) for vAz in zip(v, ctx.parts, A, strict=True)]
            gradient[order] = itself + torch.cat(others)
        return gradient, None, None, None


def _cells_by_anchor(z: Tensor, cells: Cells, signs: int, across_ranks: bool) -> Tensor:
    """For anchor i: z_i·m_g and z_iᵀM_g z_i."""
    _, parts, sizes = _split(z, cells.of, cells.number)
    moments = _cell_moments(parts, sizes, z, across_ranks)
    sums = []
    for group, number in cells.groupings(signs):
        n, m, M = (_regroup(x, group, number) for x in moments)
        mine = group[cells.of]
        order, parts, _ = _split(z, mine, number)
        second = z.new_zeros(len(z))
        if parts:
            each = [((part @ Mg) * part).sum(1) for part, Mg in zip(parts, M, strict=True)]
            second = second.index_put((order,), torch.cat(each))
        sums.append(torch.stack([n[mine], (z * m[mine]).sum(1), second], -1))
    return torch.stack([*sums, self_pairs(z)], -2)
