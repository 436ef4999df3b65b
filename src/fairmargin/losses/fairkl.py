"""FairKL (Barbano et al., ICLR 2023, Eq. 11): samples that share the bias must be no closer than samples that do not.

Over ordered pairs i ≠ j with distance d_ij = ‖z_i − z_j‖² = 2 − 2 z_i·z_j, four sets:
  A⁺ same label, same bias    C⁺ same label, other bias    A⁻ other label, same bias    C⁻ other label, other bias
and the regulariser is a divergence between the distance distributions of A and C, for the positives (and negatives).

Everything rests on three sums over each set: Σw, Σw·d, Σw·d², kept in float64 because E[d²] − E[d]² cancels.
`_sums_by_pairs` visits the distances a chunk of anchors at a time: any weights, any function of d. With bias labels the
sets are differences of groups, C⁺ = label − cell, A⁻ = bias − cell, C⁻ = all − label − bias + cell (`_combine`), and
the sums over a group come from the matrix of similarities (`_MatrixSums`, small batches) or (`_CellSums`) from
  m_k = Σ z_i and M_k = Σ z_i z_iᵀ over each (label, bias) cell k:
  Σ_{i,j∈k} z_i·z_j = ‖m_k‖²,   Σ_{i,j∈k} (z_i·z_j)² = ‖M_k‖²,
which is N·D² work instead of N²·D, exact, and adds up across processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairmargin import distributed
from fairmargin.losses.inputs import check_choice, check_matrix, full_precision, rows, unit
from fairmargin.losses.pairs import equality

VARIANCE_FLOOR = 0.1  # on the variance of d; with a tiny floor the KL is minimised by collapse (docs/losses.md)
DISTANCE_FLOOR = 1e-4  # below which log d is not taken: duplicates have d = 0
MATRIX_UP_TO = 640  # rows; above, cells are faster when there are few of them (docs/performance.md)
CHUNK_PAIRS = 1 << 21  # distances held at a time

COUNT, MASS, FIRST, SECOND = range(4)  # of the sums: pairs in the set, Σw, Σw·x, Σw·x²


@dataclass(frozen=True)
class Moments:
    """Mean and population variance of a set of distances; tensors of one shape."""

    mean: Tensor
    variance: Tensor


Divergence = Callable[[Moments, Moments, float], Tensor]


def gaussian_kl(a: Moments, c: Moments, variance_floor: float = VARIANCE_FLOOR) -> Tensor:
    """KL(N_A ‖ N_C) = ½[ (σ_A² + (μ_A−μ_C)²)/σ_C² − log(σ_A²/σ_C²) − 1 ], with σ² + floor in both places."""
    va, vc = a.variance + variance_floor, c.variance + variance_floor
    return 0.5 * ((va + (a.mean - c.mean) ** 2) / vc - (va / vc).log() - 1)


def jeffreys(a: Moments, c: Moments, variance_floor: float = VARIANCE_FLOOR) -> Tensor:
    """KL(N_A ‖ N_C) + KL(N_C ‖ N_A)."""
    return gaussian_kl(a, c, variance_floor) + gaussian_kl(c, a, variance_floor)


def moment_gap(a: Moments, c: Moments, variance_floor: float = 0.0) -> Tensor:
    """(μ_A−μ_C)² + (σ_A−σ_C)²; no floor is needed."""
    return mean_gap(a, c) + (_sqrt(a.variance) - _sqrt(c.variance)) ** 2


def mean_gap(a: Moments, c: Moments, variance_floor: float = 0.0) -> Tensor:
    """(μ_A−μ_C)²; no floor is needed."""
    return (a.mean - c.mean) ** 2


DIVERGENCES: dict[str, Divergence] = {
    "kl": gaussian_kl,
    "jeffreys": jeffreys,
    "moments": moment_gap,
    "mean": mean_gap,
    "lognormal": gaussian_kl,  # of log d, which is what makes it log-normal
}


def fairkl(
    features: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    bias_features: Tensor | None = None,
    divergence: str = "kl",
    scope: str = "batch",
    negatives: bool = False,
    variant: str = "paper",
    variance_floor: float = VARIANCE_FLOOR,
    normalise: str = "weights",
    unit_norm: bool = True,
    across_ranks: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """Divergence between the distances of bias-aligned and of bias-conflicting pairs.

    R = D(A⁺ ‖ C⁺)  [+ D(A⁻ ‖ C⁻) with `negatives`]

    Args:
        features: [N, D] or [N, V, D].
        labels: [N] integers.
        bias: [N] integers; −1 means unknown, and leaves the sample out of every set.
        bias_features: [N, G] of a bias-capturing model, instead of `bias`: a pair is aligned with weight
            b̃ = max(0, cos(g_i, g_j)) and conflicting with weight 1 − b̃. No gradient flows into them.
        divergence: "kl", "jeffreys", "moments", "mean" or "lognormal".
        scope: "batch" pools all pairs of the batch; "anchor" takes the divergence for each anchor and averages over the
            anchors that have enough pairs in both sets.
        negatives: add the term of the negative pairs.
        variant: "paper", or "authors" for the formula of the released code (docs/fidelity.md): on similarities, with
            self-pairs and both signs, plus a pull and a push; `divergence="mean"` then leaves its spread terms out.
        variance_floor: added to both variances in "kl", "jeffreys" and "lognormal".
        normalise: divide weighted sums by the sum of the weights ("weights") or by the batch size ("count", as the
            paper prints it for bias features).
        unit_norm: scale each embedding to unit length first.
        across_ranks: the batch is spread over the processes of `torch.distributed`: give the value of the whole batch.
        chunk: anchors handled at a time where pairs are visited; None chooses.

    A term with fewer than two pairs in a set (one for "mean") is dropped; if all are, the result is a zero that is
    attached to the graph. `FairKL` (the module) counts how often.
    """
    return fairkl_terms(
        features,
        labels,
        bias,
        bias_features=bias_features,
        divergence=divergence,
        scope=scope,
        negatives=negatives,
        variant=variant,
        variance_floor=variance_floor,
        normalise=normalise,
        unit_norm=unit_norm,
        across_ranks=across_ranks,
        chunk=chunk,
    ).value


@dataclass(frozen=True)
class FairKLTerms:
    """What `fairkl` computed: its value, how many pairs each set had, and whether no term could be formed."""

    value: Tensor
    pairs: Tensor  # [2] or [4]: A⁺, C⁺[, A⁻, C⁻]
    dropped: Tensor  # bool


def fairkl_terms(
    features: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    bias_features: Tensor | None = None,
    divergence: str = "kl",
    scope: str = "batch",
    negatives: bool = False,
    variant: str = "paper",
    variance_floor: float = VARIANCE_FLOOR,
    normalise: str = "weights",
    unit_norm: bool = True,
    across_ranks: bool = False,
    chunk: int | None = None,
) -> FairKLTerms:
    """`fairkl` with the number of pairs in each set, for a training log."""
    check_choice(divergence, "divergence", DIVERGENCES)
    check_choice(scope, "scope", ("batch", "anchor"))
    check_choice(variant, "variant", ("paper", "authors"))
    check_choice(normalise, "normalise", ("weights", "count"))
    if variance_floor < 0:
        raise ValueError(f"variance_floor must be ≥ 0; got {variance_floor}")
    if bias is None and bias_features is None:
        raise ValueError(
            "FairKL needs bias labels or bias features and this batch has neither; "
            'give the manifest a "bias" column or run "fairmargin scores"'
        )
    if bias is not None and bias_features is not None:
        raise ValueError("give fairkl either bias or bias_features, not both: they define the same sets in two ways")
    authors = variant == "authors"
    if authors and (bias is None or scope != "batch"):
        raise ValueError('variant="authors" is defined for bias labels and scope="batch" only; use variant="paper"')

    if bias is not None:
        z, (y, cue) = rows(features, labels, bias, names=("labels", "bias"), unit_norm=False)
    else:
        z, (y,) = rows(features, labels, names=("labels",), unit_norm=False)
        cue = _bias_cue(bias_features, features)
    with torch.autocast(z.device.type, enabled=False):
        anchors = scope == "anchor"
        z, y, cue, sums, n = _sums(
            z,
            y,
            cue,
            2 if negatives or authors else 1,
            anchors,
            divergence == "lognormal",
            unit_norm,
            across_ranks,
            chunk,
        )
        if authors:
            itself = _self_pairs(z[cue >= 0]).sum(0)
            itself = distributed.all_reduce_sum(itself) if across_ranks else itself
            value = _authors(sums[0], itself, n, spread=divergence != "mean")
            dropped = torch.zeros((), dtype=torch.bool, device=z.device)
        else:
            least = 1 if divergence == "mean" else 2
            size = None if normalise == "weights" else float(n if anchors else n * n)
            value, dropped = _divergence(
                sums, DIVERGENCES[divergence], variance_floor, least, size, across_ranks and anchors
            )
        return FairKLTerms(value.to(full_precision(features[:0]).dtype), sums[..., COUNT].detach().sum(0), dropped)


def _divergence(
    sums: Tensor, divergence: Divergence, floor: float, least: int, size: float | None, across_ranks: bool
) -> tuple[Tensor, Tensor]:
    """Σ over signs of the mean over anchors (one, for scope "batch") of the divergence; sums [anchors, sets, 4]."""
    sums = sums.unflatten(1, (-1, 2))  # [anchors, signs, A or C, 4]
    usable = (sums[..., COUNT] >= least).all(2)  # [anchors, signs]
    whole = not torch.compiler.is_compiling() and bool(usable.all())
    if not whole:  # what is dropped gets harmless moments first, so that no NaN reaches the gradient
        sums = torch.where(usable[..., None, None], sums, sums.new_tensor([1, 1, 0, 1]))
    mass, first, second = sums[..., MASS], sums[..., FIRST], sums[..., SECOND]
    divisor = mass if size is None else size
    mean = first / divisor
    # Σ w (x − μ)² / divisor = Σ w x² / divisor − 2μ² + μ²·mass/divisor
    squared_mean = mean.square() if size is None else mean.square() * (2 - mass / size)
    variance = (second / divisor - squared_mean).clamp_min(0)
    (mean_a, mean_c), (variance_a, variance_c) = mean.unbind(2), variance.unbind(2)
    each = divergence(Moments(mean_a, variance_a), Moments(mean_c, variance_c), floor)
    if whole and len(each) == 1:
        return each.sum(), ~usable.any()
    total, count = torch.where(usable, each, 0).sum(0), usable.sum(0)
    if across_ranks:
        total, count = distributed.all_reduce_sum(total), distributed.all_reduce_sum(count)
    return (total / count.clamp_min(1)).sum(), ~(count > 0).any()


def _authors(sums: Tensor, itself: Tensor, n: int, spread: bool) -> Tensor:
    """The released formula, on similarities s = 1 − d/2.

    (μ_C⁺−μ_A⁺)² + (μ_A⁻−μ_C⁻)² + (σ_A⁺−σ_C⁺)² + (σ_A⁻−σ_C⁻)² − μ_C⁺ + μ_A⁻
    Note: A⁺ holds the self-pairs, and σ is the unbiased deviation of all N² entries of s·mask, zeros included.
    """
    count, first, second = sums[:, MASS], sums[:, FIRST], sums[:, SECOND]
    s, s2 = count - first / 2, count - first + second / 4  # Σs, Σs² of A⁺, C⁺, A⁻, C⁻
    aligned = s.new_tensor([1, 0, 0, 0])
    count, s, s2 = count + aligned * itself[0], s + aligned * itself[1], s2 + aligned * itself[2]
    mean = s / count.clamp_min(1)
    value = (mean[1] - mean[0]) ** 2 + (mean[2] - mean[3]) ** 2 - mean[1] + mean[2]
    if spread and n > 1:
        sigma = _sqrt((s2 - s**2 / n**2) / (n**2 - 1))
        value = value + (sigma[0] - sigma[1]) ** 2 + (sigma[2] - sigma[3]) ** 2
    return value


def _sums(
    z: Tensor,
    y: Tensor,
    cue: Tensor,
    signs: int,
    anchors: bool,
    log: bool,
    unit_norm: bool,
    across_ranks: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """(count, Σw, Σwx, Σwx²) of A⁺, C⁺[, A⁻, C⁻]: [1 or anchors, sets, 4].

    Gives (z, y, cue of this rank's samples with known bias, the sums, how many such samples there are on all ranks).
    """
    labelled = not cue.is_floating_point() and not torch.compiler.is_compiling()
    if labelled and not bool((known := cue >= 0).all()):
        z, y, cue = z[known], y[known], cue[known]
    by_groups = labelled and not log and chunk is None
    few = len(z) <= MATRIX_UP_TO and not across_ranks
    # _MatrixSums adds up in float64 by itself; elsewhere the features are taken there.
    z = z if by_groups and few and not anchors else z.to(_precise(z))
    z = unit(z) if unit_norm else z
    if by_groups and few:
        sums = _combine(_matrix_by_anchor(z, y, cue, signs)) if anchors else _MatrixSums.apply(z, y, cue, signs)
        return z, y, cue, sums, len(z)
    if by_groups:
        cells = _cells(y, cue, across_ranks)
        # Few cells: N·D² work. With about as many cells as samples the M_k would outgrow the features themselves.
        if cells.number * z.shape[1] <= 4 * max(cells.samples, 1):
            groups = (_cells_by_anchor if anchors else _CellSums.apply)(z, cells, signs, across_ranks)
            return z, y, cue, _combine(groups), cells.samples
    all_z, all_y, all_cues = distributed.gather(z, y, cue) if across_ranks else (z, y, cue)
    return z, y, cue, _sums_by_pairs(all_z, all_y, all_cues, signs, anchors, log, chunk), len(all_z)


def _precise(z: Tensor) -> torch.dtype:
    return torch.float64 if z.device.type != "mps" else z.dtype  # which has no float64


def _sums_by_pairs(
    z: Tensor, y: Tensor, cue: Tensor, signs: int, anchors: bool, log: bool, chunk: int | None
) -> Tensor:
    n = len(z)
    size = chunk or max(1, CHUNK_PAIRS // max(n, 1))
    if n <= size:
        return _pair_sums(z, y, cue, z, y, cue, 0, signs, anchors, log)
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
            log,
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
    log: bool,
) -> Tensor:
    """Sums of the anchors `start …` against all rows."""
    x = 2 - 2 * z_a @ z.T  # [c, N]
    if log:
        x = x.clamp_min(DISTANCE_FLOOR).log()
    aligned, known = _alignment(cue_a, cue, z.dtype)
    known = known - torch.eye(len(z), dtype=z.dtype, device=z.device)[start : start + len(z_a)] * known  # no self-pairs
    same = (y_a[:, None] == y[None, :]).to(z.dtype)
    sets = []
    for label in (same, 1 - same)[:signs]:
        pair = label * known
        sets += [pair * aligned, pair * (1 - aligned)]
    dims = (1,) if anchors else (0, 1)
    x2 = x * x
    sums = [
        torch.stack([(w > 0).sum(dims).to(x.dtype), w.sum(dims), (w * x).sum(dims), (w * x2).sum(dims)], -1)
        for w in sets
    ]
    stacked = torch.stack(sums, -2)
    return stacked if anchors else stacked[None]


def _alignment(cue_a: Tensor, cue: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """How much each pair shares the bias, and whether that is known; both [c, N]."""
    if cue.is_floating_point():
        aligned = (cue_a @ cue.T).clamp(0, 1).to(dtype)
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
    return like.new_tensor(sets), like.new_tensor([[1, 1, 2, 4], [0, 0, -2, -8], [0, 0, 0, 4]])


def _same(y: Tensor, b: Tensor, dtype: torch.dtype, signs: int) -> list[Tensor]:
    """The groupings as N×N matrices of zeros and ones."""
    label, bias = equality(y, y, dtype), equality(b, b, dtype)
    return [bias.mul_(label), label] if signs == 1 else [label * bias, label, bias, torch.ones_like(label)]


def _self_pairs(z: Tensor) -> Tensor:
    norm2 = z.square().sum(1)
    return torch.stack([torch.ones_like(norm2), norm2, norm2.square()], -1)


def _matrix_by_anchor(z: Tensor, y: Tensor, b: Tensor, signs: int) -> Tensor:
    s = z @ z.T
    of = [torch.stack([m.sum(1), (m * s).sum(1), (m * s * s).sum(1)], -1) for m in _same(y, b, z.dtype, signs)]
    return torch.stack([*of, _self_pairs(z)], -2)


class _MatrixSums(torch.autograd.Function):
    """Sums over the batch from the matrix of similarities: for small batches. ∂/∂z = 2(Σ_g (ḡ₁ + 2ḡ₂s)·same_g) z.

    In the features' own precision, added up in float64, and in place where it can be: at these sizes the time goes into
    fresh memory and single operations.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, b: Tensor, signs: int) -> Tensor:
        s = z @ z.T
        same = _same(y, b, z.dtype, signs)
        ctx.save_for_backward(z, y, b, s, *same)
        add_up = partial(torch.sum, dtype=_precise(z))
        buffer, itself = torch.empty_like(s), s.diagonal()
        sums = []
        for mask in same:
            torch.mul(mask, s, out=buffer)
            sums += [mask.sum().to(_precise(z)), add_up(buffer), add_up(buffer.mul_(s))]
        sums += [add_up(torch.ones_like(itself)), add_up(itself), add_up(itself.square())]
        groups = torch.stack(sums).view(-1, 3)
        ctx.left, ctx.right = _combination(groups)
        return (ctx.left @ groups @ ctx.right)[None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, y, b, s, *same = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants second derivatives: the same sums, by autograd
            again = _combine(_matrix_by_anchor(z, y, b, len(same) // 2).sum(0))
            return torch.autograd.grad(again, z, grad, create_graph=True)[0], None, None, None
        _, first, second = (2 * (ctx.left.T @ grad[0] @ ctx.right.T)).T.tolist()
        G = same[0] * (2 * second[0])
        for mask, factor in zip(same[1:], second[1:-1], strict=True):
            G.add_(mask, alpha=2 * factor)
        G.mul_(s)
        for mask, factor in zip(same, first[:-1], strict=True):
            G.add_(mask, alpha=factor)
        G.diagonal().add_(s.diagonal(), alpha=2 * second[-1]).add_(first[-1])
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
        cell, everything = torch.arange(self.number, device=self.of.device), torch.zeros_like(self.label)
        return [(g, int(g.max()) + 1 if len(g) else 0) for g in (cell, self.label, self.bias, everything)[: 2 * signs]]


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
    return [sizes.to(z.dtype), torch.stack([p.sum(0) for p in parts]), torch.stack([p.T @ p for p in parts])]


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
        groups = torch.stack([_regroup(x, *g).square().sum() for g in cells.groupings(signs) for x in moments])
        itself = _self_pairs(z).sum(0)
        itself = distributed.all_reduce_sum(itself) if across_ranks else itself
        return torch.cat([groups, itself]).view(-1, 3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "FairKL of a large batch keeps its first derivative only, so it cannot be differentiated twice; "
                f"use a batch of at most {MATRIX_UP_TO} rows, or drop create_graph=True"
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
            gradient[order] = itself + torch.cat([torch.addmm(*vAz) for vAz in zip(v, ctx.parts, A, strict=True)])
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
            quadratic = torch.cat([((part @ Mg) * part).sum(1) for part, Mg in zip(parts, M, strict=True)])
            second = second.index_put((order,), quadratic)
        of.append(torch.stack([n[mine], (z * m[mine]).sum(1), second], -1))
    return torch.stack([*of, _self_pairs(z)], -2)


def _bias_cue(bias_features: Tensor | None, features: Tensor) -> Tensor:
    """Unit bias features, one row for each view."""
    assert bias_features is not None
    check_matrix(bias_features, "bias_features", length=features.shape[0])
    check_not_zero(bias_features)
    g = unit(full_precision(bias_features.detach()))
    g = g.to(_precise(g))
    return g.repeat_interleave(features.shape[1], 0) if features.ndim == 3 else g


def check_not_zero(bias_features: Tensor) -> None:
    if torch.compiler.is_compiling():
        return
    zero = (bias_features.detach() == 0).all(1).nonzero().flatten()
    if len(zero):
        raise ValueError(
            f"bias_features has {len(zero)} rows of zeros (first: row {int(zero[0])}), which would conflict with "
            "everything; export one feature for each sample, in the order of the samples"
        )


def _sqrt(variance: Tensor) -> Tensor:
    """Square root with a zero gradient at 0."""
    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1).sqrt(), 0)
