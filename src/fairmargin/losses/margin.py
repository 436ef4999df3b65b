"""Maximum-margin classification losses: L-Softmax (the paper's "Max-Margin" row), large margin."""

import math
from collections.abc import Sequence
from typing import get_args, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from fairmargin.checks import check_choice
from fairmargin.losses._looks import checked
from fairmargin.losses.choices import Norm, Scores
from fairmargin.losses.inputs import check_classes, check_matrix
from fairmargin.vectors import full_precision, lengths

# Norm of a gradient, dual to the norm of the distance.
DUAL_NORM: dict[Norm, float] = {"l1": math.inf, "l2": 2.0, "linf": 1.0}
# Steps of the published MNIST runs, by whose end λ is nearly 0.
PUBLISHED_STEPS = 30_000


def l_softmax(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    margin: int = 4,
    anneal: float | Tensor = 0.0,
) -> Tensor:
    """L-Softmax (Liu et al., ICML 2016): the true class must win by an m times larger angle.

    Cross-entropy with the true logit ‖w_y‖‖h‖cos θ replaced by ‖w_y‖‖h‖ψ(θ),

        ψ(θ) = (−1)^k cos(mθ) − 2k   on [kπ/m, (k+1)π/m]
        ψ ← (λ cos θ + ψ)/(1+λ)      with λ = `anneal`

    Args:
        features: [N, D] inputs of the last layer, not normalized.
        weight: [K, D] of that layer, which has no bias. At test time use the plain logits
            `features @ weight.T`.
        labels: [N] integers.
        margin: m ≥ 1, a whole number; m = 1 is cross-entropy. The published choice is 4.
        anneal: λ ≥ 0, a number or a tensor. Without a large λ at the start nothing is learnt;
            `l_softmax_anneal` is the published schedule, stretched to the length of the run.

    Returns:
        A scalar, the mean over samples.

    Example:
        >>> anneal = losses.l_softmax_anneal(step, steps=1000)
        >>> loss = losses.l_softmax(h, last.weight, y, anneal=anneal)
    """
    check_matrix(features, "features")
    check_matrix(weight, "weight")
    check_classes(labels, len(features), len(weight), device=features.device)
    if not (isinstance(margin, int) and margin >= 1):
        raise ValueError(
            f"margin must be a whole number ≥ 1; got {margin!r}. The published choice is 4"
        )
    h, w, y = full_precision(features), full_precision(weight), labels.long()
    if not len(h):
        return h.sum() + 0 * w.sum()
    with torch.autocast(h.device.type, enabled=False):
        logits = h @ w.T
        scale = lengths(h) * lengths(w[y])
        true = logits.gather(1, y[:, None])[:, 0]
        cosine = (true / torch.where(scale > 0, scale, 1)).clamp(-1, 1)
        psi = (anneal * cosine + angular_margin(cosine, margin)) / (1 + anneal)
        value = F.cross_entropy(logits.scatter(1, y[:, None], (scale * psi)[:, None]), y)
    _check_finite(value)
    return value


def _check_finite(value: Tensor) -> None:
    """Raise an error if finite features and weights have a loss that is not."""
    if checked(value) and not bool(value.isfinite()):
        raise ValueError(
            f"the logits features @ weight.T overflow {value.dtype}; the network has diverged, or "
            "the features are far too large: lower the learning rate, or scale the features"
        )


def angular_margin(cosine: Tensor, margin: int) -> Tensor:
    """Return ψ(θ) of `l_softmax` from cos θ.

    cos(mθ) is Chebyshev's polynomial, so that no gradient passes through arccos at ±1.

    Args:
        cosine: [N], from −1 to 1.
        margin: m ≥ 1.
    """
    angle = torch.arccos(cosine.detach().clamp(-1, 1))
    k = (angle * margin / math.pi).floor().clamp(0, margin - 1)
    before, now = torch.ones_like(cosine), cosine
    for _ in range(margin - 1):
        before, now = now, 2 * cosine * now - before
    return torch.where(k % 2 == 0, 1.0, -1.0) * now - 2 * k


