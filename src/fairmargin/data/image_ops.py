"""Operations on whole batches of images whose parameters are already drawn, one for each image.

Images are [n, C, H, W]; those whose colours change are floats in [0, 1]. The definitions are
torchvision's.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def crop(x: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Cut out each image's square of `size` at its own corner (top, left), each [n].

    Args:
        top: row of each corner, [n].
        left: column of each corner, [n].
    """
    # [n, C, tops, lefts, size, size], without a copy.
    windows = x.unfold(2, size, 1).unfold(3, size, 1)
    return windows[torch.arange(len(x), device=x.device), :, top, left]


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image counter-clockwise about its centre by its angle `degrees`, [n].

    Each output pixel looks up the nearest pixel that it came from; black where nothing was.

    Args:
        degrees: angle of each image, [n].
    """
    channels, height, width = x.shape[1:]
    right = torch.arange(width, device=x.device) + 0.5 - width / 2
    down = torch.arange(height, device=x.device)[:, None] + 0.5 - height / 2
    angle = torch.deg2rad(degrees)
    cos = torch.cos(angle)[:, None, None]
    sin = torch.sin(angle)[:, None, None]
    column = (cos * right - sin * down + width / 2).floor().long()  # [n, H, W]
    row = (sin * right + cos * down + height / 2).floor().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = torch.where(inside, row * width + column, 0).flatten(1)  # [n, H·W]
    source = source[:, None].expand(-1, channels, -1)
    return x.flatten(2).gather(2, source).view_as(x) * inside[:, None]


def resized_crop(
    x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int
) -> Tensor:
    """Cut out each image's box and resize it to a square of `size`, bilinear with anti-aliasing.

    Resizing is linear and separable: one matrix for the rows and one for the columns of each image.

    Args:
        top, left, height, width: the box of each image, each [n].
    """
    rows = _bilinear(top, height, size, x.shape[2])  # [n, size, H]
    columns = _bilinear(left, width, size, x.shape[3])  # [n, size, W]
    narrow = (x.flatten(1, 2) @ columns.mT).view(*x.shape[:3], size)
    return rows[:, None] @ narrow


def _bilinear(start: Tensor, length: Tensor, size: int, full: int) -> Tensor:
    """Weights [n, size, full] of the input pixels in each output pixel.

    The weights are a triangle around the output pixel's centre, as wide as one input pixel or, when
    shrinking, as one output pixel, cut at the box and normalized: Pillow's definition.
    """
    start, length = start[:, None].float(), length[:, None].float()
    step = length / size
    centre = start + (torch.arange(size, device=start.device) + 0.5) * step  # [n, size]
    pixel = torch.arange(full, device=start.device) + 0.5
    distance = (pixel - centre[..., None]).abs()  # [n, size, full]
    weight = (1 - distance / step.clamp(min=1)[..., None]).clamp(min=0)
    weight = weight * ((pixel > start) & (pixel < start + length))[:, None]
    return weight / weight.sum(2, keepdim=True)


def luma(x: Tensor) -> Tensor:
    """Return the grey image by ITU-R 601, [n, 1, H, W].

    Args:
        x: [n, 3, H, W].
    """
    if x.shape[1] != 3:
        raise ValueError(
            f"colour operations need 3 channels and these images have {x.shape[1]}; leave them out"
        )
    red, green, blue = x.split(1, 1)
    return (0.299 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with black: its `factor`, [n], is the weight of the image.

    Args:
        factor: weight of each image, [n].
    """
    return (x * factor[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with the mean of its grey image; `factor` [n] is the weight of the image.

    Note: the mean is not rounded to 8 bits, as PIL does.

    Args:
        factor: weight of each image, [n].
    """
    return _blend(luma(x).mean((2, 3), keepdim=True), x, factor)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with its grey image; `factor` [n] is the weight of the image.

    Args:
        factor: weight of each image, [n].
    """
    return _blend(luma(x), x, factor)


def _blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (x * factor).add_(base * (1 - factor)).clamp_(0, 1)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the colour circle of each image by `shift` turns, [n].

    value − chroma · clamp(2 − |k − 2|, 0, 1),   k = hue + (5, 3, 1) mod 6 for red, green, blue,
    with the hue in sixths of the circle. Note: the hue is continuous; PIL has 256 values.

    Args:
        shift: turns of the circle for each image, [n].
    """
    red, green, blue = x.split(1, 1)
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - least
    # Masks as numbers: on the CPU several times as fast as `where`, whose branches random pixels
    # make unpredictable.
    is_red = (value == red).float()
    is_green = (value == green).float() * (1 - is_red)
    is_blue = 1 - is_red - is_green
    # The slope is 0 where the chroma is 0.
    slope = is_red * (green - blue) + is_green * (blue - red) + is_blue * (red - green)
    hue = slope / chroma.clamp(min=torch.finfo(x.dtype).tiny) + 2 * is_green + 4 * is_blue
    offsets = torch.tensor([5.0, 3.0, 1.0], device=x.device).view(3, 1, 1)
    k = hue + 6 * shift[:, None, None, None] + offsets
    k -= 6 * (k / 6).floor_()
    return (2 - (k - 2).abs_()).clamp_(0, 1).mul_(-chroma).add_(value)


ADJUSTMENTS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)
