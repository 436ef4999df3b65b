"""Spatter: drops of water or mud on the lens."""

import numpy as np
from scipy import ndimage

from fairmargin.data.corruptions.blur import smooth
from fairmargin.data.corruptions.pixels import Streams, at_level, to_bytes, to_unit

# mean and deviation of the liquid, its smoothness, threshold, strength (water) or softness (mud),
# which of the two
SPATTER = {
    32: (
        (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
        (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
        (0.65, 0.3, 1.0, 0.69, 0.5, "water"),
        (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
        (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
    ),
    224: (
        (0.65, 0.3, 4.0, 0.69, 0.6, "water"),
        (0.65, 0.3, 3.0, 0.68, 0.6, "water"),
        (0.65, 0.3, 2.0, 0.68, 0.5, "water"),
        (0.65, 0.3, 1.0, 0.65, 1.5, "mud"),
        (0.67, 0.4, 1.0, 0.65, 1.5, "mud"),
    ),
}
WATER = np.array([175, 238, 238]) / 255
MUD = np.array([63, 42, 20]) / 255
# Light from one corner.
RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
# Lower and upper threshold of edges.
CANNY = 50, 150
# Pixels; larger distances from an edge count as this.
FARTHEST = 20


def spatter(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Add drops of water (levels up to 3) or mud."""
    mean, deviation, sigma, threshold, strength, kind = at_level(SPATTER, images, level)
    x = to_unit(images)
    liquid = smooth(np.stack([r.normal(mean, deviation, images.shape[1:3]) for r in random]), sigma)
    liquid[liquid < threshold] = 0
    if kind == "mud":
        m = smooth((liquid > threshold).astype(float), strength)[..., None]
        m[m < 0.8] = 0
        return to_bytes(x * (1 - m) + m * MUD)
    shine = water(to_bytes(liquid))[..., None]
    return to_bytes(x + strength * shine * WATER)


def water(liquid: np.ndarray) -> np.ndarray:
    """Return how much each pixel of uint8 drops [N, H, W] shines, from 0 to 1.

    That is their depth, lit from one corner.

    Note: the steps and constants are those of the published sets, which used OpenCV. Its distance
    transform is a 5×5 approximation and this one is exact, so some pixels differ.

    Args:
        liquid: uint8 [N, H, W], 0 where there is no drop.
    """
    depth = np.minimum(_distance(canny(liquid, *CANNY)), FARTHEST)
    equalized = equalize(_box(depth).astype(int))
    relief = ndimage.correlate(equalized, RELIEF[None], mode="mirror").clip(0, 255)
    shine = liquid * np.round(_box(relief))
    highest = shine.max((1, 2), keepdims=True)
    return shine / np.where(highest > 0, highest, 1)


def canny(images: np.ndarray, low: int, high: int) -> np.ndarray:
    """Find edges, bool [N, H, W].

    These are ridges of the Sobel gradient |g_x| + |g_y| above `low` that touch one above `high`.

    Args:
        images: uint8 [N, H, W].
        low: threshold of an edge.
        high: threshold that some pixel of an edge must pass.
    """
    g_y, g_x = (_sobel(images.astype(int), axis) for axis in (1, 2))
    strength = np.abs(g_x) + np.abs(g_y)
    padded = np.pad(strength, ((0, 0), (1, 1), (1, 1)))
    height, width = strength.shape[1:]
    at = lambda dy, dx: padded[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
    # Only the two neighbours across the edge matter; on a plateau the first one stays.
    steep = np.abs(g_y) > np.tan(np.deg2rad(67.5)) * np.abs(g_x)
    shallow = np.abs(g_y) < np.tan(np.deg2rad(22.5)) * np.abs(g_x)
    upright = (strength > at(0, -1)) & (strength >= at(0, 1))
    level = (strength > at(-1, 0)) & (strength >= at(1, 0))
    rising = (strength > at(-1, -1)) & (strength > at(1, 1))
    falling = (strength > at(-1, 1)) & (strength > at(1, -1))
    diagonal = np.where((g_x < 0) == (g_y < 0), rising, falling)
    candidate = np.where(steep, level, np.where(shallow, upright, diagonal)) & (strength > low)
    # Eight neighbours, never across images.
    touching = np.zeros((3, 3, 3), int)
    touching[1] = 1
    group, groups = ndimage.label(candidate, touching)
    strong = np.zeros(groups + 1, bool)
    strong[group[candidate & (strength > high)]] = True
    return strong[group]


def equalize(images: np.ndarray) -> np.ndarray:
    """Equalize the histograms of non-negative integers [N, H, W], to 0 … 255.

    An image of one value stays as it is.

    Args:
        images: integers [N, H, W], none negative.
    """
    n, height, width = images.shape
    values = int(images.max()) + 1
    each = np.arange(n)[:, None, None]
    counts = np.bincount((each * values + images).ravel(), minlength=n * values).reshape(n, values)
    first = counts[np.arange(n), (counts > 0).argmax(1)][:, None]  # pixels of the lowest value
    above = height * width - first
    rank = (counts.cumsum(1) - first).clip(0)
    table = np.round(255 * rank / np.where(above > 0, above, 1)).astype(int)
    table = np.where(above > 0, table, np.arange(values))
    return table[each, images]


def _sobel(x: np.ndarray, axis: int) -> np.ndarray:
    slope = ndimage.correlate1d(x, [-1, 0, 1], axis, mode="nearest")
    smoothed: np.ndarray = ndimage.correlate1d(slope, [1, 2, 1], 3 - axis, mode="nearest")
    return smoothed


def _box(x: np.ndarray) -> np.ndarray:
    """3×3 means, as exact sums over 9 so that a constant stays itself under truncation."""
    columns = ndimage.correlate1d(x, [1, 1, 1], 1, mode="mirror")
    sums = ndimage.correlate1d(columns, [1, 1, 1], 2, mode="mirror")
    mean: np.ndarray = sums / 9
    return mean


def _distance(edges: np.ndarray) -> np.ndarray:
    """Distance in pixels to the nearest edge of the same image.

    All images are measured at once, as a stack with images far apart. The stack ends with one that
    is all edge, so that an image without any edge finds one beyond FARTHEST.
    """
    stack = np.concatenate([edges, np.ones_like(edges[:1])])
    distance: np.ndarray = ndimage.distance_transform_edt(~stack, sampling=(1000, 1, 1))[:-1]
    return distance
