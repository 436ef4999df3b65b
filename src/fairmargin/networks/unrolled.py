"""Unrolled convolutions, for maps smaller than the kernel in small batches.

Such maps are the 2×2 and 1×1 maps at the end of a ResNet-18 on 32×32 images. A direct convolution
multiplies most of its weights by the zeros around them. Here every pair of an output and an input
pixel has its weight in one matrix, and the layer is one product with it. (Larger batches of small
maps go through `winograd.py` and `windows.py`.)
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


def unrolled_conv2d(
    images: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """Return F.conv2d(images, weight, bias, stride, padding), as one product with a matrix.

    Args:
        images: [N, C, H, W].
        weight: [O, C, k, k].
        bias: [O], or None.
    """
    n, c, h, w = images.shape
    o, k = weight.shape[0], weight.shape[2]
    taps = _taps(h, w, k, stride, padding, images.device)  # [H', W', H·W]
    tall, wide, inputs = taps.shape
    each = F.pad(weight.flatten(2), (0, 1)).index_select(2, taps.flatten())  # [O, C, H'W'·HW]
    each = each.view(o, c, tall * wide, inputs)
    matrix = each.transpose(1, 2).reshape(o * tall * wide, c * inputs)  # [O·H'·W', C·H·W]
    shift = None if bias is None else bias.repeat_interleave(tall * wide)
    return F.linear(images.reshape(n, c * inputs), matrix, shift).view(n, o, tall, wide)


@lru_cache(maxsize=64)
def _taps(h: int, w: int, k: int, stride: int, padding: int, device: torch.device) -> Tensor:
    """Which of the k² weights joins an output to an input pixel, [H', W', H·W].

    Where none does it is k², the index behind them.
    """
    tall, wide = ((side + 2 * padding - k) // stride + 1 for side in (h, w))
    if tall < 1 or wide < 1:
        raise ValueError(
            f"a {k}×{k} kernel with padding {padding} does not fit into {h}×{w} pixels"
        )

    def along(outputs: int, side: int) -> Tensor:
        first = stride * torch.arange(outputs)[:, None] - padding
        return torch.arange(side) - first  # [outputs, side]

    # It is kept, and an evaluation may be the first to need it.
    with torch.inference_mode(False):
        row, column = along(tall, h)[:, None, :, None], along(wide, w)[None, :, None, :]
        inside = (row >= 0) & (row < k) & (column >= 0) & (column < k)
        return torch.where(inside, row * k + column, k * k).flatten(2).to(device)
