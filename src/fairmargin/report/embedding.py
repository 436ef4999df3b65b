"""Draw features of many dimensions in two, the same way for every method."""

import numpy as np
from numpy.typing import NDArray

# Points of a map: enough to see clusters, few enough for two seconds of t-SNE.
POINTS = 600
# With fewer points, t-SNE draws clusters that are not there.
FEWEST_FOR_TSNE = 100
# Dimensions that t-SNE gets; the rest is mostly noise and costs time.
DIMENSIONS = 30
ITERATIONS = 400
# Least spread of unit vectors that is more than rounding.
SMALLEST = 1e-9

Array = NDArray[np.floating]


def choose(n: int, points: int = POINTS, *, seed: int = 0) -> NDArray[np.intp]:
    """Choose at most `points` of n samples and return their positions, ascending.

    The choice depends on n and the seed alone, so it is the same for every method.

    Args:
        n: number of samples.
        points: how many to choose at most.
        seed: of the choice.
    """
    return np.sort(np.random.default_rng(seed).permutation(n)[:points])


def project(features: Array, *, seed: int = 0) -> tuple[Array, str]:
    """Return (points [N, 2] in the unit square, "t-SNE" or "PCA"); both axes have one scale.

    Features are scaled to unit length first, because similarities are cosines everywhere else.
    t-SNE starts from the PCA, so that the large-scale arrangement means something; small sets are
    left at the PCA.

    Args:
        features: [N, D].
        seed: of t-SNE.
    """
    z = np.nan_to_num(np.asarray(features, np.float64))
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    reduced = pca(z, DIMENSIONS)
    if len(z) < FEWEST_FOR_TSNE or reduced[:, 0].std() < SMALLEST:
        return unit_square(_two_columns(reduced)), "PCA"
    return unit_square(_tsne(reduced, seed)), "t-SNE"


def pca(x: Array, dimensions: int) -> Array:
    """Return coordinates [N, ≤ dimensions] along the directions of largest variance.

    A direction's sign is arbitrary. Here its largest coordinate is positive, so that a map does not
    flip between machines.

    Args:
        x: [N, D].
        dimensions: how many at most.
    """
    centred = x - x.mean(axis=0, keepdims=True)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    coordinates = (left * scale)[:, :dimensions]
    largest = np.abs(coordinates).argmax(axis=0)
    sign = np.sign(coordinates[largest, np.arange(coordinates.shape[1])])
    return coordinates * np.where(sign == 0, 1, sign)


def unit_square(points: Array) -> Array:
    """Centre points in [0, 1]² with the longer side filled; equal points lie in the middle."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = float((high - low).max())
    return 0.5 + (points - (low + high) / 2) / (span if span > SMALLEST else 1.0)


def _two_columns(coordinates: Array) -> Array:
    missing = max(0, 2 - coordinates.shape[1])
    return np.pad(coordinates, ((0, 0), (0, missing)))[:, :2]


def _tsne(reduced: Array, seed: int) -> Array:
    # Slow to import, and small reports do not need it.
    from sklearn.manifold import TSNE

    start = _two_columns(reduced) / reduced[:, 0].std() * 1e-4
    tsne = TSNE(init=start.astype(np.float32), random_state=seed, max_iter=ITERATIONS, n_jobs=1)
    return np.asarray(tsne.fit_transform(reduced.astype(np.float32)), np.float64)
