"""Rows of numbers as losses, heads and probes use them: of unit length, in at least float32."""

from typing import Any

import torch
from torch import Tensor

# Rounding error of a cosine in float32.
ROUNDING = 1e-6


def full_precision(x: Tensor) -> Tensor:
    """Return half-precision numbers as float32; float32 and float64 stay what they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def settled(cosines: Tensor) -> Tensor:
    """Return cosines, with those that are 0 or 1 up to rounding made exactly so.

    Whether a set of pairs is empty must not depend on the last bit.
    """
    near_one = torch.where((cosines - 1).abs() < ROUNDING, 1, cosines)
    return torch.where(cosines.abs() < ROUNDING, 0, near_one)


def unit(x: Tensor) -> Tensor:
    """Return rows scaled to length 1; a zero row stays zero, with a finite gradient."""
    z: Tensor = _Unit.apply(x)[0]
    return z


class _Unit(torch.autograd.Function):
    """x/‖x‖ with its gradient (g − (g·z)z)/‖x‖ in four operations.

    ‖x‖ is an output too, so that it can be differentiated.
    """

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
