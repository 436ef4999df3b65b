"""Whether a classifier's probabilities mean what they say."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Bin:
    """Samples whose top probability falls in one interval."""

    confidence: float  # mean top probability
    accuracy: float
    n: int


@dataclass(frozen=True)
class Calibration:
    """Calibration error, log loss, Brier score, and the bins that hold samples, by confidence."""

    ece: float
    nll: float
    brier: float
    bins: list[Bin]


def measure(logits: Tensor, labels: Tensor, *, bins: int = 15) -> Calibration:
    """Return calibration error, log loss and Brier score of softmax(logits).

        ECE   = Σ_bins n_bin/N · |accuracy − mean confidence|   (Guo et al., ICML 2017)
                bins ((i−1)/m, i/m] of the top probability
        NLL   = mean −log p_y
        Brier = mean Σ_c (p_c − [c = y])²                       from 0 to 2

    Args:
        logits: [N, K] without NaN, N ≥ 1.
        labels: [N].
        bins: m.
    """
    if not len(logits):
        raise ValueError("calibration needs at least one sample; this set is empty")
    log_p = logits.double().log_softmax(1)  # [N, K]
    p = log_p.exp()
    confidence, predicted = p.max(1)
    one_hot = F.one_hot(labels, logits.shape[1])
    which = (confidence * bins).ceil().long().clamp(1, bins) - 1
    n = torch.bincount(which, minlength=bins)
    right = torch.bincount(which, weights=(predicted == labels).double(), minlength=bins)
    total = torch.bincount(which, weights=confidence, minlength=bins)
    held = n.nonzero()[:, 0].tolist()
    found = [Bin(float(total[i] / n[i]), float(right[i] / n[i]), int(n[i])) for i in held]
    return Calibration(
        ece=float((right - total).abs().sum() / len(labels)),
        nll=float(F.nll_loss(log_p, labels)),
        brier=float((p - one_hot).square().sum(1).mean()),
        bins=found,
    )
