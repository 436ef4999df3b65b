"""Convolutions on a CPU: the same numbers from several times fewer operations.

**Spectral**, for 5×5 kernels and larger. A "same" convolution with an odd kernel k = 2r + 1 is, along one axis of n pixels,

    y[p] = Σ_j w[j] x[p + j − r],   p = 0 … n−1,  j = 0 … k−1,  x = 0 outside

Circular indices modulo L = n + r give the same y: p + j − r runs from −r to n + r − 1, and the r zeros behind the image
serve both sides. A circular sum is a product of spectra, so in two dimensions, for each pair of frequencies (u, v),

    Y[o, n] = Σ_c G[o, c] X[c, n],   X = Σ_pq x[p, q] e^(−2πi(up + vq)/L),   G = Σ_jl w[j, l] e^(+2πi(u(j−r) + v(l−r))/L)

is a complex matrix product over channels: four real ones. Real images need only u = 0 … L/2. Of 28×28 positions times 49
taps, 38,416 multiplications for each pair of channels, 4 · 16 · 31 = 1,984 remain.

The transforms are products with small matrices of cosines and sines, along one axis and then the other. With pixels in
the memory order [H, W, C, N] neither they nor the products over channels need anything rearranged. So that layers do not
rearrange either, results keep that order behind the usual shape [N, C, H, W]; `BatchNorm2d` here reads it as it is.

Gradients are the adjoint of each step: with x̂ = A x, ŷ = G x̂, y = S ŷ they are dŷ = Sᵀ dy, dx̂ = Gᴴ dŷ, dG = dŷ x̂ᴴ,
dx = Aᵀ dx̂. x̂ is computed again in the backward pass: that takes a tenth of the time, and keeping it would take more
memory than the activations.

**Unrolled**, for maps smaller than the kernel, such as the 2×2 and 1×1 maps at the end of a ResNet-18 on 32×32 images. A
direct convolution multiplies most of its weights by the zeros around them. Here every pair of an output and an input pixel
has its weight in one matrix, and the layer is one product with it.
"""

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.choices import check_choice

Algorithm = Literal["auto", "direct", "spectral", "unrolled"]
LARGE = 5  # 3×3 kernels save little, and their networks rearrange memory between layers
CACHED = 49  # positions whose squares are added up before they leave the cache
PARTS = 3  # of a spectrum, one after the other: less memory at once, and in smaller pieces
WORTH = 1.6  # times fewer multiplications pay: small products and transforms reach half the rate of direct convolutions


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` that takes the fastest of three exact ways, by shape; on a GPU always PyTorch's own.

    Args:
        algorithm: "auto" chooses; "direct" is PyTorch's; "spectral" insists, and refuses what it cannot do; so does
            "unrolled", which can do everything but needs memory for (pixels of a map)² weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        algorithm: Algorithm = "auto",
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=bias)
        check_choice(algorithm, "algorithm", ("auto", "direct", "spectral", "unrolled"))
        self.algorithm = algorithm
        if algorithm == "spectral" and (why := self._not_spectral()):
            raise ValueError(f"a spectral convolution {why}; choose algorithm=auto")

    def forward(self, images: Tensor) -> Tensor:
        chosen = self.choice(images) if self.algorithm == "auto" else self.algorithm
        if chosen == "spectral":
            return spectral_conv2d(images, self.weight, self.bias)
        if chosen == "unrolled":
            return unrolled_conv2d(images, self.weight, self.bias, stride=self.stride[0], padding=int(self.padding[0]))
        return super().forward(images)

    def choice(self, images: Tensor) -> Algorithm:
        """What "auto" takes for these images."""
        if images.device.type != "cpu" or images.ndim != 4 or images.dtype not in (torch.float32, torch.float64):
            return "direct"
        if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
            return "direct"
        k, (h, w) = self.kernel_size[0], images.shape[2:]
        if k * k >= WORTH * h * w:
            return "unrolled"
        if k >= LARGE and not self._not_spectral() and saving(images.shape, self.out_channels, k) >= WORTH:
            return "spectral"
        return "direct"

    def _not_spectral(self) -> str:
        """Why this layer has no spectral form, if it has none."""
        k = self.kernel_size[0]
        if self.stride != (1, 1):
            return f"has stride 1; got stride {self.stride[0]}"
        if k % 2 == 0:
            return f"has a kernel of odd size; got {k}×{k}"
        if self.padding != (k // 2, k // 2):
            return f"keeps the size of the image, with padding {k // 2} here; got padding {self.padding[0]}"
        return ""


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` that reads the memory order of spectral convolutions without a copy, and finds its statistics faster."""

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.permute(2, 3, 1, 0)  # [H, W, C, N]
        if not pixels.is_contiguous() or x.is_contiguous():
            return super().forward(x)
        h, w, c, n = pixels.shape
        # Statistics are over all but the channel, so positions may stand where samples do.
        maps = pixels.reshape(h * w, c, n, 1)
        usual = self.momentum is not None and self.track_running_stats and self.affine
        y = self._of_batch(maps) if self.training and usual and x.device.type == "cpu" else super().forward(maps)
        return y.view(h, w, c, n).permute(3, 2, 0, 1)

    def _of_batch(self, maps: Tensor) -> Tensor:
        """By the batch's own statistics, which also move the running ones."""
        y, mean, variance = _Normalise.apply(maps, self.weight, self.bias, self.eps)
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            assert self.momentum is not None
            number = maps.numel() // maps.shape[1]
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (number / max(number - 1, 1)), self.momentum)
            self.num_batches_tracked += 1
        return y


