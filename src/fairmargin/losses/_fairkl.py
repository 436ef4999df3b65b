"""FairKL (Barbano et al., ICLR 2023, Eq. 10): sharing the bias must not make samples closer.

Over ordered pairs i ≠ j with distance d_ij = ‖z_i − z_j‖² = 2 − 2 z_i·z_j there are four sets:
  A⁺ same label, same bias      C⁺ same label, other bias
  A⁻ other label, same bias     C⁻ other label, other bias
The regulariser is a divergence between the distance distributions of A and C, for the positives
(and negatives). With bias features or values a pair is in both sets, with weights that add up to 1.
"""

import math
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses._alignment import Alike, cues_of_labels, cues_of_values
from fairmargin.losses._centred import move_pivot
from fairmargin.losses._groups import self_pairs
from fairmargin.losses._limits import Limits, limits_of, pair_dtype
from fairmargin.losses._operators import operator_above
from fairmargin.losses._signatures import arguments_of
from fairmargin.losses.choices import (
    Biases,
    Divergence,
    Kernel,
    Normalize,
    Scope,
    UsedViews,
    Variant,
)
from fairmargin.losses.divergences import (
    DIVERGENCES,
    MEASURES,
    OF_MEANS,
    VARIANCE_FLOOR,
    DivergenceFunction,
    Moments,
    square_root,
)
from fairmargin.losses.inputs import check_chunk, check_ids, check_values, rows, unit_bias_features
from fairmargin.losses.moments import COUNT, FIRST, MASS, SECOND, SetSums, set_sums
from fairmargin.runtime import distributed
from fairmargin.vectors import full_precision


@dataclass(frozen=True)
class FairKLTerms:
    """What `fairkl_terms` computed: the value of `fairkl`, and what it was computed from.

    Args:
        value: the loss, a scalar.
        pairs: how many pairs each set had: A⁺, C⁺[, A⁻, C⁻].
        dropped: True (a bool tensor) if no term could be formed, so that the value is 0.
    """

    value: Tensor
    pairs: Tensor
    dropped: Tensor


def _several_chunks(rows: int, limits: Limits, settings: dict[str, Any]) -> bool:
    """Whether the distances do not fit at once. Collectives stay outside of an operator."""
    if settings.get("across_ranks"):
        return False
    return rows * rows > limits.pairs or settings.get("chunk") is not None


def _empty_pairs_and_dropped(
    features: Tensor, *, negatives: bool, variant: Variant, **_: Any
) -> list[Tensor]:
    """Empty tensors like what `FairKLTerms` holds after the value."""
    dtype = torch.promote_types(features.dtype, limits_of(features).scalars)
    pairs = features.new_empty(number_of_sets(negatives, variant), dtype=dtype)
    return [pairs, features.new_empty((), dtype=torch.bool)]


def number_of_sets(negatives: bool, variant: Variant) -> int:
    """Return 4 if the sets of negative pairs are used, else 2.

    Args:
        negatives: of `fairkl`.
        variant: of `fairkl`; "authors" always uses both signs.
    """
    return 4 if negatives or variant == "authors" else 2


