"""Convolutions and pooling of small maps on a CPU, in the memory order [H, W, C, N] of `convolution`.

Maps of 8×8 pixels and fewer, as a ResNet has them for 32×32 images, leave little for a convolution to slide over; their
samples are many. With samples innermost in memory each pixel is a matrix [C, N], and a layer is products with such matrices.

**Winograd**, for 3×3 kernels with stride 1 (Winograd, 1980; Lavin & Gray, CVPR 2016). Along one axis four outputs

    y[p] = Σ_j w[j] x[p + j],   p = 0 … 3,  j = 0 … 2

are Aᵀ((G w) ⊙ (B x)): six products where the sum has twelve. Multiplying polynomials shows why. Those of degree 3 and 2 have
a product of degree 5, which six values determine: with Eₙ, the values of n coefficients at six points, a·w is
E₆⁻¹(E₃w ⊙ E₄a), and its transpose with respect to a is the sum above with A = E₄, G = E₃ and B = E₆⁻ᵀ. In two dimensions
36 products of matrices [O, C]·[C, N] serve 16 pixels, instead of 144. Where a map is 2 pixels wide, the two outputs

    y[0] = w[1] x[0] + w[2] x[1] = m + (w[2] − w[1]) x[1],   y[1] = m + (w[0] − w[1]) x[0],   m = w[1] (x[0] + x[1])

need three products instead of four: on 2×2 maps 9 instead of 16.

**Windows**, for other strides and for maps smaller than the kernel. The pixels under one row of a kernel are neighbours in
memory: together one matrix [k·C, N]. Each output pixel adds up at most k products with them, and leaves out the padding.
Images of few channels, where that would be thin, go through PyTorch's convolution; its result is put into order.

Gradients are the adjoint of each step. Where they may be differentiated again they come from PyTorch's own operations.
"""

import itertools
import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 4  # outputs of one tile along an axis
# Where polynomials are evaluated, besides infinity: of several choices the one with the least rounding.
POINTS = (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2), -math.sqrt(2))


def winograd_conv2d(images: Tensor, weight: Tensor) -> Tensor:
    """F.conv2d(images, weight, padding=1) with a 3×3 kernel, by 36 products for each 4×4 pixels, or 9 for 2×2.

    images [N, C, H, W] in any memory order → [N, O, H, W] in the memory order [H, W, O, N]. Differentiable any number of
    times.
    """
    if tuple(weight.shape[2:]) != (3, 3):
        raise ValueError(f"weight must be [O, C, 3, 3]; got {list(weight.shape)}")
    if not images.numel():
        return F.conv2d(images, weight, padding=1)
    return _Winograd.apply(images.permute(2, 3, 1, 0).contiguous(), weight).permute(3, 2, 0, 1)


def winograd_saving(height: int, width: int) -> float:
    """How many times fewer products the Winograd way needs than `windows_conv2d`, which leaves out the padding."""
    direct = math.prod(3 * side - 2 for side in (height, width))
    return direct / math.prod(_products(side) for side in (height, width))


def _products(side: int) -> int:
    """Along an axis of `side` pixels."""
    return 3 if side == 2 else (TILE + 2) * math.ceil(side / TILE)


