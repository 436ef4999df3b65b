"""EnD (Tartaglione et al., CVPR 2021): entangling and disentangling."""

from typing import get_args

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses._alignment import number_groups
from fairmargin.losses._limits import limits_of
from fairmargin.losses.choices import EntangledPairs
from fairmargin.losses.inputs import rows


def end(
    features: Tensor,
    labels: Tensor,
    bias: Tensor,
    *,
    disentangle: float = 1.0,
    entangle: float = 1.0,
    pairs: EntangledPairs = "all",
    unit_norm: bool = True,
) -> Tensor:
    """EnD (Tartaglione et al., CVPR 2021): decorrelate one bias, entangle one class.

    A regulariser to add to cross-entropy. Over unordered pairs of distinct samples, s_ij = z_i·z_j:

        R⊥ = (1/M) Σ_c | Σ_{b_i=b_j=c} s_ij |                M  = pairs of one bias
        R∥ = 1 − (1/M') Σ_{y_i=y_j, b_i≠b_j} (1+s_ij)/2      M' = pairs of one label and two biases
        disentangle·R⊥ + entangle·R∥;  a term without pairs is 0

    Sums over pairs come from Σ z over groups, ‖Σz‖² = Σ_ij s_ij, so the cost is linear in N.

    Args:
        features: [N, D] or [N, V, D] embeddings.
        labels: [N] integers.
        bias: [N] integers; unknown bias (−1) leaves a sample out.
        disentangle: weight of R⊥, ≥ 0; the paper tunes it.
        entangle: weight of R∥, ≥ 0; the paper tunes it.
        pairs: "all" is the formula above. "released" repeats the public codes, whose R∥ keeps a
            pair i > j only where b_i < b_j: about half of the pairs.
        unit_norm: scale each embedding to unit length first.

    Returns:
        A scalar.

    Example:
        >>> loss = F.cross_entropy(logits, y) + losses.end(h, y, b)
    """
    check_choice(pairs, "pairs", get_args(EntangledPairs))
    z, (y, b) = rows(features, labels, bias, names=("labels", "bias"), unit_norm=unit_norm)
    with torch.autocast(z.device.type, enabled=False):
        dtype = z.dtype
        z = z.to(torch.promote_types(dtype, limits_of(z).scalars))  # ‖Σz‖² − N cancels
        # By weight and not by selection, for which Python would have to wait for an accelerator.
        known = (b >= 0).to(z.dtype)
        z = z * known[:, None]
        label_group, bias_group = number_groups(y), number_groups(b)

        within_bias, pairs_of_bias = _pair_sums(z, known, bias_group)
        perpendicular = within_bias.abs().sum() / pairs_of_bias.sum().clamp_min(1)

        if pairs == "all":
            of_class, pairs_of_class = _pair_sums(z, known, label_group)
            cell = number_groups(label_group * len(z) + bias_group)
            of_cell, pairs_of_cell = _pair_sums(z, known, cell)
            s = of_class.sum() - of_cell.sum()
            count = pairs_of_class.sum() - pairs_of_cell.sum()
        else:
            same_label = y[:, None] == y
            kept_bias = (b[:, None] < b) & (b[:, None] >= 0)
            below = torch.ones(len(z), len(z), dtype=torch.bool, device=z.device).tril(-1)
            keep = same_label & kept_bias & below
            s, count = ((z @ z.T) * keep).sum(), keep.sum().to(z.dtype)
        parallel = torch.where(count > 0, 1 - (count + s) / 2 / count.clamp_min(1), 0)
        return (disentangle * perpendicular + entangle * parallel).to(dtype)


def _pair_sums(z: Tensor, known: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """For each group: Σ_{i>j} s_ij and the number of pairs.

    A group is a number below N. Most numbers have no sample.
    """
    total = torch.zeros_like(z).index_add(0, group, z)
    itself = torch.zeros_like(known).index_add(0, group, z.square().sum(1))
    size = torch.zeros_like(known).index_add(0, group, known)
    return (total.square().sum(1) - itself) / 2, size * (size - 1) / 2
