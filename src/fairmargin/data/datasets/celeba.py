"""CelebA with the gender of the celebrity as bias, in the two forms that papers report.

Files, in `<root>/celeba` or `root`: `img_align_celeba/*.jpg` (178×218), `list_attr_celeba` and `list_eval_partition`,
each as the original .txt or as the common .csv.
"""

import csv
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells, split_off
from fairmargin.data.geometry import Geometry
from fairmargin.data.sources import MissingData
from fairmargin.data.split import Data, FileSplit
from fairmargin.data.views import IMAGENET, crop_flip, plain, resized_crop_flip

TARGETS = {"blond": "Blond_Hair", "makeup": "Heavy_Makeup"}
TRAIN, VALID, TEST = 0, 1, 2
SIZE = 224
FACE = 178  # the width of the aligned images


def build(
    root: Path,
    *,
    augment: bool = False,
    valid: str = "own",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Blond hair against gender over the official partition (Sagawa et al., ICLR 2020); group = 2·blond + male.

    Args:
        augment: random resized crops of 70 to 100 % and flips. Note: from the centre square at 256×256, not the file.
        valid: "own", the official validation images, or "from-train", `valid_fraction` of every training group.
    """
    check_choice(valid, "valid", ("own", "from-train"))
    whole, partition = _read(root, "Blond_Hair", Geometry(SIZE, square=FACE))
    train, held_out, test = (_part(whole, partition == part) for part in (TRAIN, VALID, TEST))
    if valid == "from-train":
        kept, out = split_off(train.labels, train.bias, valid_fraction, seed=seed)
        train, held_out = train.subset(kept), train.subset(out)
    if augment:
        train = train.to_crop_from(Geometry(256, square=FACE))
    info = _info(
        "celeba",
        "blond",
        ("female", "male"),
        train,
        held_out,
        test,
        {"form": "Group-DRO", "valid": valid},
    )
    train_views = resized_crop_flip(SIZE, (0.7, 1.0), *IMAGENET) if augment else plain(*IMAGENET)
    return Data(train, held_out, test, info, train_views, plain(*IMAGENET))


def build_biascon(
    root: Path,
    *,
    target: str = "blond",
    keep: int = 2000,
    augment: bool = False,
    valid_fraction: float = 0.2,
    seed: int = 0,
) -> Data:
    """Blond hair or heavy make-up against gender as in Hong & Yang (NeurIPS 2021), who report the mean of four cells.

    The bias is 0 male, 1 female, so that bias k belongs to class k: women without the attribute, men with it conflict.
    Note: as in their code, the test set is CelebA's validation partition; its test partition is an extra test.

    Args:
        target: "blond" or "makeup".
        keep: for "blond", how many of the training women who are not blond stay (drawn with `seed`).
        augment: random resized crops of 20 to 100 % of the image at 256×256, flips, jitter, greyscale; else flips only.
        valid_fraction: of the training images. Note: held out in proportion from every cell; their draw ignores cells.
    """
    check_choice(target, "target", TARGETS)
    whole, partition = _read(root, TARGETS[target], Geometry(SIZE, stretch=True))
    assert whole.bias is not None
    whole = replace(whole, bias=1 - whole.bias)
    train, test, official = (_part(whole, partition == part) for part in (TRAIN, VALID, TEST))
    if target == "blond":
        train = train.subset(_thinned(train, keep, seed))
    kept, out = split_off(train.labels, train.bias, valid_fraction, seed=seed)
    train, held_out = train.subset(kept), train.subset(out)
    if augment:
        train = train.to_crop_from(Geometry(256, stretch=True))
    notes = {"form": "BiasCon", "test": "validation partition"}
    info = _info("celeba-biascon", target, ("male", "female"), train, held_out, test, notes)
    train_views = (
        resized_crop_flip(SIZE, (0.2, 1.0), *IMAGENET, jitter=True, grey=True)
        if augment
        else crop_flip(SIZE, 0, *IMAGENET)
    )
    return Data(train, held_out, test, info, train_views, plain(*IMAGENET), {"official": official})


def _thinned(train: FileSplit, keep: int, seed: int) -> Tensor:
    """Indices without all but `keep` of the women (1) who are not blond (0)."""
    drawn = (train.labels == 0) & (train.bias == 1)
    cell = drawn.nonzero().flatten()
    order = torch.randperm(len(cell), generator=torch.Generator().manual_seed(seed))
    return torch.cat([(~drawn).nonzero().flatten(), cell[order[:keep]]]).sort().values


def _info(
    name: str,
    target: str,
    bias_names: tuple[str, str],
    train: FileSplit,
    valid: FileSplit,
    test: FileSplit,
    notes: dict[str, str],
) -> DataInfo:
    counts = {
        n: count_cells(s.labels, s.bias, 2, 2)
        for n, s in (("train", train), ("valid", valid), ("test", test))
    }
    cells = {f"{n} groups": " ".join(map(str, c.flatten().tolist())) for n, c in counts.items()}
    notes = {"source": "CelebA", **notes, **cells}
    return DataInfo(
        name, (f"no {target}", target), bias_names, (3, SIZE, SIZE), counts["train"], notes
    )


def _part(whole: FileSplit, member: Tensor) -> FileSplit:
    return whole.subset(member.nonzero().flatten())


def _read(root: Path, target: str, decode: Geometry) -> tuple[FileSplit, Tensor]:
    """All images sorted by name with `target` as label and Male as bias, and the partition of each."""
    folder = root / "celeba" if (root / "celeba").is_dir() else root
    attributes = _table(folder, "list_attr_celeba", [target, "Male"])
    partition = _table(folder, "list_eval_partition", ["partition"])
    names = sorted(attributes)
    if attributes.keys() != partition.keys():
        raise MissingData(
            f"in {folder}, list_attr_celeba has {len(attributes)} images, not the {len(partition)} of the partition"
        )
    images = folder / "img_align_celeba"
    if (images / "img_align_celeba").is_dir():  # one archive in circulation nests it
        images = images / "img_align_celeba"
    present = set(os.listdir(images)) if images.is_dir() else set()
    missing = [name for name in names if name not in present]
    if missing:
        raise MissingData(
            f"{len(missing)} of {len(names)} listed images are not in {images}, the first is {missing[0]}"
        )
    values = torch.tensor([attributes[name] for name in names])  # [N, 2] of ±1
    part = torch.tensor([partition[name][0] for name in names])
    if part.unique().tolist() != [TRAIN, VALID, TEST]:
        raise MissingData(
            f"{folder}/list_eval_partition must name the parts 0, 1 and 2; found {part.unique().tolist()}"
        )
    labels, male = (values > 0).long().unbind(1)
    return FileSplit([images / name for name in names], labels, decode, male), part


def _table(folder: Path, stem: str, columns: list[str]) -> dict[str, list[int]]:
    """The wanted columns by image name, from `<stem>.txt` or `<stem>.csv`."""
    text, comma = folder / f"{stem}.txt", folder / f"{stem}.csv"
    path = text if text.is_file() else comma
    if not path.is_file():
        raise MissingData(
            f"neither {text.name} nor {comma.name} in {folder}; expected them beside img_align_celeba/"
        )
    try:
        header, rows = _text_rows(path) if path == text else _comma_rows(path)
        absent = [column for column in columns if column not in header]
        if absent:
            raise MissingData(
                f"{path} lacks {', '.join(absent)}; its columns are {', '.join(header)}"
            )
        places = [header.index(column) + 1 for column in columns]
        return {row[0]: [int(row[place]) for place in places] for row in rows}
    except (ValueError, IndexError) as error:
        raise MissingData(
            f"{path} is damaged ({error}); copy it again from the CelebA release"
        ) from error


def _text_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """The original form. Attributes: a count, a header, rows. Partition: rows only."""
    lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
    if len(lines[0]) == 2:
        return ["partition"], lines
    if int(lines[0][0]) != len(lines) - 2:
        raise ValueError(f"it announces {lines[0][0]} rows and has {len(lines) - 2}")
    return lines[1], lines[2:]


def _comma_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    return header[1:], rows
