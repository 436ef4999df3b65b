"""Cross-entropies that know about bias."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fairmargin.losses._looks import checked
from fairmargin.losses.inputs import check_classes, check_ids, check_matrix
from fairmargin.vectors import full_precision

# Of the released code: an empty (bias, label) cell shifts its logit by −20.7, not by −∞.
PRIOR_FLOOR = 1e-9


def bias_balanced_cross_entropy(
    logits: Tensor, labels: Tensor, bias: Tensor, prior: Tensor
) -> Tensor:
    """Bias-balanced cross-entropy, BiasBal (Hong & Yang, NeurIPS 2021).

        CE( f(x) + log(p̂(·|b) + 1e-9), y )

    While training, the logits get the log-frequency of each class given the bias, so the network
    need not learn it. At test time use f(x) alone.

    Args:
        logits: [N, K], f(x).
        labels: [N] integers.
        bias: [N] integers; unknown bias (−1) gets no adjustment.
        prior: [B, K], p̂(y|b): training counts of the labels, normalized over y for each bias
            value. `BiasBalancedCrossEntropy.from_counts` makes it from counts.

    Returns:
        A scalar, the mean over samples.

    Example:
        >>> prior = counts.T / counts.T.sum(1, keepdim=True)  # counts [K, B] of the training set
        >>> loss = losses.bias_balanced_cross_entropy(model(images), y, b, prior)
    """
    x = _checked_logits(logits, labels)
    check_ids(bias, len(x), "bias", device=x.device)
    check_matrix(prior, "prior")
    if prior.shape[1] != x.shape[1]:
        raise ValueError(
            f"prior must be [biases, {x.shape[1]}], p(label | bias); got {list(prior.shape)}. "
            "Is it transposed?"
        )
    if checked(bias) and len(bias) and int(bias.max()) >= len(prior):
        raise ValueError(
            f"bias has the value {int(bias.max())} but prior has only {len(prior)} rows, "
            "one for each bias value"
        )
    if not len(x):
        return x.sum()
    bias = bias.long()
    adjustment = (prior.to(x.dtype) + PRIOR_FLOOR).log()[bias.clamp_min(0)] * (bias >= 0)[:, None]
    return F.cross_entropy(x + adjustment, labels.long())


def generalized_cross_entropy(
    logits: Tensor, labels: Tensor, *, q: float = 0.7, surrogate: bool = False
) -> Tensor:
    """Generalized cross-entropy (Zhang & Sabuncu, NeurIPS 2018, Eq. 6): learn what is easy.

        mean (1 − p_y^q)/q

    Samples that are already right have the largest gradient, so a model trained with it follows the
    bias: it is the bias amplifier of LfF. q → 0 is cross-entropy, q = 1 is 1 − p_y.

    Args:
        logits: [N, K].
        labels: [N] integers.
        q: 0 to 1; the paper's choice is 0.7.
        surrogate: minimise mean sg[q·p_y^q]·CE instead, as the public codes do (sg: no gradient).
            It has q times the same gradient, and another value.

    Returns:
        A scalar, the mean over samples.

    Example:
        >>> loss = losses.generalized_cross_entropy(bias_model(images), y)
    """
    x = _checked_logits(logits, labels)
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


def _checked_logits(logits: Tensor, labels: Tensor) -> Tensor:
    check_matrix(logits, "logits")
    check_classes(labels, len(logits), logits.shape[1], device=logits.device)
    return full_precision(logits)
