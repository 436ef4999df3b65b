"""Single pictures that deserve a look: labels in doubt, outliers, dark, bright, blurred, odd-sized.

None of these is a shortcut, and none is sure: each says where to look first. Limits are set so that
honest data have few: a picture must be far from what is usual in its dataset (robust deviations)
and, for light, extreme in itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmargin.audit.sight import Sight

# Parts of the cross-validation, random features of its classifier, and penalties that are tried.
FOLDS = 5
FEATURES = 1024
PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4)
SHARPNESS = tuple(float(v) for v in np.geomspace(1, 40, 30))
# A label is in doubt where at least 1/EXPECTED times as many are as the confidences expect.
EXPECTED = 0.5
# Rows that are held in full width at a time.
ROWS = 4096
# Directions of thumbnails that are kept.
WIDTH = 64
# Outliers: which neighbour, and among how many pictures at most.
NEIGHBOUR = 5
AMONG = 10_000
# Robust standard deviations from the median from which on a picture is unusual.
UNUSUAL = 5.0
OUTLYING = 4.0
# Brightness, from 0 to 1, that the lightest spot of a dark picture has at most, and the darkest
# spot of a bright one at least.
DARK = 0.3
BRIGHT = 0.75
# Least deviations that count: of brightness, of the logarithms of blur, area and aspect ratio.
LEAST_LIGHT = 0.02
LEAST_BLUR = 0.2
LEAST_AREA = 0.14
LEAST_ASPECT = 0.08

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
# Name of a problem → what it means, for the page and the documentation.
MEANINGS = {
    "label error": "a classifier that has not seen the picture is sure of another label",
    "outlier": "unlike all others, by thumbnail and edges",
    "dark": "even its lightest spot is dark",
    "bright": "even its darkest spot is bright",
    "blurred": "hardly any detail",
    "odd size": "far smaller or larger than usual",
    "odd shape": "far narrower or wider than usual",
}


@dataclass(frozen=True)
class Doubts:
    """What a cross-validated classifier says about the labels.

    Args:
        confidence: [N] out-of-fold probability of the label; NaN if its class is too small.
        suggested: [N] the most probable class.
        flagged: [N] True where the label is in doubt.
        accuracy: how often the classifier agrees with the label.
    """

    confidence: Floats
    suggested: NDArray[np.int64]
    flagged: Flags
    accuracy: float


def features(sight: Sight) -> Floats:
    """Return [N, D] cheap features: thumbnails in their main directions, and edges.

    Args:
        sight: of the pictures.
    """
    n, width = sight.thumbnails.shape
    mean = sight.thumbnails.mean(0, dtype=np.float64).astype(np.float32)
    spread = np.zeros((width, width), np.float32)
    for at in _chunks(n):
        small = sight.thumbnails[at] - mean
        spread += small.T @ small
    main = np.linalg.eigh(spread)[1][:, -WIDTH:]
    seen = [(sight.thumbnails[at] - mean) @ main for at in _chunks(n)]
    edges = sight.edges - sight.edges.mean(0)
    return np.concatenate([_scaled(np.concatenate(seen)), _scaled(edges)], 1)


def _chunks(n: int) -> list[slice]:
    """Return parts of n rows, so that only a few are held in full width at a time."""
    return [slice(start, start + ROWS) for start in range(0, n, ROWS)]


def _scaled(x: Floats) -> Floats:
    """Scale to a mean squared length of 1, so that blocks of features count alike."""
    return x / max(float(np.sqrt((x**2).sum(1).mean())), 1e-9)


def doubtful_labels(x: Floats, labels: NDArray[np.int64], seed: int = 0) -> Doubts:
    """Find labels that a classifier of the other pictures contradicts with confidence.

    The classifier is a ridge regression on 1,024 random features (Rahimi & Recht, 2007), fitted to
    four fifths of the pictures at a time. Its scores become probabilities by one factor that makes
    them fit the labels best. If they were right, some labels would have a low probability; in doubt
    are those below the largest limit under which at least twice as many lie as expected.

    Args:
        x: [N, D] features.
        labels: [N].
        seed: of the parts and of the random features.
    """
    n = len(labels)
    confidence = np.full(n, np.nan, np.float32)
    suggested = labels.copy()
    flagged = np.zeros(n, bool)
    classes, y, size = np.unique(labels, return_inverse=True, return_counts=True)
    judged = np.flatnonzero(size[y] >= 2 * FOLDS)
    if len(np.unique(y[judged])) < 2:
        return Doubts(confidence, suggested, flagged, float("nan"))
    kept, target = np.unique(y[judged], return_inverse=True)
    told = _out_of_fold(x[judged], target, len(kept), seed)
    own = told[np.arange(len(judged)), target]
    best = told.argmax(1)
    confidence[judged] = own
    suggested[judged] = classes[kept[best]]
    flagged[judged] = (own <= _limit(told, own)) & (best != target)
    return Doubts(confidence, suggested, flagged, float((best == target).mean()))


def _limit(told: Floats, own: Floats) -> float:
    """Return the largest probability below which far more labels lie than expected.

    Expected below t are the sum of all probabilities below t.
    """
    everything = np.sort(told, axis=None)
    below = np.cumsum(everything, dtype=np.float64)
    observed = np.sort(own)
    expected = below[np.searchsorted(everything, observed, side="right") - 1]
    holds = np.flatnonzero(expected <= EXPECTED * np.arange(1, len(own) + 1))
    return float(observed[holds[-1]]) if len(holds) else -1.0


def _out_of_fold(x: Floats, y: NDArray[np.int64], classes: int, seed: int) -> Floats:
    """Return [N, classes] probabilities, each from a classifier fitted to other parts."""
    random = np.random.default_rng(seed)
    n = len(x)
    turn, start = _random_waves(x, random)
    width = len(start) + 1
    part = np.empty(n, np.int64)
    # Every class is dealt out to the parts in turn, in random order.
    part[np.lexsort((random.random(n), y))] = np.arange(n) % FOLDS
    wanted = np.eye(classes, dtype=np.float32)[y]
    products = np.zeros((FOLDS, width, width), np.float32)
    targets = np.zeros((FOLDS, width, classes), np.float32)
    for at in _chunks(n):
        z = _features(x[at], turn, start)
        for f in range(FOLDS):
            mine = part[at] == f
            products[f] += z[mine].T @ z[mine]
            targets[f] += z[mine].T @ wanted[at][mine]
    weights = np.empty((len(PENALTIES), FOLDS, width, classes), np.float32)
    for k, penalty in enumerate(PENALTIES):
        ridge = penalty * n / width * np.eye(width)
        for f in range(FOLDS):
            product = products.sum(0) - products[f] + ridge
            weights[k, f] = np.linalg.solve(product, targets.sum(0) - targets[f])
    scores = np.empty((len(PENALTIES), n, classes), np.float32)
    for at in _chunks(n):
        z = _features(x[at], turn, start)
        for f in range(FOLDS):
            mine = np.flatnonzero(part[at] == f)
            for k in range(len(PENALTIES)):
                scores[k, at.start + mine] = z[mine] @ weights[k, f]
    errors = [float(((one - wanted) ** 2).sum()) for one in scores]
    return _probabilities(scores[int(np.argmin(errors))], y)


def _random_waves(x: Floats, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Return directions [D, ≤ 1,024] and phases of cosines that make up a Gaussian kernel."""
    n = len(x)
    apart = np.linalg.norm(x[random.integers(0, n, 2000)] - x[random.integers(0, n, 2000)], axis=1)
    width = max(float(np.median(apart)), 1e-6)
    number = min(FEATURES, max(64, n // 2))
    turn = (random.standard_normal((x.shape[1], number)) / width).astype(np.float32)
    return turn, random.uniform(0, 2 * np.pi, number).astype(np.float32)


def _features(x: Floats, turn: Floats, start: Floats) -> Floats:
    """Return the cosines of these rows, and a one."""
    waves = np.cos(x @ turn + start) * np.float32((2 / len(start)) ** 0.5)
    return np.concatenate([waves, np.ones((len(x), 1), np.float32)], 1)


def _probabilities(scores: Floats, y: NDArray[np.int64]) -> Floats:
    best, least = scores, np.inf
    for factor in SHARPNESS:
        told = np.exp(factor * (scores - scores.max(1, keepdims=True)))
        told /= told.sum(1, keepdims=True)
        surprise = -float(np.log(np.maximum(told[np.arange(len(y)), y], 1e-12)).mean())
        if surprise < least:
            best, least = told, surprise
    return best


def isolation(x: Floats, seed: int = 0) -> Floats:
    """Return [N] the distance of each picture from its fifth neighbour.

    Args:
        x: [N, D] features.
        seed: of the 10,000 pictures among which neighbours are looked for, if there are more.
    """
    n = len(x)
    others = np.random.default_rng(seed).permutation(n)[:AMONG]
    among = x[others]
    length = (among**2).sum(1)
    # A picture among the others is its own nearest.
    rank = min(NEIGHBOUR, len(others) - 1)
    found = np.empty(n, np.float32)
    for start in range(0, n, 1024):
        part = x[start : start + 1024]
        squared = length - 2 * part @ among.T + (part**2).sum(1, keepdims=True)
        found[start : start + 1024] = np.partition(squared, rank, axis=1)[:, rank]
    return np.sqrt(np.maximum(found, 0))


def _deviation(values: NDArray[Any], least: float) -> NDArray[Any]:
    """Return how many robust standard deviations each value is from the median."""
    middle = np.median(values)
    spread = max(1.4826 * float(np.median(np.abs(values - middle))), least)
    return (values - middle) / spread


def flags(sight: Sight, far: Floats, sizes: NDArray[Any] | None) -> Iterator[tuple[str, Flags]]:
    """Yield (problem, [N] True where a picture has it) for all but label errors.

    Args:
        sight: of the pictures.
        far: [N] as `isolation` returns.
        sizes: [N, 2] width and height of the files; None if there are none.
    """
    yield "outlier", _deviation(np.log(far + 1e-6), 0.05) > OUTLYING
    _, darkest, lightest = sight.light.T
    yield "dark", (lightest < DARK) & (_deviation(lightest, LEAST_LIGHT) < -UNUSUAL)
    yield "bright", (darkest > BRIGHT) & (_deviation(darkest, LEAST_LIGHT) > UNUSUAL)
    yield "blurred", _deviation(sight.blur, LEAST_BLUR) < -UNUSUAL
    if sizes is not None:
        width, height = np.maximum(sizes.astype(np.float64), 1).T
        area, aspect = np.log(width * height), np.log(width / height)
        yield "odd size", np.abs(_deviation(area, LEAST_AREA)) > UNUSUAL
        yield "odd shape", np.abs(_deviation(aspect, LEAST_ASPECT)) > UNUSUAL
