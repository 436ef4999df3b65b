"""Batch norm and activation in two compiled passes each way.

`batch_norm.py` has the formulas. Here g, the gradient before the activation, is never stored.
"""

from typing import Any

import torch
from torch import Tensor

from fairmargin.networks.native import library
from fairmargin.networks.norm_gradients import (
    FusedActivation,
    differentiable_gradients,
    factors,
    through,
)

ACTIVATIONS = ("none", "relu", "tanh")  # in the order of norms.c


def is_possible(maps: Tensor, *parameters: Tensor) -> bool:
    """Return whether the compiled kernels can normalize these, and were asked for.

    Args:
        maps: [P, C, N, 1].
        parameters: weight, bias and whatever else is used.
    """
    return library.serves(maps, *parameters) and maps.shape[2] % library.WIDTH == 0


class Normalize(torch.autograd.Function):
    """(x [P, C, N, 1], weight [C], bias [C]) → z, mean, variance, by the batch's statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        activation: FusedActivation,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = _statistics(x)
        scale = (variance + eps).rsqrt()
        factor = weight * scale
        offset = bias - mean * factor
        z = _apply(x, factor, offset, activation)
        kept = z if activation != "none" else None
        ctx.save_for_backward(x, weight, mean, scale, factor, offset, kept)
        ctx.eps = eps
        ctx.activation = activation
        ctx.mark_non_differentiable(mean, variance)
        return z, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, factor, offset, z = ctx.saved_tensors
        if torch.is_grad_enabled():  # this gradient may be differentiated again
            g = through(ctx.activation, gradients[0], z)
            wanted = ctx.needs_input_grad[:3]
            found = differentiable_gradients(g, x, weight, mean, scale, ctx.eps, wanted)
            return *found, None, None
        before = _Gradient(gradients[0].expand_as(x), z, x, factor, offset, ctx.activation)
        d_bias, of_gx = before.sums(mean)
        d_weight = of_gx * scale
        dx = before.combine(*factors(x, weight, mean, scale, d_bias, d_weight))
        return dx, d_weight, d_bias, None, None


class Apply(torch.autograd.Function):
    """(x [P, C, N, 1], factor [C], offset [C]) → activation(x·factor + offset), not differentiable.

    It is a Function so that transforms which look into a computation see that they cannot.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, factor: Tensor, offset: Tensor, activation: FusedActivation
    ) -> Tensor:
        return _apply(x, factor, offset, activation)


def _statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, over positions and samples."""
    p, c, n, _ = maps.shape
    mean = maps.new_empty(c)
    variance = maps.new_empty(c)
    kernel = library.norms()["statistics"]
    x = library.pointer(maps)
    results = [library.pointer(mean), library.pointer(variance)]
    library.share(lambda begin, end: kernel(x, p, c, n, begin, end, *results), c)
    return mean, variance


def _apply(maps: Tensor, factor: Tensor, offset: Tensor, activation: FusedActivation) -> Tensor:
    """activation(maps·factor + offset), with a factor and an offset for each channel."""
    p, c, n, _ = maps.shape
    result = torch.empty_like(maps)
    kernel = library.norms()["apply"]
    x = library.pointer(maps)
    channel = [library.pointer(factor), library.pointer(offset)]
    which = ACTIVATIONS.index(activation)
    z = library.pointer(result)
    library.share(lambda begin, end: kernel(x, p, c, n, begin, end, *channel, which, z), c)
    return result


class _Gradient:
    """The gradient g before an activation.

    Args:
        dz: gradient behind the activation, [P, C, N, 1]; expanded along P where positions share it.
        z: result of the activation; None without one.
        maps: what was normalized.
        factor: of the maps of each channel, [C]; with the offset, what the activation was given.
        offset: [C].
        activation: its name.
    """

    def __init__(
        self,
        dz: Tensor,
        z: Tensor | None,
        maps: Tensor,
        factor: Tensor,
        offset: Tensor,
        activation: FusedActivation,
    ) -> None:
        shared = dz.stride(0) == 0 and dz[0].is_contiguous()
        self.dz = dz[0] if shared else dz.contiguous()
        self.step = 0 if shared else dz[0].numel()
        self.z = maps if z is None else z
        self.maps = maps
        self.given = [factor, offset]
        self.activation = ACTIVATIONS.index(activation)

    def sums(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each channel Σ g and Σ g·(maps − mean)."""
        of_g = torch.empty_like(mean)
        of_gx = torch.empty_like(mean)
        self._share("gradient_sums", [mean], [of_g, of_gx])
        return of_g, of_gx

    def combine(self, a: Tensor, b: Tensor, constant: Tensor) -> Tensor:
        """Return a·g + b·maps + constant, with three numbers for each channel."""
        result = torch.empty_like(self.maps)
        self._share("gradient", [a, b, constant], [result])
        return result

    def _share(self, name: str, by: list[Tensor], to: list[Tensor]) -> None:
        """Call a kernel for all channels."""
        p, c, n, _ = self.maps.shape
        kernel = library.norms()[name]
        dz, z, x = [library.pointer(t) for t in (self.dz, self.z, self.maps)]
        channel = [library.pointer(t) for t in (*self.given, *by)]
        results = [library.pointer(t) for t in to]

        def work(begin: int, end: int) -> int | None:
            numbers = (p, c, n, begin, end)
            return kernel(dz, self.step, z, x, *numbers, *channel, self.activation, *results)

        library.share(work, c)
