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
    embeddings,
    folder,
    imagenet,
    lee_archives,
    mnist,
    planted,
    suite,
    utkface,
    waterbirds,
)
from fairmargin.data.options import check_options
from fairmargin.data.ranges import check_ranges
from fairmargin.data.split import Data
from fairmargin.data.webdataset import is_pattern, shards

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
    # The tasks of "fairmargin suite".
    **suite.SUITE,
    **suite.HELD_OUT,
    # Its root is the manifest or the image folder itself.
    "folder": folder.build,
    # Its root is the .npz file itself.
    "embeddings": embeddings.build,
}
# May stand before the folder of a downloaded Hugging Face dataset.
HF = "hf:"
# Datasets whose root is people's own data, and what it is.
OWN = {"folder": "a manifest, an image folder or tar files", "embeddings": "an .npz file"}
# Datasets that read nothing from the data root.
WITHOUT_FILES = ("mnist-mini", "biased-mnist-mini", "planted", *suite.SUITE)


def is_own(name: str) -> bool:
    """Tell whether this is the path of people's own data, not the name of a dataset.

    Something that looks like a path and does not exist is an error.

    Args:
        name: what the user named as a dataset.
    """
    path = own_path(name)
    if name.startswith(HF) and not path.exists():
        raise ValueError(
            f"{name} means a downloaded folder of Parquet or Arrow files and there is no {path}; "
            "download it first: huggingface-cli download --repo-type dataset OWNER/NAME "
            f"--local-dir {path}"
        )
    if name in DATASETS:
        return False
    if path.exists() or (is_pattern(path) and shards(path)):
        return True
    if not path.suffix and "/" not in name:
        return False
    if "://" in name:
        raise ValueError(f"{name} is a URL and data are read from files; download it first")
    raise ValueError(
        f"there is no file or folder {name}; check the path, or name one of {', '.join(DATASETS)}"
    )


def own_path(name: str) -> Path:
    """Return the path of people's own data; "hf:FOLDER" is a downloaded Hugging Face dataset.

    Args:
        name: what the user named as a dataset.
    """
    return Path(name.removeprefix(HF))


def own_kind(path: str | Path) -> str:
    """Return the dataset that reads people's own data at this path.

    Args:
        path: of a manifest, an image folder, or an .npz file of embeddings.
    """
    return "embeddings" if Path(path).suffix.lower() == ".npz" else "folder"


def build(name: str, root: Path | None = None, **options: Any) -> Data:
    """Build a dataset.

    Args:
        name: one of DATASETS.
        root: the folder of all raw data; $FAIRMARGIN_DATA or the user's cache if None. For the
            datasets in OWN, the path itself.
        options: keywords of the dataset's builder.
    """
    check_choice(name, "dataset", DATASETS)
    if name in OWN:
        if root is None:
            raise ValueError(f'the dataset "{name}" needs the path of {OWN[name]} as its root')
        where = Path(root)
    else:
        where = sources.data_root(root)
    check_options(DATASETS[name], name, options)
    check_ranges(options)
    built = DATASETS[name](where, **options)
    if name in WITHOUT_FILES:
        return built
    places = [where, *(value for value in options.values() if isinstance(value, Path))]
    if any(map(sources.is_synthetic, places)):
        notes = {**built.info.notes, "stand-in": "generated stand-in data: accuracies mean nothing"}
        built = replace(built, info=replace(built.info, notes=notes))
    return built


__all__ = ["DATASETS", "OWN", "build", "is_own", "own_kind", "own_path"]
