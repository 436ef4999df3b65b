"""UTKFace (Zhang et al., CVPR 2017): gender from a face, biased by race or age as in Hong & Yang (NeurIPS 2021).

Files `<age>_<gender>_<race>_<time>.jpg`, or `.jpg.chip.jpg` for the aligned 200×200 faces, in one folder.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells, split_off
from fairmargin.data.geometry import Geometry, image_files
from fairmargin.data.sources import MissingData
from fairmargin.data.split import Data, FileSplit
from fairmargin.data.views import IMAGENET, plain, resized_crop_flip

GENDERS = ("male", "female")
# Bias i goes with gender i: white and grown-up with male.
BIASES = {"race": ("white", "not white"), "age": ("20 or older", "10 or younger")}
NATIVE = 200  # side of the aligned faces, so the random crops are those of the file
RESIZE = {64: 72, 128: 144, 224: 256}  # before the evaluation's centre crop


@dataclass(frozen=True)
class Face:
    path: Path
    age: int
    gender: int
    race: int

    def side(self, bias: str) -> int:
        """0 or 1, the side of the bias; −1: on neither, not used."""
        if bias == "race":
            return int(self.race != 0)
        return 0 if self.age >= 20 else 1 if self.age <= 10 else -1


def build(
    root: Path,
    *,
    bias: str = "race",
    skew: float = 0.9,
    size: int = 64,
    augment: bool = False,
    valid: str = "own",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Faces from `<root>/UTKFace` (or `utkface`, or `root`; with or without a folder `images` inside).

    80 % of the files, drawn with `seed`, make the training set, which is thinned by `skew`; the rest is cut in halves.

    Args:
        bias: "race" (white or not) or "age" (20 or older, 10 or younger; others are dropped).
        skew: of n majority samples on a side of the bias, int(n·(1 − skew)) minority samples are kept in training.
        size: side of the input: 64, 128 or 224.
        augment: crops of 20 to 100 % with jitter and greyscale; else plain random resized crops. Flips in both.
        valid: "own", the half of the unthinned files that is not the test set; or "from-train", `valid_fraction` of
            every training cell, biased like it.
    """
    check_choice(bias, "bias", BIASES)
    check_choice(valid, "valid", ("own", "from-train"))
    if size not in RESIZE:
        raise ValueError(f"size must be one of {', '.join(map(str, RESIZE))}; got {size}")
    if not 0 <= skew <= 1:
        raise ValueError(f"skew must lie in [0, 1]; got {skew}")
    faces, skipped = _faces(root)
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(faces), generator=g)
    cut = int(len(faces) * 0.8)
    evaluation = Geometry(RESIZE[size], crop=size)
    train = _split([faces[i] for i in order[:cut].sort().values.tolist()], bias, evaluation)
    train = train.subset(_skewed(train, skew, g))
    rest = _split([faces[i] for i in order[cut:].sort().values.tolist()], bias, evaluation)
    halves = torch.randperm(len(rest), generator=g).tensor_split(2)
    held_out, test = (rest.subset(half.sort().values) for half in halves)
    if valid == "from-train":
        kept, out = split_off(train.labels, train.bias, valid_fraction, seed=seed)
        train, held_out = train.subset(kept), train.subset(out)
    train = train.to_crop_from(Geometry(NATIVE))
    counts = count_cells(train.labels, train.bias, 2, 2)
    notes = {
        "source": "UTKFace",
        "files": f"{len(faces)} used, {skipped} skipped by name",
        "bias": bias,
        "skew": f"{skew:g}",
        "train groups": " ".join(map(str, counts.flatten().tolist())),
        "valid": f"{len(held_out)} ({valid})",
        "test": str(len(test)),
    }
    info = DataInfo("utkface", GENDERS, BIASES[bias], (3, size, size), counts, notes)
    smallest = 0.2 if augment else 0.08
    train_views = resized_crop_flip(size, (smallest, 1.0), *IMAGENET, jitter=augment, grey=augment)
    return Data(train, held_out, test, info, train_views, plain(*IMAGENET))


def _skewed(split: FileSplit, skew: float, g: torch.Generator) -> Tensor:
    """Indices that keep, on each side b of the bias, everyone of gender b and int(n·(1 − skew)) of the others."""
    parts = []
    for b in (0, 1):
        major = ((split.labels == b) & (split.bias == b)).nonzero().flatten()
        minor = ((split.labels != b) & (split.bias == b)).nonzero().flatten()
        drawn = minor[torch.randperm(len(minor), generator=g)[: int(len(major) * (1 - skew))]]
        parts += [major, drawn]
    return torch.cat(parts).sort().values


def _split(faces: list[Face], bias: str, decode: Geometry) -> FileSplit:
    used = [face for face in faces if face.side(bias) >= 0]
    labels = torch.tensor([face.gender for face in used], dtype=torch.long)
    sides = torch.tensor([face.side(bias) for face in used], dtype=torch.long)
    return FileSplit([face.path for face in used], labels, decode, sides)


def _faces(root: Path) -> tuple[list[Face], int]:
    """Faces in the order of their names, and how many images had a name without four usable fields."""
    places = [
        root / name / inner for name in ("UTKFace", "utkface", "") for inner in ("images", "")
    ]
    paths = next(
        (found for place in places if place.is_dir() and (found := image_files(place))), []
    )
    parsed = [_face(path) for path in paths]
    faces = [face for face in parsed if face is not None]
    if len(faces) < 10:
        raise MissingData(
            f"{len(faces)} of the {len(paths)} images found in {root}/UTKFace, {root}/utkface or {root} have names"
            " <age>_<gender>_<race>_<time>.jpg[.chip.jpg]; expected the aligned faces of UTKFace there"
        )
    return faces, len(paths) - len(faces)


def _face(path: Path) -> Face | None:
    fields = path.name.split("_")
    if len(fields) != 4 or not all(field.isdecimal() for field in fields[:3]):
        return None  # a few names of the release lack the gender or the race
    age, gender, race = map(int, fields[:3])
    return Face(path, age, gender, race) if gender in (0, 1) and race in range(5) else None
