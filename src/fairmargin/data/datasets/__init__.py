"""Datasets by name.

data = build("biased-mnist-mini", rho=0.95)     # Data(train, valid, test, info, …)

To add one: a file with `build(root, *, options…) -> Data`, and an entry here.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmargin.checks import check_choice
from fairmargin.data import sources
from fairmargin.data.datasets import (
    bffhq,
    biased_mnist,
    celeba,
    cifar,
    coloured_mnist,
    corrupted_cifar10,
    dsprites,
    folder,
    imagenet,
    lee_archives,
    mnist,
    planted,
    utkface,
    waterbirds,
)
from fairmargin.data.options import nearest_option
from fairmargin.data.split import Data

DATASETS: dict[str, Callable[..., Data]] = {
    "mnist": mnist.build,
    "mnist-mini": mnist.build_mini,
    "biased-mnist": biased_mnist.build,
    "biased-mnist-mini": biased_mnist.build_mini,
    "coloured-mnist": coloured_mnist.build,
    "corrupted-cifar10": corrupted_cifar10.build,
    "cifar10": cifar.build_10,
    "cifar100": cifar.build_100,
    "cmnist": lee_archives.build_cmnist,
    "bffhq": bffhq.build,
    "dogs-and-cats": lee_archives.build_dogs_and_cats,
    "bar": lee_archives.build_bar,
    "imagenet": imagenet.build,
    "imagenet9": imagenet.build_9,
    "imagenet100": imagenet.build_100,
    "waterbirds": waterbirds.build,
    "celeba": celeba.build,
    "celeba-biascon": celeba.build_biascon,
    "utkface": utkface.build,
    "dsprites": dsprites.build,
    "planted": planted.build,
    "folder": folder.build,  # its root is the manifest or the image folder itself
}
WITHOUT_FILES = ("mnist-mini", "biased-mnist-mini", "planted")


def is_own(name: str) -> bool:
    """Whether this is the path of somebody's manifest or image folder, and not the name of a dataset."""
    if name in DATASETS or not (Path(name).exists() or Path(name).suffix or "/" in name):
        return False
    if not Path(name).exists():
        raise ValueError(
            f"there is no file or folder {name}; check the path, or name one of {', '.join(DATASETS)}"
        )
    return True


def build(name: str, root: Path | None = None, **options: Any) -> Data:
    """The dataset `name` from the data root (argument, $FAIRMARGIN_DATA, or the user's cache)."""
    check_choice(name, "dataset", DATASETS)
    if name == "folder":
        if root is None:
            raise ValueError(
                'the dataset "folder" needs the path of a manifest or an image folder as its root'
            )
        where = Path(root)
    else:
        where = sources.data_root(root)
    nearest_option(DATASETS[name], name, options)
    built = DATASETS[name](where, **options)
    places = (
        []
        if name in WITHOUT_FILES
        else [where, *(value for value in options.values() if isinstance(value, Path))]
    )
    if any(map(sources.is_synthetic, places)):
        notes = {**built.info.notes, "stand-in": "generated stand-in data: accuracies mean nothing"}
        built = replace(built, info=replace(built.info, notes=notes))
    return built


__all__ = ["DATASETS", "build", "is_own"]
