"""The coloured-MNIST variants that others ship. Four families share the name and nothing else; the option says which.

lff   the digit is coloured, ten classes (Nam et al., NeurIPS 2020; the `cmnist` of Lee et al., NeurIPS 2021)
irm   two classes with label noise, two colours as channels, 14×14 (Arjovsky et al., 2019)
lnl   the digit is coloured with jitter around a mean for each class; random colours at test time (Kim et al., CVPR 2019)
spuco five classes of two digits each, part of the background coloured (Joshi et al., 2023)
"""

import colorsys
from pathlib import Path

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
        (0.983682, 0.312519, 0.168575), (0.990530, 0.915605, 0.351512), (0.672964, 0.461070, 0.579808),
        (0.783252, 0.831556, 0.601329), (0.088016, 0.777963, 0.981808), (0.321393, 0.961055, 0.446450),
        (0.024616, 0.235650, 0.758666), (0.555247, 0.101580, 0.761763), (0.207723, 0.392948, 0.018702),
        (0.833658, 0.202409, 0.266943),
    ]
)  # fmt: skip
PATCHES = (
    "large",
    "medium",
    "small",
    "variance-low",
    "variance-medium",
    "variance-high",
)  # spuco: where the colour is
SPREADS = {1: 0.05, 2: 0.02, 3: 0.01, 4: 0.005, 5: 0.002}  # of the colour, by severity


def build(
    root: Path,
    *,
    family: str = "lff",
    ratio: float = 5.0,
    severity: int = 4,
    variance: float = 0.02,
    label_noise: float = 0.25,
    strength: float = 0.995,
    patch: str = "large",
    seed: int = 0,
    valid_fraction: float = 0.1,
) -> Data:
    """Coloured MNIST from the MNIST files.

    Args:
        family: "lff", "irm", "lnl" or "spuco".
        ratio: lff: per cent of conflicting training digits.
        severity: lff: 1 to 5, how tight the colours are; the benchmark uses 4.
        variance: lnl: of the colour jitter, 0.02 to 0.05.
        label_noise: irm: share of flipped labels.
        strength: spuco: share of the training digits with their class's own colour.
        patch: spuco: how much of the background is coloured ("large": all, "medium": 4×4, "small": 2×2), or how much its
            place varies ("variance-low": one 7×7 corner, "-medium": 49 pixels of a quarter, "-high": 49 pixels anywhere).
    """
    check_choice(family, "family", ("lff", "irm", "lnl", "spuco"))
    check_choice(patch, "patch", PATCHES)
    train_images, train_labels, test_images, test_labels = raw.mnist(sources.locate("mnist", root))
    random = np.random.default_rng(seed)
    names, biases, shape = DIGITS, tuple(f"colour {k}" for k in range(10)), (3, 28, 28)
    if family == "irm":
        whole, test = _irm(train_images, train_labels, label_noise, random)
        names, biases, shape = ("5 to 9", "0 to 4"), ("green", "red"), (3, 14, 14)
    elif family == "spuco":
        whole = _spuco(train_images, train_labels // 2, strength, patch, random)
        test = _spuco(test_images, test_labels // 2, None, patch, random)
        names, biases = (
            tuple(f"{k} or {k + 1}" for k in range(0, 10, 2)),
            tuple(f"colour {k}" for k in range(5)),
        )
    else:
        if severity not in SPREADS:
            raise ValueError(f"severity must be from 1 to 5; got {severity}")
        if family == "lff":
            spread = SPREADS[severity]
            bias, test_bias = (
                assign_by_milestones(train_labels, 1 - ratio / 100),
                assign_by_milestones(test_labels, 0.1),
            )
        else:
            spread = float(np.sqrt(variance))
            bias, test_bias = train_labels, random.integers(10, size=len(test_labels))
        whole = _painted(train_images, train_labels, bias, spread, random)
        test = _painted(test_images, test_labels, test_bias, spread, random)
    train, valid = whole.hold_out(valid_fraction, seed=seed)
    counts = count_cells(train.labels, train.bias, len(names), len(biases))
    info = DataInfo(
        "coloured-mnist", names, biases, shape, counts, {"source": "MNIST", "family": family}
    )
    return Data(train, valid, test, info, plain(*HALF), plain(*HALF))


def _painted(
    grey: np.ndarray,
    labels: np.ndarray,
    bias: np.ndarray,
    spread: float,
    random: np.random.Generator,
) -> ArraySplit:
    """One colour for each image, drawn around the mean of its bias, times the grey image; truncated to uint8."""
    colours = (COLOURS[bias] + random.normal(0, spread, (len(bias), 3))).clip(0, 1)
    pixels = (
        grey[:, None].astype(np.float32) * colours[:, :, None, None].astype(np.float32)
    ).astype(np.uint8)
    return ArraySplit(
        torch.from_numpy(pixels),
        torch.from_numpy(labels.astype(np.int64)),
        torch.from_numpy(bias.astype(np.int64)),
    )


def _spuco(
    grey: np.ndarray, y: np.ndarray, strength: float | None, patch: str, random: np.random.Generator
) -> ArraySplit:
    """Pixels that are exactly 0 take the colour inside the patch; the digit keeps its grey. No strength: balanced."""
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
    colours = (np.array([colorsys.hsv_to_rgb(b / 5, 1, 1) for b in range(5)]) * 255).astype(
        np.uint8
    )
    painted = (_patch(patch, len(y), random) & (grey == 0)).astype(np.uint8)[
        :, None
    ]  # [N, 1, 28, 28]
    pixels = grey[:, None] + painted * colours[bias][:, :, None, None]
    return ArraySplit(
        torch.from_numpy(pixels), torch.from_numpy(y.astype(np.int64)), torch.from_numpy(bias)
    )


def _patch(kind: str, n: int, random: np.random.Generator) -> np.ndarray:
    """bool [N, 28, 28]: the pixels that may be coloured."""
    sides = {"large": 28, "medium": 4, "small": 2, "variance-low": 7}
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
    """Training environments whose colour disagrees with the label for 20 % and 10 %, a test environment for 90 %.

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
    split = ArraySplit(
        torch.from_numpy(pixels),
        torch.from_numpy(y.astype(np.int64)),
        torch.from_numpy(colour.astype(np.int64)),
    )
    return split.subset(torch.arange(50_000)), split.subset(torch.arange(50_000, 60_000))