@operator_above(_several_chunks, _empty_pairs_and_dropped)
def fairkl_terms(
    features: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    bias_features: Tensor | None = None,
    divergence: Divergence = "kl",
    scope: Scope = "batch",
    negatives: bool = False,
    variant: Variant = "paper",
    variance_floor: float = VARIANCE_FLOOR,
    normalize: Normalize = "weights",
    unit_norm: bool = True,
    across_ranks: bool = False,
    chunk: int | None = None,
    views: UsedViews = "all",
    kernel: Kernel = "gaussian",
    bandwidth: float = 0.0,
    biases: Biases = "joint",
) -> FairKLTerms:
    """FairKL with the number of pairs in each set, for a training log.

    Takes the arguments of `fairkl`.

    Returns:
        `FairKLTerms`: `.value` is the loss, `.pairs` the number of pairs in A⁺, C⁺[, A⁻, C⁻], and
        `.dropped` is True where no term could be formed.

    Example:
        >>> terms = losses.fairkl_terms(z, y, b)
        >>> terms.value.backward()
        >>> print("conflicting pairs:", int(terms.pairs[1]))
    """
    check_choice(divergence, "divergence", get_args(Divergence))
    check_choice(scope, "scope", get_args(Scope))
    check_choice(variant, "variant", get_args(Variant))
    check_choice(normalize, "normalize", get_args(Normalize))
    check_choice(views, "views", get_args(UsedViews))
    check_choice(kernel, "kernel", get_args(Kernel))
    check_choice(biases, "biases", get_args(Biases))
    check_chunk(chunk)
    if not 0 <= bandwidth < math.inf:
        raise ValueError(
            f"bandwidth must be a finite number ≥ 0, where 0 takes the median distance; "
            f"got {bandwidth}"
        )
    if variance_floor < 0:
        raise ValueError(f"variance_floor must be ≥ 0; got {variance_floor}")
    if bias is None and bias_features is None:
        raise ValueError(
            "FairKL needs bias labels or bias features and this batch has neither; "
            'give the manifest a "bias" column or run "fairmargin scores"'
        )
    if bias is not None and bias_features is not None:
        raise ValueError(
            "give fairkl either bias or bias_features, not both: "
            "they define the same sets in two ways"
        )
    authors = variant == "authors"
    if authors:
        _check_authors(bias, scope, divergence)

    if views == "first":
        features = _first_view(features)
    z, (y,) = rows(features, labels, names=("labels",), unit_norm=False)
    alike, cues = _cues(features, bias, bias_features, kernel, bandwidth, biases, across_ranks)
    with torch.autocast(z.device.type, enabled=False):
        terms = []
        for cue in cues:
            found = set_sums(
                z,
                y,
                cue,
                alike=alike,
                negatives=negatives or authors,
                by_anchor=scope == "anchor",
                measure=MEASURES.get(divergence),
                unit_norm=unit_norm,
                across_ranks=across_ranks,
                chunk=chunk,
            )
            if authors:
                terms.append(_authors_terms(found, divergence != "mean", across_ranks))
            else:
                terms.append(
                    _terms(found, divergence, scope, variance_floor, normalize, across_ranks)
                )
    value, pairs, dropped = terms[0].value, terms[0].pairs, terms[0].dropped
    for term in terms[1:]:
        value, pairs, dropped = value + term.value, pairs + term.pairs, dropped & term.dropped
    return FairKLTerms(value.to(full_precision(features[:0]).dtype), pairs, dropped)


def _cues(
    features: Tensor,
    bias: Tensor | None,
    bias_features: Tensor | None,
    kernel: Kernel,
    bandwidth: float,
    biases: Biases,
    across_ranks: bool,
) -> tuple[Alike, list[Tensor]]:
    """Return how cues are compared, and one cue for each term of the sum."""
    if bias is None:
        assert bias_features is not None
        cue = unit_bias_features(bias_features, features)
        return "cosine", [cue.to(pair_dtype(cue))]
    views = features.shape[1] if features.ndim == 3 else 1
    if isinstance(bias, Tensor) and bias.is_floating_point():
        check_values(bias, len(features), "bias", device=features.device)
        values = full_precision(bias.detach()).reshape(len(bias), -1)  # [N, k]
        values = values.to(pair_dtype(values))
        if views > 1:
            values = values.repeat_interleave(views, 0)
        return kernel, cues_of_values(values, bandwidth, biases, across_ranks)
    several = isinstance(bias, Tensor) and bias.ndim == 2 and bias.shape[1] > 0
    columns = list(bias.unbind(1)) if several else [bias]
    for column in columns:
        check_ids(column, len(features), "bias", device=features.device)
    columns = [column.long() for column in columns]
    if views > 1:
        columns = [column.repeat_interleave(views) for column in columns]
    return "labels", cues_of_labels(columns, biases, across_ranks)


def _authors_terms(found: SetSums, spread: bool, across_ranks: bool) -> FairKLTerms:
    value = _authors_formula(found, spread, across_ranks)
    dropped = torch.zeros((), dtype=torch.bool, device=value.device)
    return FairKLTerms(value, _pairs(found), dropped)


def _terms(
    found: SetSums,
    divergence: Divergence,
    scope: Scope,
    variance_floor: float,
    normalize: Normalize,
    across_ranks: bool,
) -> FairKLTerms:
    """Return the paper's formula for one bias, from the sums of its sets."""
    by_anchor = scope == "anchor"
    size: int | Tensor | None = None
    if normalize == "count":
        size = found.samples if by_anchor else found.samples * found.samples
    least = 1 if divergence in OF_MEANS else 2
    value, dropped = _mean_divergence(
        found,
        DIVERGENCES[divergence],
        variance_floor,
        least,
        size,
        across_ranks and by_anchor,
    )
    return FairKLTerms(value, _pairs(found), dropped)


def _pairs(found: SetSums) -> Tensor:
    return found.sums[..., COUNT].detach().sum(0)


