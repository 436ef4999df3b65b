"""Convolutions on a CPU: the same numbers from several times fewer operations.

**Spectral**, for 5×5 kernels and larger. A "same" convolution with an odd kernel k = 2r + 1 is, along one axis of n pixels,

    y[p] = Σ_j w[j] x[p + j − r],   p = 0 … n−1,  j = 0 … k−1,  x = 0 outside

Circular indices modulo L = n + r give the same y: p + j − r runs from −r to n + r − 1, and the r zeros behind the image
serve both sides. A circular sum is a product of spectra, so in two dimensions, for each pair of frequencies (u, v),

    Y[o, n] = Σ_c G[o, c] X[c, n],   X = Σ_pq x[p, q] e^(−2πi(up + vq)/L),   G = Σ_jl w[j, l] e^(+2πi(u(j−r) + v(l−r))/L)

is a complex matrix product over channels: four real ones, or three and more sums. Real images need only u = 0 … L/2. Of
28×28 positions times 49 taps, 38,416 multiplications for each pair of channels, at most 4 · 16 · 31 = 1,984 remain.

The transforms are products with small matrices of cosines and sines, along one axis and then the other; v and −v share
theirs. With pixels in the memory order [H, W, C, N] neither they nor the products over channels need anything rearranged.
So that layers do not rearrange either, results keep that order behind the usual shape [N, C, H, W]; `BatchNorm2d` here
reads it as it is, and applies the activation in the same pass.

Gradients are the adjoint of each step: with x̂ = A x, ŷ = G x̂, y = S ŷ they are dŷ = Sᵀ dy, dx̂ = Gᴴ dŷ, dG = dŷ x̂ᴴ,
dx = Aᵀ dx̂. Of x̂ only the first half of its transform, along one axis, is kept for the backward pass: all of it would take
more memory than the activations.

**Unrolled**, for maps smaller than the kernel, such as the 2×2 and 1×1 maps at the end of a ResNet-18 on 32×32 images, in
batches too small for what `small_maps` does. A direct convolution multiplies most of its weights by the zeros around them.
Here every pair of an output and an input pixel has its weight in one matrix, and the layer is one product with it.
"""

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.networks.small_maps import (
    is_samples_last,
    samples_last_conv2d,
    windows_conv2d,
    winograd_conv2d,
    winograd_saving,
)

