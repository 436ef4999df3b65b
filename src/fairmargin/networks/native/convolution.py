"""Spectral convolution with compiled transforms and products.

The same sums as in `spectral.py`, which has the notation, with these differences: spectra have an
even length with small factors, so that fast transforms exist; the whole spectrum is found at once,
and that of x is kept for the backward pass; and factors of the inverse transform are in the
kernel's spectrum, so that the transform A and its adjoint are all there is:

    y = Aᵀ(G·A x),   dx = Aᵀ(Gᴴ·A dy),   dG = A dy·(A x)ᴴ
"""

from typing import Any

import torch
from torch import Tensor

from fairmargin.networks.direct import direct_gradients
from fairmargin.networks.native import library

# Rows of a product that are held in registers; PyTorch multiplies where channels are no multiple.
ROWS = 8
# Numbers that a transform takes at once, B vectors of spectra.c.
BLOCK = 4 * library.WIDTH
# Side of the largest maps: their transforms take a quarter of a MiB of a thread's stack, or half of
# one if the kernel is as large as the map.
LARGEST = 28


def is_possible(images: Tensor, weight: Tensor) -> bool:
    """Return whether the compiled kernels can convolve these, and were asked for.

    Args:
        images: [N, C, H, W].
        weight: [O, C, k, k].
    """
    n, _, h, w = images.shape
    o, c, k = weight.shape[:3]
    if not library.serves(images, weight) or not k <= h == w <= LARGEST:
        return False
    return n % library.WIDTH == 0 and o * c % library.WIDTH == 0


def length_of(side: int, kernel_size: int) -> int:
    """Return the length of the transforms: even, no factor above 5, with room for the kernel."""
    length = side + kernel_size // 2
    while length % 2 or not _is_smooth(length):
        length += 1
    return length


def _is_smooth(number: int) -> bool:
    for p in (2, 3, 5):
        while number % p == 0:
            number //= p
    return number == 1


class NativeSpectral(torch.autograd.Function):
    """(x [H, W, C, N], w [k, k, O, C], b [O]) → y [H, W, O, N]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        (side, _, _, n), (k, _, o, _) = x.shape, w.shape
        length = length_of(side, k)
        x_hat = _spectrum(x.contiguous(), length)
        g = _kernel_spectrum(w, side)
        y_hat = _multiply(g, x_hat, x.new_empty(2, len(g[0]), o, n))
        if b is not None:
            y_hat[0, 0] += b[:, None]
        ctx.save_for_backward(x, w, x_hat if ctx.needs_input_grad[1] else None, g)
        return _pixels(y_hat, side, length)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w, x_hat, g = ctx.saved_tensors
        wants_x, wants_w, wants_b = ctx.needs_input_grad
        if torch.is_grad_enabled():  # this gradient may be differentiated again
            return direct_gradients(x, w, gradients[0], (wants_x, wants_w, wants_b))
        side, k = len(x), len(w)
        length = length_of(side, k)
        y_hat = _spectrum(gradients[0].contiguous(), length)
        dx = dw = db = None
        if wants_b:
            db = y_hat[0, 0].sum(1)
        if wants_w:
            dg = _multiply(y_hat, x_hat, torch.empty_like(g), b_turned=True)
            dw = _kernel_pixels(dg, side, k)
        if wants_x:
            dx_hat = x.new_empty(2, len(g[0]), *x.shape[2:])
            dx = _pixels(_multiply(g, y_hat, dx_hat, a_turned=True), side, length)
        return dx, dw, db


def _kernel_spectrum(w: Tensor, side: int) -> Tensor:
    """G, times the factors of the inverse transform: [k, k, O, C] → [2, F, O, C]."""
    k, length = len(w), length_of(side, len(w))
    # A frequency stands for (−u, −v) too, unless they are the same.
    g = _spectrum((w.flip(0, 1) * (2 / length**2)).contiguous(), length, first=-(k // 2))
    g[:, _own(length)] *= 0.5
    return g


def _kernel_pixels(g: Tensor, side: int, k: int) -> Tensor:
    """The adjoint of `_kernel_spectrum`; g is changed."""
    length = length_of(side, k)
    g[:, _own(length)] *= 0.5
    return _pixels(g, k, length, first=-(k // 2)).flip(0, 1) * (2 / length**2)


def _own(length: int) -> list[int]:
    """Places of the frequencies that are their own negative."""
    half = length // 2
    return [0, half, half + 1, length + 1]


def _spectrum(x: Tensor, length: int, first: int = 0) -> Tensor:
    """A x: [side, side, P, Q] → [2, F, P, Q], real and imaginary parts."""
    side, _, p, q = x.shape
    result = x.new_empty(2, length * length // 2 + 2, p, q)
    transform, _ = library.spectra(side, length, first)
    pointers = [library.pointer(t) for t in (x, *result)]
    library.share(lambda begin, end: transform(*pointers, p * q, begin, end), p * q, BLOCK)
    return result


def _pixels(spectrum: Tensor, side: int, length: int, first: int = 0) -> Tensor:
    """Aᵀ: [2, F, P, Q] → [side, side, P, Q]."""
    p, q = spectrum.shape[2:]
    result = spectrum.new_empty(side, side, p, q)
    _, transform = library.spectra(side, length, first)
    pointers = [library.pointer(t) for t in (*spectrum, result)]
    library.share(lambda begin, end: transform(*pointers, p * q, begin, end), p * q, BLOCK)
    return result


def _multiply(
    a: Tensor, b: Tensor, out: Tensor, *, a_turned: bool = False, b_turned: bool = False
) -> Tensor:
    """A·B for every frequency; a_turned: Aᴴ·B, b_turned: A·Bᴴ."""
    f, m, n = out.shape[1:]
    k = a.shape[2 if a_turned else 3]
    if m % ROWS or n % library.WIDTH or (b_turned and k % library.WIDTH):  # colours of an image
        return _multiply_by_torch(a, b, out, a_turned, b_turned)
    kernel = library.multiply()

    def work(begin: int, end: int) -> int | None:
        of_a, of_b, of_c = ([library.pointer(part[begin]) for part in x] for x in (a, b, out))
        return kernel(end - begin, m, k, n, *of_a, int(a_turned), *of_b, int(b_turned), *of_c)

    library.share(work, f)
    return out


def _multiply_by_torch(a: Tensor, b: Tensor, out: Tensor, a_turned: bool, b_turned: bool) -> Tensor:
    (ar, ai), (br, bi) = a, b
    if a_turned:
        ar, ai = ar.mT, -ai.mT
    if b_turned:
        br, bi = br.mT, -bi.mT
    torch.bmm(ar, br, out=out[0]).baddbmm_(ai, bi, alpha=-1)
    torch.bmm(ar, bi, out=out[1]).baddbmm_(ai, br)
    return out