@arguments_of(fairkl_terms)
def fairkl(*args: Any, **settings: Any) -> Tensor:
    """FairKL (Barbano et al., ICLR 2023, Eq. 10): make distances independent of the bias.

    Over ordered pairs i ≠ j, with d_ij = ‖z_i − z_j‖² = 2 − 2 z_i·z_j, let A⁺ be the distances of
    pairs with the same label and bias, and C⁺ those of pairs with the same label and another bias;
    A⁻ and C⁻ are the same for pairs of different labels.

        R = D(A⁺ ‖ C⁺)  [+ D(A⁻ ‖ C⁻) with `negatives`]
        D = KL(N_A ‖ N_C) = ½[ (σ_A² + (μ_A−μ_C)²)/σ_C² − log(σ_A²/σ_C²) − 1 ]

    with μ and σ² the mean and population variance of a set. Add it to a contrastive loss or to
    cross-entropy, with a weight λ of about 1. Alone it can be met by a collapse of all embeddings.

    Args:
        features: [N, D] or [N, V, D] embeddings.
        labels: [N] integers.
        bias: [N] integers; −1 means unknown, and leaves the sample out of every set. Or [N]
            floating-point values of an attribute such as age or brightness, NaN for unknown: a
            pair is aligned with weight k(b_i, b_j) and conflicting with weight 1 − k. Several
            attributes are columns, [N, k]; see `biases`. No gradient flows into them.
        bias_features: [N, G] features of a bias-capturing model, instead of `bias`: a pair is
            aligned with weight b̃ = max(0, cos(g_i, g_j)) and conflicting with weight 1 − b̃. No
            gradient flows into them.
        divergence: D.
            "kl": the formula above, the paper's.
            "jeffreys": KL(N_A ‖ N_C) + KL(N_C ‖ N_A).
            "moments": (μ_A−μ_C)² + (σ_A−σ_C)².
            "mean": (μ_A−μ_C)², the left side of Eq. 9.
            "lognormal": "kl" with the moments of log d.
            "absolute-mean": (mean_A |s| − mean_C |s|)², s = z·z', the right side of Eq. 9. It is
            "mean"/4 where no cosine is negative, and another rule elsewhere.
        scope: "batch" pools all pairs of the batch. "anchor" takes the divergence for each anchor
            and averages over the anchors that have enough pairs in both sets.
        negatives: add the term of the negative pairs.
        variant: "paper", or "authors" for the formula of the released code (docs/fidelity.md): on
            similarities, with self-pairs and both signs, plus a pull and a push.
            `divergence="mean"` then leaves its spread terms out, and "lognormal" and
            "absolute-mean" are refused.
        variance_floor: ≥ 0, added to both variances in "kl", "jeffreys" and "lognormal". With a
            tiny floor the KL rewards collapse; 0.1 is on the scale of d, whose variance is at most
            4.
        normalize: divide weighted sums by the sum of the weights ("weights"), or by the batch size
            ("count", as the paper prints it for bias features).
        unit_norm: scale each embedding to unit length first.
        across_ranks: the batch is spread over the processes of `torch.distributed`: give the value
            of the whole batch.
        chunk: anchors handled at a time where pairs are visited; None chooses by size.
        views: of features [N, V, D], "all" takes every view as a sample, "first" only features[:,
            0], as the released code does. The same for [N, D].
        kernel: k, for values. "gaussian": exp(−½ Σ_c (Δ_c/h_c)²) over the columns c. "box": 1 if
            |Δ_c| ≤ h_c in every column, else 0.
        bandwidth: h, in the units of the values. 0 takes, for each column, the median |Δ| over
            the pairs of the batch whose values differ (of more than 512 rows, over 512 quantiles).
        biases: of several columns, "joint" takes them as one bias, which two samples share if they
            do in every column; "sum" adds up the loss of each column. With "sum", the pairs that
            `fairkl_terms` counts are those of all columns.

    Returns:
        A scalar. A term with fewer than two pairs in a set (one for "mean" and "absolute-mean") is
        dropped; if all are, the result is a zero that is attached to the graph. `fairkl_terms` and
        the module `FairKL` say how often.

    Example:
        >>> loss = losses.eps_supinfonce(z, y, epsilon=0.25) + losses.fairkl(z, y, b)
        >>> loss.backward()
    """
    return fairkl_terms(*args, **settings).value


def _check_authors(bias: Tensor | None, scope: Scope, divergence: Divergence) -> None:
    if bias is None or bias.is_floating_point() or scope != "batch":
        raise ValueError(
            'variant="authors" is defined for bias labels and scope="batch" only; '
            'use variant="paper"'
        )
    if divergence in MEASURES:
        raise ValueError(
            'variant="authors" has a formula of its own, on similarities, and '
            f"divergence={divergence!r} is no part of it; "
            'use "kl" for all of it, "mean" to leave its spread terms out, or variant="paper"'
        )


def _first_view(features: Tensor) -> Tensor:
    """[N, D]; whatever is not [N, V, D] with a view in it is left for `rows` to judge."""
    several = isinstance(features, Tensor) and features.ndim == 3 and features.shape[1] > 0
    return features[:, 0] if several else features


