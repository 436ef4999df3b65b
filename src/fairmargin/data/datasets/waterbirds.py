"""Waterbirds (Sagawa et al., ICLR 2020): land and water birds on land or water backgrounds.

Group = 2·y + place. The headline number is the accuracy of the worst group; the mean is re-weighted
by the training groups. Three species are mislabelled in the release; as usual they are left as they
are.
"""

import csv
from pathlib import Path
from typing import get_args

import torch

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells, format_cells
from fairmargin.data.geometry import Geometry
from fairmargin.data.sources import MissingData
from fairmargin.data.split import Data, FileSplit, ValidFrom
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
    valid: ValidFrom = "own",
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build the archive in `<root>/waterbird_complete95_forest2water2` or in `root` itself.

    Args:
        augment: random resized crops of 70 to 100 % and flips. Note: from the image at 256×256, not
            from the file.
        valid: "own", the release's validation images, whose backgrounds are balanced within each
            bird; or "from-train", `valid_fraction` of every training group.
        seed: of the validation split, if it is from the training images.
    """
    check_choice(valid, "valid", get_args(ValidFrom))
    train, held_out, test = _splits(root)
    if valid == "from-train":
        train, held_out = train.hold_out(valid_fraction, seed=seed)
    if augment:
        train = train.to_crop_from(Geometry(256, stretch=True))
    notes = {"source": ARCHIVE, "valid": valid}
    for name, split in (("train", train), ("valid", held_out), ("test", test)):
        notes[f"{name} groups"] = format_cells(count_cells(split.labels, split.bias, 2, 2))
    counts = count_cells(train.labels, train.bias, 2, 2)
    info = DataInfo("waterbirds", BIRDS, PLACES, (3, SIZE, SIZE), counts, notes)
    eval_views = plain(*IMAGENET)
    train_views = resized_crop_flip(SIZE, (0.7, 1.0), *IMAGENET) if augment else eval_views
    return Data(train, held_out, test, info, train_views, eval_views)


def _splits(root: Path) -> list[FileSplit]:
    """Read train, valid and test from the table, sorted by path."""
    folders = [root / ARCHIVE, root]
    folder = next((place for place in folders if (place / "metadata.csv").is_file()), None)
    if folder is None:
        raise MissingData(
            f"no metadata.csv in {folders[0]} or {folders[1]}; "
            "expected it beside the species' image folders"
        )
    metadata = folder / "metadata.csv"
    with metadata.open(newline="") as file:
        table = csv.DictReader(file)
        absent = [column for column in COLUMNS if column not in (table.fieldnames or ())]
        if absent:
            raise MissingData(
                f"{metadata} lacks the columns {', '.join(absent)}; it has {table.fieldnames}"
            )
        rows = sorted(table, key=lambda row: str(row["img_filename"]))
    paths = [folder / str(row["img_filename"]) for row in rows]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise MissingData(
            f"{len(missing)} of the {len(paths)} images of metadata.csv are missing, "
            f"the first is {missing[0]}"
        )
    try:
        values = [(int(row["y"]), int(row["split"]), int(row["place"])) for row in rows]
        labels, split, places = torch.tensor(values).unbind(1)
    # Short rows, words for numbers, no rows.
    except (TypeError, ValueError, IndexError) as error:
        raise MissingData(
            f"{metadata}: y, split and place must be integers in every row ({error})"
        ) from error
    binary = set(labels.tolist()) | set(places.tolist()) <= {0, 1}
    if not binary or split.unique().tolist() != [TRAIN, VALID, TEST]:
        raise MissingData(
            f"{metadata}: expected y and place of 0 or 1 and the three splits 0, 1 and 2"
        )
    whole = FileSplit(paths, labels, EVALUATION, places)
    return [whole.subset((split == part).nonzero().flatten()) for part in (TRAIN, VALID, TEST)]
