"""Winograd convolutions, for 3×3 kernels with stride 1 on maps of 8×8 pixels and fewer.

(Winograd, 1980; Lavin & Gray, CVPR 2016.) Along one axis four outputs

    y[p] = Σ_j w[j] x[p + j],   p = 0 … 3,  j = 0 … 2

are Aᵀ((G w) ⊙ (B x)): six products where the sum has twelve. Multiplying polynomials shows why.
Those of degree 3 and 2 have a product of degree 5, which six values determine: with Eₙ, the values
of n coefficients at six points, a·w is E₆⁻¹(E₃w ⊙ E₄a), and its transpose with respect to a is the
sum above with A = E₄, G = E₃ and B = E₆⁻ᵀ. In two dimensions 36 products of matrices [O, C]·[C, N]
serve 16 pixels, instead of 144. Where a map is 2 pixels wide, the two outputs

    y[0] = w[1] x[0] + w[2] x[1] = m + (w[2] − w[1]) x[1]
    y[1] = m + (w[0] − w[1]) x[0],   m = w[1] (x[0] + x[1])

need three products instead of four: on 2×2 maps 9 instead of 16.

Maps have the memory order [H, W, C, N] (`samples_last.py`). Gradients are the adjoint of each step.
Where they may be differentiated again they come from PyTorch's own operations.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmargin.networks.samples_last import direct_gradients

# Outputs of one tile along an axis.
TILE = 4
# Where polynomials are evaluated, besides infinity: of several choices the one with the least
# rounding.
POINTS = (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2), -math.sqrt(2))


def winograd_conv2d(images: Tensor, weight: Tensor) -> Tensor:
    """Return F.conv2d(images, weight, padding=1) with a 3×3 kernel, by Winograd's products.

    There are 36 products for each 4×4 pixels, or 9 for 2×2. The result [N, O, H, W] has the memory
    order [H, W, O, N]. It is differentiable any number of times.

    Args:
        images: [N, C, H, W] in any memory order.
        weight: [O, C, 3, 3].
    """
    if tuple(weight.shape[2:]) != (3, 3):
        raise ValueError(f"weight must be [O, C, 3, 3]; got {list(weight.shape)}")
    if not images.numel():
        return F.conv2d(images, weight, padding=1)
    return _Winograd.apply(images.permute(2, 3, 1, 0).contiguous(), weight).permute(3, 2, 0, 1)


def winograd_saving(height: int, width: int) -> float:
    """Return how many times fewer products the Winograd way needs than `windows_conv2d`.

    The latter leaves out the padding.
    """
    direct = math.prod(3 * side - 2 for side in (height, width))
    return direct / math.prod(_products(side) for side in (height, width))


def _products(side: int) -> int:
    """Products along an axis of `side` pixels."""
    return 3 if side == 2 else (TILE + 2) * math.ceil(side / TILE)


class TilePart(NamedTuple):
    """What one tile reads and writes along one axis, by P products."""

    inputs: slice
    outputs: slice
    read: Tensor  # B, [P, inputs]: what lies outside of the map is 0 and left out
    write: Tensor  # Aᵀ, [outputs, P]


class TiledAxis(NamedTuple):
    """The tiles along one axis of a map."""

    parts: tuple[TilePart, ...]
    kernel: Tensor  # G, [P, 3]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # they are kept, and an evaluation may be the first to need them
def _axis(side: int, dtype: torch.dtype, device: torch.device) -> TiledAxis:
    """The tiles along an axis of `side` pixels."""
    a, g, b = (
        matrix.to(device, dtype) for matrix in (_matrices_of_2() if side == 2 else _matrices())
    )
    if side == 2:
        return TiledAxis((TilePart(slice(0, 2), slice(0, 2), b, a),), g)
    parts = []
    for start in range(0, side, TILE):
        first, last = max(start - 1, 0), min(start + TILE + 1, side)
        end = min(start + TILE, side)
        read = b[:, first - start + 1 : last - start + 1]
        parts.append(TilePart(slice(first, last), slice(start, end), read, a[: end - start]))
    return TiledAxis(tuple(parts), g)


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
            return direct_gradients(x, w, gradients[0], (wants_x, wants_w), 1, 1)
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


def _add_along(parts: tuple[TilePart, ...], j: int, tile: Tensor, rows: Tensor) -> None:
    """Add what tile j gives to the rows that it read [P, W, …].

    Rows that no tile before it read are overwritten.
    """
    part = parts[j]
    old = parts[j - 1].inputs.stop if j else 0
    shared, matrix = old - part.inputs.start, part.read.T
    if shared:
        seen = matrix[:shared]
        rows[:, part.inputs.start : old].baddbmm_(seen.expand(len(rows), *seen.shape), tile)
    _along(matrix[shared:], tile, rows[:, old : part.inputs.stop])


def _add_times(parts: tuple[TilePart, ...], i: int, rows: Tensor, x: Tensor) -> None:
    """The same along the other axis: from rows [P, W, …] to x [H, W, …]."""
    part = parts[i]
    old = parts[i - 1].inputs.stop if i else 0
    shared, matrix, flat = old - part.inputs.start, part.read.T, x.view(len(x), -1)
    if shared:
        flat[part.inputs.start : old].addmm_(matrix[:shared], rows.view(len(rows), -1))
    torch.mm(matrix[shared:], rows.view(len(rows), -1), out=flat[old : part.inputs.stop])