class _Normalise(torch.autograd.Function):
    """PyTorch's batch norm of [P, C, N, 1], with means and variances from sums along P, which are faster to add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        p, c, n, _ = x.shape
        rows = x.view(p, c * n)
        over_samples = lambda sums: sums.view(c, n).sum(1) / (p * n)
        mean = over_samples(rows.sum(0))
        each = mean.repeat_interleave(n)
        squares = torch.zeros_like(each)
        for part in rows.split(CACHED):
            squares += (part - each).square_().sum(0)
        variance = over_samples(squares)
        y = torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt())
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        found = torch.ops.aten.native_batch_norm_backward(
            gradients[0].contiguous(), x, weight, None, None, mean, scale, True, ctx.eps, wanted
        )
        return *found, None


def mean_over_positions(maps: Tensor) -> Tensor:
    """[N, C, H, W] → [N, C], with gradients in the memory order of the maps."""
    pixels = maps.permute(2, 3, 1, 0)
    if not pixels.is_contiguous():
        return maps.mean((2, 3))
    means = pixels.mean((0, 1))  # [C, N]
    if means.requires_grad:  # or every pixel's gradient would lie in the order of the transposed one
        means.register_hook(Tensor.contiguous)
    return means.T


def saving(shape: torch.Size, out_channels: int, kernel_size: int) -> float:
    """How many times fewer multiplications the spectral way needs for images of `shape` [N, C, H, W]."""
    n, c, h, w = shape
    o, k = out_channels, kernel_size
    u, v = (h + k // 2) // 2 + 1, w + k // 2
    transforms = (c + o) * n * u * (2 * h * w + 4 * v * w) + c * o * u * (2 * k * k + 4 * v * k)
    return h * w * k * k * c * o * n / max(4 * u * v * c * o * n + transforms, 1)


def spectral_conv2d(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.conv2d(images, weight, bias, padding="same") with an odd square kernel, by products of spectra.

    images [N, C, H, W] in any memory order → [N, O, H, W] in the memory order [H, W, O, N]. Differentiable any number of
    times.
    """
    k = weight.shape[-1]
    if weight.ndim != 4 or weight.shape[2] != k or k % 2 == 0:
        raise ValueError(f"weight must be [O, C, k, k] with k odd; got {list(weight.shape)}")
    if images.ndim != 4 or images.shape[1] != weight.shape[1]:
        raise ValueError(f"images must be [N, {weight.shape[1]}, H, W] for this weight; got {list(images.shape)}")
    if not images.numel():
        return F.conv2d(images, weight, bias, padding=k // 2)
    return _Spectral.apply(images.permute(2, 3, 1, 0), weight.permute(2, 3, 0, 1), bias).permute(3, 2, 0, 1)


def unrolled_conv2d(
    images: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """F.conv2d(images, weight, bias, stride, padding) as one product with a matrix [O·H'·W', C·H·W]."""
    n, c, h, w = images.shape
    o, k = weight.shape[0], weight.shape[2]
    taps = _taps(h, w, k, stride, padding, images.device)  # [H', W', H·W]
    tall, wide, inputs = taps.shape
    each = F.pad(weight.flatten(2), (0, 1)).index_select(2, taps.flatten())  # [O, C, H'W'·HW]
    matrix = each.view(o, c, tall * wide, inputs).transpose(1, 2).reshape(o * tall * wide, c * inputs)
    shift = None if bias is None else bias.repeat_interleave(tall * wide)
    return F.linear(images.reshape(n, c * inputs), matrix, shift).view(n, o, tall, wide)


@lru_cache(maxsize=64)
def _taps(h: int, w: int, k: int, stride: int, padding: int, device: torch.device) -> Tensor:
    """Which of the k² weights joins an output to an input pixel, [H', W', H·W]; k², behind them, where none does."""
    tall, wide = ((side + 2 * padding - k) // stride + 1 for side in (h, w))
    if tall < 1 or wide < 1:
        raise ValueError(f"a {k}×{k} kernel with padding {padding} does not fit into {h}×{w} pixels")

    def along(outputs: int, side: int) -> Tensor:
        return torch.arange(side) - stride * torch.arange(outputs)[:, None] + padding  # [outputs, side]

    with torch.inference_mode(False):  # it is kept, and an evaluation may be the first to need it
        row, column = along(tall, h)[:, None, :, None], along(wide, w)[None, :, None, :]
        inside = (row >= 0) & (row < k) & (column >= 0) & (column < k)
        return torch.where(inside, row * k + column, k * k).flatten(2).to(device)


class _Spectral(torch.autograd.Function):
    """(x [H, W, C, N], w [k, k, O, C], b [O]) → y [H, W, O, N].

    Written with what autograd knows, from inputs alone, so that a gradient can be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        y = None
        for t in _transforms(*x.shape[:2], w.shape[0], x.dtype, x.device):
            xr, xi = _spectrum(x, t.image)  # [UV, C, N]
            gr, gi = _spectrum(w, t.kernel)  # [UV, O, C]
            spectrum = [torch.bmm(gr, xr).baddbmm_(gi, xi, alpha=-1), torch.bmm(gr, xi).baddbmm_(gi, xr)]
            del xr, xi
            if b is not None and y is None:  # a constant is the frequency 0
                spectrum[0][0] += b[:, None] * t.area
            y = _pixels(spectrum, t.result, y)
        assert y is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        wants_x, wants_w, wants_b = ctx.needs_input_grad
        dx = dw = db = None
        for t in _transforms(*x.shape[:2], w.shape[0], x.dtype, x.device):
            yr, yi = _spectrum(gradients[0], t.result)
            if wants_w:
                xr, xi = (part.transpose(1, 2) for part in _spectrum(x, t.image))
                dg = [torch.bmm(yr, xr).baddbmm_(yi, xi), torch.bmm(yi, xr).baddbmm_(yr, xi, alpha=-1)]
                del xr, xi
                dw = _pixels(dg, t.kernel, dw)
            if wants_b and db is None:
                db = yr[0].sum(1) * t.area
            if wants_x:
                gr, gi = (part.transpose(1, 2) for part in _spectrum(w, t.kernel))
                spectrum = [torch.bmm(gr, yr).baddbmm_(gi, yi), torch.bmm(gr, yi).baddbmm_(gi, yr, alpha=-1)]
                del yr, yi
                dx = _pixels(spectrum, t.image, dx)
        return dx, dw, db


class Transform(NamedTuple):
    """From pixels [h, w] to some rows [U, V] of half a spectrum, and by the transposed matrices back."""

    rows: Tensor  # [2U, h], real and imaginary parts in turn
    real: Tensor  # [V, 2w], of columns given as (real part, imaginary part)
    imaginary: Tensor  # [V, 2w]


class Transforms(NamedTuple):
    image: Transform  # A
    kernel: Transform
    result: Transform  # Sᵀ
    area: int  # pixels with the zeros behind them


def _spectrum(x: Tensor, by: Transform) -> tuple[Tensor, Tensor]:
    """[h, w, P, Q] → real and imaginary part, [UV, P, Q] each."""
    h, w, p, q = x.shape
    rows = (by.rows @ x.reshape(h, w * p * q)).view(-1, 2 * w, p * q)  # [U, 2w, PQ]
    over = lambda matrix: matrix.expand(len(rows), *matrix.shape)
    return torch.bmm(over(by.real), rows).view(-1, p, q), torch.bmm(over(by.imaginary), rows).view(-1, p, q)


def _pixels(parts: list[Tensor], by: Transform, onto: Tensor | None) -> Tensor:
    """The adjoint of `_spectrum`: (real, imaginary), [UV, P, Q] each, → [h, w, P, Q], added to `onto`.

    The list is emptied, so that the spectrum's memory is free before the result needs some.
    """
    imaginary, real = parts.pop(), parts.pop()
    _, p, q = real.shape
    u, (v, both) = by.rows.shape[0] // 2, by.real.shape
    over = lambda matrix: matrix.T.expand(u, both, v)
    columns = torch.bmm(over(by.real), real.view(u, v, p * q))
    del real
    columns = columns.baddbmm_(over(by.imaginary), imaginary.view(u, v, p * q)).view(2 * u, -1)  # [U·2, w·PQ]
    del imaginary
    if onto is None:
        return (by.rows.T @ columns).view(-1, both // 2, p, q)
    onto.view(len(onto), -1).addmm_(by.rows.T, columns)
    return onto


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # they are kept, and an evaluation may be the first to need them
def _transforms(h: int, w: int, k: int, dtype: torch.dtype, device: torch.device) -> list[Transforms]:
    """Between pixels and spectra, for `PARTS` of the frequencies u in turn; the first holds u = v = 0 at its start."""
    tall, wide = h + k // 2, w + k // 2
    frequencies = tall // 2 + 1

    def transform(rows: int, columns: int, sign: int, shift: int) -> Transform:
        cos, sin = _waves(tall, frequencies, rows, sign, shift)
        both = torch.stack([cos, sin], 1).flatten(0, 1)
        cos, sin = _waves(wide, wide, columns, sign, shift)
        return Transform(both, torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1))

    image, kernel = transform(h, w, -1, 0), transform(k, k, 1, -(k // 2))
    # A frequency u stands for −u too, unless they are the same.
    twice = torch.tensor([1.0 if u == -u % tall else 2.0 for u in range(frequencies)], dtype=torch.double)
    result = image._replace(rows=image.rows * twice.repeat_interleave(2)[:, None] / (tall * wide))
    each = 2 * -(-frequencies // PARTS)

    def part(one: Transform, first: int) -> Transform:
        some = one._replace(rows=one.rows[first : first + each])
        return Transform(*(matrix.to(device, dtype) for matrix in some))

    return [
        Transforms(part(image, first), part(kernel, first), part(result, first), tall * wide)
        for first in range(0, 2 * frequencies, each)
    ]


def _waves(length: int, frequencies: int, points: int, sign: int, shift: int) -> tuple[Tensor, Tensor]:
    """cos and sin of ±2π·u·(p + shift)/length, [frequencies, points]."""
    turns = (
        torch.outer(torch.arange(frequencies), torch.arange(points) + shift) % length
    )  # whole ones would cost digits
    angle = turns.double() * (sign * 2 * math.pi / length)
    return angle.cos(), angle.sin()
