"""Three archives of Lee et al. in the layout of `align_conflict`.

cmnist is of NeurIPS 2021, Dogs & Cats and BAR of AAAI 2023. The images of BAR are those of Nam et
al. (NeurIPS 2020); Kim et al. (CVPR 2019) had the idea of Dogs & Cats.
"""

from dataclasses import dataclass
from pathlib import Path

from fairmargin.data.datasets import align_conflict
from fairmargin.data.datasets.biased_mnist import DIGITS
from fairmargin.data.split import Data, ValidFrom
from fairmargin.data.views import CIFAR10, HALF, Views, crop_flip, plain

ACTIONS = ("climbing", "diving", "fishing", "pole vaulting", "racing", "throwing")
PLACES = ("rock wall", "underwater", "water surface", "sky", "paved track", "playing field")
SIZE = 224
# Views of photographs, with the statistics of CIFAR-10 as in the public codes.
_CROPS = crop_flip(SIZE, 4, *CIFAR10)
_WHOLE = plain(*CIFAR10)


@dataclass(frozen=True)
class _Archive:
    name: str
    folder: str
    class_names: tuple[str, ...]
    bias_names: tuple[str, ...]
    size: int = SIZE
    train_views: Views = _CROPS
    eval_views: Views = _WHOLE
    by_folder: bool = False


_COLOURS = tuple(f"colour {k}" for k in range(10))
_CMNIST = _Archive("cmnist", "cmnist", DIGITS, _COLOURS, 28, plain(*HALF), plain(*HALF))
_ANIMALS, _FURS = ("animal 0", "animal 1"), ("fur 0", "fur 1")
_DOGS_AND_CATS = _Archive("dogs-and-cats", "dogs_and_cats", _ANIMALS, _FURS)
_BAR = _Archive("bar", "bar", ACTIONS, PLACES, by_folder=True)


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
    return _build(_CMNIST, root, ratio, valid, valid_fraction, seed)


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
    return _build(_DOGS_AND_CATS, root, ratio, valid, valid_fraction, seed)


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
    return _build(_BAR, root, ratio, valid, valid_fraction, seed)


def _build(
    archive: _Archive, root: Path, ratio: float, valid: ValidFrom, valid_fraction: float, seed: int
) -> Data:
    return align_conflict.build(
        root / archive.folder,
        f"{ratio:g}pct",
        archive.name,
        archive.class_names,
        archive.bias_names,
        archive.size,
        archive.train_views,
        archive.eval_views,
        valid=valid,
        valid_fraction=valid_fraction,
        seed=seed,
        by_folder=archive.by_folder,
    )
