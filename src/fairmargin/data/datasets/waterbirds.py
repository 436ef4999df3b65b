"""Waterbirds (Sagawa et al., ICLR 2020): land and water birds pasted onto land or water backgrounds.

Group = 2·y + place. The headline number is the accuracy of the worst group; the mean is re-weighted by the training
groups. Three species are mislabelled in the release; they are left as they are, as everyone does.
"""

import csv
from pathlib import Path

import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells, split_off
from fairmargin.data.geometry import Geometry
from fairmargin.data.sources import MissingData
from fairmargin.data.split import Data, FileSplit
from fairmargin.data.views import IMAGENET, plain, resized_crop_flip

ARCHIVE = "waterbird_complete95_forest2water2"
BIRDS = ("landbird", "waterbird")
PLACES = ("land", "water")
COLUMNS = ("img_filename", "y", "split", "place")
TRAIN, VALID, TEST = 0, 1, 2
SIZE = 224
EVALUATION = Geometry(256, crop=SIZE, stretch=True)


def build(
    root: Path,
    *,
    augment: bool = False,
    valid: str = "own",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """The archive in `<root>/waterbird_complete95_forest2water2` or in `root` itself.

    Args:
        augment: random resized crops of 70 to 100 % and flips. Note: from the image at 256×256, not from the file.
        valid: "own", the release's validation images, whose backgrounds are balanced within each bird; or "from-train",
            `valid_fraction` of every training group.
    """
    check_choice(valid, "valid", ("own", "from-train"))
    train, held_out, test = _splits(root)
    if valid == "from-train":
        kept, out = split_off(train.labels, train.bias, valid_fraction, seed=seed)
        train, held_out = train.subset(kept), train.subset(out)
    if augment:
        train = train.to_crop_from(Geometry(256, stretch=True))
    notes = {"source": ARCHIVE, "valid": valid}
    notes |= {
        f"{name} groups": _groups(s)
        for name, s in (("train", train), ("valid", held_out), ("test", test))
    }
    counts = count_cells(train.labels, train.bias, 2, 2)
    info = DataInfo("waterbirds", BIRDS, PLACES, (3, SIZE, SIZE), counts, notes)
    train_views = resized_crop_flip(SIZE, (0.7, 1.0), *IMAGENET) if augment else plain(*IMAGENET)
    return Data(train, held_out, test, info, train_views, plain(*IMAGENET))


def _splits(root: Path) -> list[FileSplit]:
    """Train, valid and test by the table, sorted by path."""
    folders = [root / ARCHIVE, root]
    folder = next((place for place in folders if (place / "metadata.csv").is_file()), None)
    if folder is None:
        raise MissingData(
            f"no metadata.csv in {folders[0]} or {folders[1]}; expected it beside the species' image folders"
        )
    with (folder / "metadata.csv").open(newline="") as file:
        table = csv.DictReader(file)
        absent = [column for column in COLUMNS if column not in (table.fieldnames or ())]
        if absent:
            raise MissingData(
                f"{folder / 'metadata.csv'} lacks the columns {', '.join(absent)}; it has {table.fieldnames}"
            )
        rows = sorted(
            ([row[column] for column in COLUMNS] for row in table), key=lambda row: str(row[0])
        )
    paths = [folder / str(row[0]) for row in rows]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise MissingData(
            f"{len(missing)} of the {len(paths)} images of metadata.csv are missing, the first is {missing[0]}"
        )
    try:
        labels, split, places = torch.tensor(
            [[int(value) for value in row[1:]] for row in rows]
        ).unbind(1)
    except (TypeError, ValueError, IndexError) as error:  # short rows, words for numbers, no rows
        raise MissingData(
            f"{folder / 'metadata.csv'}: y, split and place must be integers in every row ({error})"
        ) from error
    binary = all(set(values.tolist()) <= {0, 1} for values in (labels, places))
    if not binary or split.unique().tolist() != [TRAIN, VALID, TEST]:
        raise MissingData(
            f"{folder / 'metadata.csv'}: expected y and place of 0 or 1 and the three splits 0, 1 and 2"
        )
    whole = FileSplit(paths, labels, EVALUATION, places)
    return [whole.subset((split == part).nonzero().flatten()) for part in (TRAIN, VALID, TEST)]


def _groups(split: FileSplit) -> str:
    return " ".join(map(str, count_cells(split.labels, split.bias, 2, 2).flatten().tolist()))
