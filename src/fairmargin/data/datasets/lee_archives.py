"""Three archives of Lee et al. in the layout of `align_conflict`.

cmnist is of NeurIPS 2021, Dogs & Cats and BAR of AAAI 2023. The images of BAR are those of Nam et
al. (NeurIPS 2020); Kim et al. (CVPR 2019) had the idea of Dogs & Cats.
"""

from functools import partial
from pathlib import Path

from fairmargin.data.datasets import align_conflict
from fairmargin.data.datasets.biased_mnist import DIGITS
from fairmargin.data.split import Data, ValidFrom
from fairmargin.data.views import CIFAR10, HALF, crop_flip, plain

ACTIONS = ("climbing", "diving", "fishing", "pole vaulting", "racing", "throwing")
PLACES = ("rock wall", "underwater", "water surface", "sky", "paved track", "playing field")
ANIMALS = ("animal 0", "animal 1")
FURS = ("fur 0", "fur 1")
SIZE = 224
_photographs = partial(
    align_conflict.build,
    size=SIZE,
    train_views=crop_flip(SIZE, 4, *CIFAR10),
    eval_views=plain(*CIFAR10),
)
_digits = partial(
    align_conflict.build,
    size=28,
    train_views=plain(*HALF),
    eval_views=plain(*HALF),
)


def build_cmnist(
    root: Path,
    *,
    ratio: float = 5.0,
    valid: ValidFrom = "from-train",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build the coloured digits that Lee et al. published, under `<root>/cmnist`.

    The dataset `coloured-mnist` makes similar ones from MNIST.

    Args:
        ratio: per cent of conflicting training digits: 0.5, 1, 2 or 5.
        valid: "from-train", or "own" for the archive's folder.
    """
    return _digits(
        root / "cmnist",
        f"{ratio:g}pct",
        "cmnist",
        DIGITS,
        tuple(f"colour {k}" for k in range(10)),
        valid=valid,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def build_dogs_and_cats(
    root: Path,
    *,
    ratio: float = 5.0,
    valid: ValidFrom = "from-train",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build dogs and cats with bright or dark fur, under `<root>/dogs_and_cats`.

    The release does not say which of them is 0 and which is 1.

    Args:
        ratio: per cent of conflicting training images: 1 or 5.
        valid: "from-train", or "own" for the archive's folder.
    """
    return _photographs(
        root / "dogs_and_cats",
        f"{ratio:g}pct",
        "dogs-and-cats",
        ANIMALS,
        FURS,
        valid=valid,
        valid_fraction=valid_fraction,
        seed=seed,
    )


def build_bar(
    root: Path,
    *,
    ratio: float = 5.0,
    valid: ValidFrom = "from-train",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build six actions, each tied to a place (Biased Action Recognition), under `<root>/bar`.

    The actions are numbered alphabetically.

    Note: the release does not say where a conflicting training image was taken. As in the public
    code it gets the place of the next action: that it conflicts is true, where it was is not known.

    Args:
        ratio: per cent of conflicting training images: 1 or 5.
        valid: "from-train", or "own" for the archive's folder.
    """
    return _photographs(
        root / "bar",
        f"{ratio:g}pct",
        "bar",
        ACTIONS,
        PLACES,
        valid=valid,
        valid_fraction=valid_fraction,
        seed=seed,
        by_folder=True,
    )
