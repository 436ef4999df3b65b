"""Layers on an encoder's features h: heads that return unit vectors z, and linear classifiers."""

from typing import Literal, get_args

from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.vectors import full_precision, unit

HeadKind = Literal["mlp", "linear", "identity"]


class Head(nn.Module):
    """z = g(h)/‖g(h)‖, from features [N, dim] to unit vectors [N, out].

    They are in at least float32 also under mixed precision, where 1e-12 would be zero.

    Args:
        layers: g.
        out: number of components of z.
    """

    def __init__(self, layers: nn.Module, out: int) -> None:
        super().__init__()
        self.layers = layers
        self.out = out

    def forward(self, features: Tensor) -> Tensor:
        return unit(full_precision(self.layers(features)))


def projection_head(kind: HeadKind, dim: int, out: int = 128) -> Head:
    """Return a new head.

    Args:
        kind: "mlp" (dim → dim → out), "linear" (dim → out), or "identity", which keeps `dim` and
            ignores `out`.
        dim: number of features.
        out: number of components of z; the contrastive literature uses 128.
    """
    check_choice(kind, "projection head", get_args(HeadKind))
    if kind == "mlp":
        layers = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(inplace=True), nn.Linear(dim, out))
        return Head(layers, out)
    if kind == "linear":
        return Head(nn.Linear(dim, out), out)
    return Head(nn.Identity(), dim)


def linear_classifier(dim: int, classes: int) -> nn.Linear:
    """Return a layer that gives logits [N, classes].

    Weight and bias start from U(−1/√dim, 1/√dim), PyTorch's default.
    """
    return nn.Linear(dim, classes)
