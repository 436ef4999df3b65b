"""FairKL (Barbano et al., ICLR 2023, Eq. 11): samples that share the bias must be no closer than samples that do not.

Over ordered pairs i ≠ j with distance d_ij = ‖z_i − z_j‖² = 2 − 2 z_i·z_j, four sets:
  A⁺ same label, same bias    C⁺ same label, other bias    A⁻ other label, same bias    C⁻ other label, other bias
and the regulariser is a divergence between the distance distributions of A and C, for the positives (and negatives).

Everything rests on three sums over each set: Σw, Σw·d, Σw·d². Two ways give them:
  `_sums_by_pairs`  from the distances, a chunk of anchors at a time: any weights, any function of d;
  `_sums_by_cells`  from m_k = Σ z_i and M_k = Σ z_i z_iᵀ over each (label, bias) cell k, because
        Σ_{i,j∈k} z_i·z_j = ‖m_k‖²   and   Σ_{i,j∈k} (z_i·z_j)² = ‖M_k‖²,
    and C⁺ = label − cell, A⁻ = bias − cell, C⁻ = all − label − bias + cell: N·D² work instead of N²·D, exact, and
    m and M add up across processes. Sums are kept in float64, because E[d²] − E[d]² cancels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairmargin import distributed
from fairmargin.losses.inputs import check_choice, check_matrix, full_precision, rows, unit

VARIANCE_FLOOR = 0.1  # on the variance of d; with a tiny floor the KL is minimised by collapse (docs/losses.md)
DISTANCE_FLOOR = 1e-4  # below which log d is not taken: duplicates have d = 0
PAIRS_UP_TO = 640  # rows; above, cells are faster when there are few of them (docs/performance.md)
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
        result_type = z.dtype
        z = z.double() if z.device.type != "mps" else z
        z = unit(z) if unit_norm else z
        anchors = scope == "anchor"
        signs = 2 if negatives or authors else 1
        sums, n = _sums(z, y, cue, signs, anchors, divergence == "lognormal", across_ranks, chunk)
        pairs = sums[..., COUNT].detach().sum(0)
        if authors:
            norm2 = (z.square().sum(1) * (cue >= 0))[:, None]
            itself = torch.cat([norm2, norm2**2], 1).sum(0)
            itself = distributed.all_reduce_sum(itself) if across_ranks else itself
            value = _authors(sums[0], itself, n, spread=divergence != "mean")
            dropped = torch.zeros((), dtype=torch.bool, device=z.device)
        else:
            least = 1 if divergence == "mean" else 2
            size = None if normalise == "weights" else float(n if anchors else n * n)
            value, dropped = _divergence(
                sums, DIVERGENCES[divergence], variance_floor, least, size, across_ranks and anchors
            )
        return FairKLTerms(value.to(result_type) + 0 * z.sum().to(result_type), pairs, dropped)


def _divergence(
    sums: Tensor, divergence: Divergence, floor: float, least: int, size: float | None, across_ranks: bool
) -> tuple[Tensor, Tensor]:
    """Σ over signs of the mean over anchors (one, for scope "batch") of the divergence; sums [anchors, sets, 4]."""
    a, c = (_moments(sums[:, first::2], size) for first in (0, 1))  # [anchors, signs]
    usable = (sums[..., COUNT].unflatten(1, (-1, 2)) >= least).all(2)
    one = sums.new_ones(())
    a, c = (Moments(torch.where(usable, m.mean, one), torch.where(usable, m.variance, one)) for m in (a, c))
    each = torch.where(usable, divergence(a, c, floor), 0)
    total, count = each.sum(0), usable.sum(0).to(each.dtype)
    if across_ranks:
        total, count = distributed.all_reduce_sum(total), distributed.all_reduce_sum(count)
    return (total / count.clamp_min(1)).sum(), ~(count > 0).any()


def _moments(sums: Tensor, size: float | None) -> Moments:
    """Weighted mean and variance; `size` replaces the sum of weights as the divisor."""
    mass = sums[..., MASS]
    divisor = torch.where(mass > 0, mass, 1) if size is None else mass.new_full((), size)
    mean = sums[..., FIRST] / divisor
    around = sums[..., SECOND] - 2 * mean * sums[..., FIRST] + mean**2 * mass  # Σ w (x − μ)²
    return Moments(mean, (around / divisor).clamp_min(0))


def _authors(sums: Tensor, itself: Tensor, n: int, spread: bool) -> Tensor:
    """The released formula, on similarities s = 1 − d/2.

    (μ_C⁺−μ_A⁺)² + (μ_A⁻−μ_C⁻)² + (σ_A⁺−σ_C⁺)² + (σ_A⁻−σ_C⁻)² − μ_C⁺ + μ_A⁻
    Note: A⁺ holds the self-pairs, and σ is the unbiased deviation of all N² entries of s·mask, zeros included.
    """
    count, first, second = sums[:, MASS], sums[:, FIRST], sums[:, SECOND]
    s, s2 = count - first / 2, count - first + second / 4  # Σs, Σs² of A⁺, C⁺, A⁻, C⁻
    aligned = s.new_tensor([1, 0, 0, 0])
    s, s2, count = s + aligned * itself[0], s2 + aligned * itself[1], count + aligned * n
    mean = s / count.clamp_min(1)
    value = (mean[1] - mean[0]) ** 2 + (mean[2] - mean[3]) ** 2 - mean[1] + mean[2]
    if spread and n > 1:
        sigma = _sqrt((s2 - s**2 / n**2) / (n**2 - 1))
        value = value + (sigma[0] - sigma[1]) ** 2 + (sigma[2] - sigma[3]) ** 2
    return value


def _sums(
    z: Tensor, y: Tensor, cue: Tensor, signs: int, anchors: bool, log: bool, across_ranks: bool, chunk: int | None
) -> tuple[Tensor, int]:
    """(count, Σw, Σwx, Σwx²) of A⁺, C⁺[, A⁻, C⁻]: [1 or anchors, sets, 4]; and how many samples have a known bias."""
    discrete = not cue.is_floating_point()
    big = len(z) > PAIRS_UP_TO
    if discrete and not log and chunk is None and (big or across_ranks) and not torch.compiler.is_compiling():
        known = cue >= 0
        z_known, y_known, cue_known = (z, y, cue) if bool(known.all()) else (z[known], y[known], cue[known])
        cells = _cells(y_known, cue_known, across_ranks)
        # Few cells: N·D² work. With about as many cells as samples the M_k would outgrow the features themselves.
        if cells.number * z.shape[1] <= 4 * max(cells.samples, 1):
            return _sums_by_cells(z_known, cells, signs, anchors, across_ranks), cells.samples
    if across_ranks:
        z, y, cue = distributed.gather(z, y, cue)
    n = len(z) if not discrete else int((cue >= 0).sum()) if not torch.compiler.is_compiling() else len(z)
    return _sums_by_pairs(z, y, cue, signs, anchors, log, chunk), n


def _sums_by_pairs(
    z: Tensor, y: Tensor, cue: Tensor, signs: int, anchors: bool, log: bool, chunk: int | None
) -> Tensor:
    n = len(z)
    size = chunk or max(1, CHUNK_PAIRS // max(n, 1))
    if n <= size:
        sums = _pair_sums(z, y, cue, z, y, cue, 0, signs, anchors, log)
        return sums
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


@dataclass(frozen=True)
class _Cells:
    """Partition of the samples (of all ranks) by (label, bias)."""

    of: Tensor  # [n] cell of each local sample
    label: Tensor  # [K] index of each cell's label
    bias: Tensor  # [K] index of each cell's bias
    number: int  # K
    samples: int  # over all ranks


def _cells(y: Tensor, b: Tensor, across_ranks: bool) -> _Cells:
    everyone = torch.stack([y.long(), b.long()], 1)
    mine = slice(None)
    if across_ranks:
        everyone, mine = distributed.gather_with_place(everyone)
    unique, of = everyone.unique(dim=0, return_inverse=True)
    label, bias = (unique[:, column].unique(return_inverse=True)[1] for column in (0, 1))
    return _Cells(of[mine], label, bias, len(unique), len(everyone))


def _sums_by_cells(z: Tensor, cells: _Cells, signs: int, anchors: bool, across_ranks: bool) -> Tensor:
    order = cells.of.argsort()
    sizes = torch.bincount(cells.of, minlength=cells.number)
    parts = z[order].split(sizes.tolist())
    m = torch.stack([part.sum(0) for part in parts]) if parts else z.new_zeros(0, z.shape[1])  # [K, D]
    M = torch.stack([part.T @ part for part in parts]) if parts else z.new_zeros(0, z.shape[1], z.shape[1])  # [K, D, D]
    n = sizes.to(z.dtype)
    norm2 = z.square().sum(1)
    itself = torch.stack([torch.ones_like(norm2), norm2, norm2**2], -1)  # [n, 3] of the self-pairs
    if across_ranks:
        n, m, M = distributed.all_reduce_sum(n), distributed.all_reduce_sum(m), distributed.all_reduce_sum(M)

    def same(group: Tensor) -> Tensor:
        """(count, Σs, Σs²) over ordered pairs, self included, with cells in one group: [3], or [n, 3] by anchor."""
        groups = int(group.max()) + 1 if len(group) else 0
        ng, mg, Mg = (x.new_zeros(groups, *x.shape[1:]).index_add(0, group, x) for x in (n, m, M))
        if not anchors:
            return torch.stack([(ng * ng).sum(), (mg * mg).sum(), (Mg * Mg).sum()])
        mine = group[cells.of]
        second = z.new_zeros(len(z))
        by_group = mine.argsort()
        quadratic = [
            ((part @ Mg[k]) * part).sum(1)
            for k, part in enumerate(z[by_group].split(torch.bincount(mine, minlength=groups).tolist()))
        ]
        if quadratic:
            second = second.index_put((by_group,), torch.cat(quadratic))
        return torch.stack([ng[mine], (z * mg[mine]).sum(1), second], -1)

    cell = torch.arange(cells.number, device=z.device)
    both, label = same(cell), same(cells.label)
    if not anchors:
        itself = itself.sum(0)
        itself = distributed.all_reduce_sum(itself) if across_ranks else itself
    sets = [both - itself, label - both]
    if signs == 2:
        bias, everything = same(cells.bias), same(torch.zeros_like(cell))
        sets += [bias - both, everything - label - bias + both]
    count, s, s2 = torch.stack(sets, -2).unbind(-1)  # each [sets] or [n, sets]
    sums = torch.stack([count, count, 2 * count - 2 * s, 4 * count - 8 * s + 4 * s2], -1)  # of d = 2 − 2s
    return sums if anchors else sums[None]


def _bias_cue(bias_features: Tensor | None, features: Tensor) -> Tensor:
    """Unit bias features, one row for each view."""
    assert bias_features is not None
    check_matrix(bias_features, "bias_features", length=features.shape[0])
    check_not_zero(bias_features)
    g = unit(full_precision(bias_features.detach()))
    g = g.double() if g.device.type != "mps" else g
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
