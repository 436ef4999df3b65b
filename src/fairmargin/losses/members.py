"""The members of the ε-margin family (Barbano et al., ICLR 2023), side by side.

Notation, for one anchor: s_i = z_a·z_i/τ over its positives P, s_n over its negatives,
L = log Σ_n e^{s_n}. Each member takes a `Block` of anchors and returns (loss of each anchor, which
anchors are valid). An anchor is valid if it has a positive; at ε = ∞ it needs a negative too.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fairmargin.losses.choices import Form, Positives
from fairmargin.losses.pairs import Block, masked_logsumexp

# Keeps 0/0 away from anchors without positives, which are masked out.
TINY = 1e-30


def form_a(block: Block, *, epsilon: float) -> tuple[Tensor, Tensor]:
    """log(e^{−ε} + Σ_i Σ_n e^{s_n−s_i})."""
    negatives, valid = _usable(block, epsilon)
    hardest = _finite(masked_logsumexp(-block.s, block.positive))  # log Σ_i e^{−s_i}
    return torch.where(valid, _log_margin(negatives + hardest, epsilon), 0), valid


def form_b(block: Block, *, epsilon: float) -> tuple[Tensor, Tensor]:
    """Σ_n log(e^{−ε} + Σ_i e^{s_n−s_i})."""
    valid = block.mass > 0
    hardest = _finite(masked_logsumexp(-block.s, block.positive))
    each = _log_margin(block.s + hardest[:, None], epsilon)
    return torch.where(valid, (each * block.negative).sum(1), 0), valid


def form_c(block: Block, *, epsilon: float, positives: Positives) -> tuple[Tensor, Tensor]:
    """mean_i (or Σ_i) −s_i + log(e^{s_i−ε} + Σ_n e^{s_n}).

    Each term is log(e^{−ε} + Σ_n e^{s_n−s_i}).
    """
    negatives, valid = _usable(block, epsilon)
    each = _log_margin(negatives[:, None] - block.s, epsilon)
    loss = (each * block.weight).sum(1)
    if positives == "mean":
        loss = loss / block.mass.clamp_min(TINY)
    return torch.where(valid, loss, 0), valid


def form_d(block: Block, *, epsilon: float) -> tuple[Tensor, Tensor]:
    """Σ_i Σ_n log(e^{−ε} + e^{s_n−s_i})."""
    most = int(block.mass.max()) if len(block.mass) else 0
    mine = block.positive.topk(most, dim=1).indices  # [c, P]: positives first
    gap = block.s[:, None, :] - block.s.gather(1, mine)[:, :, None]  # [c, P, N]
    pair = block.positive.gather(1, mine)[:, :, None] * block.negative[:, None, :]
    return (_log_margin(gap, epsilon) * pair).sum((1, 2)), block.mass > 0


def supcon_out(block: Block, *, epsilon: float = 0.0) -> tuple[Tensor, Tensor]:
    """mean_i −s_i + log(Σ_t e^{s_t−ε} + Σ_n e^{s_n}), t over all positives.

    The mean is weighted by the weights of the positives.
    """
    rivals, valid = _usable(block, epsilon)
    pull = (block.s * block.weight).sum(1) / block.mass.clamp_min(TINY)
    if epsilon < math.inf:
        mine = _finite(masked_logsumexp(block.s, block.positive))
        rivals = torch.logaddexp(mine - epsilon, rivals)
    return torch.where(valid, rivals - pull, 0), valid


def supcon_in(block: Block) -> tuple[Tensor, Tensor]:
    """−log( 1/P Σ_i e^{s_i} / (Σ_t e^{s_t} + Σ_n e^{s_n}) )."""
    valid = block.mass > 0
    mine = _finite(masked_logsumexp(block.s, block.positive))
    everyone = torch.logaddexp(mine, block.log_negatives)
    return torch.where(valid, block.mass.clamp_min(1).log() - mine + everyone, 0), valid


FORMS: dict[Form, Callable[..., tuple[Tensor, Tensor]]] = {
    "a": form_a,
    "b": form_b,
    "c": form_c,
    "d": form_d,
}


def _usable(block: Block, epsilon: float) -> tuple[Tensor, Tensor]:
    """(L, valid anchors).

    At ε = ∞ an anchor without negatives is not valid, and its L is made finite.
    """
    valid = block.mass > 0
    if epsilon == math.inf:
        return _finite(block.log_negatives), valid & (block.log_negatives != -math.inf)
    return block.log_negatives, valid


def _log_margin(gap: Tensor, epsilon: float) -> Tensor:
    """log(e^{−ε} + e^{gap}), for ε from 0 to inf and gap down to −inf."""
    if epsilon == math.inf:
        return gap
    if epsilon < 8:  # faster, and ε is small enough to be added and taken away again
        shifted = gap + epsilon if epsilon else gap
        return F.softplus(shifted, threshold=40).sub_(epsilon)
    return torch.logaddexp(gap, gap.new_full((), -epsilon))


def _finite(log_sum: Tensor) -> Tensor:
    """0, without gradient, for the log of an empty sum; such anchors are masked out afterwards.

    A NaN stays one, and shows in the loss.
    """
    return torch.where(log_sum != -math.inf, log_sum, 0)
