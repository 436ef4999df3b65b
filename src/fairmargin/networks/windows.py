"""Convolutions of small maps by windows, for any stride and for maps smaller than the kernel.

With maps in the memory order [H, W, C, N] (`samples_last.py`) the pixels under one row of a kernel
are neighbours in memory: together one matrix [k·C, N]. Each output pixel adds up at most k products
with them, and leaves out the padding. Images of few channels, where that would be thin, go through
`samples_last_conv2d`.

Gradients are the adjoint of each step. Where they may be differentiated again they come from
PyTorch's own operations.
"""

import itertools
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmargin.networks.samples_last import direct_gradients


def windows_conv2d(images: Tensor, weight: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    """Return F.conv2d(images, weight, stride, padding), by products with rows of pixels.

    Memory orders and derivatives as in `winograd_conv2d`.

    Args:
        images: [N, C, H, W] in any memory order.
        weight: [O, C, k, k].
        stride: pixels between outputs.
        padding: zeros on each side, fewer than k.
    """
    k = weight.shape[2]
    sides = images.shape[2:]
    if min(sides) + 2 * padding < k:
        raise ValueError(
            f"a {k}×{k} kernel with padding {padding} does not fit into {sides[0]}×{sides[1]} "
            "pixels"
        )
    if padding >= k:
        raise ValueError(f"the padding must be below {k} for a {k}×{k} kernel; got {padding}")
    if not images.numel():
        return F.conv2d(images, weight, stride=stride, padding=padding)
    y = _Windows.apply(images.permute(2, 3, 1, 0).contiguous(), weight, stride, padding)
    return y.permute(3, 2, 0, 1)


class Meeting(NamedTuple):
    """One row of the kernel at one output pixel, without the padding.

    y[at] takes weights[:, row, columns] · x[line, pixels].
    """

    at: tuple[int, int]
    line: int
    pixels: slice
    row: int
    columns: slice
    is_first: bool


class WindowPlan(NamedTuple):
    """What meets what in a convolution of one shape."""

    sides: tuple[int, int]  # of the result
    used: tuple[slice, slice]  # rows and columns of the kernel that meet more than padding
    meetings: list[Meeting]


@lru_cache(maxsize=64)
def _plan(sides: tuple[int, int], c: int, k: int, stride: int, padding: int) -> WindowPlan:
    down, across = (_starts(side, k, stride, padding) for side in sides)
    used = [
        slice(max(0, -max(starts)), min(k, side - min(starts)))
        for starts, side in zip((down, across), sides, strict=True)
    ]
    meetings = []
    for (p, top), (q, left) in itertools.product(enumerate(down), enumerate(across)):
        lines = range(max(top, 0), min(top + k, sides[0]))
        pixels = slice(max(left, 0), min(left + k, sides[1]))
        first_row, first_column = top + used[0].start, left + used[1].start
        columns = slice((pixels.start - first_column) * c, (pixels.stop - first_column) * c)
        meetings += [
            Meeting((p, q), line, pixels, line - first_row, columns, is_first=line == lines[0])
            for line in lines
        ]
    return WindowPlan((len(down), len(across)), (used[0], used[1]), meetings)


def _starts(side: int, k: int, stride: int, padding: int) -> list[int]:
    """Where the kernel begins, for each output along an axis."""
    return [output * stride - padding for output in range((side + 2 * padding - k) // stride + 1)]


class _Windows(torch.autograd.Function):
    """(x [H, W, C, N], w [O, C, k, k]) → y [H', W', O, N].

    One output pixel and one row of the kernel are handled at a time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
        (h, wide, c, n), (o, _, k, _) = x.shape, w.shape
        ctx.save_for_backward(x, w)
        ctx.stride, ctx.padding = stride, padding
        plan = _plan((h, wide), c, k, stride, padding)
        weights = _kernel_rows(w, plan)
        y = x.new_empty(*plan.sides, o, n)
        for at, line, pixels, row, columns, is_first in plan.meetings:
            under = x[line, pixels].view(-1, n)
            y[at].addmm_(weights[:, row, columns], under, beta=0 if is_first else 1)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        wants_x, wants_w = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # this gradient may be differentiated again
            found = direct_gradients(
                x, w, gradients[0], (wants_x, wants_w), ctx.stride, ctx.padding
            )
            return *found, None, None
        dy = gradients[0].contiguous()
        (h, wide, c, n), (o, _, k, _) = x.shape, w.shape
        plan = _plan((h, wide), c, k, ctx.stride, ctx.padding)
        weights = _kernel_rows(w, plan)
        dx, d_weights = torch.zeros_like(x), torch.zeros_like(weights)
        for at, line, pixels, row, columns, _ in plan.meetings:
            if wants_x:
                dx[line, pixels].view(-1, n).addmm_(weights[:, row, columns].T, dy[at])
            if wants_w:
                d_weights[:, row, columns].addmm_(dy[at], x[line, pixels].view(-1, n).T)
        dw = None
        if wants_w:
            dw = torch.zeros_like(w)
            used = dw[:, :, plan.used[0], plan.used[1]]
            used.copy_(d_weights.view(o, *used.shape[2:], c).permute(0, 3, 1, 2))
        return dx if wants_x else None, dw, None, None


def _kernel_rows(w: Tensor, plan: WindowPlan) -> Tensor:
    """[O, C, k, k] → [O, k, k·C], of the rows and columns that are used."""
    used = w[:, :, plan.used[0], plan.used[1]].permute(0, 2, 3, 1)
    return used.flatten(2).contiguous()
