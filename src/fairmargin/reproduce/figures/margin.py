"""How ε moves the margin: the loss of one positive and one negative, and its pull.

Both are computed by the library's own formula.
"""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from torch import Tensor

from fairmargin.losses._pairs import Block
from fairmargin.losses.contrastive import FORMS

# ε → colour.
CURVES = {0.0: "#9aa5b1", 1.0: "#6aa5d9", 3.0: "#2f6db5", math.inf: "#152f52"}


def pair_loss(delta: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return loss and pull −∂/∂s_i of anchors with one positive and one negative.

    Args:
        delta: [N] s_n − s_i, where s_i = 0.
    """
    s = torch.zeros(len(delta), 1, dtype=torch.float64, requires_grad=True)
    one = torch.ones_like(s)
    block = Block(
        s, positive=one, negative=1 - one, weight=one, log_negatives=delta, mass=one[:, 0]
    )
    loss, _ = FORMS["c"](block, epsilon=epsilon, positives="mean")
    (gradient,) = torch.autograd.grad(loss.sum(), s)
    return loss.detach(), -gradient[:, 0]


def draw(path: Path) -> Path:
    """Draw the loss (left) and the pull on the positive (right) against Δ."""
    delta = torch.linspace(-6, 3, 400, dtype=torch.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    for epsilon, colour in CURVES.items():
        loss, pull = pair_loss(delta, epsilon)
        name = "ε = ∞" if epsilon == math.inf else f"ε = {epsilon:g}"
        left.plot(delta, loss, color=colour, lw=2, label=name)
        right.plot(delta, pull, color=colour, lw=2)
        if epsilon < math.inf:
            left.axhline(-epsilon, color=colour, lw=0.8, ls=":")
            right.plot([-epsilon, -epsilon], [0, 0.5], color=colour, lw=0.8, ls=":")
            right.plot([-epsilon], [0.5], "o", color=colour, ms=6)
    left.set(ylabel="loss", title="The loss levels off at −ε", ylim=(-6, 3))
    right.set_title("The pull is halved where the positive leads by ε")
    right.set(ylabel="pull on the positive", ylim=(0, 1.05))
    for ax in (left, right):
        ax.set(xlabel="Δ = s_n − s_i   (left of 0: the positive is ahead)", xlim=(-6, 3))
        ax.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
