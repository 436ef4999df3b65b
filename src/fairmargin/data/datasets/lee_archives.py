"""Three more archives of Lee et al., in the layout of `align_conflict`: cmnist (NeurIPS 2021), Dogs & Cats and BAR (AAAI 2023).

The images of BAR are those of Nam et al. (NeurIPS 2020); Kim et al. (CVPR 2019) had the idea of Dogs & Cats.
"""

from functools import partial
from pathlib import Path

from fairmargin.data.datasets import align_conflict
from fairmargin.data.datasets.biased_mnist import DIGITS
from fairmargin.data.split import Data
from fairmargin.data.views import CIFAR10, HALF, crop_flip, plain

ACTIONS = ("climbing", "diving", "fishing", "pole vaulting", "racing", "throwing")
PLACES = ("rock wall", "underwater", "water surface", "sky", "paved track", "playing field")
SIZE = 224
_photographs = partial(
    align_conflict.build,
    size=SIZE,
    train_views=crop_flip(SIZE, 4, *CIFAR10),
    eval_views=plain(*CIFAR10),
)


def build_cmnist(
    root: Path,
    *,
    ratio: float = 5.0,
    valid: str = "from-train",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Coloured digits as Lee et al. published them, under `<root>/cmnist`; `coloured-mnist` makes such from MNIST.

    Args:
        ratio: per cent of conflicting training digits: 0.5, 1, 2 or 5.
        valid: "from-train", or "own" for the archive's folder.
    """
    colours = tuple(f"colour {k}" for k in range(10))
    return align_conflict.build(
        root / "cmnist", f"{ratio:g}pct", "cmnist", DIGITS, colours, 28, plain(*HALF), plain(*HALF),
        valid=valid, valid_fraction=valid_fraction, seed=seed,
    )  # fmt: skip


def build_dogs_and_cats(
    root: Path,
    *,
    ratio: float = 5.0,
    valid: str = "from-train",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Dogs and cats with bright or dark fur, under `<root>/dogs_and_cats`. Which is 0 and which 1, the release does not say.

    Args:
        ratio: per cent of conflicting training images: 1 or 5.
        valid: "from-train", or "own" for the archive's folder.
    """
    return _photographs(
        root / "dogs_and_cats", f"{ratio:g}pct", "dogs-and-cats", ("animal 0", "animal 1"), ("fur 0", "fur 1"),
        valid=valid, valid_fraction=valid_fraction, seed=seed,
    )  # fmt: skip


def build_bar(
    root: Path,
    *,
    ratio: float = 5.0,
    valid: str = "from-train",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Six actions, each tied to a place (Biased Action Recognition), under `<root>/bar`.

    Note: nobody wrote down where a conflicting training image was taken. As in the public code it gets the place of the
    next action: that it conflicts is true, where it was is not known. The actions are numbered by their alphabet.

    Args:
        ratio: per cent of conflicting training images: 1 or 5.
        valid: "from-train", or "own" for the archive's folder.
    """
    return _photographs(
        root / "bar", f"{ratio:g}pct", "bar", ACTIONS, PLACES,
        valid=valid, valid_fraction=valid_fraction, seed=seed, by_folder=True,
    )  # fmt: skip
