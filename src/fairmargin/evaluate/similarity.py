"""How close samples are that share the label, the bias, both or neither.

This shows what an embedding is organised by. The sets are those of `losses.fairkl`, over ordered
pairs i ≠ j with cosine s_ij and distance d_ij = 2 − 2 s_ij:
  A⁺ same label, same bias      C⁺ same label, other bias
  A⁻ other label, same bias     C⁻ other label, other bias
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fairmargin.losses.divergences import Moments, gaussian_kl
from fairmargin.losses.inputs import check_ids, check_matrix
from fairmargin.vectors import unit

SETS = ("positive-aligned", "positive-conflicting", "negative-aligned", "negative-conflicting")
ITSELF = len(SETS)
# Pairs held at a time.
PAIRS = 1 << 20
# A variance of cosines that float32 features cannot resolve.
ROUNDING = 1e-14
# Cosines are rounded, so that equal features tie whatever order their products were added up in.
DECIMALS = 10


def similarities(
    features: Tensor,
    labels: Tensor,
    bias: Tensor,
    *,
    most: int = 2000,
    bins: int = 64,
    seed: int = 0,
) -> dict[str, Any]:
    """Return histogram, mean and deviation of the cosines in each set, and the KL of A and C.

    The KL is that of normal distributions of distances, KL(N_A ‖ N_C), without any floor. Samples
    of unknown bias are left out. The result is ready for JSON:
    {"edges", "sets": {name: {"pairs", "mean", "std", "counts"}}, "kl": {"positive", "negative"},
    "samples"}, with None where a set is empty or, for the KL, has fewer than two pairs or no
    spread.

    Args:
        features: [N, D].
        labels: [N].
        bias: [N], −1 for unknown.
        most: samples that are drawn, at most.
        bins: of the histograms.
        seed: of the draw.
    """
    z, y, b = _drawn(features, labels, bias, most, seed)
    counts = torch.zeros(ITSELF + 1, bins, dtype=torch.long)
    total = torch.zeros(ITSELF + 1, dtype=torch.double)
    for s, which in _blocks(z, y, b):
        cell = which * bins + ((s + 1) / 2 * bins).long().clamp(max=bins - 1)
        counts += torch.bincount(cell.flatten(), minlength=counts.numel()).view_as(counts)
        total += _sums(s, which)
    pairs = counts.sum(1)
    mean = total / pairs
    # A second pass, because E[s²] − E[s]² would cancel.
    squares = torch.zeros_like(total)
    for s, which in _blocks(z, y, b):
        squares += _sums((s - mean[which]).square(), which)
    variance = squares / pairs
    sets = {}
    for k, name in enumerate(SETS):
        found: dict[str, Any] = {"pairs": int(pairs[k]), "mean": None, "std": None}
        if pairs[k]:
            found["mean"] = float(mean[k])
            found["std"] = float(variance[k].sqrt())
        sets[name] = found | {"counts": counts[k].tolist()}
    kl = {
        "positive": _kl(pairs[:2], mean[:2], variance[:2]),
        "negative": _kl(pairs[2:4], mean[2:4], variance[2:4]),
    }
    return {
        "edges": torch.linspace(-1, 1, bins + 1, dtype=torch.double).tolist(),
        "sets": sets,
        "kl": kl,
        "samples": len(z),
    }


def ordering(
    features: Tensor,
    labels: Tensor,
    bias: Tensor,
    *,
    epsilon: float = 0.0,
    most: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """Return how far distances are ordered by the bias (Barbano et al., ICLR 2023, Eq. 8).

    An anchor is wholly biased when  d(A⁺) < d(C⁺) ≤ d(A⁻) − ε < d(C⁻) − ε  for all its pairs.

    A link's share is that of the (anchor, closer pair, farther pair) triples in this order, ties
    counting half, averaged over the anchors that have pairs in both sets. 1 is total order and 0.5
    none. "total" is the share of wholly ordered anchors (the largest distance of each set at most
    the smallest of the next) among those with pairs in all four sets. None stands where no anchor
    has the pairs. The result is ready for JSON: {"links": [{"closer", "farther", "share"}],
    "total", "classes": [{"label", "shares", "total"}]}, the last for the anchors of each label.

    Args:
        features: [N, D].
        labels: [N].
        bias: [N], −1 for unknown.
        epsilon: a margin on the cosine. It enters the middle link only; elsewhere it cancels.
        most: samples that are drawn, at most.
        seed: of the draw.
    """
    z, y, b = _drawn(features, labels, bias, most, seed)
    margins = (0.0, epsilon, 0.0)
    parts = []
    for s, which in _blocks(z, y, b):
        s = s.round(decimals=DECIMALS)
        ordered = torch.ones(len(s), dtype=torch.bool)
        shares = []
        for k, margin in enumerate(margins):
            closer, farther = which == k, which == k + 1
            lowered = (s - margin).round(decimals=DECIMALS)
            usable = closer.any(1) & farther.any(1)
            shares.append(_share(lowered, s, closer, farther).masked_fill(~usable, torch.nan))
            nearest_end = lowered.masked_fill(~closer, torch.inf).amin(1)
            ordered &= usable & (nearest_end >= s.masked_fill(~farther, -torch.inf).amax(1))
        complete = torch.stack([(which == k).any(1) for k in range(ITSELF)]).all(0)
        in_order = ordered.double().masked_fill(~complete, torch.nan)
        parts.append(torch.stack([*shares, in_order], 1))
    # [samples, 3 links and the whole], NaN where an anchor has not the pairs.
    anchors = torch.cat(parts)
    *found, total = _means(anchors)
    links = [
        {"closer": SETS[k], "farther": SETS[k + 1], "share": share} for k, share in enumerate(found)
    ]
    classes = []
    for label in y.unique().tolist():
        *own, whole = _means(anchors[y == label])
        classes.append({"label": label, "shares": own, "total": whole})
    return {"links": links, "total": total, "classes": classes}


def _drawn(
    features: Tensor, labels: Tensor, bias: Tensor, most: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(unit features in float64, labels, bias) of samples of known bias, in their order.

    There are at most `most`.
    """
    check_matrix(features, "features")
    check_ids(labels, len(features), "labels")
    check_ids(bias, len(features), "bias")
    if most < 2:
        raise ValueError(f"most must be at least 2 samples, or there are no pairs; got {most}")
    known = (bias.cpu() >= 0).nonzero().flatten()
    if len(known) < 2:
        raise ValueError(f"pairs need two samples of known bias; got {len(known)} of {len(bias)}")
    if len(known) > most:
        shuffled = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
        known = known[shuffled[:most].sort().values]
    return unit(features.cpu()[known].double()), labels.cpu()[known], bias.cpu()[known]