@overload
def l_softmax_anneal(step: int, *, least: float = 0.0, steps: int = PUBLISHED_STEPS) -> float: ...
@overload
def l_softmax_anneal(
    step: Tensor, *, least: float = 0.0, steps: int = PUBLISHED_STEPS
) -> Tensor: ...
def l_softmax_anneal(
    step: int | Tensor, *, least: float = 0.0, steps: int = PUBLISHED_STEPS
) -> float | Tensor:
    """Return λ of `l_softmax` at a training step.

        λ = max(least, 1000·(1 + 2.5e-5·t)^−35),   t = step·30000/steps

    λ falls from 1000 to 1 within the first 29 % of `steps`. Until then the loss is cross-entropy
    for the most part, so give a short run's own number of steps.

    Args:
        step: number of the step; a tensor gives a tensor on the same device.
        least: λ never falls below it.
        steps: of the training; the default is the published schedule.

    Example:
        >>> losses.l_softmax_anneal(0)
        1000.0
    """
    t = step * (PUBLISHED_STEPS / steps)
    if isinstance(t, Tensor):
        return (1000 * (1 + 2.5e-5 * t) ** -35).clamp_min(least)
    return max(least, 1000 * (1 + 2.5e-5 * t) ** -35)


def large_margin(
    logits: Tensor,
    layers: Sequence[Tensor],
    labels: Tensor,
    *,
    gamma: float = 1.0,
    alpha: float = 2.0,
    norm: Norm = "l2",
    top_k: int = 1,
    scores: Scores = "probabilities",
) -> Tensor:
    """Large-margin loss (Elsayed et al., NeurIPS 2018): keep γ away from the decision boundary.

    The mean over samples and layers of

        max(0, γ − max(min_j d_j, γ(1−α))),   d_j = δ_j / ‖∇_h δ_j‖_q,   δ_j = score_y − score_j

    with j over the `top_k` best competitors, h the layer, q dual to `norm`, and the gradient's norm
    held constant.

    Args:
        logits: [N, K], computed from every tensor of `layers`.
        layers: activations [N, …] inside the graph of `logits`. Batch-norm in training mode between
            a layer and the logits couples the samples and spoils the per-sample gradient: take
            layers after it, or evaluation mode.
        labels: [N] integers.
        gamma: γ > 0, the distance to reach; to be tuned to the scale of the layers.
        alpha: α; the loss of a sample is at most αγ. To be tuned too.
        norm: "l1", "l2" or "linf" of the distance.
        top_k: competitors that count, from 1 to K − 1.
        scores: "probabilities" after a softmax, or "logits".

    Returns:
        A scalar.

    Example:
        >>> hidden = encoder(images)
        >>> loss = losses.large_margin(classifier(hidden), [hidden], y, gamma=1.0)
    """
    check_choice(norm, "norm", get_args(Norm))
    check_choice(scores, "scores", get_args(Scores))
    check_matrix(logits, "logits")
    check_classes(labels, len(logits), logits.shape[1], device=logits.device)
    if not layers:
        raise ValueError(
            "layers is empty; give at least one activation from which the logits are computed"
        )
    if not all(layer.requires_grad for layer in (logits, *layers)):
        raise ValueError(
            "large_margin differentiates the logits by the layers, and one of them has no "
            "gradient; "
            "compute them outside of torch.no_grad() and do not detach them"
        )
    rivals_at_most = logits.shape[1] - 1
    if not 1 <= top_k <= rivals_at_most:
        raise ValueError(
            f"top_k must be from 1 to the number of classes − 1 = {rivals_at_most}; got {top_k}"
        )
    x = full_precision(logits)
    if not len(x):
        return x.sum()
    score = x.softmax(1) if scores == "probabilities" else x
    y = labels.long()[:, None]
    rivals = score.scatter(1, y, -math.inf).topk(top_k, dim=1).values  # [N, top_k]
    gaps = score.gather(1, y) - rivals
    total = x.new_zeros(())
    for layer in layers:
        distances = []
        for gap in gaps.unbind(1):
            # Samples do not influence each other, so one backward pass of the sum gives every
            # sample its own gradient.
            (gradient,) = torch.autograd.grad(gap.sum(), layer, retain_graph=True)
            slope = full_precision(gradient).flatten(1).norm(p=DUAL_NORM[norm], dim=1)
            distances.append(gap / (slope + 1e-8))
        worst = torch.stack(distances, 1).amin(1)
        total = total + (gamma - worst.clamp_min(gamma * (1 - alpha))).clamp_min(0).mean()
    return total / len(layers)
