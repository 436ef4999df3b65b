"""dSprites (Matthey et al., 2017) with one factor of its shapes tied to another.

The options say which factor is the task and which is the shortcut. The images are white shapes on
black, 64×64, one for each of 3 shapes × 6 scales × 40 orientations × 32 × 32 positions. Of each
class of the task, floor(n·ρ) training images have its own group of the shortcut, the others one of
the other groups, as in Biased-MNIST (`bias.assign_by_count`); all other factors are uniform. The
test set is balanced.
"""

import math
import zipfile
from pathlib import Path
from typing import BinaryIO, Literal, cast

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
Factor = Literal["shape", "scale", "orientation", "x", "y"]
# Number of values, in the order of the file, the last changing fastest.
FACTORS: dict[Factor, int] = {"shape": 3, "scale": 6, "orientation": 40, "x": 32, "y": 32}
SHAPES = ("square", "ellipse", "heart")
SIDE = 64
# Images decompressed at a time; all of them are 3 GB.
AT_ONCE = 4096
# (class, group of the shortcut) of each image.
Drawn = tuple[np.ndarray, np.ndarray]


def build(
    root: Path,
    *,
    target: Factor = "shape",
    bias: Factor = "scale",
    rho: float = 0.95,
    train: int = 30_000,
    test: int = 9_000,
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build white shapes, one of whose factors gives another away.

    They come from `<root>/dsprites/dsprites_ndarray_….npz`.

    Args:
        target: the factor to tell: "shape", "scale", "orientation", "x" or "y".
        bias: the factor that gives it away; neighbouring values are grouped into as many groups as
            there are classes.
        rho: share of the training images of each class with its own group.
        train: how many images to draw for training and validation.
        test: how many others to draw, every (class, group) cell equally often.
    """
    for name, factor in (("target", target), ("bias", bias)):
        check_choice(factor, name, FACTORS)
    classes = FACTORS[target]
    if target == bias or FACTORS[bias] < classes:
        raise ValueError(
            f"target={target} has {classes} values and bias={bias} has {FACTORS[bias]}: "
            "the bias must be another factor, with at least as many values"
        )
    if not 0 <= rho <= 1:
        raise ValueError(f"rho must lie in [0, 1]; got {rho}")
    if min(train, test) < classes**2:
        raise ValueError(
            f"train and test must each have {classes**2} images, one for each cell; "
            f"got {train} and {test}"
        )
    random = np.random.RandomState(seed)
    drawn: list[Drawn] = []
    # The order matters: both draw from one stream.
    for n, strength in ((train, rho), (test, 1 / classes)):
        # As many of each class as possible.
        labels = np.arange(n) * classes // n
        source, group = assign_by_count(labels, strength, random, classes=classes)
        drawn.append((labels[source], group))
    file = sources.locate("dsprites", root)[FILE]
    pixels = _read(file, np.concatenate(_images_of(drawn, target, bias, random)))
    whole = _split(pixels[:train], *drawn[0])
    tested = _split(pixels[train:], *drawn[1])
    trained, valid = whole.hold_out(valid_fraction, seed=seed)
    names = SHAPES if target == "shape" else tuple(f"{target} {k}" for k in range(classes))
    groups = tuple(f"{bias} {_range(bias, classes, k)}" for k in range(classes))
    counts = count_cells(trained.labels, trained.bias, classes, classes)
    notes = {"source": "dSprites", "target": target, "bias": bias, "rho": f"{rho:g}"}
    info = DataInfo("dsprites", names, groups, (3, SIDE, SIDE), counts, notes)
    return Data(trained, valid, tested, info, plain(*HALF), plain(*HALF))


def _split(images: np.ndarray, labels: np.ndarray, group: np.ndarray) -> ArraySplit:
    one_channel = torch.from_numpy(images * np.uint8(255))[:, None]
    pixels = one_channel.expand(-1, 3, -1, -1).contiguous()
    y = torch.from_numpy(labels.astype(np.int64))
    return ArraySplit(pixels, y, torch.from_numpy(group.astype(np.int64)))


def _range(factor: Factor, groups: int, k: int) -> str:
    """Name the values of a group, such as "0–1"."""
    lowest, number = _group(FACTORS[factor], groups)
    first, last = int(lowest[k]), int(lowest[k] + number[k] - 1)
    return str(first) if first == last else f"{first}–{last}"


def _images_of(
    drawn: list[Drawn], target: Factor, bias: Factor, random: np.random.RandomState
) -> list[np.ndarray]:
    """Draw numbers of images with these classes and groups, no image twice.

    All other factors are uniform.
    """
    classes = FACTORS[target]
    lowest, number = _group(FACTORS[bias], classes)
    cells = np.concatenate([y * classes + group for y, group in drawn])
    needed = np.bincount(cells, minlength=classes**2)
    there = _number_of_images() // classes // FACTORS[bias] * number
    if (2 * needed.reshape(classes, classes) > there).any():
        raise ValueError(
            f"this would need {needed.max()} of one (class, group) cell, "
            f"which has {there.min()} or more; draw fewer (train, test), "
            "at most half of what there is"
        )
    taken: set[int] = set()
    found = []
    for y, group in drawn:
        numbers = np.full(len(y), -1)
        while len(missing := np.flatnonzero(numbers < 0)):
            n = len(missing)
            factors = {name: random.randint(size, size=n) for name, size in FACTORS.items()}
            factors[target] = y[missing]
            own = group[missing]
            factors[bias] = lowest[own] + (random.random_sample(n) * number[own]).astype(int)
            for place, candidate in zip(missing, _number(factors), strict=True):
                if int(candidate) not in taken:
                    taken.add(int(candidate))
                    numbers[place] = candidate
        found.append(numbers)
    return found


def _group(values: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """(lowest value of each group, how many values it has)."""
    first = np.searchsorted(np.arange(values) * groups // values, np.arange(groups + 1))
    return first[:-1], np.diff(first)


def _number_of_images() -> int:
    return math.prod(FACTORS.values())


def _number(factors: dict[Factor, np.ndarray]) -> np.ndarray:
    """Positions in the file of the images with these factors."""
    number = np.zeros_like(factors["shape"])
    for name, size in FACTORS.items():
        number = number * size + factors[name]
    return number


def _read(file: Path, numbers: np.ndarray) -> np.ndarray:
    """Read these images, uint8 [n, 64, 64], decompressing a part of the file at a time."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open("imgs.npy") as member:
            stream = cast(BinaryIO, member)
            shape, column_major, kind = _header(stream)
            expected = (_number_of_images(), SIDE, SIDE)
            if shape != expected or column_major or kind != np.uint8:
                raise MissingData(
                    f"{file} holds images {shape} of {kind}; expected {expected} of uint8"
                )
            order = numbers.argsort()
            ordered = numbers[order]
            chosen = np.empty((len(numbers), SIDE, SIDE), np.uint8)
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


def _header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, whether the array is column-major, type) of a .npy file."""
    if np.lib.format.read_magic(stream) == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)
