"""Find copies among pictures, by what they show and not by their names.

Exact copies have the same decoded pixels. Near copies are looked for by a perceptual hash: 60 low
frequencies of the brightness, each a bit that says whether it is above the median of the dataset.
Pictures that agree in one of six bands of ten bits are compared; those that differ in few bits are
verified, first by thumbnails, then by the pixels. Mirrored copies are looked for too.

Digits written alike are no copies. So a near copy must be so close that chance hardly brings it
there. The distances to pictures drawn at random say how many lie within a distance, and how fast
that number falls with it (the local dimension); near copies lie where in the whole dataset a
twentieth of a pair is expected.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairmargin.audit.section import Progress, silent
from fairmargin.audit.sight import FREQUENCIES, SPLITS, THUMBNAIL, Sight
from fairmargin.data.split import Data

# Bands of a hash, and bits of each.
BANDS = 6
BAND = 10
# Most pictures of a band's bucket that each picture is compared with.
BUCKET = 200
# Most bits in which the hashes of near copies differ.
DIFFERENT = 10
# Largest distance of near copies: √(2 − 2·correlation), of thumbnails and of pixels.
THUMBNAILS_APART = 0.35
# As close as this counts always.
CLOSE = 0.04
PIXELS_APART = 0.5
# Most pairs expected in the whole dataset that are as close as a near copy is.
EXPECTED = 0.05
# Pictures drawn at random, and the ranks of the two neighbours that tell the local dimension.
DRAWN = 1000
RANKS = (5, 50)
# Thumbnails that are compared at a time.
ROWS = 4096
# Thumbnails with less deviation, in levels of 255, are flat and have no near copies.
FLAT = 4.0
# Pixels along a side at which near copies are verified.
VERIFIED = 64

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """Two pictures that are copies of each other.

    Args:
        first: position in the sight, the lower one.
        second: position of the other.
        kind: "exact", "near" or "mirrored".
        distance: of the pixels; 0 for exact copies.
    """

    first: int
    second: int
    kind: str
    distance: float


def find(data: Data, sight: Sight, progress: Progress = silent, seed: int = 0) -> list[Pair]:
    """Return a pair for each picture that is a copy of one before it: the closest such pair.

    The splits stand in the order train, valid, test. A picture of the test set that is a copy of
    another and of a training picture is in two pairs.

    Args:
        data: the dataset.
        sight: of its pictures.
        progress: called now and then.
        seed: of the pictures that distances are held against.
    """
    exact = list(_exact(sight))
    # One of each group of exact copies stands for all in the search for near ones.
    lone = np.ones(len(sight), bool)
    lone[[pair.second for pair in exact]] = False
    near = _near(data, sight, np.flatnonzero(lone), progress, seed)
    return sorted(_closest(sight, [*exact, *near]), key=lambda pair: (pair.second, pair.first))


def _exact(sight: Sight) -> Iterator[Pair]:
    """Pair every picture with the first that has the same pixels."""
    _, first, group = np.unique(sight.digests, return_index=True, return_inverse=True)
    source = first[group.reshape(-1)]
    for k in np.flatnonzero(source != np.arange(len(sight))):
        yield Pair(int(source[k]), int(k), "exact", 0.0)


def _near(data: Data, sight: Sight, among: Index, progress: Progress, seed: int) -> Iterator[Pair]:
    """Yield the near copies among these pictures, verified."""
    among = among[_deviation(sight.thumbnails, among) >= FLAT]
    if len(among) < 2:
        return
    waves = sight.waves[among]
    plain = _hashes(waves, waves)
    mirror = _mirror()
    turned = _hashes(waves * mirror, waves)
    for kind, hashes in (("near", plain), ("mirrored", turned)):
        first, second = _candidates(plain, hashes)
        mirrored = kind == "mirrored"
        distance = _apart(sight.thumbnails, among[first], among[second], mirrored=mirrored)
        close = np.flatnonzero(distance <= THUMBNAILS_APART)
        ends = np.concatenate([first[close], second[close]])
        limits = _limits(sight.thumbnails, among, ends, seed).reshape(2, -1).min(0)
        for k in close[distance[close] <= limits]:
            a, b = sorted((int(among[first[k]]), int(among[second[k]])))
            far = _pixels_apart(data, sight, a, b, mirrored=mirrored)
            if far <= PIXELS_APART:
                yield Pair(a, b, kind, far)
        progress("looking for copies", 1 + mirrored, 2)


def _standardized(rows: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (rows with mean 0 and length 1, their deviation before)."""
    x = rows.astype(np.float32)
    x -= x.mean(1, keepdims=True)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.maximum(length, 1e-6), length[:, 0] / x.shape[1] ** 0.5


