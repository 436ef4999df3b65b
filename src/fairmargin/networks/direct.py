"""Gradients of a "same" convolution that can be differentiated again."""

import torch
from torch import Tensor


def direct_gradients(
    x: Tensor, w: Tensor, dy: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, ...]:
    """Return dx, dw and db by PyTorch's own convolutions, which autograd can differentiate.

    Args:
        x: images [H, W, C, N].
        w: kernel [k, k, O, C].
        dy: gradient of the result, [H, W, O, N].
        wanted: which of the three are; the others are None.
    """
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
