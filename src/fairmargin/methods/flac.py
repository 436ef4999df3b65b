"""FLAC (Sarridis et al., TPAMI 2024): features that are near where the bias is far, and conversely.

    L = CE(f(x), y) + α·FLAC

    s_ij  = 1/(1 + d_ij^κ),  d_ij = √(‖h_i − h_j‖² + 1e-6), and s^b_ij the same of the bias features
    t     = (max s^b + min s^b)/2 over the batch
    M     = pairs of one class with s^b < t, and pairs of different classes with s^b > t
    p_ij  = s_ij / Σ_{j' in M} s_ij',   p^b_ij = (1 − s^b_ij) / Σ_{j' in M} (1 − s^b_ij')
    FLAC  = mean over M of (p − p^b)·(log p − log p^b)          (Jeffreys' divergence)

M holds the pairs that the bias makes rare: alike in one of class and bias, and not in the other.

Note: the paper takes the bias features from a classifier trained to tell the bias. With bias labels
these are unit vectors here, so a pair shares the bias or does not; samples of unknown bias are in
no pair.

Note: the public code adds 1e-7 to the sums that p and p^b are divided by; here a row without pairs
is left out by its mask.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import MakeEncoder, Method, Unsuited, first_view
from fairmargin.methods.card import ABOVE_ZERO, FROM_ZERO, Between, MethodCard, OptionCard
from fairmargin.methods.known_bias import bias_code, require_known_bias
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

# Of the public code: keeps the root differentiable where two features are equal.
DISTANCE_FLOOR = 1e-6

CARD = MethodCard(
    "FLAC",
    "Sarridis et al., FLAC: Fairness-Aware Representation Learning",
    "TPAMI 2024",
    needs="bias labels or features",
    file="flac.py",
    options={
        "alpha": OptionCard("α, the weight of the divergence", FROM_ZERO, Between(10, 10_000)),
        "exponent": OptionCard("κ, of the distances in the similarities", ABOVE_ZERO),
    },
)


class FLAC(Method):
    """The run's network with a linear classifier.

    Args:
        alpha: α. The public commands have 110 to 10000 for Biased-MNIST, more where the bias is
            stronger.
        exponent: κ; the public code has 1 for UTKFace and 0.5 for the others.
    """

    least_batch = 2

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        alpha: float = 1000.0,
        exponent: float = 0.5,
    ) -> None:
        super().__init__()
        if alpha < 0 or exponent <= 0:
            raise ValueError(
                f"alpha must be 0 or more and exponent above 0; got {alpha} and {exponent}. "
                "The public code has 110 to 10000 and 0.5 for Biased-MNIST"
            )
        require_known_bias("flac", info, instead="lff")
        self.alpha, self.exponent, self.biases = alpha, exponent, info.num_biases
        self.needs = "" if info.num_biases else "bias features"
        self.encoder = make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "main", the network and its classifier."""
        return {"main": [*self.encoder.parameters(), *self.classifier.parameters()]}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield CE + α·FLAC."""
        code = bias_code(batch, self.biases)
        if code is None:
            raise Unsuited(
                "flac compares features with the bias and this batch has none; give the manifest a "
                '"bias" column or train with --bias scores'
            )
        h = self.encoder(first_view(batch.images))
        h, code, y = gather(h, code, batch.labels)
        classification = F.cross_entropy(full_precision(self.classifier(h)), y)
        divergence, pairs = flac_loss(h, y, code, exponent=self.exponent)
        self.terms = {"main": classification.detach(), "flac": divergence.detach()}
        self.counts = {"pairs": pairs[None]}
        yield "main", classification + self.alpha * divergence


def flac_loss(
    features: Tensor, labels: Tensor, bias_features: Tensor, *, exponent: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Return FLAC, and the number of pairs in M; without pairs a 0 attached to the graph.

    Args:
        features: h [N, D].
        labels: [N].
        bias_features: [N, G]; a row of zeros is an unknown bias. No gradient flows into them.
        exponent: κ.
    """
    h = full_precision(features)
    b = full_precision(bias_features.detach()).to(h.dtype)
    with torch.autocast(h.device.type, enabled=False):
        known = (b != 0).any(1)
        both = known[:, None] & known
        s_b = _similarity(b, exponent)
        # The extremes of pairs of unknown bias do not count.
        most = torch.where(both, s_b, 0).amax() if len(h) else s_b.sum()
        least = torch.where(both, s_b, 1).amin() if len(h) else s_b.sum()
        threshold = (most + least) / 2
        same = labels[:, None] == labels
        chosen = both & torch.where(same, s_b < threshold, s_b > threshold)
        p = _log_shares(_similarity(h, exponent), chosen)
        p_b = _log_shares(1 - s_b, chosen)
        each = torch.where(chosen, (p.exp() - p_b.exp()) * (p - p_b), 0)
        pairs = chosen.sum()
        return each.sum() / pairs.clamp_min(1), pairs


def _similarity(x: Tensor, exponent: float) -> Tensor:
    """1/(1 + d^κ) of all pairs of rows, [N, N]."""
    length = x.square().sum(1)
    squared = (length[:, None] + length - 2 * x @ x.T).clamp_min(0)
    return 1 / (1 + (squared + DISTANCE_FLOOR).pow(exponent / 2))


def _log_shares(weights: Tensor, chosen: Tensor) -> Tensor:
    """log of each weight's share of its row's chosen ones; 0 where it is not chosen."""
    logs = torch.where(chosen, weights, 1).log()
    total = torch.where(chosen, weights, 0).sum(1, keepdim=True)
    total = torch.where(total > 0, total, 1)
    return torch.where(chosen, logs - total.log(), 0)
