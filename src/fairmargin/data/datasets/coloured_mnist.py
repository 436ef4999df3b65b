"""The coloured-MNIST variants that other projects ship.

Four families share the name and nothing else; the option `family` chooses one.

lff    the digit is coloured, ten classes (Nam et al., NeurIPS 2020; the `cmnist` of Lee et al.,
       NeurIPS 2021)
irm    two classes with label noise, two colours as channels, 14×14 (Arjovsky et al., 2019)
lnl    the digit is coloured with jitter around a mean for each class; random colours at test time
       (Kim et al., CVPR 2019)
spuco  five classes of two digits each, part of the background coloured (Joshi et al., 2023)
"""

import colorsys
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data import raw, sources
from fairmargin.data.bias import assign_by_milestones, count_cells
from fairmargin.data.datasets.biased_mnist import DIGITS
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, plain

COLOURS = np.array(
    [
        (0.983682, 0.312519, 0.168575), (0.990530, 0.915605, 0.351512),
        (0.672964, 0.461070, 0.579808), (0.783252, 0.831556, 0.601329),
        (0.088016, 0.777963, 0.981808), (0.321393, 0.961055, 0.446450),
        (0.024616, 0.235650, 0.758666), (0.555247, 0.101580, 0.761763),
        (0.207723, 0.392948, 0.018702), (0.833658, 0.202409, 0.266943),
    ]
)  # fmt: skip
Family = Literal["lff", "irm", "lnl", "spuco"]
# spuco: where the colour is.
Patch = Literal["large", "medium", "small", "variance-low", "variance-medium", "variance-high"]
# Spread of the colour, by severity.
SPREADS = {1: 0.05, 2: 0.02, 3: 0.01, 4: 0.005, 5: 0.002}


