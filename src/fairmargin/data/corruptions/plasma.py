"""Cloud maps by diamond–square on a torus."""

import numpy as np

from fairmargin.data.corruptions.pixels import Streams


def plasma(height: int, width: int, decay: float, random: Streams) -> np.ndarray:
    """Draw random maps, [N, height, width] in [0, 1], rougher for a smaller `decay`.

    They are cut from a square whose side is a power of two and whose opposite edges meet. Each
    midpoint is the mean of its four neighbours + w²·u, u ~ U(−1, 1); w starts at 100 and is divided
    by `decay` at each halving of the grid.

    Note: w², not w, is what the code that made the published sets amounts to: it scales a U(−w, w)
    by w once more.

    Args:
        decay: roughness; 2 halves w at each halving of the grid.
        random: one stream for each of the N maps.
    """
    size = 2 ** int(np.ceil(np.log2(max(height, width, 2))))
    # Entry (i, j) is used when pixel (i, j) is set.
    u = np.stack([r.uniform(-1, 1, (size, size)) for r in random])
    a = np.zeros_like(u)
    w, step = 100.0, size
    while step >= 2:
        half = step // 2
        corner, centre = np.s_[:, ::step, ::step], np.s_[:, half::step, half::step]
        top, side = np.s_[:, ::step, half::step], np.s_[:, half::step, ::step]
        rows = a[corner] + np.roll(a[corner], -1, 1)
        a[centre] = (rows + np.roll(rows, -1, 2)) / 4 + w**2 * u[centre]
        for middle, along, across in ((top, 2, 1), (side, 1, 2)):
            ends = a[corner] + np.roll(a[corner], -1, along)
            a[middle] = (ends + a[centre] + np.roll(a[centre], 1, across)) / 4 + w**2 * u[middle]
        w, step = w / decay, half
    a -= a.min((1, 2), keepdims=True)
    a /= a.max((1, 2), keepdims=True)
    return a[:, :height, :width]