def _mean_divergence(
    found: SetSums,
    divergence: DivergenceFunction,
    floor: float,
    least: int,
    size: int | Tensor | None,
    across_ranks: bool,
) -> tuple[Tensor, Tensor]:
    """(Σ over signs of the mean over anchors of the divergence, whether every term was dropped).

    For scope "batch" there is one anchor, which stands for all.

    Args:
        least: pairs that both sets of an anchor must have.
        size: divisor of weighted sums; None for the sum of the weights.
        across_ranks: the mean runs over the anchors of all processes.
    """
    sums = found.sums
    usable = (sums[..., COUNT].detach().unflatten(1, (-1, 2)) >= least).all(2)  # [anchors, signs]
    may_look = limits_of(sums).host and not torch.compiler.is_compiling()
    whole = may_look and bool(usable.all())
    if not whole:
        # What is dropped gets harmless moments first, so that no NaN reaches the gradient.
        harmless = sums.new_ones(4)
        harmless[FIRST] = 0
        sums = torch.where(usable.repeat_interleave(2, 1)[..., None], sums, harmless)
    mean, variance = _mean_and_variance(sums, found.pivot, size)
    aligned = Moments(mean[:, ::2], variance[:, ::2])
    conflicting = Moments(mean[:, 1::2], variance[:, 1::2])
    each = divergence(aligned, conflicting, floor)
    if whole and len(each) == 1:
        return each.sum(), ~usable.any()
    total, count = torch.where(usable, each, 0).sum(0), usable.sum(0)
    if across_ranks:
        total, count = distributed.all_reduce_sum(total), distributed.all_reduce_sum(count)
    return (total / count.clamp_min(1)).sum(), ~(count > 0).any()


def _mean_and_variance(
    sums: Tensor, pivot: Tensor | None, size: int | Tensor | None
) -> tuple[Tensor, Tensor]:
    """Σwx/divisor and Σw(x−μ)²/divisor, from sums about the pivot p, or about 0.

    The divisor is Σw, or `size` if it is given.
    """
    _, mass, first, second = sums.unbind(-1)  # [anchors, sets]
    mass = mass.detach()  # counts and weights have no gradient
    divisor = mass if size is None else size
    if pivot is None:
        mean = first / divisor
        # Σ w (x − μ)² / divisor = Σ w x² / divisor − 2μ² + μ²·mass/divisor
        squared_mean = mean.square() if size is None else mean.square() * (2 - mass / size)
        return mean, (second / divisor - squared_mean).clamp_min(0)
    # With δ = μ − p: Σ w (x − μ)² = Σ w (x − p)² − 2δ·Σ w (x − p) + δ²·Σ w. For `size` None δ is a
    # rounding error.
    delta = first / divisor if size is None else (first + mass * pivot) / size - pivot
    mean = pivot + delta
    spread = second - 2 * delta * first + mass * delta.square()
    return mean, (spread / divisor).clamp_min(0)


def _authors_formula(found: SetSums, spread: bool, across_ranks: bool) -> Tensor:
    """The released formula, on similarities s = 1 − d/2.

    (μ_C⁺−μ_A⁺)² + (μ_A⁻−μ_C⁻)² + (σ_A⁺−σ_C⁺)² + (σ_A⁻−σ_C⁻)² − μ_C⁺ + μ_A⁻

    Note: A⁺ holds the self-pairs, and σ is the unbiased deviation of all N² entries of s·mask,
    zeros included.
    """
    sums = found.sums
    # By weight and not by selection, which would be a look at the values.
    itself = (self_pairs(found.z) * (found.cue >= 0)[:, None]).sum(0).to(sums)
    if across_ranks:
        itself = distributed.all_reduce_sum(itself)
    if found.pivot is not None:
        sums = move_pivot(sums, found.pivot, 0.0)
    count, first, second = sums[0, :, MASS], sums[0, :, FIRST], sums[0, :, SECOND]
    s, s2 = count - first / 2, count - first + second / 4  # Σs, Σs² of A⁺, C⁺, A⁻, C⁻
    aligned = torch.zeros_like(s)
    aligned[0] = 1
    count, s, s2 = count + aligned * itself[0], s + aligned * itself[1], s2 + aligned * itself[2]
    mean = s / count.clamp_min(1)
    value = (mean[1] - mean[0]) ** 2 + (mean[2] - mean[3]) ** 2 - mean[1] + mean[2]
    if spread:
        n = torch.as_tensor(found.samples, dtype=s.dtype, device=s.device)
        entries = n.square().clamp_min(1)
        sigma = square_root((s2 - s**2 / entries) / (entries - 1).clamp_min(1))
        value = value + (sigma[0] - sigma[1]) ** 2 + (sigma[2] - sigma[3]) ** 2
    return value