def _deviation(thumbnails: NDArray[np.uint8], among: Index) -> NDArray[np.float32]:
    """Return the deviation of the values of each thumbnail."""
    starts = range(0, len(among), ROWS)
    parts = [_standardized(thumbnails[among[k : k + ROWS]])[1] for k in starts]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _limits(
    thumbnails: NDArray[np.uint8], among: Index, wanted: Index, seed: int
) -> NDArray[np.float32]:
    """Return the distance within which chance brings no picture, of those wanted.

    m of n pictures lie within r, and within d < r about m·(d/r)^dimension. Two neighbours among
    pictures drawn at random give the dimension.
    """
    n = len(among)
    drawn = np.random.default_rng(seed).choice(n, min(n, DRAWN), replace=False)
    far = max(1, min(RANKS[1], len(drawn) // 3))
    near = max(1, far * RANKS[0] // RANKS[1])
    ranks = [min(rank, len(drawn) - 1) for rank in (near, far)]
    distinct, back = np.unique(wanted, return_inverse=True)
    found = np.empty((len(distinct), 2), np.float32)
    others = _standardized(thumbnails[among[drawn]])[0].T
    for start in range(0, len(distinct), ROWS):
        mine = _standardized(thumbnails[among[distinct[start : start + ROWS]]])[0]
        part = -np.partition(-(mine @ others), ranks, axis=1)[:, ranks]
        found[start : start + ROWS] = np.sqrt(np.maximum(2 - 2 * part, 1e-6))
    inner, outer = found.T
    growth = np.log(np.maximum(outer / inner, 1.01))
    dimension = np.clip(np.log(max(ranks[1], 2) / ranks[0]) / growth, 2, None)
    within = ranks[1] * n / len(drawn)
    limit = outer * (EXPECTED / n / within) ** (1 / dimension)
    return np.clip(limit, CLOSE, THUMBNAILS_APART)[back]


@lru_cache(maxsize=1)
def _order() -> Index:
    """Return the positions of the 60 lowest frequencies, dealt out to the bands in turn."""
    down, right = np.divmod(np.arange(FREQUENCIES**2), FREQUENCIES)
    lowest = np.lexsort((down, down + right))[1 : BANDS * BAND + 1]
    return lowest.reshape(BAND, BANDS).T.reshape(-1)


def _mirror() -> NDArray[np.float32]:
    """Return the signs that mirror a picture's frequencies from left to right."""
    right = np.arange(FREQUENCIES**2) % FREQUENCIES
    return np.where(right % 2, -1, 1).astype(np.float32)


def _hashes(waves: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Return a hash of 60 bits for each picture: which frequencies are above the median."""
    order = _order()
    bits = waves[:, order] > np.median(reference[:, order], axis=0)
    hashes = np.zeros(len(waves), np.uint64)
    for bit in bits.T:
        hashes = (hashes << np.uint64(1)) | bit
    return hashes


def _candidates(hashes: NDArray[np.uint64], others: NDArray[np.uint64]) -> tuple[Index, Index]:
    """Return pairs (position in hashes, in others) that share a band and differ in few bits."""
    n = len(hashes)
    same = others is hashes
    values = hashes if same else np.concatenate([hashes, others])
    codes = []
    for band in range(BANDS):
        key = (values >> np.uint64(band * BAND)) & np.uint64((1 << BAND) - 1)
        order = np.lexsort((values, key))
        key, code = key[order], values[order]
        for step in range(1, BUCKET + 1):
            alike = key[step:] == key[:-step]
            if not alike.any():
                break
            alike &= _bits(code[step:] ^ code[:-step]) <= DIFFERENT
            at = np.flatnonzero(alike)
            a, b = order[at], order[at + step]
            low, high = np.minimum(a, b), np.maximum(a, b)
            if not same:
                crossing = (low < n) & (high >= n) & (high - n != low)
                low, high = low[crossing], high[crossing] - n
            codes.append(low * n + high)
    both = np.unique(np.concatenate(codes)) if codes else np.zeros(0, np.int64)
    return both // n, both % n


def _bits(x: NDArray[np.uint64]) -> NDArray[Any]:
    """Return the number of bits that are set."""
    if hasattr(np, "bitwise_count"):
        return np.asarray(np.bitwise_count(x))
    return _table()[x.view(np.uint16).reshape(-1, 4)].sum(1)


@lru_cache(maxsize=1)
def _table() -> NDArray[np.uint8]:
    return np.array([k.bit_count() for k in range(1 << 16)], np.uint8)


def _apart(
    thumbnails: NDArray[np.uint8], first: Index, second: Index, *, mirrored: bool
) -> NDArray[np.float32]:
    """Return √(2 − 2·correlation) of thumbnails `first` and (mirrored) `second`."""
    found = np.empty(len(first), np.float32)
    for start in range(0, len(first), ROWS):
        at = slice(start, start + ROWS)
        other = thumbnails[second[at]]
        if mirrored:
            square = other.reshape(-1, 3, THUMBNAIL, THUMBNAIL)
            other = square[:, :, :, ::-1].reshape(len(other), -1)
        x, y = _standardized(thumbnails[first[at]])[0], _standardized(other)[0]
        found[at] = np.einsum("nd,nd->n", x, y)
    return np.sqrt(np.maximum(2 - 2 * found, 0))


def _pixels_apart(data: Data, sight: Sight, a: int, b: int, *, mirrored: bool) -> float:
    pictures = []
    for k in (a, b):
        split = getattr(data, SPLITS[sight.split[k]])
        image = split.images(torch.tensor([int(sight.position[k])])).float()
        height, width = (min(VERIFIED, side) for side in image.shape[2:])
        pictures.append(torch.nn.functional.adaptive_avg_pool2d(image, (height, width)))
    if mirrored:
        pictures[1] = pictures[1].flip(3)
    rows, _ = _standardized(torch.cat(pictures).flatten(1).numpy())
    return float(np.sqrt(max(0.0, 2 - 2 * float(rows[0] @ rows[1]))))


def _closest(sight: Sight, pairs: list[Pair]) -> Iterator[Pair]:
    """Yield of each picture the closest copy before it in its split, and in an earlier split."""
    group = {pair.second: pair.first for pair in pairs if pair.kind == "exact"}
    members: dict[int, list[int]] = {}
    for second, first in group.items():
        members.setdefault(first, [first]).append(second)
    best: dict[tuple[int, bool], Pair] = {}
    for pair in pairs:
        seconds = [pair.second]
        if pair.kind != "exact":
            # What is near one picture is near its exact copies.
            seconds = members.get(pair.second, seconds)
        for second in seconds:
            across = bool(sight.split[pair.first] != sight.split[second])
            if pair.kind != "exact" and second != pair.second and not across:
                continue
            known = best.get((second, across))
            if known is None or pair.distance < known.distance:
                best[second, across] = Pair(pair.first, second, pair.kind, pair.distance)
    yield from best.values()
