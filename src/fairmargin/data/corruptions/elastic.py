"""Elastic: a random affine map, then a random smooth displacement of every pixel."""

from typing import Literal

import numpy as np
from scipy import ndimage

from fairmargin.data.corruptions.pixels import Streams, at_level, published_size, to_bytes, to_unit

Border = Literal["mirror", "reflect"]
# strength α and smoothness σ of the displacement, reach β of the affine map's control points; all
# times SIDE
ELASTIC = {
    32: (
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    224: (
        (2.0, 0.7, 0.1),
        (2.0, 0.08, 0.2),
        (0.05, 0.01, 0.02),
        (0.07, 0.01, 0.02),
        (0.12, 0.01, 0.02),
    ),
}
# Note: 244 as in the code of ImageNet-C, presumably a slip for 224.
SIDE = {32: 32, 224: 244}


def elastic(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Move three control points at random, then every pixel by a smooth displacement."""
    side = SIDE[published_size(images)]
    alpha, sigma, beta = (side * value for value in at_level(ELASTIC, images, level))
    height, width = images.shape[1:3]
    move = np.stack([r.uniform(-beta, beta, (3, 2)) for r in random])
    jitter = np.stack([r.uniform(-1, 1, (2, height, width)) for r in random])  # [N, (y, x), H, W]
    warped = bilinear(to_unit(images), *affine_grid(height, width, move), "mirror")
    jitter = alpha * ndimage.gaussian_filter(jitter, sigma, mode="reflect", truncate=3, axes=(2, 3))
    y, x = np.mgrid[:height, :width]
    return to_bytes(bilinear(warped, y + jitter[:, 0], x + jitter[:, 1], "reflect"))


def affine_grid(height: int, width: int, move: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each output pixel of an affine map comes from: (y, x), each [N, H, W].

    Args:
        move: how the map moves three control points around the centre, [N, 3, (x, y)].
    """
    centre = np.array([width // 2, height // 2])
    reach = min(height, width) // 3
    points = centre + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = np.insert(points + move, 2, 1, axis=2)  # homogeneous
    back = np.linalg.solve(moved, np.broadcast_to(points, move.shape))  # [N, 3, 2]
    y, x = np.mgrid[:height, :width]
    source = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3) @ back  # [N, H·W, 2]
    return source[..., 1].reshape(-1, height, width), source[..., 0].reshape(-1, height, width)


def bilinear(images: np.ndarray, y: np.ndarray, x: np.ndarray, border: Border) -> np.ndarray:
    """Return images [N, H, W, C] at the positions y, x [N, H, W], linear between pixels.

    Args:
        border: as in SciPy: "mirror" (c b | a b c | b a) or "reflect" (b a | a b c | c b).
    """
    n, height, width, channels = images.shape
    pixels = images.reshape(-1, channels)
    first_row = height * np.arange(n)[:, None, None]
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, right = (y - top)[..., None], (x - left)[..., None]
    rows = [(first_row + _fold(i, height, border)) * width for i in (top, top + 1)]
    columns = [_fold(i, width, border) for i in (left, left + 1)]
    upper, lower = (_between(pixels, row, columns, right) for row in rows)
    between: np.ndarray = upper + down * (lower - upper)
    return between


def _between(
    pixels: np.ndarray, row: np.ndarray, columns: list[np.ndarray], right: np.ndarray
) -> np.ndarray:
    """Interpolate between two columns of a row."""
    start, end = (pixels.take(row + column, axis=0) for column in columns)
    return start + right * (end - start)


def _fold(i: np.ndarray, length: int, border: Border) -> np.ndarray:
    """Bring positions outside 0 … length − 1 to the one inside whose pixel they repeat."""
    # `last` is the position that 0 is exchanged with.
    last = {"mirror": 2 * length - 2, "reflect": 2 * length - 1}[border]
    period = {"mirror": max(last, 1), "reflect": last + 1}[border]
    i = i % period
    return np.minimum(i, last - i)
