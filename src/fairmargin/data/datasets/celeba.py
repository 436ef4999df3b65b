"""CelebA with the gender of the celebrity as bias, in the two forms that papers report.

Files, in `<root>/celeba` or `root`: `img_align_celeba/*.jpg` (178×218), `list_attr_celeba` and
`list_eval_partition`, each as the original .txt or as the common .csv.
"""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells, format_cells
from fairmargin.data.geometry import Geometry
from fairmargin.data.sources import MissingData
from fairmargin.data.split import Data, FileSplit, ValidFrom
from fairmargin.data.views import IMAGENET, crop_flip, plain, resized_crop_flip

Target = Literal["blond", "makeup"]
TARGETS: dict[Target, str] = {"blond": "Blond_Hair", "makeup": "Heavy_Makeup"}
TRAIN, VALID, TEST = 0, 1, 2
SIZE = 224
# Width of the aligned images.
FACE = 178


def build(
    root: Path,
    *,
    augment: bool = False,
    valid: ValidFrom = "own",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build blond hair against gender over the official partition (Sagawa et al., ICLR 2020).

    Group = 2·blond + male.

    Args:
        augment: random resized crops of 70 to 100 % and flips. Note: from the centre square at
            256×256, not the file.
        valid: "own", the official validation images, or "from-train", `valid_fraction` of every
            training group.
        seed: of the validation split, if it is from the training images.
    """
    check_choice(valid, "valid", get_args(ValidFrom))
    whole, partition = _read(root, TARGETS["blond"], Geometry(SIZE, square=FACE))
    train, held_out, test = (_part(whole, partition == part) for part in (TRAIN, VALID, TEST))
    if valid == "from-train":
        train, held_out = train.hold_out(valid_fraction, seed=seed)
    if augment:
        train = train.to_crop_from(Geometry(256, square=FACE))
    notes = {"form": "Group-DRO", "valid": valid}
    info = _info("celeba", "blond", ("female", "male"), train, held_out, test, notes)
    eval_views = plain(*IMAGENET)
    train_views = resized_crop_flip(SIZE, (0.7, 1.0), *IMAGENET) if augment else eval_views
    return Data(train, held_out, test, info, train_views, eval_views)


def build_biascon(
    root: Path,
    *,
    target: Target = "blond",
    keep: int = 2000,
    augment: bool = False,
    valid_fraction: float = 0.2,
    seed: int = 0,
) -> Data:
    """Build blond hair or heavy make-up against gender as in Hong & Yang (NeurIPS 2021).

    They report the mean of four cells. The bias is 0 male, 1 female, so that bias k belongs to
    class k: women without the attribute and men with it conflict. Note: as in their code, the test
    set is CelebA's validation partition; its test partition is an extra test.

    Args:
        target: "blond" or "makeup".
        keep: for "blond", how many of the training women who are not blond stay (drawn with
            `seed`).
        augment: random resized crops of 20 to 100 % of the image at 256×256, flips, jitter and
            greyscale; flips only if False.
        valid_fraction: share of the training images to hold out. Note: held out in proportion from
            every cell; their draw ignores cells.
        seed: of the women who stay and of the validation split.
    """
    check_choice(target, "target", TARGETS)
    whole, partition = _read(root, TARGETS[target], Geometry(SIZE, stretch=True))
    assert whole.bias is not None
    whole = replace(whole, bias=1 - whole.bias)
    train, test, official = (_part(whole, partition == part) for part in (TRAIN, VALID, TEST))
    if target == "blond":
        train = train.subset(_thinned(train, keep, seed))
    train, held_out = train.hold_out(valid_fraction, seed=seed)
    train_views = crop_flip(SIZE, 0, *IMAGENET)
    if augment:
        train = train.to_crop_from(Geometry(256, stretch=True))
        train_views = resized_crop_flip(SIZE, (0.2, 1.0), *IMAGENET, jitter=True, grey=True)
    notes = {"form": "BiasCon", "test": "validation partition"}
    info = _info("celeba-biascon", target, ("male", "female"), train, held_out, test, notes)
    return Data(train, held_out, test, info, train_views, plain(*IMAGENET), {"official": official})


def _thinned(train: FileSplit, keep: int, seed: int) -> Tensor:
    """Return all indices, but of the women (1) who are not blond (0) only `keep`."""
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
    notes = {"source": "CelebA", **notes}
    for part, split in (("train", train), ("valid", valid), ("test", test)):
        notes[f"{part} groups"] = format_cells(count_cells(split.labels, split.bias, 2, 2))
    counts = count_cells(train.labels, train.bias, 2, 2)
    class_names = (f"no {target}", target)
    return DataInfo(name, class_names, bias_names, (3, SIZE, SIZE), counts, notes)


def _part(whole: FileSplit, member: Tensor) -> FileSplit:
    return whole.subset(member.nonzero().flatten())


def _read(root: Path, target: str, decode: Geometry) -> tuple[FileSplit, Tensor]:
    """Read all images sorted by name, and the partition of each.

    The label is the attribute `target`, the bias is Male.
    """
    folder = root / "celeba" if (root / "celeba").is_dir() else root
    attributes = _table(folder, "list_attr_celeba", [target, "Male"])
    partition = _table(folder, "list_eval_partition", ["partition"])
    names = sorted(attributes)
    if attributes.keys() != partition.keys():
        raise MissingData(
            f"in {folder}, list_attr_celeba has {len(attributes)} images, "
            f"not the {len(partition)} of the partition"
        )
    images = folder / "img_align_celeba"
    # One archive in circulation has the folder twice.
    if (images / "img_align_celeba").is_dir():
        images = images / "img_align_celeba"
    present = set(os.listdir(images)) if images.is_dir() else set()
    missing = [name for name in names if name not in present]
    if missing:
        raise MissingData(
            f"{len(missing)} of {len(names)} listed images are not in {images}, "
            f"the first is {missing[0]}"
        )
    values = torch.tensor([attributes[name] for name in names])  # [N, 2] of ±1
    part = torch.tensor([partition[name][0] for name in names])
    named = part.unique().tolist()
    if named != [TRAIN, VALID, TEST]:
        raise MissingData(
            f"{folder}/list_eval_partition must name the parts 0, 1 and 2; found {named}"
        )
    labels, male = (values > 0).long().unbind(1)
    return FileSplit([images / name for name in names], labels, decode, male), part


def _table(folder: Path, stem: str, columns: list[str]) -> dict[str, list[int]]:
    """Read the wanted columns by image name, from `<stem>.txt` or `<stem>.csv`."""
    text, comma = folder / f"{stem}.txt", folder / f"{stem}.csv"
    path = text if text.is_file() else comma
    if not path.is_file():
        raise MissingData(
            f"neither {text.name} nor {comma.name} in {folder}; "
            "expected them beside img_align_celeba/"
        )
    try:
        header, rows = _text_rows(path) if path == text else _comma_rows(path)
        absent = [column for column in columns if column not in header]
        if absent:
            raise MissingData(
                f"{path} lacks {', '.join(absent)}; its columns are {', '.join(header)}"
            )
        places = [header.index(column) + 1 for column in columns]
        values = {}
        for row in rows:
            values[row[0]] = [int(row[place]) for place in places]
        return values
    except (ValueError, IndexError) as error:
        raise MissingData(
            f"{path} is damaged ({error}); copy it again from the CelebA release"
        ) from error


def _text_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Read the original form: a count, a header and rows for attributes, rows for the partition."""
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
