"""Blurs: every pixel becomes a weighted mean of others.

The weights are a fixed kernel, or lie along a path drawn for each image.
"""

from functools import lru_cache

import numpy as np
from scipy import ndimage, sparse

from fairmargin.data.corruptions.pixels import Streams, at_level, to_bytes, to_unit

# σ
GAUSSIAN = {32: (0.4, 0.6, 0.7, 0.8, 1.0), 224: (1.0, 2.0, 3.0, 4.0, 6.0)}
# σ, reach δ, sweeps
GLASS = {
    32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    224: ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
}
# disk radius, σ of its soft edge
DEFOCUS = {
    32: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
    224: ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)),
}
# radius, σ along the line
MOTION = {
    32: ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
    224: ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0)),
}
# number of factors from 1 up, step between them
ZOOM = {
    32: ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
    224: ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
}


def gaussian_blur(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Filter with a Gaussian of standard deviation σ."""
    return to_bytes(smooth(to_unit(images), at_level(GAUSSIAN, images, level)))


def glass_blur(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Copy to each pixel the colour of a near one, between two Gaussian filters.

    Pixels are taken one after the other from the lower right.

    Note: described as an exchange of two pixels, but in the code that made the published sets (an
    assignment between views of one array) the second half has no effect; so this copies too.
    """
    sigma, reach, sweeps = at_level(GLASS, images, level)
    n, height, width, _ = images.shape
    x = to_bytes(smooth(to_unit(images), sigma))
    # The upper end is excluded.
    move = np.stack([r.integers(-reach, reach, (sweeps, height, width, 2)) for r in random])
    each = np.arange(n)
    for sweep in range(sweeps):
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                down, right = move[:, sweep, h, w].T
                x[:, h, w] = x[each, h + down, w + right]
    return to_bytes(smooth(to_unit(x), sigma))


def defocus_blur(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Filter with a disk, as a lens out of focus does."""
    kernel = disk(*at_level(DEFOCUS, images, level))
    return to_bytes(ndimage.correlate(to_unit(images), kernel[None, :, :, None], mode="mirror"))


def motion_blur(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Blur along a line at an angle drawn for each image, −45° to 45°."""
    radius, sigma = at_level(MOTION, images, level)
    angle = np.array([r.uniform(-45, 45) for r in random])
    return to_bytes(line_blur(to_unit(images), angle, radius, sigma))


def zoom_blur(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """(x + Σ_z zoom_z(x)) / (#z + 1)

    Linear in the pixels, hence one sparse matrix for the whole batch.
    """
    n, height, width, channels = images.shape
    blur = _zoom_blur_matrix(height, width, *at_level(ZOOM, images, level))
    columns = to_unit(images).transpose(1, 2, 0, 3).reshape(height * width, n * channels)
    return to_bytes((blur @ columns).reshape(height, width, n, channels).transpose(2, 0, 1, 3))


def smooth(x: np.ndarray, sigma: float) -> np.ndarray:
    """Filter [N, H, W, …] with a Gaussian over height and width, edge pixels repeated.

    Args:
        sigma: standard deviation in pixels.
    """
    filtered: np.ndarray = ndimage.gaussian_filter(
        x, sigma, mode="nearest", truncate=4, axes=(1, 2)
    )
    return filtered


def disk(radius: float, sigma: float) -> np.ndarray:
    """Return a kernel of sum 1: the pixels within `radius`, with a soft edge.

    The edge is softened by a Gaussian of `sigma` with 3 taps (5 beyond radius 8).

    Args:
        radius: in pixels.
        sigma: standard deviation of the soft edge, in pixels.
    """
    reach = max(8, int(radius))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    kernel = (x**2 + y**2 <= radius**2).astype(float)
    half = 1 if radius <= 8 else 2
    soft = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * sigma**2))
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, soft, axis, mode="mirror")
    # The margin holds nothing but zeros.
    margin = max(0, reach - int(radius) - half)
    kernel = kernel[margin : len(kernel) - margin, margin : len(kernel) - margin]
    return kernel / kernel.sum()


def line_blur(x: np.ndarray, degrees: np.ndarray, radius: int, sigma: float) -> np.ndarray:
    """Blur [N, H, W, …] towards one side, edge pixels repeated.

    out[h, w] = Σ_i k_i · x[h + ⌈i·sinθ − ½⌉, w + ⌈i·cosθ − ½⌉],
    k_i ∝ exp(−i²/2σ²),   i = 0 … 2·radius

    Note: this writes out ImageMagick's motion blur, which made the published sets, except for its
    rounding of colours.

    Args:
        degrees: θ of each image, [N]; 0 is right, 90 is down.
    """
    n, height, width = x.shape[:3]
    tap = np.arange(2 * radius + 1)
    k = np.exp(-(tap**2) / (2 * sigma**2))
    k /= k.sum()
    theta = np.deg2rad(degrees)[:, None]
    down = np.ceil(tap * np.sin(theta) - 0.5).astype(int)  # [N, taps]
    right = np.ceil(tap * np.cos(theta) - 0.5).astype(int)
    pixels = x.reshape(n * height * width, *x.shape[3:])
    first_row = height * np.arange(n)[:, None]
    out = np.zeros_like(x)
    for i in tap:
        row = first_row + (np.arange(height) + down[:, i, None]).clip(0, height - 1)  # [N, H]
        column = (np.arange(width) + right[:, i, None]).clip(0, width - 1)  # [N, W]
        out += k[i] * pixels.take(row[:, :, None] * width + column[:, None, :], axis=0)
    return out


def zoom_matrix(length: int, factor: float) -> np.ndarray:
    """Return the matrix [length, length] of a centre zoom along one axis.

    The central ⌈length/factor⌉ entries are stretched linearly, end to end, to round(factor × their
    number), of which the central `length` are kept.

    Args:
        length: pixels along the axis.
        factor: of the zoom, at least 1.
    """
    crop = int(np.ceil(length / factor))
    stretched = round(crop * factor)
    kept = np.arange(length) + (stretched - length) // 2
    position = kept * (crop - 1) / max(stretched - 1, 1)
    left = np.minimum(position.astype(int), max(crop - 2, 0))
    right = np.minimum(left + 1, crop - 1)
    start = (length - crop) // 2
    row = np.arange(length)
    matrix = np.zeros((length, length))
    np.add.at(matrix, (row, start + left), 1 - (position - left))
    np.add.at(matrix, (row, start + right), position - left)
    return matrix


@lru_cache(maxsize=4)
def _zoom_blur_matrix(height: int, width: int, count: int, step: float) -> sparse.csr_array:
    """The matrix [H·W, H·W] of a zoom blur."""
    total = sparse.eye_array(height * width, format="csr")
    for i in range(count):
        rows = sparse.csr_array(zoom_matrix(height, 1 + i * step))
        columns = sparse.csr_array(zoom_matrix(width, 1 + i * step))
        total = total + sparse.kron(rows, columns, format="csr")
    return total / (count + 1)