def build(
    root: Path,
    *,
    family: Family = "lff",
    ratio: float = 5.0,
    severity: int = 4,
    variance: float = 0.02,
    label_noise: float = 0.25,
    strength: float = 0.995,
    patch: Patch = "large",
    seed: int = 0,
    valid_fraction: float = 0.1,
) -> Data:
    """Make coloured MNIST from the MNIST files.

    Args:
        family: "lff", "irm", "lnl" or "spuco".
        ratio: lff: per cent of conflicting training digits.
        severity: lff: 1 to 5, how tight the colours are; the benchmark uses 4.
        variance: lnl: of the colour jitter, 0.02 to 0.05.
        label_noise: irm: share of flipped labels.
        strength: spuco: share of the training digits with their class's own colour.
        patch: spuco: how much of the background is coloured ("large": all, "medium": 4×4, "small":
            2×2), or how much its place varies ("variance-low": one 7×7 corner, "variance-medium":
            49 pixels of a quarter, "variance-high": 49 pixels anywhere).
    """
    check_choice(family, "family", get_args(Family))
    check_choice(patch, "patch", get_args(Patch))
    train_images, train_labels, test_images, test_labels = raw.mnist(sources.locate("mnist", root))
    random = np.random.default_rng(seed)
    names, biases = DIGITS, tuple(f"colour {k}" for k in range(10))
    shape = (3, 28, 28)
    if family == "irm":
        whole, test = _irm(train_images, train_labels, label_noise, random)
        names, biases = ("5 to 9", "0 to 4"), ("green", "red")
        shape = (3, 14, 14)
    elif family == "spuco":
        whole = _spuco(train_images, train_labels // 2, strength, patch, random)
        test = _spuco(test_images, test_labels // 2, None, patch, random)
        names = tuple(f"{k} or {k + 1}" for k in range(0, 10, 2))
        biases = tuple(f"colour {k}" for k in range(5))
    else:
        if severity not in SPREADS:
            raise ValueError(f"severity must be from 1 to 5; got {severity}")
        if family == "lff":
            spread = SPREADS[severity]
            bias = assign_by_milestones(train_labels, 1 - ratio / 100)
            test_bias = assign_by_milestones(test_labels, 0.1)
        else:
            spread = float(np.sqrt(variance))
            bias = train_labels
            test_bias = random.integers(10, size=len(test_labels))
        whole = _painted(train_images, train_labels, bias, spread, random)
        test = _painted(test_images, test_labels, test_bias, spread, random)
    train, valid = whole.hold_out(valid_fraction, seed=seed)
    counts = count_cells(train.labels, train.bias, len(names), len(biases))
    notes = {"source": "MNIST", "family": family}
    info = DataInfo("coloured-mnist", names, biases, shape, counts, notes)
    return Data(train, valid, test, info, plain(*HALF), plain(*HALF))


def _painted(
    grey: np.ndarray,
    labels: np.ndarray,
    bias: np.ndarray,
    spread: float,
    random: np.random.Generator,
) -> ArraySplit:
    """Multiply each grey image with a colour drawn around the mean of its bias.

    The result is truncated to uint8.
    """
    colours = (COLOURS[bias] + random.normal(0, spread, (len(bias), 3))).clip(0, 1)
    colours = colours[:, :, None, None].astype(np.float32)
    pixels = grey[:, None].astype(np.float32) * colours
    return _split(pixels.astype(np.uint8), labels, bias)


def _split(pixels: np.ndarray, labels: np.ndarray, bias: np.ndarray) -> ArraySplit:
    y = torch.from_numpy(labels.astype(np.int64))
    return ArraySplit(torch.from_numpy(pixels), y, torch.from_numpy(bias.astype(np.int64)))


def _spuco(
    grey: np.ndarray,
    y: np.ndarray,
    strength: float | None,
    patch: Patch,
    random: np.random.Generator,
) -> ArraySplit:
    """Colour the pixels inside the patch that are exactly 0; the digit keeps its grey.

    Without a strength, every class has every colour equally often.
    """
    bias = np.empty(len(y), np.int64)
    for k in range(5):
        index = random.permutation(np.flatnonzero(y == k))
        if strength is None:
            bias[index] = np.arange(len(index)) % 5
        else:
            own = int(strength * len(index))
            others = [b for b in range(5) if b != k]
            bias[index[:own]] = k
            bias[index[own:]] = [others[i % 4] for i in range(len(index) - own)]
    wheel = np.array([colorsys.hsv_to_rgb(b / 5, 1, 1) for b in range(5)])
    colours = (wheel * 255).astype(np.uint8)
    painted = _patch(patch, len(y), random) & (grey == 0)  # [N, 28, 28]
    painted = painted.astype(np.uint8)[:, None]
    return _split(grey[:, None] + painted * colours[bias][:, :, None, None], y, bias)


def _patch(kind: Patch, n: int, random: np.random.Generator) -> np.ndarray:
    """The pixels that may be coloured, bool [N, 28, 28]."""
    sides: dict[Patch, int] = {"large": 28, "medium": 4, "small": 2, "variance-low": 7}
    mask = np.zeros((n, 28, 28), bool)
    if kind in sides:
        mask[:, : sides[kind], : sides[kind]] = True
        return mask
    side = 14 if kind == "variance-medium" else 28
    chosen = random.random((n, side * side)).argsort(1)[:, :49]
    inside = np.zeros((n, side * side), bool)
    np.put_along_axis(inside, chosen, True, 1)
    mask[:, :side, :side] = inside.reshape(n, side, side)
    return mask


def _irm(
    images: np.ndarray, labels: np.ndarray, noise: float, random: np.random.Generator
) -> tuple[ArraySplit, ArraySplit]:
    """Make training environments whose colour disagrees with the label for 20 % and 10 %.

    In the test environment it disagrees for 90 %.

    Note: the third channel is empty, so that every network for colour images takes it.
    """
    order = np.concatenate([random.permutation(50_000), np.arange(50_000, 60_000)])
    images, labels = images[order, ::2, ::2], labels[order]
    y = (labels < 5) ^ (random.random(60_000) < noise)
    disagreement = np.where(np.arange(60_000) % 2 == 0, 0.2, 0.1)
    disagreement[50_000:] = 0.9
    colour = y ^ (random.random(60_000) < disagreement)
    pixels = np.zeros((60_000, 3, 14, 14), np.uint8)
    pixels[np.arange(60_000), 1 - colour.astype(int)] = images
    split = _split(pixels, y, colour)
    return split.subset(torch.arange(50_000)), split.subset(torch.arange(50_000, 60_000))
