"""Batch norm and activation in two compiled passes each way."""

from typing import Any

import torch
from torch import Tensor

from fairmargin.networks.native import library

ACTIVATIONS = ("none", "relu", "tanh")  # in the order of norms.c


def is_possible(maps: Tensor) -> bool:
    """Return whether the compiled kernels can normalize maps [P, C, N, 1], and were asked for."""
    if not library.is_wanted() or maps.device.type != "cpu":
        return False
    return maps.dtype == torch.float32 and maps.shape[2] % library.WIDTH == 0


def statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each channel, over positions and samples."""
    p, c, n, _ = maps.shape
    mean, variance = maps.new_empty(c), maps.new_empty(c)
    kernel = library.norms().statistics
    of, to = library.pointer(maps), (library.pointer(mean), library.pointer(variance))
    library.share(lambda *part: kernel(of, *library.sizes(p, c, n, *part), *to), c)
    return mean, variance


def apply(maps: Tensor, factor: Tensor, offset: Tensor, activation: str) -> Tensor:
    """Return activation(maps·factor + offset), with a factor and an offset for each channel."""
    p, c, n, _ = maps.shape
    result = torch.empty_like(maps)
    kernel, which = library.norms().apply, ACTIVATIONS.index(activation)
    of, a, b, to = (library.pointer(t) for t in (maps, factor, offset, result))
    library.share(lambda *part: kernel(of, *library.sizes(p, c, n, *part), a, b, which, to), c)
    return result


class Gradient:
    """The gradient g before an activation, which is never stored.

    Args:
        dz: gradient behind the activation, [P, C, N, 1]; expanded along P where positions share it.
        z: result of the activation.
        maps: what was normalized.
        activation: its name.
    """

    def __init__(self, dz: Tensor, z: Tensor, maps: Tensor, activation: str) -> None:
        _, c, n, _ = maps.shape
        shared = dz.stride(0) == 0 and dz[0].is_contiguous()
        self.dz = dz if shared else dz.contiguous()
        self.z, self.maps = z, maps
        self.step = 0 if shared else c * n
        self.activation = ACTIVATIONS.index(activation)

    def sums(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each channel Σ g and Σ g·(maps − mean)."""
        of_g, of_gx = torch.empty_like(mean), torch.empty_like(mean)
        self._share(library.norms().gradient_sums, [mean], [of_g, of_gx])
        return of_g, of_gx

    def combine(self, a: Tensor, b: Tensor, constant: Tensor) -> Tensor:
        """Return a·g + b·maps + constant, with three numbers for each channel."""
        result = torch.empty_like(self.maps)
        self._share(library.norms().gradient, [a, b, constant], [result])
        return result

    def _share(self, kernel: Any, by: list[Tensor], to: list[Tensor]) -> None:
        """Call a kernel for all channels."""
        p, c, n, _ = self.maps.shape
        dz, z, x = (library.pointer(t) for t in (self.dz, self.z, self.maps))
        channel, results = ([library.pointer(t) for t in some] for some in (by, to))

        def work(begin: int, end: int) -> int | None:
            numbers = library.sizes(p, c, n, begin, end)
            step = library.sizes(self.step)
            return kernel(dz, *step, z, x, *numbers, *channel, self.activation, *results)

        library.share(work, c)
