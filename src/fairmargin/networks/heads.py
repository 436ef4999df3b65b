"""On top of an encoder's features h: heads that give unit vectors z, and linear classifiers that give logits."""

import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.vectors import full_precision


class Head(nn.Module):
    """z = g(h)/‖g(h)‖ [N, out], in at least float32 also under mixed precision: 1e-12 is zero in float16."""

    def __init__(self, layers: nn.Module, out: int) -> None:
        super().__init__()
        self.layers = layers
        self.out = out

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(full_precision(self.layers(features)), dim=-1, eps=1e-12)


def projection_head(kind: str, dim: int, out: int = 128) -> Head:
    """Head "mlp" (dim → dim → out), "linear" (dim → out) or "identity" (which keeps `dim` and so ignores `out`)."""
    check_choice(kind, "projection head", ("mlp", "linear", "identity"))
    if kind == "mlp":
        return Head(
            nn.Sequential(nn.Linear(dim, dim), nn.ReLU(inplace=True), nn.Linear(dim, out)), out
        )
    if kind == "linear":
        return Head(nn.Linear(dim, out), out)
    return Head(nn.Identity(), dim)


def linear_classifier(dim: int, classes: int) -> nn.Linear:
    """Logits [N, classes]; weight and bias start from U(−1/√dim, 1/√dim), PyTorch's default."""
    return nn.Linear(dim, classes)
