"""Spectral convolutions, for 5×5 kernels and larger.

A "same" convolution with an odd kernel k = 2r + 1 is, along one axis of n pixels,

    y[p] = Σ_j w[j] x[p + j − r],   p = 0 … n−1,  j = 0 … k−1,  x = 0 outside

Circular indices modulo L = n + r give the same y: p + j − r runs from −r to n + r − 1, and the r
zeros behind the image serve both sides. A circular sum is a product of spectra, so in two
dimensions, for each pair of frequencies (u, v),

    Y[o, n] = Σ_c G[o, c] X[c, n],   X = Σ_pq x[p, q] e^(−2πi(up + vq)/L)
                                     G = Σ_jl w[j, l] e^(+2πi(u(j−r) + v(l−r))/L)

is a complex matrix product over channels: four real ones, or three and more sums. Of 28×28
positions times 49 taps, 38,416 multiplications for each pair of channels, at most 4 · 16 · 31 =
1,984 remain.

Gradients are the adjoint of each step: with x̂ = A x, ŷ = G x̂, y = S ŷ they are dŷ = Sᵀ dy, dx̂ =
Gᴴ dŷ, dG = dŷ x̂ᴴ, dx = Aᵀ dx̂. Of x̂ only the first half of its transform, along one axis, is kept
for the backward pass: all of it would take more memory than the activations. Where compiled
kernels were asked for, they take over (native/convolution.py).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmargin.networks.direct import direct_gradients
from fairmargin.networks.native.convolution import NativeSpectral, is_possible
from fairmargin.networks.spectra import (
    Complex,
    Spectrum,
    restore_rows,
    transform_rows,
    transforms_of,
)

# Channels from which one multiplication less is worth more sums.
MANY_CHANNELS = 32


def spectral_conv2d(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return F.conv2d(images, weight, bias, padding="same"), by products of spectra.

    The result [N, O, H, W] has the memory order [H, W, O, N]. It is differentiable any number of
    times.

    Args:
        images: [N, C, H, W] in any memory order.
        weight: [O, C, k, k], k odd.
        bias: [O], or None.
    """
    k = weight.shape[-1]
    if weight.ndim != 4 or weight.shape[2] != k or k % 2 == 0:
        raise ValueError(f"weight must be [O, C, k, k] with k odd; got {list(weight.shape)}")
    if images.ndim != 4 or images.shape[1] != weight.shape[1]:
        raise ValueError(
            f"images must be [N, {weight.shape[1]}, H, W] for this weight; got {list(images.shape)}"
        )
    if not images.numel():
        return F.conv2d(images, weight, bias, padding=k // 2)
    convolve = NativeSpectral if is_possible(images, weight) else _Spectral
    y = convolve.apply(images.permute(2, 3, 1, 0), weight.permute(2, 3, 0, 1), bias)
    return y.permute(3, 2, 0, 1)


def spectral_saving(shape: torch.Size, out_channels: int, kernel_size: int) -> float:
    """Return how many times fewer multiplications the spectral way needs.

    Args:
        shape: [N, C, H, W] of the images.
    """
    n, c, h, w = shape
    o, k = out_channels, kernel_size
    u, v = (h + k // 2) // 2 + 1, w + k // 2
    transforms = (c + o) * n * u * (2 * h * w + 2 * v * w) + c * o * u * (2 * k * k + 2 * v * k)
    return h * w * k * k * c * o * n / max(4 * u * v * c * o * n + transforms, 1)


class _Spectral(torch.autograd.Function):
    """(x [H, W, C, N], w [k, k, O, C], b [O]) → y [H, W, O, N].

    Rows are transformed all at once; everything behind them is done for one frequency u after the
    other, so that what one product writes is still in the cache for the next.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        (h, wide, c, n), (k, _, o, _) = x.shape, w.shape
        t = transforms_of(h, wide, k, x.dtype, x.device)
        of_x, of_w = transform_rows(x, t.image), transform_rows(w, t.kernel)
        of_y = x.new_empty(t.frequencies, 2, wide, o * n)
        x_hat, g, y_hat = (Spectrum(x, t.columns, *pair) for pair in ((c, n), (o, c), (o, n)))
        for u, (x_rows, w_rows, y_rows) in enumerate(zip(of_x, of_w, of_y, strict=True)):
            x_hat.read(x_rows, t.image)
            g.read(w_rows, t.kernel)
            for halves in zip(g.halves, x_hat.halves, y_hat.halves, strict=True):
                _multiply(*halves)
            if b is not None and u == 0:  # a constant is the frequency 0
                y_hat.values[0, 0] += b[:, None] * t.area
            y_hat.write(y_rows, t.result)
        ctx.save_for_backward(x, w)
        # Rows take as much memory as x; their spectra, twice as much, are found again in the
        # backward pass.
        ctx.of_x = of_x if ctx.needs_input_grad[1] else None
        return restore_rows(of_y, t.result).view(h, wide, o, n)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        wants_x, wants_w, wants_b = ctx.needs_input_grad
        if torch.is_grad_enabled():  # this gradient may be differentiated again
            return direct_gradients(x, w, gradients[0], (wants_x, wants_w, wants_b))
        (h, wide, c, n), (k, _, o, _) = x.shape, w.shape
        t = transforms_of(h, wide, k, x.dtype, x.device)
        of_y, of_x = transform_rows(gradients[0], t.result), ctx.of_x
        ctx.of_x = None  # its memory will hold the rows of dx
        if of_x is None:
            of_x = (
                transform_rows(x, t.image)
                if wants_w
                else x.new_empty(t.frequencies, 2, wide, c * n)
            )
        of_w = transform_rows(w, t.kernel) if wants_x else x.new_empty(t.frequencies, 2, k, o * c)
        x_hat, g, dg, y_hat = (
            Spectrum(x, t.columns, *pair) for pair in ((c, n), (o, c), (o, c), (o, n))
        )
        db = None
        for u, (x_rows, w_rows, y_rows) in enumerate(zip(of_x, of_w, of_y, strict=True)):
            y_hat.read(y_rows, t.result)
            if wants_b and u == 0:
                db = y_hat.values[0, 0].sum(1) * t.area
            if wants_x:
                g.read(w_rows, t.kernel)
            if wants_w:
                x_hat.read(x_rows, t.image)
                for halves in zip(dg.halves, x_hat.halves, y_hat.halves, strict=True):
                    _multiply_for_weights(*halves)
                dg.write(w_rows, t.kernel)
            if wants_x:
                for halves in zip(g.halves, x_hat.halves, y_hat.halves, strict=True):
                    _multiply_for_input(*halves)
                x_hat.write(x_rows, t.image)
        dx = restore_rows(of_x, t.image).view(x.shape) if wants_x else None
        dw = restore_rows(of_w, t.kernel).view(w.shape) if wants_w else None
        return dx, dw, db


def _multiply(g: Complex, x: Complex, y: Complex) -> None:
    """y = g·x for every frequency, [V, O, C]·[V, C, N] → [V, O, N]."""
    (gr, gi), (xr, xi), (yr, yi) = g, x, y
    if _three_are_faster(gr):
        torch.bmm(gr, xr + xi, out=yi)
        torch.baddbmm(yi, gr + gi, xi, alpha=-1, out=yr)
        yi.baddbmm_(gi - gr, xr)
        return
    torch.bmm(gr, xr, out=yr).baddbmm_(gi, xi, alpha=-1)
    torch.bmm(gr, xi, out=yi).baddbmm_(gi, xr)


def _multiply_for_input(g: Complex, x: Complex, y: Complex) -> None:
    """x = gᴴ·y."""
    (gr, gi), (xr, xi), (yr, yi) = g, x, y
    if _three_are_faster(gr):
        torch.bmm(gr.mT, yr + yi, out=xi)
        torch.baddbmm(xi, (gi - gr).mT, yi, out=xr)
        xi.baddbmm_((gr + gi).mT, yr, alpha=-1)
        return
    torch.bmm(gr.mT, yr, out=xr).baddbmm_(gi.mT, yi)
    torch.bmm(gr.mT, yi, out=xi).baddbmm_(gi.mT, yr, alpha=-1)


def _multiply_for_weights(g: Complex, x: Complex, y: Complex) -> None:
    """g = y·xᴴ."""
    (gr, gi), (xr, xi), (yr, yi) = g, x, y
    if _three_are_faster(gr):
        torch.bmm(yr + yi, xr.mT, out=gi)
        torch.baddbmm(gi, yi, (xi - xr).mT, out=gr)
        gi.baddbmm_(yr, (xr + xi).mT, alpha=-1)
        return
    torch.bmm(yr, xr.mT, out=gr).baddbmm_(yi, xi.mT)
    torch.bmm(yi, xr.mT, out=gi).baddbmm_(yr, xi.mT, alpha=-1)


def _three_are_faster(g: Tensor) -> bool:
    """Whether to take three real products for a complex one, and more sums, as Gauss did:

    with p = gr·(xr + xi),   yr = p − (gr + gi)·xi,   yi = p + (gi − gr)·xr
    """
    return min(g.shape[1:]) >= MANY_CHANNELS
