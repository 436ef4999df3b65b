"""EnD (Tartaglione et al., CVPR 2021): decorrelate what shares the bias, entangle what shares only the class."""

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses._centred import number_groups
from fairmargin.losses._limits import limits_of
from fairmargin.losses.inputs import rows


def end(
    features: Tensor,
    labels: Tensor,
    bias: Tensor,
    *,
    disentangle: float = 1.0,
    entangle: float = 1.0,
    pairs: str = "all",
    unit_norm: bool = True,
) -> Tensor:
    """The EnD regulariser; add it to a cross-entropy. Over unordered pairs of distinct samples, s_ij = z_i·z_j:

    R⊥ = (1/M) Σ_c | Σ_{b_i=b_j=c} s_ij |                    M  = pairs of one bias
    R∥ = 1 − (1/M') Σ_{y_i=y_j, b_i≠b_j} (1+s_ij)/2          M' = pairs of one label and two biases
    disentangle·R⊥ + entangle·R∥;  a term without pairs is 0

    Sums over pairs come from Σ z over groups, ‖Σz‖² = Σ_ij s_ij, so the cost is linear in N.

    `pairs="released"` repeats the public codes, whose R∥ keeps a pair i > j only where b_i < b_j: about half of them.
    Unknown bias (−1) leaves a sample out.
    """
    check_choice(pairs, "pairs", ("all", "released"))
    z, (y, b) = rows(features, labels, bias, names=("labels", "bias"), unit_norm=unit_norm)
    with torch.autocast(z.device.type, enabled=False):
        dtype = z.dtype
        z = z.to(torch.promote_types(dtype, limits_of(z).scalars))  # ‖Σz‖² − N cancels
        # By weight and not by selection, which an accelerator would have to be waited for.
        known = (b >= 0).to(z.dtype)
        z = z * known[:, None]
        label, bias = number_groups(y), number_groups(b)

        within_bias, pairs_of_bias = _pair_sums(z, known, bias)
        perpendicular = within_bias.abs().sum() / pairs_of_bias.sum().clamp_min(1)

        if pairs == "all":
            of_class, pairs_of_class = (x.sum() for x in _pair_sums(z, known, label))
            cell = number_groups(label * len(z) + bias)
            of_cell, pairs_of_cell = (x.sum() for x in _pair_sums(z, known, cell))
            s, count = of_class - of_cell, pairs_of_class - pairs_of_cell
        else:
            keep = (
                (y[:, None] == y)
                & (b[:, None] < b)
                & (b[:, None] >= 0)
                & torch.ones(len(z), len(z), dtype=torch.bool, device=z.device).tril(-1)
            )
            s, count = ((z @ z.T) * keep).sum(), keep.sum().to(z.dtype)
        parallel = torch.where(count > 0, 1 - (count + s) / 2 / count.clamp_min(1), 0)
        return (disentangle * perpendicular + entangle * parallel).to(dtype)


def _pair_sums(z: Tensor, known: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """For each group: Σ_{i>j} s_ij and the number of pairs; a group is a number below N, most of which have no sample."""
    total = torch.zeros_like(z).index_add(0, group, z)
    itself = torch.zeros_like(known).index_add(0, group, z.square().sum(1))
    size = torch.zeros_like(known).index_add(0, group, known)
    return (total.square().sum(1) - itself) / 2, size * (size - 1) / 2
