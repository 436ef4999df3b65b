"""The pairs of a batch: similarities, positives and negatives, and losses written in terms of them.

Every member of the ε-margin family is, for an anchor a, a function of
  s_i                   its scaled similarities z_a·z_i/τ to the samples of its own class, and
  L = log Σ_n e^{s_n}   one number for all its negatives.
A member is written once, as a `RowLoss` of those two. `dense` evaluates it on the whole N×N matrix
and leaves the gradient to autograd: this is the definition. `_streamed.py` finds the same value and
gradient in one pass without an N×N matrix, and chooses between the two.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Subtracted to push a number below every similarity. It is finite because exp and log of infinities
# take a slow path.
FAR = 1e30


@dataclass(frozen=True)
class Block:
    """Anchors against columns. Tensors are [anchors, columns] except the last two, [anchors].

    Masks are 0.0 or 1.0: arithmetic on floats is several times faster than selection by booleans.

    Args:
        s: similarities divided by the temperature.
        positive: 1 where the column has the anchor's class and is not the anchor itself.
        negative: 1 where the column has another class.
        weight: of each positive; 1, or what the method says. 0 where `positive` is 0.
        log_negatives: log Σ_n e^{s_n} over all negatives of the anchor, −inf if it has none.
        mass: Σ of the weights of the anchor's positives.
    """

    s: Tensor
    positive: Tensor
    negative: Tensor
    weight: Tensor
    log_negatives: Tensor
    mass: Tensor


# Block → (loss of each anchor, 0 where it is not valid; which anchors are valid).
RowLoss = Callable[[Block], tuple[Tensor, Tensor]]
# (cue of the anchors, cue of the columns) → weights [anchors, columns].
WeightRule = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Weighting:
    """How much each positive counts: `rule(cue of the anchors, cue of the columns)`.

    There is one cue for each row.
    """

    cue: Tensor
    rule: WeightRule


@dataclass(frozen=True)
class PairLoss:
    """A loss over all pairs of a batch, and how it is computed.

    Args:
        row_loss: the loss of each anchor.
        temperature: τ, by which similarities are divided.
        weighting: weights of the positives; None gives each the weight 1.
        whole_rows: the row loss looks at each negative, and not only at their sum.
        unit_norm: the rows are known to have length 1, so no exponential needs a check.
        chunk: anchors handled at a time; None chooses by size.
    """

    row_loss: RowLoss
    temperature: float
    weighting: Weighting | None = None
    whole_rows: bool = False
    unit_norm: bool = False
    chunk: int | None = None

    def cue_and_rule(self, labels: Tensor) -> tuple[Tensor, WeightRule | None]:
        """Return the weighting's cue and rule; without a weighting a stand-in cue and None."""
        if self.weighting is None:
            return labels, None
        return self.weighting.cue, self.weighting.rule


def dense(z: Tensor, labels: Tensor, loss: PairLoss) -> tuple[Tensor, Tensor]:
    """Return (Σ of the loss over valid anchors, their number), with gradients by autograd.

    This is the definition of a `PairLoss`; it holds the whole N×N matrix.

    Args:
        z: [N, D] rows.
        labels: [N].
    """
    number = torch.arange(len(z), device=z.device)
    cue, rule = loss.cue_and_rule(labels)
    return dense_rows(z, z, labels, labels, number, cue, cue, rule, loss.row_loss, loss.temperature)


def dense_rows(
    z_rows: Tensor,
    z: Tensor,
    y_rows: Tensor,
    y: Tensor,
    number: Tensor,
    cue_rows: Tensor,
    cue: Tensor,
    rule: WeightRule | None,
    row_loss: RowLoss,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Return what `dense` does for some anchors only, which are the rows `number` of z.

    Args:
        z_rows: [c, D] anchors.
        z: [N, D] all rows.
        y_rows: [c] labels of the anchors.
        y: [N] labels of all rows.
        number: [c] positions of the anchors in z.
        cue_rows: cue of the anchors, for `rule`.
        cue: cue of all rows.
        rule: weights of the positives; None gives each the weight 1.
        row_loss: the loss of each anchor.
        temperature: τ.
    """
    s = z_rows @ (z / temperature).T  # [c, N]
    same = (y_rows[:, None] == y[None, :]).to(z.dtype)
    itself = (number[:, None] == torch.arange(len(z), device=z.device)).to(z.dtype)
    positive, negative = same - itself, 1 - same
    weight = positive if rule is None else positive * rule(cue_rows, cue)
    log_negatives = masked_logsumexp(s, negative)
    loss, valid = row_loss(Block(s, positive, negative, weight, log_negatives, weight.sum(1)))
    return loss.sum(), valid.sum()


def equality(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix that is 1.0 where a_i = b_j, else 0.0."""
    if a.device.type != "cpu":
        return (a[:, None] == b).to(dtype)
    # Written straight into floats: half the time of a comparison and a cast.
    return torch.eq(a[:, None], b, out=torch.empty(len(a), len(b), dtype=dtype))


def masked_logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    """Return log Σ e^x over the entries of each row where `mask` is 1.

    A row without such an entry gives −inf, with zero gradient. A row with a NaN gives NaN.

    Args:
        x: [rows, columns].
        mask: of the same shape, 0.0 or 1.0.
    """
    if x.shape[1] == 0:
        return x.new_full((len(x),), -math.inf)
    top = (x.detach() + (mask - 1) * FAR).amax(1, keepdim=True)
    # The clamp touches masked entries only, which may overflow.
    sums = ((x - top).clamp_max(0).exp() * mask).sum(1)
    some = sums != 0
    return torch.where(some, torch.where(some, sums, 1).log() + top[:, 0], -math.inf)
