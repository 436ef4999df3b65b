"""dSprites (Matthey et al., 2017) with one factor of its shapes tied to another; you say which is task and which shortcut.

White shapes on black, 64×64, one for each of 3 shapes × 6 scales × 40 orientations × 32 × 32 positions. Of each class of the
task floor(n·ρ) training images have its own group of the shortcut, the others one of the other groups, as in
Biased-MNIST (`bias.assign_by_count`); all other factors are uniform. The test set is balanced.
"""

import math
import zipfile
from pathlib import Path

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data import sources
from fairmargin.data.bias import assign_by_count, count_cells
from fairmargin.data.sources import MissingData
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, plain

FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
FACTORS = {
    "shape": 3,
    "scale": 6,
    "orientation": 40,
    "x": 32,
    "y": 32,
}  # in the order of the file, the last fastest
SHAPES = ("square", "ellipse", "heart")
SIDE = 64
AT_ONCE = 4096  # images decompressed at a time; all of them are 3 GB


def build(
    root: Path,
    *,
    target: str = "shape",
    bias: str = "scale",
    rho: float = 0.95,
    train: int = 30_000,
    test: int = 9_000,
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """White shapes, one of whose factors gives another away, from `<root>/dsprites/dsprites_ndarray_….npz`.

    Args:
        target: the factor to tell: "shape", "scale", "orientation", "x" or "y".
        bias: the factor that gives it away; neighbouring values are grouped into as many groups as there are classes.
        rho: share of the training images of each class with its own group.
        train: how many images to draw for training and validation.
        test: how many others to draw, every (class, group) cell alike.
    """
    for name, factor in (("target", target), ("bias", bias)):
        check_choice(factor, name, FACTORS)
    classes = FACTORS[target]
    if target == bias or FACTORS[bias] < classes:
        raise ValueError(
            f"target={target} has {classes} values and bias={bias} has {FACTORS[bias]}: the bias must be another factor, "
            "with at least as many values"
        )
    if not 0 <= rho <= 1:
        raise ValueError(f"rho must lie in [0, 1]; got {rho}")
    if min(train, test) < classes**2:
        raise ValueError(
            f"train and test must each have {classes**2} images, one for each cell; got {train} and {test}"
        )
    random = np.random.RandomState(seed)
    labels = [np.arange(n) * classes // n for n in (train, test)]  # as many of each class as can be
    drawn = []
    for y, strength in zip(labels, (rho, 1 / classes), strict=True):  # in this order: one stream
        source, group = assign_by_count(y, strength, random, classes=classes, confusing=classes - 1)
        drawn.append((y[source], group))
    file = sources.locate("dsprites", root)[FILE]
    pixels = _read(file, np.concatenate(_images_of(drawn, target, bias, random)))
    parts = np.split(pixels, [train])
    whole, tested = (_split(*part) for part in zip(parts, drawn, strict=True))
    trained, valid = whole.hold_out(valid_fraction, seed=seed)
    names = SHAPES if target == "shape" else tuple(f"{target} {k}" for k in range(classes))
    info = DataInfo(
        "dsprites",
        names,
        tuple(f"{bias} {_range(bias, classes, k)}" for k in range(classes)),
        (3, SIDE, SIDE),
        count_cells(trained.labels, trained.bias, classes, classes),
        {"source": "dSprites", "target": target, "bias": bias, "rho": f"{rho:g}"},
    )
    return Data(trained, valid, tested, info, plain(*HALF), plain(*HALF))


def _split(pixels: np.ndarray, drawn: tuple[np.ndarray, np.ndarray]) -> ArraySplit:
    y, group = (torch.from_numpy(values.astype(np.int64)) for values in drawn)
    return ArraySplit(
        torch.from_numpy(pixels * np.uint8(255))[:, None].expand(-1, 3, -1, -1).contiguous(),
        y,
        group,
    )


def _range(factor: str, groups: int, k: int) -> str:
    """The values of a group, such as "0–1"."""
    lowest, number = (int(of[k]) for of in _group(FACTORS[factor], groups))
    return str(lowest) if number == 1 else f"{lowest}–{lowest + number - 1}"


def _images_of(
    drawn: list[tuple[np.ndarray, np.ndarray]],
    target: str,
    bias: str,
    random: np.random.RandomState,
) -> list[np.ndarray]:
    """Numbers of images with these classes and groups, all other factors uniform, no image twice."""
    classes = FACTORS[target]
    cells = np.bincount(
        np.concatenate([y * classes + group for y, group in drawn]), minlength=classes**2
    )
    there = (
        math.prod(FACTORS.values()) // classes // FACTORS[bias] * _group(FACTORS[bias], classes)[1]
    )
    if (2 * cells.reshape(classes, classes) > there).any():
        raise ValueError(
            f"so many images would need {cells.max()} of one (class, group) cell, which has {there.min()} or more; draw "
            "fewer (train, test), at most half of what there is"
        )
    taken: set[int] = set()
    found = []
    for y, group in drawn:
        numbers = np.full(len(y), -1)
        while len(open_ := np.flatnonzero(numbers < 0)):
            factors = {
                name: random.randint(size, size=len(open_)) for name, size in FACTORS.items()
            }
            factors[target] = y[open_]
            lowest, number = (of[group[open_]] for of in _group(FACTORS[bias], classes))
            factors[bias] = lowest + (random.random_sample(len(open_)) * number).astype(int)
            for place, candidate in zip(open_, _number(factors), strict=True):
                if int(candidate) not in taken:
                    taken.add(int(candidate))
                    numbers[place] = candidate
        found.append(numbers)
    return found


def _group(values: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """The lowest value of each group, and how many it has."""
    first = np.searchsorted(np.arange(values) * groups // values, np.arange(groups + 1))
    return first[:-1], np.diff(first)


def _number(factors: dict[str, np.ndarray]) -> np.ndarray:
    number = np.zeros_like(factors["shape"])
    for name, size in FACTORS.items():
        number = number * size + factors[name]
    return number


def _read(file: Path, numbers: np.ndarray) -> np.ndarray:
    """uint8 [n, 64, 64] of these images, of which the file is decompressed a part at a time."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open("imgs.npy") as stream:
            version = np.lib.format.read_magic(stream)
            header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, column_major, kind = header(stream)
            expected = (math.prod(FACTORS.values()), SIDE, SIDE)
            if shape != expected or column_major or kind != np.uint8:
                raise MissingData(
                    f"{file} holds images {shape} of {kind}; expected {expected} of uint8"
                )
            order = numbers.argsort()
            ordered, chosen = numbers[order], np.empty((len(numbers), SIDE, SIDE), np.uint8)
            for start in range(0, int(ordered[-1]) + 1, AT_ONCE):
                some = stream.read(min(AT_ONCE, shape[0] - start) * SIDE * SIDE)
                part = np.frombuffer(some, np.uint8).reshape(-1, SIDE, SIDE)
                inside = slice(*np.searchsorted(ordered, (start, start + AT_ONCE)))
                chosen[order[inside]] = part[ordered[inside] - start]
            return chosen
    except (KeyError, ValueError, IndexError, zipfile.BadZipFile, OSError) as error:
        raise MissingData(
            f"{file} is damaged ({error}); copy it again from the dSprites release"
        ) from error
