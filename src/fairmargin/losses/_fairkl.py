"""FairKL (Barbano et al., ICLR 2023, Eq. 10): samples that share the bias must be no closer than samples that do not.

Over ordered pairs i ≠ j with distance d_ij = ‖z_i − z_j‖² = 2 − 2 z_i·z_j, four sets:
  A⁺ same label, same bias    C⁺ same label, other bias    A⁻ other label, same bias    C⁻ other label, other bias
and the regulariser is a divergence between the distance distributions of A and C, for the positives (and negatives).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses._centred import about
from fairmargin.losses._limits import Limits, limits_of
from fairmargin.losses._looks import checked
from fairmargin.losses._moments import (
    COUNT,
    FIRST,
    MASS,
    SECOND,
    Measure,
    absolute_similarity,
    log_distance,
    precise,
    self_pairs,
    set_sums,
)
from fairmargin.losses._operators import operator_above
from fairmargin.losses.inputs import check_chunk, check_matrix, rows
from fairmargin.runtime import distributed
from fairmargin.vectors import full_precision, unit

VARIANCE_FLOOR = (
    0.1  # on the variance of d; with a tiny floor the KL is minimised by collapse (docs/losses.md)
)
TINY = 1e-12  # with no floor at all, two sets without spread are equal and not 0/0


@dataclass(frozen=True)
class Moments:
    """Mean and population variance of a set of distances; tensors of one shape."""

    mean: Tensor
    variance: Tensor


Divergence = Callable[[Moments, Moments, float], Tensor]


def gaussian_kl(a: Moments, c: Moments, variance_floor: float = VARIANCE_FLOOR) -> Tensor:
    """KL(N_A ‖ N_C) = ½[ (σ_A² + (μ_A−μ_C)²)/σ_C² − log(σ_A²/σ_C²) − 1 ], with σ² + floor in both places."""
    va, vc = ((x.variance + variance_floor).clamp_min(TINY) for x in (a, c))
    return 0.5 * ((va + (a.mean - c.mean) ** 2) / vc - (va / vc).log() - 1)


def jeffreys(a: Moments, c: Moments, variance_floor: float = VARIANCE_FLOOR) -> Tensor:
    """KL(N_A ‖ N_C) + KL(N_C ‖ N_A)."""
    return gaussian_kl(a, c, variance_floor) + gaussian_kl(c, a, variance_floor)


def moment_gap(a: Moments, c: Moments, variance_floor: float = 0.0) -> Tensor:
    """(μ_A−μ_C)² + (σ_A−σ_C)²; no floor is needed."""
    return mean_gap(a, c) + (_sqrt(a.variance) - _sqrt(c.variance)) ** 2


def mean_gap(a: Moments, c: Moments, variance_floor: float = 0.0) -> Tensor:
    """(μ_A−μ_C)², the left side of Eq. 9; of |s| (`"absolute-mean"`) the right side. No floor is needed."""
    return (a.mean - c.mean) ** 2


DIVERGENCES: dict[str, Divergence] = {
    "kl": gaussian_kl,
    "jeffreys": jeffreys,
    "moments": moment_gap,
    "mean": mean_gap,
    "lognormal": gaussian_kl,
    "absolute-mean": mean_gap,
}
# What some of them take the moments of, in place of d.
MEASURES: dict[str, Measure] = {"lognormal": log_distance, "absolute-mean": absolute_similarity}
MEANS = ("mean", "absolute-mean")  # content with one pair in each set


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
    normalize: str = "weights",
    unit_norm: bool = True,
    across_ranks: bool = False,
    chunk: int | None = None,
    views: str = "all",
) -> Tensor:
    """Divergence between the distances of bias-aligned and of bias-conflicting pairs.

    R = D(A⁺ ‖ C⁺)  [+ D(A⁻ ‖ C⁻) with `negatives`]

    Args:
        features: [N, D] or [N, V, D].
        labels: [N] integers.
        bias: [N] integers; −1 means unknown, and leaves the sample out of every set.
        bias_features: [N, G] of a bias-capturing model, instead of `bias`: a pair is aligned with weight
            b̃ = max(0, cos(g_i, g_j)) and conflicting with weight 1 − b̃. No gradient flows into them.
        divergence: "kl", "jeffreys", "moments", "mean", "lognormal" or "absolute-mean": (mean_A |s| − mean_C |s|)²,
            s = z·z', the right side of Eq. 9. It is "mean"/4 where no cosine is negative, and another rule elsewhere.
        scope: "batch" pools all pairs of the batch; "anchor" takes the divergence for each anchor and averages over the
            anchors that have enough pairs in both sets.
        negatives: add the term of the negative pairs.
        variant: "paper", or "authors" for the formula of the released code (docs/fidelity.md): on similarities, with
            self-pairs and both signs, plus a pull and a push; `divergence="mean"` then leaves its spread terms out, and
            "lognormal" and "absolute-mean" are refused.
        variance_floor: added to both variances in "kl", "jeffreys" and "lognormal".
        normalize: divide weighted sums by the sum of the weights ("weights") or by the batch size ("count", as the
            paper prints it for bias features).
        unit_norm: scale each embedding to unit length first.
        across_ranks: the batch is spread over the processes of `torch.distributed`: give the value of the whole batch.
        chunk: anchors handled at a time where pairs are visited; None chooses.
        views: of features [N, V, D], "all" takes every view as a sample, "first" only features[:, 0], as the released
            code does. The same for [N, D].

    A term with fewer than two pairs in a set (one for "mean" and "absolute-mean") is dropped; if all are, the result is
    a zero that is attached to the graph. `FairKL` (the module) counts how often.
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
        normalize=normalize,
        unit_norm=unit_norm,
        across_ranks=across_ranks,
        chunk=chunk,
        views=views,
    ).value