Algorithm = Literal["auto", "direct", "spectral", "unrolled", "winograd", "windows", "samples-last"]
Activation = Literal["none", "relu", "tanh"]
Complex = tuple[Tensor, Tensor]  # real and imaginary part
LARGE = 5  # 3×3 kernels save little, and their networks rearrange memory between layers
CACHED = 1 << 18  # numbers that go through several operations before they leave the cache
MANY = 32  # channels, from which a multiplication less is worth more sums
CHUNK = 8192  # numbers of a row transformed at once: few enough to stay in the cache
SAMPLES = 64  # of a batch, from which products of matrices [C, N] are fast
SMALL = 8 * 8  # pixels of a map that 3×3 kernels take in tiles
COLOURS = 4  # channels of an image, at most
SMALL_IMAGE = 32 * 32  # pixels of an image whose maps will be small
WORTH = 1.6  # times fewer multiplications pay: small products and transforms reach half the rate of direct convolutions


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` that takes the fastest of several exact ways, by shape; on a GPU always PyTorch's own.

    Args:
        algorithm: "auto" chooses; "direct" is PyTorch's; the others insist. "spectral" and "winograd" refuse what they
            cannot do. "unrolled" can do everything but needs memory for (pixels of a map)² weights. "windows" and
            "samples-last" (see `small_maps`) can do everything, and return the memory order [H, W, C, N].
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
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=bias
        )
        check_choice(algorithm, "algorithm", get_args(Algorithm))
        self.algorithm = algorithm
        if algorithm == "winograd" and (why := self._not_winograd()):
            raise ValueError(f"a Winograd convolution {why}; choose algorithm=auto")
        if algorithm == "spectral" and (why := self._not_spectral()):
            raise ValueError(f"a spectral convolution {why}; choose algorithm=auto")

    def forward(self, images: Tensor) -> Tensor:
        chosen = self.choice(images) if self.algorithm == "auto" else self.algorithm
        options = {"stride": self.stride[0], "padding": int(self.padding[0])}
        if chosen == "spectral":
            return spectral_conv2d(images, self.weight, self.bias)
        if chosen == "unrolled":
            return unrolled_conv2d(images, self.weight, self.bias, **options)
        if chosen == "winograd":
            y = winograd_conv2d(images, self.weight)
        elif chosen == "windows":
            y = windows_conv2d(images, self.weight, **options)
        elif chosen == "samples-last":
            y = samples_last_conv2d(images, self.weight, **options)
        else:
            return super().forward(images)
        return y if self.bias is None else y + self.bias[:, None, None]

    def choice(self, images: Tensor) -> Algorithm:
        """What "auto" takes for these images."""
        if (
            images.device.type != "cpu"
            or images.ndim != 4
            or images.dtype not in (torch.float32, torch.float64)
        ):
            return "direct"
        if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
            return "direct"
        k, (n, c, h, w) = self.kernel_size[0], images.shape
        is_smaller_than_kernel = k * k >= WORTH * h * w
        by_spectra = (
            k >= LARGE
            and not self._not_spectral()
            and saving(images.shape, self.out_channels, k) >= WORTH
        )
        if n >= SAMPLES and min(c, self.out_channels) >= MANY:
            if not self._not_winograd() and h * w <= SMALL and winograd_saving(h, w) >= WORTH:
                return "winograd"
            in_order = is_samples_last(images) and not by_spectra
            if int(self.padding[0]) < k and (is_smaller_than_kernel or in_order):
                return "windows"
        if is_smaller_than_kernel:
            return "unrolled"
        if by_spectra:
            return "spectral"
        # The stem of a network whose maps will be small.
        if (
            n >= SAMPLES
            and c <= COLOURS
            and k >= LARGE
            and self.stride[0] > 1
            and h * w <= SMALL_IMAGE
        ):
            return "samples-last"
        return "direct"

    def _not_winograd(self) -> str:
        """Why this layer has no Winograd form, if it has none."""
        k = self.kernel_size[0]
        if (k, self.stride[0], self.padding) != (3, 1, (1, 1)):
            return f"has a 3×3 kernel, stride 1 and padding 1; got {k}×{k}, {self.stride[0]} and {self.padding[0]}"
        return ""

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
    """`nn.BatchNorm2d` that reads the memory order of spectral convolutions without a copy, and finds its statistics faster.

    Called as norm(x, activation="relu", shortcut=s), it returns relu(norm(x) + s) from the same pass over the memory.
    """

    def forward(
        self, x: Tensor, activation: Activation = "none", shortcut: Tensor | None = None
    ) -> Tensor:
        if not is_samples_last(x):
            return _activate(super().forward(x), activation, shortcut)
        h, w, c, n = x.permute(2, 3, 1, 0).shape
        # Statistics are over all but the channel, so positions may stand where samples do.
        maps = x.permute(2, 3, 1, 0).reshape(h * w, c, n, 1)
        if shortcut is not None:
            shortcut = shortcut.permute(2, 3, 1, 0).contiguous().view(h * w, c, n, 1)
        usual = self.momentum is not None and self.track_running_stats and self.affine
        if self.training and usual and x.device.type == "cpu":
            y = self._of_batch(maps, activation, shortcut)
        else:
            y = _activate(super().forward(maps), activation, shortcut)
        return y.view(h, w, c, n).permute(3, 2, 0, 1)

    def _of_batch(self, maps: Tensor, activation: Activation, shortcut: Tensor | None) -> Tensor:
        """By the batch's own statistics, which also move the running ones."""
        y, mean, variance = _Normalize.apply(
            maps, self.weight, self.bias, shortcut, self.eps, activation
        )
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


FUSED: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


def normalize(x: Tensor, norm: nn.Module, act: nn.Module, shortcut: Tensor | None = None) -> Tensor:
    """act(norm(x) + shortcut), in one go where the batch norm can and nobody watches the layers by hooks."""
    name = FUSED.get(type(act))
    watched = any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in (norm, act)
    )
    if type(norm) is BatchNorm2d and name is not None and not watched:
        return norm(x, activation=name, shortcut=shortcut)
    y = norm(x)
    return act(y if shortcut is None else y + shortcut)


def _activate(x: Tensor, activation: Activation, shortcut: Tensor | None = None) -> Tensor:
    if shortcut is not None:
        x = x + shortcut
    match activation:
        case "relu":
            return F.relu(x)
        case "tanh":
            return F.tanh(x)
        case _:
            return x


class _Normalize(torch.autograd.Function):
    """Batch norm of [P, C, N, 1], a shortcut s (or none) and an activation.

        z = f(y + s),   y = (x − mean)·scale·weight + bias,   scale = (variance + ε)^−½

    With g = dz·f′(y + s), which both activations know from z alone and which is ds, and averages over all but channels,

        dx = weight·scale·(g − average(g) − x̂·average(g·x̂)),   x̂ = (x − mean)·scale

    A few positions at a time go through all operations, while they are in the cache. Sums are along P first, where
    neighbours in memory belong to different sums.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        eps: float,
        activation: Activation,
    ) -> tuple[Tensor, Tensor, Tensor]:
        p, c, n, _ = x.shape
        rows = x.view(p, c * n)
        some = max(1, CACHED // (c * n))
        mean = _over_samples(rows.sum(0), p, n)
        each = mean.repeat_interleave(n)
        squares = torch.zeros_like(each)
        for part in rows.split(some):
            squares += (part - each).square_().sum(0)
        variance = _over_samples(squares, p, n)
        scale = (variance + eps).rsqrt()
        z = torch.empty_like(rows)
        # tanh y = 2σ(2y) − 1 is several times as fast as PyTorch's tanh, and within 2e-7 of it in float32.
        factor = 2 * weight * scale if activation == "tanh" else weight * scale
        shift = (2 * bias if activation == "tanh" else bias) - mean * factor
        factor, shift = (t.repeat_interleave(n) for t in (factor, shift))
        doubled = 2 if activation == "tanh" else 1
        for i, (part, out) in enumerate(zip(rows.split(some), z.split(some), strict=True)):
            torch.addcmul(shift, part, factor, out=out)
            if shortcut is not None:
                out.add_(shortcut.view(p, c * n)[i * some : i * some + len(out)], alpha=doubled)
            if activation == "relu":
                out.relu_()
            elif activation == "tanh":
                out.sigmoid_().mul_(2).sub_(1)
        z = z.view_as(x)
        ctx.save_for_backward(x, weight, mean, scale, z if activation != "none" else None)
        ctx.eps, ctx.activation = eps, activation
        ctx.mark_non_differentiable(mean, variance)
        return z, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, z = ctx.saved_tensors
        if torch.is_grad_enabled():  # this gradient may be differentiated again
            g = _through(ctx.activation, gradients[0], z).contiguous()
            ds = g if ctx.needs_input_grad[3] else None
            wanted = list(ctx.needs_input_grad[:3])
            found = torch.ops.aten.native_batch_norm_backward(
                g, x, weight, None, None, mean, scale, True, ctx.eps, wanted
            )
            return *found, ds, None, None
        p, c, n, _ = x.shape
        flat = lambda t: t.reshape(p, c * n)
        some = max(1, CACHED // (c * n))
        rows, dz = flat(x).split(some), gradients[0].expand_as(x)
        each = mean.repeat_interleave(n)
        dx = torch.empty_like(x).view(p, c * n)
        of_g, of_gx = torch.zeros_like(each), torch.zeros_like(each)
        outs = [flat(z)[i : i + some] if z is not None else None for i in range(0, p, some)]
        # g takes the place of dx, unless it is wanted itself.
        ds = torch.empty_like(dx) if ctx.needs_input_grad[3] else dx
        for part, out, d, g in zip(rows, outs, dz.split(some), ds.split(some), strict=True):
            d = d.reshape(len(part), c * n)
            if ctx.activation == "relu":
                torch.ops.aten.threshold_backward.grad_input(d, out, 0, grad_input=g)
            elif ctx.activation == "tanh":
                torch.ops.aten.tanh_backward.grad_input(d, out, grad_input=g)
            else:
                g.copy_(d)
            of_g += g.sum(0)
            of_gx += (part - each).mul_(g).sum(0)
        d_bias, d_weight = of_g.view(c, n).sum(1), of_gx.view(c, n).sum(1) * scale
        # dx = a·g + b·x + constant.
        a = weight * scale
        b = -a * scale * d_weight / (p * n)
        constant = -a * d_bias / (p * n) - b * mean
        a, b, constant = (t.repeat_interleave(n) for t in (a, b, constant))
        for part, g, d in zip(rows, ds.split(some), dx.split(some), strict=True):
            torch.addcmul(torch.addcmul(constant, part, b), g, a, out=d)
        of_shortcut = ds.view_as(x) if ctx.needs_input_grad[3] else None
        return dx.view_as(x), d_weight, d_bias, of_shortcut, None, None


def _over_samples(sums: Tensor, positions: int, n: int) -> Tensor:
    """Sums over positions, [C·N] → averages [C]."""
    return sums.view(-1, n).sum(1) / (positions * n)


def _through(activation: Activation, gradient: Tensor, z: Tensor) -> Tensor:
    """The gradient before an activation, from the one behind it and its result."""
    match activation:
        case "relu":
            return torch.ops.aten.threshold_backward(gradient, z, 0)
        case "tanh":
            return torch.ops.aten.tanh_backward(gradient, z)
        case _:
            return gradient


def mean_over_positions(maps: Tensor) -> Tensor:
    """[N, C, H, W] → [N, C], with gradients in the memory order of the maps."""
    pixels = maps.permute(2, 3, 1, 0)
    if not pixels.is_contiguous():
        return maps.mean((2, 3))
    h, w, c, n = pixels.shape
    sums = pixels.reshape(h * w, c * n).sum(
        0
    )  # all pixels share one gradient, which is not copied for them
    return sums.view(c, n).T / (h * w)


def saving(shape: torch.Size, out_channels: int, kernel_size: int) -> float:
    """How many times fewer multiplications the spectral way needs for images of `shape` [N, C, H, W]."""
    n, c, h, w = shape
    o, k = out_channels, kernel_size
    u, v = (h + k // 2) // 2 + 1, w + k // 2
    transforms = (c + o) * n * u * (2 * h * w + 2 * v * w) + c * o * u * (2 * k * k + 2 * v * k)
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
        raise ValueError(
            f"images must be [N, {weight.shape[1]}, H, W] for this weight; got {list(images.shape)}"
        )
    if not images.numel():
        return F.conv2d(images, weight, bias, padding=k // 2)
    return _Spectral.apply(images.permute(2, 3, 1, 0), weight.permute(2, 3, 0, 1), bias).permute(
        3, 2, 0, 1
    )


def unrolled_conv2d(
    images: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """F.conv2d(images, weight, bias, stride, padding) as one product with a matrix [O·H'·W', C·H·W]."""
    n, c, h, w = images.shape
    o, k = weight.shape[0], weight.shape[2]
    taps = _taps(h, w, k, stride, padding, images.device)  # [H', W', H·W]
    tall, wide, inputs = taps.shape
    each = F.pad(weight.flatten(2), (0, 1)).index_select(2, taps.flatten())  # [O, C, H'W'·HW]
    matrix = (
        each.view(o, c, tall * wide, inputs).transpose(1, 2).reshape(o * tall * wide, c * inputs)
    )
    shift = None if bias is None else bias.repeat_interleave(tall * wide)
    return F.linear(images.reshape(n, c * inputs), matrix, shift).view(n, o, tall, wide)


@lru_cache(maxsize=64)
def _taps(h: int, w: int, k: int, stride: int, padding: int, device: torch.device) -> Tensor:
    """Which of the k² weights joins an output to an input pixel, [H', W', H·W]; k², behind them, where none does."""
    tall, wide = ((side + 2 * padding - k) // stride + 1 for side in (h, w))
    if tall < 1 or wide < 1:
        raise ValueError(
            f"a {k}×{k} kernel with padding {padding} does not fit into {h}×{w} pixels"
        )

    def along(outputs: int, side: int) -> Tensor:
        return (
            torch.arange(side) - stride * torch.arange(outputs)[:, None] + padding
        )  # [outputs, side]

    with torch.inference_mode(False):  # it is kept, and an evaluation may be the first to need it
        row, column = along(tall, h)[:, None, :, None], along(wide, w)[None, :, None, :]
        inside = (row >= 0) & (row < k) & (column >= 0) & (column < k)
        return torch.where(inside, row * k + column, k * k).flatten(2).to(device)


class Transform(NamedTuple):
    """From pixels [h, w] to half a spectrum [U, V], and by the transposed matrices back.

    e^(±i(up + vq)) = (cos up ± i sin up)(cos vq ± i sin vq). Rows r + is = Σ_p x (cos up ± i sin up) have the columns

        X(u, v)  = (r·cos vq ∓ s·sin vq) + i (s·cos vq ± r·sin vq)
        X(u, −v) = (r·cos vq ± s·sin vq) + i (s·cos vq ∓ r·sin vq)

    so that v and −v share their products: half of the work, then one sum and one difference.
    """

    rows: Tensor  # [2U, h], cos and ±sin in turn
    columns: Tensor  # [2, V, w]: cos of v = 0 … V/2 above ±sin of the v that have a −v, for r; above ∓sin, for s


class Transforms(NamedTuple):
    image: Transform  # A
    kernel: Transform
    result: Transform  # Sᵀ
    frequencies: int  # U, of u
    columns: int  # V, of v
    area: int  # pixels with the zeros behind them


class _Spectral(torch.autograd.Function):
    """(x [H, W, C, N], w [k, k, O, C], b [O]) → y [H, W, O, N].

    Rows are transformed all at once; everything behind them is done for one frequency u after the other, so that what
    one product writes is still in the cache for the next.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        (h, wide, c, n), (k, _, o, _) = x.shape, w.shape
        t = _transforms(h, wide, k, x.dtype, x.device)
        of_x, of_w = _rows(x, t.image), _rows(w, t.kernel)
        of_y = x.new_empty(t.frequencies, 2, wide, o * n)
        x_hat, g, y_hat = (_Spectrum(x, t.columns, *pair) for pair in ((c, n), (o, c), (o, n)))
        for u, (x_rows, w_rows, y_rows) in enumerate(zip(of_x, of_w, of_y, strict=True)):
            x_hat.read(x_rows, t.image)
            g.read(w_rows, t.kernel)
            for halves in zip(g.halves, x_hat.halves, y_hat.halves, strict=True):
                _multiply(*halves)
            if b is not None and u == 0:  # a constant is the frequency 0
                y_hat.values[0, 0] += b[:, None] * t.area
            y_hat.write(y_rows, t.result)
        ctx.save_for_backward(x, w)
        # Rows take as much memory as x; their spectra, twice as much, are found again in the backward pass.
        ctx.of_x = of_x if ctx.needs_input_grad[1] else None
        return _unrows(of_y, t.result).view(h, wide, o, n)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        wants_x, wants_w, wants_b = ctx.needs_input_grad
        if torch.is_grad_enabled():  # this gradient may be differentiated again
            return _direct_gradients(x, w, gradients[0], (wants_x, wants_w, wants_b))
        (h, wide, c, n), (k, _, o, _) = x.shape, w.shape
        t = _transforms(h, wide, k, x.dtype, x.device)
        of_y, of_x = _rows(gradients[0], t.result), ctx.of_x
        ctx.of_x = None  # its memory will hold the rows of dx
        if of_x is None:
            of_x = _rows(x, t.image) if wants_w else x.new_empty(t.frequencies, 2, wide, c * n)
        of_w = _rows(w, t.kernel) if wants_x else x.new_empty(t.frequencies, 2, k, o * c)
        x_hat, g, dg, y_hat = (
            _Spectrum(x, t.columns, *pair) for pair in ((c, n), (o, c), (o, c), (o, n))
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
        dx = _unrows(of_x, t.image).view(x.shape) if wants_x else None
        dw = _unrows(of_w, t.kernel).view(w.shape) if wants_w else None
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
    return min(g.shape[1:]) >= MANY


class _Spectrum:
    """Room for the spectra of all v at one u, of P × Q images."""

    def __init__(self, like: Tensor, v: int, p: int, q: int) -> None:
        self.values = like.new_empty(2, v, p, q)
        self.flat = self.values.flatten(2)
        half = v // 2 + 1
        (r, s), (minus_s, minus_r) = self.values[:, :half], self.values[:, half:]
        # (real, imaginary) of v = 0 … V/2, and of the −v.
        self.halves: tuple[Complex, Complex] = (r, s), (minus_r, minus_s)
        paired = v - half
        self.pairs = (r[1 : 1 + paired], minus_r), (s[1 : 1 + paired], minus_s)

    def read(self, rows: Tensor, by: Transform) -> None:
        """From the rows [2, w, PQ] of one u."""
        torch.bmm(by.columns, rows, out=self.flat)
        self._add_and_subtract()

    def write(self, rows: Tensor, by: Transform) -> None:
        """The adjoint of `read`; the spectrum is lost."""
        self._add_and_subtract()
        torch.bmm(by.columns.mT, self.flat, out=rows)

    def _add_and_subtract(self) -> None:
        """(a, b) → (a + b, a − b) for the terms with cos and with sin of each v, in place; its own adjoint."""
        for a, b in self.pairs:
            a += b
            torch.sub(a, b, alpha=2, out=b)


def _direct_gradients(
    x: Tensor, w: Tensor, dy: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, ...]:
    """The gradients by PyTorch's own convolutions, which autograd can differentiate."""
    images, weight, back = (t.permute(3, 2, 0, 1) for t in (x, w.transpose(2, 3), dy))
    r, o = w.shape[0] // 2, w.shape[2]
    dx, dw, db = torch.ops.aten.convolution_backward(
        back, images, weight, [o], [1, 1], [r, r], [1, 1], False, [0, 0], 1, list(wanted)
    )
    return (
        dx.permute(2, 3, 1, 0) if wanted[0] else None,
        dw.permute(2, 3, 0, 1) if wanted[1] else None,
        db,
    )


def _rows(x: Tensor, by: Transform) -> Tensor:
    """[h, w, P, Q] → [U, 2, w, PQ]."""
    pixels = x.reshape(len(x), -1)
    rows = pixels.new_empty(len(by.rows), pixels.shape[1])
    for some, of in zip(rows.split(CHUNK, 1), pixels.split(CHUNK, 1), strict=True):
        torch.mm(by.rows, of, out=some)
    return rows.view(len(by.rows) // 2, 2, x.shape[1], -1)


def _unrows(rows: Tensor, by: Transform) -> Tensor:
    """The adjoint of `_rows`, [h, w·PQ]."""
    flat = rows.view(len(by.rows), -1)
    pixels = flat.new_empty(by.rows.shape[1], flat.shape[1])
    for some, of in zip(pixels.split(CHUNK, 1), flat.split(CHUNK, 1), strict=True):
        torch.mm(by.rows.T, of, out=some)
    return pixels


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # they are kept, and an evaluation may be the first to need them
def _transforms(h: int, w: int, k: int, dtype: torch.dtype, device: torch.device) -> Transforms:
    """Between pixels and spectra of h × w images and k × k kernels."""
    tall, wide = h + k // 2, w + k // 2
    frequencies, half = tall // 2 + 1, wide // 2 + 1

    def transform(rows: int, columns: int, sign: int, shift: int) -> Transform:
        cos, sin = _waves(tall, frequencies, rows, shift)
        both = torch.stack([cos, sign * sin], 1).flatten(0, 1)
        cos, sin = _waves(wide, half, columns, shift)
        sin = sign * sin[1 : 1 + wide - half]
        return Transform(both, torch.stack([torch.cat([cos, sin]), torch.cat([cos, -sin])]))

    image, kernel = transform(h, w, -1, 0), transform(k, k, 1, -(k // 2))
    # A frequency u stands for −u too, unless they are the same.
    twice = torch.tensor(
        [1.0 if u == -u % tall else 2.0 for u in range(frequencies)], dtype=torch.double
    )
    result = image._replace(rows=image.rows * twice.repeat_interleave(2)[:, None] / (tall * wide))
    image, kernel, result = (
        Transform(*(matrix.to(device, dtype) for matrix in one)) for one in (image, kernel, result)
    )
    return Transforms(image, kernel, result, frequencies, wide, tall * wide)


def _waves(length: int, frequencies: int, points: int, shift: int) -> tuple[Tensor, Tensor]:
    """cos and sin of 2π·u·(p + shift)/length, [frequencies, points]."""
    # Whole turns would cost digits.
    turns = torch.outer(torch.arange(frequencies), torch.arange(points) + shift) % length
    angle = turns.double() * (2 * math.pi / length)
    return angle.cos(), angle.sin()
