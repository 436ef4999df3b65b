"""Make a task of the suite from a pool of samples: divide it, tie a bias to the class, paint.

A pool is divided in the same way for every seed, so no sample that is tested is ever trained on.
The seed decides which samples get which bias, and what the painting draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells
from fairmargin.data.datasets.biased_mnist import embedded_digits
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, Views, plain
from fairmargin.vectors import median_distance

# Who may see which bias labels: those of the training samples; those of a small unbiased validation
# set and no others; none. The labels of the test samples are for evaluation alone.
Regime = Literal["known", "validation", "unknown"]
REGIMES: tuple[Regime, ...] = ("known", "validation", "unknown")
PARTS = ("test", "unbiased", "valid", "train")


@dataclass(frozen=True)
class Pool:
    """Samples before anything is planted in them.

    Args:
        images: uint8 [N, H, W], or float vectors [N, D].
        labels: [N] classes from 0 up.
        class_names: one for each class.
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """How many samples of each class go where.

    Args:
        train: for training.
        valid: for a validation set that is as biased as the training set.
        unbiased: for a small unbiased validation set.
        test: for the unbiased test set.
        copies: how many times a test sample is painted, each time with another bias.
    """

    train: int
    valid: int
    unbiased: int
    test: int
    copies: int = 1


# (labels, how strongly the bias follows them; None: not at all, random) → bias [N]
Assign = Callable[[np.ndarray, float | None, np.random.Generator], np.ndarray]
# (images, bias, random) → uint8 [N, H, W, 3], or float vectors
Paint = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


def digits(classes: Sequence[int]) -> Pool:
    """Return the embedded MNIST digits of these classes, 500 of each.

    Args:
        classes: digits, in the order of their labels.
    """
    images, labels = embedded_digits()
    kept = np.isin(labels, classes)
    places = {digit: k for k, digit in enumerate(classes)}
    new = np.array([places[digit] for digit in labels[kept].tolist()], np.int64)
    return Pool(images[kept], new, tuple(str(digit) for digit in classes))


def share_out(labels: np.ndarray, sizes: Sizes) -> dict[str, np.ndarray]:
    """Return the positions of each part of a pool, the same at every call.

    Args:
        labels: [N] of the pool.
        sizes: samples of each class.
    """
    random = np.random.default_rng(0)
    found: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    for y in range(int(labels.max()) + 1):
        mine = random.permutation(np.flatnonzero(labels == y))
        needed = sum(getattr(sizes, part) for part in PARTS)
        if needed > len(mine):
            raise ValueError(f"class {y} has {len(mine)} samples and {needed} are needed")
        start = 0
        for part in PARTS:
            stop = start + getattr(sizes, part)
            found[part].append(mine[start:stop])
            start = stop
    return {part: np.concatenate(chunks) for part, chunks in found.items()}


def tied(biases: int, absent: Callable[[int], int] | None = None) -> Assign:
    """Return an assignment that ties bias y mod `biases` to class y.

    Of the n samples of a class, round(n·ρ) get the bias of the class; the others get the other
    values in equal parts. Without ρ every value comes equally often.

    Args:
        biases: number of bias values.
        absent: the value that a class never has where there is a ρ; None: all come.
    """

    def assign(labels: np.ndarray, rho: float | None, random: np.random.Generator) -> np.ndarray:
        bias = np.zeros(len(labels), np.int64)
        for y in np.unique(labels).tolist():
            mine = random.permutation(np.flatnonzero(labels == y))
            own = y % biases
            if rho is None:
                bias[mine] = (np.arange(len(mine)) + random.integers(biases)) % biases
                continue
            aligned = round(len(mine) * rho)
            left_out = {own} if absent is None else {own, absent(y)}
            others = random.permutation([b for b in range(biases) if b not in left_out])
            bias[mine[:aligned]] = own
            rest = mine[aligned:]
            bias[rest] = others[np.arange(len(rest)) % len(others)]
        return bias

    return assign