@dataclass(frozen=True)
class FairKLTerms:
    """What `fairkl` computed: its value, how many pairs each set had, and whether no term could be formed."""

    value: Tensor
    pairs: Tensor  # [2] or [4]: A⁺, C⁺[, A⁻, C⁻]
    dropped: Tensor  # bool


def _several_chunks(rows: int, limits: Limits, settings: dict[str, Any]) -> bool:
    """Whether the distances do not fit at once. Collectives stay outside of an operator."""
    if settings.get("across_ranks"):
        return False
    return rows * rows > limits.pairs or settings.get("chunk") is not None


def _pairs_and_dropped(
    features: Tensor, *, negatives: bool, variant: str, **_: Any
) -> list[Tensor]:
    """Empty tensors like what `FairKLTerms` holds after the value."""
    sets = 4 if negatives or variant == "authors" else 2
    dtype = torch.promote_types(features.dtype, limits_of(features).scalars)
    return [features.new_empty(sets, dtype=dtype), features.new_empty((), dtype=torch.bool)]


@operator_above(_several_chunks, _pairs_and_dropped)
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
    normalize: str = "weights",
    unit_norm: bool = True,
    across_ranks: bool = False,
    chunk: int | None = None,
    views: str = "all",
) -> FairKLTerms:
    """`fairkl` with the number of pairs in each set, for a training log."""
    check_choice(divergence, "divergence", DIVERGENCES)
    check_choice(scope, "scope", ("batch", "anchor"))
    check_choice(variant, "variant", ("paper", "authors"))
    check_choice(normalize, "normalize", ("weights", "count"))
    check_choice(views, "views", ("all", "first"))
    check_chunk(chunk)
    if variance_floor < 0:
        raise ValueError(f"variance_floor must be ≥ 0; got {variance_floor}")
    if bias is None and bias_features is None:
        raise ValueError(
            "FairKL needs bias labels or bias features and this batch has neither; "
            'give the manifest a "bias" column or run "fairmargin scores"'
        )
    if bias is not None and bias_features is not None:
        raise ValueError(
            "give fairkl either bias or bias_features, not both: they define the same sets in two ways"
        )
    authors = variant == "authors"
    if authors and (bias is None or scope != "batch"):
        raise ValueError(
            'variant="authors" is defined for bias labels and scope="batch" only; use variant="paper"'
        )
    if authors and divergence in MEASURES:
        raise ValueError(
            f'variant="authors" has a formula of its own, on similarities, and divergence={divergence!r} is no part of it; '
            'use "kl" for all of it, "mean" to leave its spread terms out, or variant="paper"'
        )

    if views == "first":
        features = _first_view(features)
    if bias is not None:
        z, (y, cue) = rows(features, labels, bias, names=("labels", "bias"), unit_norm=False)
    else:
        z, (y,) = rows(features, labels, names=("labels",), unit_norm=False)
        cue = _bias_cue(bias_features, features)
    with torch.autocast(z.device.type, enabled=False):
        anchors = scope == "anchor"
        z, y, cue, sums, n, pivot = set_sums(
            z,
            y,
            cue,
            2 if negatives or authors else 1,
            anchors,
            MEASURES.get(divergence),
            unit_norm,
            across_ranks,
            chunk,
        )
        if authors:
            # By weight and not by selection, which would be a look at the values.
            itself = (self_pairs(z) * (cue >= 0)[:, None]).sum(0).to(sums)
            itself = distributed.all_reduce_sum(itself) if across_ranks else itself
            sums = sums if pivot is None else about(sums, pivot, 0.0)
            value = _authors(sums[0], itself, n, spread=divergence != "mean")
            dropped = torch.zeros((), dtype=torch.bool, device=z.device)
        else:
            least = 1 if divergence in MEANS else 2
            size = None if normalize == "weights" else (n if anchors else n * n)
            value, dropped = _divergence(
                sums,
                DIVERGENCES[divergence],
                variance_floor,
                least,
                size,
                across_ranks and anchors,
                pivot,
            )
        return FairKLTerms(
            value.to(full_precision(features[:0]).dtype), sums[..., COUNT].detach().sum(0), dropped
        )


