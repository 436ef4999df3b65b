"""Maps in the memory order [H, W, C, N], with samples innermost, on a CPU.

Each pixel of such maps is a matrix [C, N], and layers are products with these matrices.
Convolutions in `spectral.py`, `winograd.py` and `windows.py` return this order behind the usual
shape [N, C, H, W], so that the layers after them need not rearrange anything.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def is_samples_last(maps: Tensor) -> bool:
    """Return whether maps [N, C, H, W] lie in memory as [H, W, C, N], not in the usual order."""
    return maps.permute(2, 3, 1, 0).is_contiguous() and not maps.is_contiguous()


def samples_last_conv2d(
    images: Tensor, weight: Tensor, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """Return F.conv2d(images, weight, stride, padding) in the memory order [H, W, O, N].

    Args:
        images: [N, C, H, W] in any memory order.
        weight: [O, C, k, k].
        stride: pixels between outputs.
        padding: zeros on each side.
    """
    if not images.numel():
        return F.conv2d(images, weight, stride=stride, padding=padding)
    images = images.contiguous(memory_format=torch.channels_last)
    y = F.conv2d(images, weight, stride=stride, padding=padding)
    return _SamplesLast.apply(y.permute(0, 2, 3, 1)).permute(3, 2, 0, 1)


def max_pool_3_2(maps: Tensor) -> Tensor:
    """Return F.max_pool2d(maps, 3, stride=2, padding=1) of maps in the memory order [H, W, C, N].

    The result is in that order too.

    Args:
        maps: [N, C, H, W].
    """
    return _MaxPool.apply(maps.permute(2, 3, 1, 0).contiguous()).permute(3, 2, 0, 1)


class _SamplesLast(torch.autograd.Function):
    """[N, H, W, C] → [H, W, C, N], and back.

    It is transposed as a matrix, which is several times as fast as a copy with four axes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, h, wide, c = x.shape
        return x.reshape(n, -1).T.contiguous().view(h, wide, c, n)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor]:
        h, wide, c, n = gradients[0].shape
        return (gradients[0].reshape(-1, n).T.contiguous().view(n, h, wide, c),)


class _MaxPool(torch.autograd.Function):
    """The largest of 3×3 pixels, with stride 2 and padding 1.

    [H, W, C, N] → [(H + 1)/2, (W + 1)/2, C, N]

    First along lines, then across them. Of equal pixels the first one has the gradient, as in
    PyTorch.
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


def direct_gradients(
    x: Tensor, w: Tensor, dy: Tensor, wanted: tuple[bool, bool], stride: int, padding: int
) -> tuple[Tensor | None, ...]:
    """Return (dx, dw) by PyTorch's own convolutions, which autograd can differentiate again.

    Args:
        x: [H, W, C, N].
        w: [O, C, k, k].
        dy: [H', W', O, N].
        wanted: whether dx and dw are; the others are None.
    """
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
