"""Bounds of the mutual information of an anchor and its positive, and their relation to the losses.

The paper's Eq. 3 places I(X⁺, X) between two logarithms, which are −ε-InfoNCE at ε = 0 and at ε =
∞:
  log e^{s⁺}/(e^{s⁺} + Σ_n e^{s_n})  ≤  I(X⁺, X)  ≤  log e^{s⁺}/Σ_n e^{s_n}
The bounds of Poole et al. ("On Variational Bounds of Mutual Information", ICML 2019) have means in
the denominators, over K = 1 + (number of negatives) candidates on the left and K − 1 on the right.
That adds log K and log(K − 1). Without them the left side is never above 0, and the right side is
no upper bound.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fairmargin.losses._streamed import sum_over_anchors
from fairmargin.losses.contrastive import image_of_each_view
from fairmargin.losses.inputs import check_ids, check_matrix, check_temperature, rows
from fairmargin.losses.members import FORMS
from fairmargin.losses.pairs import Block, PairLoss, RowLoss, masked_logsumexp
from fairmargin.vectors import full_precision

INFONCE: RowLoss = partial(FORMS["c"], epsilon=0.0, positives="mean")
INFOL1O: RowLoss = partial(FORMS["c"], epsilon=math.inf, positives="mean")


@dataclass(frozen=True)
class InformationBounds:
    """Four numbers in nats, each a mean over the anchors that have a positive and a negative.

    All are NaN if no anchor has both.

    Args:
        infonce: left side of Eq. 3 as printed: −ε-InfoNCE at ε = 0, never above 0.
        infol1o: right side as printed: −ε-InfoNCE at ε = ∞.
        lower: infonce + log K, the bound of Poole et al.
        upper: infol1o + log(K − 1), the bound of Poole et al.
    """

    infonce: Tensor
    infol1o: Tensor
    lower: Tensor
    upper: Tensor


def information_bounds(
    features: Tensor,
    labels: Tensor | None = None,
    *,
    temperature: float = 0.1,
    unit_norm: bool = True,
    chunk: int | None = None,
) -> InformationBounds:
    """Bounds of the mutual information of two views (Barbano et al., ICLR 2023, Eq. 3).

    With s = z·z'/τ as the critic:

        infonce = mean log e^{s⁺}/(e^{s⁺} + Σ_n e^{s_n})      lower = infonce + log K
        infol1o = mean log e^{s⁺}/Σ_n e^{s_n}                 upper = infol1o + log n

    where K = 1 + the number of negative images, and n = the number of negatives, all views.

    In expectation over batches `lower` ≤ I(X⁺, X) for whatever features; it cannot exceed log K, so
    a small batch shows a small number. `upper` ≥ I(X⁺, X) only where s is the logarithm of the
    density ratio p(x⁺|x)/p(x⁺), up to a function of the anchor. Cosines need not be: then it is an
    estimate that can lie on either side.

    Features [N, V, D] without labels: K = N and n = V·(N − 1). The V views of one image are not
    independent draws, so they count once in K: counting them all could put `lower` above the truth,
    by log V at most.

    With labels every sample of the class is a positive and the samples of other classes are the
    negatives, as in `eps_supinfonce`; K and n are those of the anchor. Negatives then never come
    from the anchor's own class, and both numbers are about the mean over classes of
    KL(p(x|y) ‖ p(x|other classes)). It is at least I(X⁺, X), and infinite where classes do not
    overlap: `lower` is then no lower bound of I(X⁺, X), which the entropy of the labels limits.

    Args:
        features: [N, V, D], or [N, D] with labels.
        labels: [N] integers; None takes the other views of an image as its positives.
        temperature: τ > 0; the paper uses 0.1.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        `InformationBounds`, four scalars in nats.

    Example:
        >>> bounds = losses.information_bounds(z)  # z [N, V, D]
        >>> print(f"{bounds.lower:.2f} to {bounds.upper:.2f} nats")
    """
    check_temperature(temperature)
    if labels is None:
        labels = image_of_each_view(features)
    z, (y,) = rows(features, labels, names=("labels",), unit_norm=unit_norm)
    views = features.shape[1] if features.ndim == 3 else 1

    def summed(row_loss: RowLoss) -> Tensor:
        loss = PairLoss(row_loss, temperature, unit_norm=unit_norm, chunk=chunk)
        return sum_over_anchors(z, y, loss)[0]

    size = _class_size(y)
    negatives = len(y) - size  # [N·V]
    usable = (size > 1) & (negatives > 0)
    return _bounds(summed(INFONCE), summed(INFOL1O), negatives.to(z.dtype), usable, views)


def information_bounds_from_scores(
    scores: Tensor, labels: Tensor | None = None
) -> InformationBounds:
    """Bounds of the mutual information (Barbano et al., ICLR 2023, Eq. 3) for any critic.

        infonce = mean_i log e^{f_ii}/Σ_j e^{f_ij}            lower = infonce + log N
        infol1o = mean_i log e^{f_ii}/Σ_{j≠i} e^{f_ij}        upper = infol1o + log(N − 1)

    where f_ij = f(x_i, y_j) are the scores. Over N independent pairs (x_i, y_i) and in expectation,
    `lower` ≤ I(X, Y) for every f, and I(X, Y) ≤ `upper` for f = log p(x, y)/(p(x)p(y)), plus any
    function of x.

    Args:
        scores: [N, N], not divided by a temperature; pairs that belong together on the diagonal.
        labels: [N] integers, for scores of samples with themselves: the positives of a row are then
            the other samples of its label, the diagonal counts nowhere, and N is that of
            `information_bounds` with labels.

    Returns:
        `InformationBounds`, four scalars in nats.

    Example:
        >>> bounds = losses.information_bounds_from_scores(critic(x[:, None], y[None]))
    """
    check_matrix(scores, "scores")
    n = len(scores)
    if scores.shape[1] != n:
        raise ValueError(
            "scores must be square, with the pairs that belong together on the diagonal; "
            f"got {list(scores.shape)}"
        )
    s = full_precision(scores)
    itself = torch.eye(n, dtype=s.dtype, device=s.device)
    positive, negative = itself, 1 - itself
    if labels is not None:
        check_ids(labels, n, "labels", device=scores.device)
        same = (labels[:, None] == labels).to(s.dtype)
        positive, negative = same - itself, 1 - same
    mass, negatives = positive.sum(1), negative.sum(1)
    block = Block(s, positive, negative, positive, masked_logsumexp(s, negative), mass)
    usable = (mass > 0) & (negatives > 0)
    return _bounds(INFONCE(block)[0].sum(), INFOL1O(block)[0].sum(), negatives, usable, views=1)


def _bounds(
    infonce: Tensor, infol1o: Tensor, negatives: Tensor, usable: Tensor, views: int
) -> InformationBounds:
    """From the sums of both losses over the anchors.

    All anchors have negatives or none has, so both losses are sums over the same anchors, or the
    result is NaN.

    Args:
        negatives: how many negatives each anchor has.
        usable: whether each anchor counts.
    """
    count = usable.sum()
    candidates = torch.where(usable, (1 + negatives / views).log(), 0).sum()
    rivals = torch.where(usable, negatives.clamp_min(1).log(), 0).sum()
    lower, upper = (candidates - infonce) / count, (rivals - infol1o) / count
    return InformationBounds(-infonce / count, -infol1o / count, lower, upper)


def _class_size(labels: Tensor) -> Tensor:
    """[N]: how many rows have the label of each row, itself included."""
    ordered = labels.sort().values
    first = torch.searchsorted(ordered, labels.contiguous())
    last = torch.searchsorted(ordered, labels.contiguous(), right=True)
    return last - first
