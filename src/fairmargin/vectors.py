"""Rows of numbers as losses, heads and probes use them: of unit length, in at least float32."""

from typing import Any

import torch
from torch import Tensor

# Rounding error of a cosine in float32.
ROUNDING = 1e-6
# Values of which the median distance is taken at most; of more samples, as many quantiles.
MEDIAN_VALUES = 512
# The bits of a number's exponent, and the integers to look at them with.
EXPONENTS = {
    torch.float32: (torch.int32, 0x7F800000),
    torch.float64: (torch.int64, 0x7FF0000000000000),
}


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
    """Return rows scaled to length 1; a zero row stays zero, with a finite gradient.

    Rows of any length will do: squares neither overflow nor vanish. Rows whose entries are all
    subnormal (below 1.2e-38 in float32) count as zero: their gradient would be infinite.
    """
    z: Tensor = _Unit.apply(x)[0]
    return z


def lengths(x: Tensor) -> Tensor:
    """Return the length of each row; squares neither overflow nor vanish."""
    z, length = _Unit.apply(x)
    return torch.where((z != 0).any(-1), length[..., 0], 0)


def power_of_two(size: Tensor) -> Tensor:
    """Return the largest power of two up to each size, and 1 for what is zero or subnormal.

    To divide by it changes no digit, so results for ordinary rows stay what they are, bit by bit.

    Args:
        size: not negative, float32 or float64.
    """
    integer, mask = EXPONENTS[size.dtype]
    power = (size.view(integer) & mask).view(size.dtype)
    return torch.where(power > 0, power, 1)


def median_distance(values: Tensor) -> Tensor:
    """Return the median of |v_i − v_j| over pairs of different values, for each column [k].

    It is exact up to `MEDIAN_VALUES` samples; of more, as many quantiles are compared. A column in
    which no two values differ has the distance 1.

    Args:
        values: [N, k]; NaN is left out.
    """
    n, most = len(values), MEDIAN_VALUES
    if n == 0:
        return values.new_ones(values.shape[1])
    ordered = values.sort(0).values  # NaN last
    count = (~values.isnan()).sum(0)  # [k]
    rank = torch.arange(min(n, most), device=values.device)[:, None]
    spread = (2 * rank + 1) * count // (2 * most)
    chosen = ordered.gather(0, torch.where(count > most, spread, rank))  # [m, k]
    found = []
    for column in chosen.unbind(1):
        distance = (column[:, None] - column).abs().flatten()
        found.append(torch.where(distance > 0, distance, torch.nan).nanmedian())
    medians = torch.stack(found)
    return torch.where(medians.isnan(), 1, medians)


class _Unit(torch.autograd.Function):
    """x/‖x‖ with its gradient (g − (g·z)z)/‖x‖ in four operations.

    ‖x‖ is an output too, so that it can be differentiated.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        # Exported graphs have no bits of numbers; their features are those of a trained network.
        plain = torch.compiler.is_exporting() or not x.shape[-1]
        power = 1 if plain else power_of_two(x.abs().amax(-1, keepdim=True))
        scaled = x / power
        length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
        length = torch.where(length > 0, length, 1)
        z = scaled / length
        length = length * power
        ctx.save_for_backward(z, length)
        return z, length

    @staticmethod
    def backward(ctx: Any, g_z: Tensor | None, g_length: Tensor | None) -> Tensor | None:
        z, length = ctx.saved_tensors
        gradient = None if g_z is None else (g_z - (g_z * z).sum(-1, keepdim=True) * z) / length
        if g_length is not None:
            gradient = g_length * z if gradient is None else gradient + g_length * z
        return gradient