def compose(
    name: str,
    pool: Pool,
    sizes: Sizes,
    assign: Assign,
    paint: Paint,
    bias_names: Sequence[str],
    *,
    rho: float,
    seed: int,
    regime: Regime,
    notes: dict[str, str],
    values: Literal["", "seen", "binned"] = "",
    parts: Sequence[Sequence[int]] = (),
) -> Data:
    """Divide a pool, plant a bias, and show the bias labels that a regime allows.

    Args:
        name: of the dataset.
        pool: where the samples come from.
        sizes: samples of each class in each part.
        assign: gives each sample its bias; with `values` a number between 0 and 1.
        paint: shows the bias in the samples.
        bias_names: one for each value, or for each bin of the values.
        rho: how strongly the bias follows the class in training and in biased validation.
        seed: of the assignment and of the painting.
        regime: "known", "validation" or "unknown".
        notes: about the task, for the run record.
        values: the bias is a real number: "seen" by FairKL, while all else sees bins of equal
            width, or "binned" for all. Empty: the bias is a label.
        parts: of several biases at once, the value of each bias name in each of them.
    """
    check_choice(regime, "regime", REGIMES)
    if not 0 <= rho <= 1:
        raise ValueError(f"rho must lie in [0, 1]; got {rho}")
    where = share_out(pool.labels, sizes)

    def split(part: str) -> ArraySplit:
        random = np.random.default_rng([seed, PARTS.index(part)])
        biased = part in ("train", "valid")
        chosen = np.tile(where[part], sizes.copies if part == "test" else 1)
        bias = assign(pool.labels[chosen], rho if biased else None, random)
        painted = paint(pool.images[chosen], bias, random)
        order = random.permutation(len(chosen))
        pixels = torch.from_numpy(painted[order])
        if pixels.ndim == 4:
            pixels = pixels.permute(0, 3, 1, 2).contiguous()
        labels = torch.from_numpy(pool.labels[chosen[order]])
        known = torch.from_numpy(bias[order])
        if not values:
            return ArraySplit(pixels, labels, known)
        bins = (known * len(bias_names)).long().clamp(max=len(bias_names) - 1)
        numbers = known.float()[:, None] if values == "seen" else None
        return ArraySplit(pixels, labels, bins, bias_values=numbers)

    train = split("train")
    valid = split("unbiased" if regime == "validation" else "valid")
    if train.bias_values is not None:
        unit = median_distance(train.bias_values)
        train = replace(train, bias_values=train.bias_values / unit)
    counts = count_cells(train.labels, train.bias, len(pool.class_names), len(bias_names))
    if regime != "known":
        train = hidden(train)
    if regime == "unknown":
        valid = hidden(valid)
    shape = tuple(train.pixels.shape[1:])
    info = DataInfo(
        name=name,
        class_names=pool.class_names,
        bias_names=tuple(bias_names),
        image_shape=shape,
        counts=counts,
        bias_parts=tuple(map(tuple, parts)),
        notes={**notes, "rho": str(rho), "seed": str(seed), "regime": regime},
    )
    views = plain(*HALF) if len(shape) == 3 else _standardized(train)
    return Data(train, valid, split("test"), info, views, views)


def hidden(split: ArraySplit) -> ArraySplit:
    """Return the samples without anything that tells their bias."""
    return replace(split, bias=None, bias_values=None)


def _standardized(train: ArraySplit) -> Views:
    """Return views of vectors: each column with mean 0 and deviation 1."""
    x = train.pixels.double()
    return plain(tuple(x.mean(0).tolist()), tuple(x.std(0, correction=0).tolist()))


def on_color(images: np.ndarray, color: np.ndarray) -> np.ndarray:
    """Put white digits on a ground of some color; return uint8 [N, H, W, 3].

    Args:
        images: uint8 [N, H, W], white on black.
        color: [N, 3], or [N, H, W, 3], from 0 to 255.
    """
    ground = color if color.ndim == 4 else color[:, None, None, :]
    share = images[..., None] / 255
    mixed = share * 255 + (1 - share) * ground
    return mixed.round().clip(0, 255).astype(np.uint8)
