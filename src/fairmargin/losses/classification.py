"""Cross-entropies that know about bias."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fairmargin.losses._looks import checked
from fairmargin.losses.inputs import check_classes, check_ids, check_matrix
from fairmargin.vectors import full_precision

PRIOR_FLOOR = (
    1e-9  # of the released code: an empty (bias, label) cell shifts its logit by −20.7, not by −∞
)


def bias_balanced_cross_entropy(
    logits: Tensor, labels: Tensor, bias: Tensor, prior: Tensor
) -> Tensor:
    """Bias-balanced cross-entropy, BiasBal (Hong & Yang, NeurIPS 2021).

    CE( f(x) + log(p̂(·|b) + 1e-9), y );  at test time use f(x) alone

    Args:
        logits: [N, K].
        labels, bias: [N] integers; unknown bias (−1) gets no adjustment.
        prior: [B, K], p̂(y|b): training counts of the labels, normalized over y for each bias value.
    """
    x = _logits(logits, labels)
    check_ids(bias, len(x), "bias", device=x.device)
    check_matrix(prior, "prior")
    if prior.shape[1] != x.shape[1]:
        raise ValueError(
            f"prior must be [biases, {x.shape[1]}], p(label | bias); got {list(prior.shape)}. Is it transposed?"
        )
    if checked(bias) and len(bias) and int(bias.max()) >= len(prior):
        raise ValueError(
            f"bias has the value {int(bias.max())} but prior has only {len(prior)} rows, one for each bias value"
        )
    if not len(x):
        return x.sum()
    bias = bias.long()
    adjustment = (prior.to(x.dtype) + PRIOR_FLOOR).log()[bias.clamp_min(0)] * (bias >= 0)[:, None]
    return F.cross_entropy(x + adjustment, labels.long())


def generalized_cross_entropy(
    logits: Tensor, labels: Tensor, *, q: float = 0.7, surrogate: bool = False
) -> Tensor:
    """Generalized cross-entropy (Zhang & Sabuncu, NeurIPS 2018), which trusts what is easy: LfF's bias amplifier.

    mean (1 − p_y^q)/q;  q → 0: cross-entropy, q = 1: 1 − p_y

    `surrogate=True` is what the public codes minimise, mean sg[q·p_y^q]·CE: q times the same gradient, another value.
    """
    x = _logits(logits, labels)
    if not 0 <= q <= 1:
        raise ValueError(f"q must lie in [0, 1]; got {q}. The usual choice is 0.7")
    if not len(x):
        return x.sum()
    log_p = F.log_softmax(x, 1).gather(1, labels.long()[:, None])[:, 0]
    if surrogate:
        return (q * (q * log_p.detach()).exp() * -log_p).mean()
    if q == 0:
        return -log_p.mean()
    return (-torch.expm1(q * log_p) / q).mean()


def _logits(logits: Tensor, labels: Tensor) -> Tensor:
    check_matrix(logits, "logits")
    check_classes(labels, len(logits), logits.shape[1], device=logits.device)
    return full_precision(logits)