def _blocks(z: Tensor, y: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(cosines, number of the set) of a chunk of anchors at a time, each [anchors, samples]."""
    size = max(1, PAIRS // len(z))
    for start in range(0, len(z), size):
        chunk = slice(start, start + size)
        s = (z[chunk] @ z.T).clamp(-1, 1)
        which = 2 * (y[chunk, None] != y).long() + (b[chunk, None] != b)
        which.diagonal(start).fill_(ITSELF)
        yield s, which


def _sums(values: Tensor, which: Tensor) -> Tensor:
    return torch.bincount(which.flatten(), weights=values.flatten(), minlength=ITSELF + 1)


def _kl(pairs: Tensor, mean: Tensor, variance: Tensor) -> float | None:
    """Gaussian KL(A ‖ C) of distances from the moments [2] of the cosines."""
    if bool((pairs < 2).any()) or bool((variance <= ROUNDING).any()):
        return None
    a, c = (Moments(2 - 2 * mean[k], 4 * variance[k]) for k in range(2))
    return float(gaussian_kl(a, c, 0.0))


def _share(lowered: Tensor, s: Tensor, closer: Tensor, farther: Tensor) -> Tensor:
    """[anchors] share of (closer, farther) pairs in order; NaN where a set is empty."""
    ranked = s.masked_fill(~farther, torch.inf).sort(1).values
    before = torch.searchsorted(ranked, lowered, right=False)
    before = before + torch.searchsorted(ranked, lowered, right=True)
    return (before * closer).sum(1).double() / (2 * closer.sum(1) * farther.sum(1))


def _means(columns: Tensor) -> list[float | None]:
    """The mean of each column over the rows that have a value; None where no row has one."""
    means: list[float | None] = []
    for column in columns.unbind(1):
        known = column[~column.isnan()]
        means.append(float(known.mean()) if len(known) else None)
    return means
