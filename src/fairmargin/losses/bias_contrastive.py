"""BiasCon and SoftCon (Hong & Yang, NeurIPS 2021): SupCon with positives weighted by their bias.

mean_i  −Σ_p q_ip log( e^{s_ip} / Σ_{a≠i} e^{s_ia} ) / Σ_p q_ip,   p over the samples of i's class
  BiasCon  q_ip = 1 where b_p ≠ b_i, else 0
  SoftCon  q_ip = 1 − cos(g_i, g_p), g the features of a bias-capturing model
"""

from typing import get_args

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses._operators import operator_above
from fairmargin.losses._streamed import mean_over_anchors
from fairmargin.losses.choices import Anchors
from fairmargin.losses.contrastive import several_blocks
from fairmargin.losses.inputs import check_temperature, rows, unit_bias_features
from fairmargin.losses.members import supcon_out
from fairmargin.losses.pairs import PairLoss, Weighting
from fairmargin.vectors import settled


@operator_above(several_blocks)
def biascon(
    features: Tensor,
    labels: Tensor,
    bias: Tensor,
    *,
    temperature: float = 0.07,
    anchors: Anchors = "all",
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """BiasCon (Hong & Yang, NeurIPS 2021): SupCon whose positives have another bias.

        −Σ_p q_p log( e^{s_p} / Σ_{a≠i} e^{s_a} ) / Σ_p q_p,   s = z·z'/τ

    for an anchor i, with p over the samples of its class and q_p = 1 where b_p ≠ b_i, else 0.

    Args:
        features: [N, D], or [N, V, D].
        labels: [N] integers.
        bias: [N] integers; a sample of unknown bias (−1) is never a positive.
        temperature: τ > 0; the released code uses 0.07.
        anchors: "all" averages over all anchors, those without a positive counting 0, as in the
            released code. "valid" leaves those out, as in the ε-margin family.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        A scalar. It is 0 for a batch without conflicting positives.

    Example:
        >>> loss = F.cross_entropy(logits, y) + losses.biascon(z, y, b)
    """
    if bias is None:
        raise ValueError(
            "BiasCon needs bias labels; got None. Without them use softcon with bias_features"
        )
    z, (y, b) = rows(features, labels, bias, names=("labels", "bias"), unit_norm=unit_norm)
    weighting = Weighting(b, _differ)
    return _weighted_supcon(z, y, weighting, temperature, anchors, unit_norm, chunk)


@operator_above(several_blocks)
def softcon(
    features: Tensor,
    labels: Tensor,
    bias_features: Tensor,
    *,
    temperature: float = 0.07,
    anchors: Anchors = "all",
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """SoftCon (Hong & Yang, NeurIPS 2021): SupCon weighted by how much the bias differs.

        −Σ_p q_p log( e^{s_p} / Σ_{a≠i} e^{s_a} ) / Σ_p q_p,   s = z·z'/τ

    for an anchor i, with p over the samples of its class and q_p = 1 − cos(g_i, g_p). It is BiasCon
    without bias labels.

    Args:
        features: [N, D], or [N, V, D].
        labels: [N] integers.
        bias_features: [N, G], g of a bias-capturing model, in the order of the samples. Rows of
            zeros are refused. No gradient flows into them.
        temperature: τ > 0; the released code uses 0.07.
        anchors: "all" averages over all anchors, as in the released code; "valid" leaves out those
            whose positives have no weight.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        A scalar.

    Example:
        >>> g = bias_model(images)
        >>> loss = F.cross_entropy(logits, y) + losses.softcon(z, y, g)
    """
    z, (y,) = rows(features, labels, names=("labels",), unit_norm=unit_norm)
    g = unit_bias_features(bias_features, features).to(z.dtype)
    weighting = Weighting(g, _dissimilarity)
    return _weighted_supcon(z, y, weighting, temperature, anchors, unit_norm, chunk)


def _weighted_supcon(
    z: Tensor,
    labels: Tensor,
    weighting: Weighting,
    temperature: float,
    anchors: Anchors,
    unit_norm: bool,
    chunk: int | None,
) -> Tensor:
    check_temperature(temperature)
    check_choice(anchors, "anchors", get_args(Anchors))
    loss = PairLoss(supcon_out, temperature, weighting, unit_norm=unit_norm, chunk=chunk)
    return mean_over_anchors(z, labels, loss, over=anchors)


def _differ(mine: Tensor, theirs: Tensor) -> Tensor:
    """1 where two known bias labels differ."""
    known = (mine[:, None] >= 0) & (theirs >= 0)
    return ((mine[:, None] != theirs) & known).to(torch.float32)


def _dissimilarity(mine: Tensor, theirs: Tensor) -> Tensor:
    """1 − cosine."""
    return 1 - settled(mine @ theirs.T).clamp_max(1)