def _divergence(
    sums: Tensor,
    divergence: Divergence,
    floor: float,
    least: int,
    size: int | Tensor | None,
    across_ranks: bool,
    pivot: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Σ over signs of the mean over anchors (one, for scope "batch") of the divergence; sums [anchors, sets, 4]."""
    usable = (sums[..., COUNT].detach().unflatten(1, (-1, 2)) >= least).all(2)  # [anchors, signs]
    may_look = limits_of(sums).host and not torch.compiler.is_compiling()
    whole = may_look and bool(usable.all())
    if (
        not whole
    ):  # what is dropped gets harmless moments first, so that no NaN reaches the gradient
        harmless = sums.new_ones(4)
        harmless[FIRST] = 0
        sums = torch.where(usable.repeat_interleave(2, 1)[..., None], sums, harmless)
    mean, variance = _mean_and_variance(sums, pivot, size)
    each = divergence(
        Moments(mean[:, ::2], variance[:, ::2]), Moments(mean[:, 1::2], variance[:, 1::2]), floor
    )
    if whole and len(each) == 1:
        return each.sum(), ~usable.any()
    total, count = torch.where(usable, each, 0).sum(0), usable.sum(0)
    if across_ranks:
        total, count = distributed.all_reduce_sum(total), distributed.all_reduce_sum(count)
    return (total / count.clamp_min(1)).sum(), ~(count > 0).any()


def _mean_and_variance(
    sums: Tensor, pivot: Tensor | None, size: int | Tensor | None
) -> tuple[Tensor, Tensor]:
    """Σwx/divisor and Σw(x−μ)²/divisor, the divisor being Σw or `size`; from sums about the pivot p, or about 0."""
    _, mass, first, second = sums.unbind(-1)  # [anchors, sets]
    mass = mass.detach()  # counts and weights have no gradient
    divisor = mass if size is None else size
    if pivot is None:
        mean = first / divisor
        # Σ w (x − μ)² / divisor = Σ w x² / divisor − 2μ² + μ²·mass/divisor
        squared_mean = mean.square() if size is None else mean.square() * (2 - mass / size)
        return mean, (second / divisor - squared_mean).clamp_min(0)
    # With δ = μ − p: Σ w (x − μ)² = Σ w (x − p)² − 2δ·Σ w (x − p) + δ²·Σ w. For `size` None δ is a rounding error.
    delta = first / divisor if size is None else (first + mass * pivot) / size - pivot
    return pivot + delta, (
        (second - 2 * delta * first + mass * delta.square()) / divisor
    ).clamp_min(0)


def _authors(sums: Tensor, itself: Tensor, n: int | Tensor, spread: bool) -> Tensor:
    """The released formula, on similarities s = 1 − d/2.

    (μ_C⁺−μ_A⁺)² + (μ_A⁻−μ_C⁻)² + (σ_A⁺−σ_C⁺)² + (σ_A⁻−σ_C⁻)² − μ_C⁺ + μ_A⁻
    Note: A⁺ holds the self-pairs, and σ is the unbiased deviation of all N² entries of s·mask, zeros included.
    """
    count, first, second = sums[:, MASS], sums[:, FIRST], sums[:, SECOND]
    s, s2 = count - first / 2, count - first + second / 4  # Σs, Σs² of A⁺, C⁺, A⁻, C⁻
    aligned = torch.zeros_like(s)
    aligned[0] = 1
    count, s, s2 = count + aligned * itself[0], s + aligned * itself[1], s2 + aligned * itself[2]
    mean = s / count.clamp_min(1)
    value = (mean[1] - mean[0]) ** 2 + (mean[2] - mean[3]) ** 2 - mean[1] + mean[2]
    if spread:
        entries = torch.as_tensor(n, dtype=s.dtype, device=s.device).square().clamp_min(1)
        sigma = _sqrt((s2 - s**2 / entries) / (entries - 1).clamp_min(1))
        value = value + (sigma[0] - sigma[1]) ** 2 + (sigma[2] - sigma[3]) ** 2
    return value


def _first_view(features: Tensor) -> Tensor:
    """[N, D]; whatever is no [N, V, D] with a view in it is left for `rows` to judge."""
    several = isinstance(features, Tensor) and features.ndim == 3 and features.shape[1] > 0
    return features[:, 0] if several else features


def _bias_cue(bias_features: Tensor | None, features: Tensor) -> Tensor:
    """Unit bias features, one row for each view."""
    assert bias_features is not None
    check_matrix(bias_features, "bias_features", length=features.shape[0])
    check_not_zero(bias_features)
    g = unit(full_precision(bias_features.detach()))
    g = g.to(precise(g))
    return g.repeat_interleave(features.shape[1], 0) if features.ndim == 3 else g


def check_not_zero(bias_features: Tensor) -> None:
    if not checked(bias_features):
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
