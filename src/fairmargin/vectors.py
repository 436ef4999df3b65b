"""Rows of numbers as losses, heads and probes use them: of unit length, in at least float32."""

from typing import Any

import torch
from torch import Tensor

# Of a cosine in float32.
ROUNDING = 1e-6


def full_precision(x: Tensor) -> Tensor:
    """Half precisions go up to float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def settled(cosines: Tensor) -> Tensor:
    """Cosines that are 0 or 1 but for rounding, made so: whether a set of pairs is empty must not depend on the last bit."""
    near_one = torch.where((cosines - 1).abs() < ROUNDING, 1, cosines)
    return torch.where(cosines.abs() < ROUNDING, 0, near_one)


def unit(x: Tensor) -> Tensor:
    """Rows of length 1; a zero row stays zero, with a finite gradient."""
    z: Tensor = _Unit.apply(x)[0]
    return z


class _Unit(torch.autograd.Function):
    """x/‖x‖ with its gradient (g − (g·z)z)/‖x‖ in four operations; ‖x‖ is an output, to be differentiated too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        length = torch.where(length > 0, length, 1)
        z = x / length
        ctx.save_for_backward(z, length)
        return z, length

    @staticmethod
    def backward(ctx: Any, g_z: Tensor | None, g_length: Tensor | None) -> Tensor | None:
        z, length = ctx.saved_tensors
        gradient = None if g_z is None else (g_z - (g_z * z).sum(-1, keepdim=True) * z) / length
        if g_length is not None:
            gradient = g_length * z if gradient is None else gradient + g_length * z
        return gradient