def windows_conv2d(images: Tensor, weight: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    """F.conv2d(images, weight, stride, padding), by products with the pixels under each row of the kernel.

    Memory orders and derivatives as in `winograd_conv2d`.
    """
    k = weight.shape[2]
    sides = images.shape[2:]
    if min(sides) + 2 * padding < k:
        raise ValueError(
            f"a {k}×{k} kernel with padding {padding} does not fit into {sides[0]}×{sides[1]} pixels"
        )
    if padding >= k:
        raise ValueError(f"the padding must be below {k} for a {k}×{k} kernel; got {padding}")
    if not images.numel():
        return F.conv2d(images, weight, stride=stride, padding=padding)
    return _Windows.apply(images.permute(2, 3, 1, 0).contiguous(), weight, stride, padding).permute(
        3, 2, 0, 1
    )


def samples_last_conv2d(
    images: Tensor, weight: Tensor, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """F.conv2d(images, weight, stride, padding), PyTorch's own, with its result in the memory order [H, W, O, N]."""
    if not images.numel():
        return F.conv2d(images, weight, stride=stride, padding=padding)
    images = images.contiguous(memory_format=torch.channels_last)
    y = F.conv2d(images, weight, stride=stride, padding=padding)
    return _SamplesLast.apply(y.permute(0, 2, 3, 1)).permute(3, 2, 0, 1)


def is_samples_last(maps: Tensor) -> bool:
    """Whether maps [N, C, H, W] lie in the memory order [H, W, C, N], and not in the usual one."""
    return maps.permute(2, 3, 1, 0).is_contiguous() and not maps.is_contiguous()


def max_pool_3_2(maps: Tensor) -> Tensor:
    """F.max_pool2d(maps, 3, stride=2, padding=1), of maps in the memory order [H, W, C, N], and in that order."""
    return _MaxPool.apply(maps.permute(2, 3, 1, 0).contiguous()).permute(3, 2, 0, 1)


class Part(NamedTuple):
    """What one tile reads and writes along one axis, by P products."""

    inputs: slice
    outputs: slice
    read: Tensor  # B, [P, inputs]: what lies outside of the map is 0 and left out
    write: Tensor  # Aᵀ, [outputs, P]


class Axis(NamedTuple):
    parts: tuple[Part, ...]
    kernel: Tensor  # G, [P, 3]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # they are kept, and an evaluation may be the first to need them
def _axis(side: int, dtype: torch.dtype, device: torch.device) -> Axis:
    """The tiles along an axis of `side` pixels."""
    a, g, b = (
        matrix.to(device, dtype) for matrix in (_matrices_of_2() if side == 2 else _matrices())
    )
    if side == 2:
        return Axis((Part(slice(0, 2), slice(0, 2), b, a),), g)
    parts = []
    for start in range(0, side, TILE):
        first, last = max(start - 1, 0), min(start + TILE + 1, side)
        end = min(start + TILE, side)
        read = b[:, first - start + 1 : last - start + 1]
        parts.append(Part(slice(first, last), slice(start, end), read, a[: end - start]))
    return Axis(tuple(parts), g)


def _matrices_of_2() -> tuple[Tensor, Tensor, Tensor]:
    """Aᵀ [2, 3], G [3, 3] and B [3, 2] of a map that is 2 pixels wide."""
    a = torch.tensor([[1, 1, 0], [1, 0, 1]])
    g = torch.tensor([[0, 1, 0], [0, -1, 1], [1, -1, 0]])
    b = torch.tensor([[1, 1], [0, 1], [1, 0]])
    return a, g, b


def _matrices() -> tuple[Tensor, Tensor, Tensor]:
    """Aᵀ [4, 6], G [6, 3] and B [6, 6] in float64."""

    def values(coefficients: int) -> Tensor:
        """Of a polynomial at the points, from its coefficients; at infinity its last one."""
        powers = torch.arange(coefficients, dtype=torch.double)
        finite = torch.tensor(POINTS, dtype=torch.double)[:, None] ** powers
        infinite = (powers == coefficients - 1).double()
        return torch.cat([finite, infinite[None]])

    b = torch.linalg.inv(values(TILE + 2)).T
    # A factor of one row of B may as well stand in G: rows of equal size lose the fewest digits.
    size = b.abs().sum(1, keepdim=True)
    return values(TILE).T.contiguous(), values(3) * size, (b / size).contiguous()


class _Winograd(torch.autograd.Function):
    """(x [H, W, C, N], w [O, C, 3, 3]) → y [H, W, O, N], tile by tile, by P × Q products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        (h, wide, c, n), o = x.shape, len(w)
        down, across = (_axis(side, x.dtype, x.device) for side in (h, wide))
        p, q = len(down.kernel), len(across.kernel)
        g = _read_kernel(w, torch.kron(down.kernel, across.kernel))
        tiles = x.new_empty(len(down.parts), len(across.parts), p * q, c, n)
        product = x.new_empty(p * q, o, n)
        y = x.new_empty(h, wide, o, n)
        rows, results = x.new_empty(p, wide, c * n), x.new_empty(p, wide, o * n)
        for i, vertical in enumerate(down.parts):
            _times(vertical.read, x[vertical.inputs], rows)
            for j, horizontal in enumerate(across.parts):
                tile = tiles[i, j]
                _along(horizontal.read, rows[:, horizontal.inputs], tile.view(p, q, -1))
                torch.bmm(g, tile, out=product)
                _along(horizontal.write, product.view(p, q, -1), results[:, horizontal.outputs])
            _times(vertical.write, results, y[vertical.outputs])
        ctx.save_for_backward(x, w, tiles if ctx.needs_input_grad[1] else None)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w, tiles = ctx.saved_tensors
        wants_x, wants_w = ctx.needs_input_grad
        if torch.is_grad_enabled():  # this gradient may be differentiated again
            return _direct_gradients(x, w, gradients[0], (wants_x, wants_w), 1, 1)
        dy = gradients[0].contiguous()
        (h, wide, c, n), o = x.shape, len(w)
        down, across = (_axis(side, x.dtype, x.device) for side in (h, wide))
        p, q = len(down.kernel), len(across.kernel)
        both = torch.kron(down.kernel, across.kernel)
        g = _read_kernel(w, both)
        dg, dx = torch.empty_like(g), torch.empty_like(x)
        product, back = x.new_empty(p * q, o, n), x.new_empty(p * q, c, n)
        rows, results = x.new_empty(p, wide, c * n), x.new_empty(p, wide, o * n)
        for i, vertical in enumerate(down.parts):
            _times(vertical.write.T, dy[vertical.outputs], results)
            for j, horizontal in enumerate(across.parts):
                _along(horizontal.write.T, results[:, horizontal.outputs], product.view(p, q, -1))
                if wants_w:
                    dg.baddbmm_(product, tiles[i, j].mT, beta=1 if i or j else 0)
                if wants_x:
                    torch.bmm(g.mT, product, out=back)
                    _add_along(across.parts, j, back.view(p, q, -1), rows)
            if wants_x:
                _add_times(down.parts, i, rows, dx)
        dw = None
        if wants_w:
            taps = both.T @ dg.view(p * q, o * c)
            dw = taps.T.contiguous().view(w.shape)
        return dx if wants_x else None, dw


def _read_kernel(w: Tensor, transform: Tensor) -> Tensor:
    """[O, C, 3, 3] → [P·Q, O, C], by a matrix [P·Q, 9]."""
    o, c = w.shape[:2]
    return (transform @ w.reshape(o * c, 9).T).view(-1, o, c)


def _times(matrix: Tensor, x: Tensor, out: Tensor) -> None:
    """out [r, …] = matrix [r, s] · x [s, …]."""
    torch.mm(matrix, x.view(len(x), -1), out=out.view(len(out), -1))


def _along(matrix: Tensor, rows: Tensor, out: Tensor) -> None:
    """out [P, r, …] = matrix [r, s] · each of rows [P, s, …]."""
    # The parts of `out` may lie apart, which out= would not take without a copy.
    out.baddbmm_(matrix.expand(len(rows), *matrix.shape), rows, beta=0)


def _add_along(parts: tuple[Part, ...], j: int, tile: Tensor, rows: Tensor) -> None:
    """Add what tile j gives to the rows that it read [P, W, …]; those that no tile before it read are overwritten."""
    part = parts[j]
    old = parts[j - 1].inputs.stop if j else 0
    shared, matrix = old - part.inputs.start, part.read.T
    if shared:
        seen = matrix[:shared]
        rows[:, part.inputs.start : old].baddbmm_(seen.expand(len(rows), *seen.shape), tile)
    _along(matrix[shared:], tile, rows[:, old : part.inputs.stop])


def _add_times(parts: tuple[Part, ...], i: int, rows: Tensor, x: Tensor) -> None:
    """The same along the other axis: from rows [P, W, …] to x [H, W, …]."""
    part = parts[i]
    old = parts[i - 1].inputs.stop if i else 0
    shared, matrix, flat = old - part.inputs.start, part.read.T, x.view(len(x), -1)
    if shared:
        flat[part.inputs.start : old].addmm_(matrix[:shared], rows.view(len(rows), -1))
    torch.mm(matrix[shared:], rows.view(len(rows), -1), out=flat[old : part.inputs.stop])


class Meeting(NamedTuple):
    """One row of the kernel at one output pixel, without the padding: y[at] takes weights[:, row, columns] · x[line, pixels]."""

    at: tuple[int, int]
    line: int
    pixels: slice
    row: int
    columns: slice
    is_first: bool


class Plan(NamedTuple):
    sides: tuple[int, int]  # of the result
    used: tuple[slice, slice]  # rows and columns of the kernel that meet more than padding
    meetings: list[Meeting]


@lru_cache(maxsize=64)
def _plan(sides: tuple[int, int], c: int, k: int, stride: int, padding: int) -> Plan:
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
    return Plan((len(down), len(across)), (used[0], used[1]), meetings)


def _starts(side: int, k: int, stride: int, padding: int) -> list[int]:
    """Where the kernel begins, for each output along an axis."""
    return [output * stride - padding for output in range((side + 2 * padding - k) // stride + 1)]


class _Windows(torch.autograd.Function):
    """(x [H, W, C, N], w [O, C, k, k]) → y [H', W', O, N], one output pixel and one row of the kernel at a time."""

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
            found = _direct_gradients(
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


def _kernel_rows(w: Tensor, plan: Plan) -> Tensor:
    """[O, C, k, k] → [O, k, k·C], of the rows and columns that are used."""
    used = w[:, :, plan.used[0], plan.used[1]].permute(0, 2, 3, 1)
    return used.flatten(2).contiguous()


class _SamplesLast(torch.autograd.Function):
    """[N, H, W, C] → [H, W, C, N]: transposed as a matrix, several times as fast as a copy with four axes; and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, h, wide, c = x.shape
        return x.reshape(n, -1).T.contiguous().view(h, wide, c, n)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor]:
        h, wide, c, n = gradients[0].shape
        return (gradients[0].reshape(-1, n).T.contiguous().view(n, h, wide, c),)


class _MaxPool(torch.autograd.Function):
    """The largest of 3×3 pixels, with stride 2 and padding 1: [H, W, C, N] → [(H + 1)/2, (W + 1)/2, C, N].

    First along lines, then across them. Of equal pixels the first one has the gradient, as in PyTorch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        h, wide, c, n = x.shape
        lines = x.new_empty(h, (wide + 1) // 2, c, n)
        for line, out in zip(x, lines, strict=True):
            _largest(line, out)
        y = x.new_empty((h + 1) // 2, *lines.shape[1:])
        _largest(lines, y)
        ctx.save_for_backward(x, lines, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, lines, y = ctx.saved_tensors
        dy = gradients[0]
        if torch.is_grad_enabled():  # this gradient may be differentiated again
            maps, back = (t.permute(3, 2, 0, 1) for t in (x, dy))
            sizes = [3, 3], [2, 2], [1, 1], [1, 1], False
            _, where = torch.ops.aten.max_pool2d_with_indices(maps, *sizes)
            dx = torch.ops.aten.max_pool2d_with_indices_backward(
                back.contiguous(), maps.contiguous(), *sizes, where
            )
            return (dx.permute(2, 3, 1, 0),)
        d_lines, dx = torch.empty_like(lines), torch.empty_like(x)
        _to_largest(dy.contiguous(), lines, y, d_lines)
        for d_line, line, out, d in zip(d_lines, x, lines, dx, strict=True):
            _to_largest(d_line, line, out, d)
        return (dx,)


def _largest(x: Tensor, out: Tensor) -> None:
    """Of x[2i − 1], x[2i] and x[2i + 1], along the first axis."""
    even, odd = x[::2], x[1::2]
    torch.maximum(even[: len(odd)], odd, out=out[: len(odd)])
    out[len(odd) :] = even[len(odd) :]
    torch.maximum(out[1:], odd[: len(out) - 1], out=out[1:])


def _to_largest(dy: Tensor, x: Tensor, y: Tensor, out: Tensor) -> None:
    """The adjoint of `_largest`: dy goes to the first pixel that equals y."""
    even, odd = x[::2], x[1::2]
    d_even, d_odd = out[::2], out[1::2]
    before = len(y) - 1  # outputs that have a pixel before them
    # 0 and 1 as numbers: several times as fast as products with booleans.
    of_before = torch.eq(odd[:before], y[1:], out=torch.empty_like(y[1:])).mul_(dy[1:])
    rest = torch.cat([dy[:1], dy[1:] - of_before])
    torch.eq(even, y, out=d_even).mul_(rest)
    torch.sub(rest[: len(odd)], d_even[: len(odd)], out=d_odd)
    d_odd[:before] += of_before


def _direct_gradients(
    x: Tensor, w: Tensor, dy: Tensor, wanted: tuple[bool, bool], stride: int, padding: int
) -> tuple[Tensor | None, ...]:
    """The gradients by PyTorch's own convolutions, which autograd can differentiate."""
    images, back = (t.permute(3, 2, 0, 1) for t in (x, dy))
    dx, dw, _ = torch.ops.aten.convolution_backward(
        back,
        images,
        w,
        None,
        [stride] * 2,
        [padding] * 2,
        [1, 1],
        False,
        [0, 0],
        1,
        [*wanted, False],
    )
    return dx.permute(2, 3, 1, 0) if wanted[0] else None, dw if wanted[1] else None
