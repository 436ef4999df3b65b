import csv

import pytest
import torch
from PIL import Image

from fairmargin.data.datasets import waterbirds
from fairmargin.data.decode import UnreadableImage
from fairmargin.data.sources import MissingData
from fairmargin.data.split import as_evaluated

GROUPS = {
    0: (8, 2, 1, 4),
    1: (2, 2, 1, 1),
    2: (3, 3, 2, 2),
}  # images of group 2·y + place in each split


def write(folder, header, rows):
    with (folder / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / waterbirds.ARCHIVE
    rows = []
    for split, sizes in GROUPS.items():
        for group, size in enumerate(sizes):
            for i in range(size):
                name = f"{group:03d}.Bird/{split}_{i}.jpg"
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (12, 9), (40 * group, 0, 0)).save(folder / name)
                rows.append([len(rows), name, group // 2, split, group % 2, f"/p/{i}.jpg"])
    header = ["img_id", "img_filename", "y", "split", "place", "place_filename"]
    write(folder, header, reversed(rows))  # the order of the table must not matter
    return folder


def test_groups_of_all_splits(archive):
    data = waterbirds.build(archive.parent)
    assert data.info.class_names == ("landbird", "waterbird")
    assert data.info.bias_names == ("land", "water")
    assert data.info.counts.tolist() == [[8, 2], [1, 4]]
    assert data.info.notes["valid groups"] == "2 2 1 1"
    assert data.info.notes["test groups"] == "3 3 2 2"
    assert data.train.paths == sorted(data.train.paths)


def test_the_folder_itself_is_a_root_too(archive):
    assert len(waterbirds.build(archive).test) == 10


def test_pixels_belong_to_their_group(archive):
    test = waterbirds.build(archive).test
    pixels = test.images(torch.arange(10))
    assert pixels.shape == (10, 3, 224, 224)
    assert (
        (pixels[:, 0, 0, 0].long() - 40 * (2 * test.labels + test.bias)).abs() <= 3
    ).all()  # JPEG


def test_validation_from_training_keeps_every_group_in_training(archive):
    data = waterbirds.build(archive, valid="from-train", valid_fraction=0.2)
    assert (len(data.train), len(data.valid)) == (12, 3)
    assert (data.info.counts > 0).all()


def test_augmentation_crops_from_256_and_only_in_training(archive):
    data = waterbirds.build(archive, augment=True)
    batch = data.train.images(torch.tensor([0]))
    assert batch.shape == (1, 3, 256, 256)
    assert data.train_views(batch).shape == (1, 3, 224, 224)
    for split in (data.valid, as_evaluated(data.train)):
        assert split.images(torch.tensor([0])).shape == (1, 3, 224, 224)


def test_missing_table(tmp_path):
    with pytest.raises(
        MissingData, match=r"no metadata\.csv in .*waterbird_complete95_forest2water2 or"
    ):
        waterbirds.build(tmp_path)


def test_missing_columns_are_named(archive):
    write(archive, ["img_filename", "y"], [["a.jpg", 0]])
    with pytest.raises(MissingData, match="lacks the columns split, place"):
        waterbirds.build(archive)


def test_missing_images_are_counted(archive):
    (archive / "000.Bird/0_1.jpg").unlink()
    with pytest.raises(MissingData, match=r"1 of the 31 images .*0_1\.jpg"):
        waterbirds.build(archive)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["000.Bird/0_0.jpg", "land", 0, 0]], "must be integers"),
        ([["000.Bird/0_0.jpg", 0]], "must be integers"),
        ([], "must be integers"),
        ([["000.Bird/0_0.jpg", 2, 0, 0]], "0 or 1"),
        ([["000.Bird/0_0.jpg", 0, 0, 0]], "three splits"),
    ],
)
def test_damaged_tables(archive, rows, message):
    write(archive, ["img_filename", "y", "split", "place"], rows)
    with pytest.raises(MissingData, match=message):
        waterbirds.build(archive)


def test_an_unreadable_image_is_named_when_decoded(archive):
    (archive / "000.Bird/2_0.jpg").write_bytes(b"not a picture")
    test = waterbirds.build(archive).test
    with pytest.raises(UnreadableImage, match=r"2_0\.jpg"):
        test.images(torch.arange(len(test)))
