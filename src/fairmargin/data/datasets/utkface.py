"""UTKFace (Zhang et al., CVPR 2017): gender from a face.

It is biased by race or age as in Hong & Yang (NeurIPS 2021). The files lie in one folder and are
named `<age>_<gender>_<race>_<time>.jpg`, or `.jpg.chip.jpg` for the aligned 200×200 faces.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells, format_cells
from fairmargin.data.geometry import Geometry, image_files
from fairmargin.data.sources import MissingData
from fairmargin.data.split import Data, FileSplit, ValidFrom
from fairmargin.data.views import IMAGENET, plain, resized_crop_flip

GENDERS = ("male", "female")
Bias = Literal["race", "age"]
# Bias i goes with gender i: white and grown-up with male.
BIASES: dict[Bias, tuple[str, str]] = {
    "race": ("white", "not white"),
    "age": ("20 or older", "10 or younger"),
}
# Side of the aligned faces, so the random crops are those of the file.
NATIVE = 200
# Size of the input → side before the evaluation's centre crop.
RESIZE = {64: 72, 128: 144, 224: 256}


@dataclass(frozen=True)
class Face:
    """A file, and what its name says."""

    path: Path
    age: int
    gender: int
    race: int

    def side(self, bias: Bias) -> int:
        """Return the side of the bias, 0 or 1; −1 if on neither, in which case it is not used."""
        if bias == "race":
            return int(self.race != 0)
        if self.age >= 20:
            return 0
        return 1 if self.age <= 10 else -1


def build(
    root: Path,
    *,
    bias: Bias = "race",
    skew: float = 0.9,
    size: int = 64,
    augment: bool = False,
    valid: ValidFrom = "own",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build faces from `<root>/UTKFace` (or `utkface`, or `root`, or a folder `images` inside).

    80 % of the files, drawn with `seed`, make the training set, which is thinned by `skew`; the
    rest is cut in halves.

    Args:
        bias: "race" (white or not) or "age" (20 or older, 10 or younger; others are dropped).
        skew: for n majority samples on a side of the bias, int(n·(1 − skew)) minority samples are
            kept in training.
        size: side of the input: 64, 128 or 224.
        augment: crops of 20 to 100 % with jitter and greyscale; plain random resized crops if
            False. Flips in both.
        valid: "own", the half of the unthinned files that is not the test set; or "from-train",
            `valid_fraction` of every training cell, biased like it.
    """
    check_choice(bias, "bias", BIASES)
    check_choice(valid, "valid", get_args(ValidFrom))
    if size not in RESIZE:
        raise ValueError(f"size must be one of {', '.join(map(str, RESIZE))}; got {size}")
    if not 0 <= skew <= 1:
        raise ValueError(f"skew must lie in [0, 1]; got {skew}")
    faces, skipped = _faces(root)
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(faces), generator=g)
    cut = int(len(faces) * 0.8)
    evaluation = Geometry(RESIZE[size], crop=size)
    drawn = [faces[i] for i in order[:cut].sort().values.tolist()]
    others = [faces[i] for i in order[cut:].sort().values.tolist()]
    train = _split(drawn, bias, evaluation)
    train = train.subset(_skewed(train, skew, g))
    rest = _split(others, bias, evaluation)
    halves = torch.randperm(len(rest), generator=g).tensor_split(2)
    held_out, test = (rest.subset(half.sort().values) for half in halves)
    if valid == "from-train":
        train, held_out = train.hold_out(valid_fraction, seed=seed)
    train = train.to_crop_from(Geometry(NATIVE))
    counts = count_cells(train.labels, train.bias, 2, 2)
    notes = {
        "source": "UTKFace",
        "files": f"{len(faces)} used, {skipped} skipped by name",
        "bias": bias,
        "skew": f"{skew:g}",
        "train groups": format_cells(counts),
        "valid": f"{len(held_out)} ({valid})",
        "test": str(len(test)),
    }
    info = DataInfo("utkface", GENDERS, BIASES[bias], (3, size, size), counts, notes)
    smallest = 0.2 if augment else 0.08
    train_views = resized_crop_flip(size, (smallest, 1.0), *IMAGENET, jitter=augment, grey=augment)
    return Data(train, held_out, test, info, train_views, plain(*IMAGENET))


def _skewed(split: FileSplit, skew: float, g: torch.Generator) -> Tensor:
    """Keep, on each side b of the bias, everyone of gender b and int(n·(1 − skew)) of the others.

    Returns indices.
    """
    parts = []
    for b in (0, 1):
        major = ((split.labels == b) & (split.bias == b)).nonzero().flatten()
        minor = ((split.labels != b) & (split.bias == b)).nonzero().flatten()
        order = torch.randperm(len(minor), generator=g)
        kept = int(len(major) * (1 - skew))
        parts += [major, minor[order[:kept]]]
    return torch.cat(parts).sort().values


def _split(faces: list[Face], bias: Bias, decode: Geometry) -> FileSplit:
    used = [face for face in faces if face.side(bias) >= 0]
    labels = torch.tensor([face.gender for face in used], dtype=torch.long)
    sides = torch.tensor([face.side(bias) for face in used], dtype=torch.long)
    return FileSplit([face.path for face in used], labels, decode, sides)


def _faces(root: Path) -> tuple[list[Face], int]:
    """Find faces, in the order of their names, and count the images whose name cannot be used."""
    paths: list[Path] = []
    for name in ("UTKFace", "utkface", ""):
        for place in (root / name / "images", root / name):
            if not paths and place.is_dir():
                paths = image_files(place)
    parsed = [_face(path) for path in paths]
    faces = [face for face in parsed if face is not None]
    if len(faces) < 10:
        raise MissingData(
            f"{len(faces)} of the {len(paths)} images found in {root}/UTKFace, {root}/utkface or "
            f"{root} have names <age>_<gender>_<race>_<time>.jpg[.chip.jpg]; "
            "expected the aligned faces of UTKFace there"
        )
    return faces, len(paths) - len(faces)


def _face(path: Path) -> Face | None:
    fields = path.name.split("_")
    # A few names of the release lack the gender or the race.
    if len(fields) != 4 or not all(field.isdecimal() for field in fields[:3]):
        return None
    age, gender, race = map(int, fields[:3])
    if gender not in (0, 1) or race not in range(5):
        return None
    return Face(path, age, gender, race)
