"""BiasCon and SoftCon (Hong & Yang, NeurIPS 2021): SupCon whose positives are weighted by how much their bias differs.

mean_i  −Σ_p q_ip log( e^{s_ip} / Σ_{a≠i} e^{s_ia} ) / Σ_p q_ip,   p over the samples of i's class
  BiasCon  q_ip = 1 where b_p ≠ b_i, else 0
  SoftCon  q_ip = 1 − cos(g_i, g_p), g the features of a bias-capturing model
"""

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses._fairkl import check_not_zero
from fairmargin.losses._operators import operator_above
from fairmargin.losses._pairs import Weighting, mean_over_anchors
from fairmargin.losses.contrastive import _supcon_out, several_blocks
from fairmargin.losses.inputs import check_matrix, check_temperature, rows
from fairmargin.vectors import full_precision, settled, unit


@operator_above(several_blocks)
def biascon(
    features: Tensor,
    labels: Tensor,
    bias: Tensor,
    *,
    temperature: float = 0.07,
    anchors: str = "all",
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """BiasCon: positives are the samples of the same class with another bias.

    `anchors`: the mean runs over "all" anchors, those without such a positive counting 0, as in the released code; or
    over the "valid" ones, as in the ε-margin family. Unknown bias (−1) is never a positive.
    """
    if bias is None:
        raise ValueError(
            "BiasCon needs bias labels; got None. Without them use softcon with bias_features"
        )
    z, (y, b) = rows(features, labels, bias, names=("labels", "bias"), unit_norm=unit_norm)
    return _weighted_supcon(z, y, Weighting(b, _differ), temperature, anchors, unit_norm, chunk)


@operator_above(several_blocks)
def softcon(
    features: Tensor,
    labels: Tensor,
    bias_features: Tensor,
    *,
    temperature: float = 0.07,
    anchors: str = "all",
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """SoftCon: positives weighted by 1 − cosine of their bias features [N, G]; `anchors` as in `biascon`."""
    z, (y,) = rows(features, labels, names=("labels",), unit_norm=unit_norm)
    check_matrix(bias_features, "bias_features", length=features.shape[0])
    check_not_zero(bias_features)
    g = unit(full_precision(bias_features.detach())).to(z.dtype)
    if features.ndim == 3:
        g = g.repeat_interleave(features.shape[1], 0)
    return _weighted_supcon(
        z, y, Weighting(g, _dissimilarity), temperature, anchors, unit_norm, chunk
    )


def _weighted_supcon(
    z: Tensor,
    labels: Tensor,
    weighting: Weighting,
    temperature: float,
    anchors: str,
    unit_norm: bool,
    chunk: int | None,
) -> Tensor:
    check_temperature(temperature)
    check_choice(anchors, "anchors", ("all", "valid"))
    return mean_over_anchors(
        z,
        labels,
        _supcon_out,
        temperature=temperature,
        chunk=chunk,
        weighting=weighting,
        over=anchors,
        unit_norm=unit_norm,
    )


def _differ(mine: Tensor, theirs: Tensor) -> Tensor:
    return ((mine[:, None] != theirs) & (mine[:, None] >= 0) & (theirs >= 0)).to(torch.float32)


def _dissimilarity(mine: Tensor, theirs: Tensor) -> Tensor:
    return 1 - settled(mine @ theirs.T).clamp_max(1)
