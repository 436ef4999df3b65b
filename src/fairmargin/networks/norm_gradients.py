"""Gradients of a batch norm and an activation, as far as its two forms share them."""

from typing import Literal

import torch
from torch import Tensor

FusedActivation = Literal["none", "relu", "tanh"]


def through(activation: FusedActivation, gradient: Tensor, z: Tensor | None) -> Tensor:
    """Return the gradient before an activation, from the one behind it and its result.

    Args:
        z: result of the activation; not needed for "none".
    """
    match activation:
        case "relu":
            return torch.ops.aten.threshold_backward(gradient, z, 0)
        case "tanh":
            return torch.ops.aten.tanh_backward(gradient, z)
        case _:
            return gradient


def factors(
    x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, d_bias: Tensor, d_weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a, b and constant, [C] each, of dx = a·g + b·x + constant.

    Args:
        x: maps [P, C, N, 1].
        mean: of each channel.
        scale: (variance + ε)^−½.
        d_bias: Σ g.
        d_weight: Σ g·x̂.
    """
    number = x.shape[0] * x.shape[2]
    a = weight * scale
    b = -a * scale * d_weight / number
    return a, b, -a * d_bias / number - b * mean


def differentiable_gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    scale: Tensor,
    eps: float,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:
    """Return dx, d_weight and d_bias by PyTorch's own operation, which autograd can differentiate.

    Args:
        g: gradient before the activation.
        wanted: which of the three are; the others are None.
    """
    found: tuple[Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward(
        g.contiguous(), x, weight, None, None, mean, scale, True, eps, list(wanted)
    )
    return found
