"""The align/conflict archives, on generated trees in the published layouts."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from fairmargin.data.datasets import align_conflict
from fairmargin.data.decode import UnreadableImage
from fairmargin.data.geometry import Geometry
from fairmargin.data.sources import MissingData
from fairmargin.data.split import ArraySplit, FileSplit
from fairmargin.data.views import CIFAR10, crop_flip, plain

CLASSES = ("a", "b", "c")


def picture(path, shade=0, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 2 * shade, 255 - shade)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Three classes: 10 aligned and 2 conflicting images each, 3 × 3 test images.

    The archive's own valid folder is aligned only.
    """
    root = tmp_path / "toy"
    for y in range(3):
        for i in range(10):
            picture(root / f"1pct/align/{y}/{i:03d}_{y}_{y}.png", shade=10 * y + i)
        for b in {0, 1, 2} - {y}:
            picture(root / f"1pct/conflict/{y}/x_{b}_{y}_{b}.png", shade=100 + 10 * y + b)
        for b in range(3):
            picture(root / f"test/{y}/{b}_{y}_{b}.png")
        picture(root / f"1pct/valid/{y}/own_{y}_{y}.png")
    return root


def build(folder, ratio="1pct", size=8, **options):
    views = crop_flip(size, 1, *CIFAR10), plain(*CIFAR10)
    return align_conflict.build(folder, ratio, "toy", CLASSES, CLASSES, size, *views, **options)


def test_labels_counts_and_pixels_come_from_the_files(folder):
    data = build(folder, valid_fraction=0)
    assert isinstance(data.train, ArraySplit)
    assert data.info.counts.tolist() == [[10, 1, 1], [1, 10, 1], [1, 1, 10]]
    assert data.info.image_shape == (3, 8, 8)
    assert data.info.notes["archive"] == "30 aligned, 6 conflicting"
    assert "misplaced" not in data.info.notes
    paint = {
        tuple(image[:, 0, 0].tolist()): (int(y), int(b))
        for image, y, b in zip(data.train.pixels, data.train.labels, data.train.bias, strict=True)
    }
    assert paint[(10 * 1 + 4, 28, 241)] == (1, 1)
    assert paint[(100 + 10 * 2 + 0, 240, 135)] == (2, 0)


def test_validation_is_held_out_by_cell_and_seed(folder):
    data = build(folder, valid_fraction=0.2, seed=3)
    assert len(data.train) + len(data.valid) == 36
    assert len(data.valid) == 7  # round(0.2 · 36)
    assert (data.info.counts > 0).all()  # cells of one image stay in training
    again = build(folder, valid_fraction=0.2, seed=3)
    assert torch.equal(again.valid.pixels, data.valid.pixels)


def test_own_validation_folder_leaves_the_training_set_whole(folder):
    data = build(folder, valid="own")
    assert (len(data.train), len(data.valid)) == (36, 3)
    assert data.info.notes["valid"] == "3 aligned, 0 conflicting (own)"


def test_flat_valid_and_test_beside_the_ratio_folder(folder, tmp_path):
    for kind, names in {"valid": ["v_0_1.png"], "test": ["t_0_0.png", "t_2_1.png"]}.items():
        for name in names:
            picture(tmp_path / "flat" / kind / name)
    (folder / "1pct/align").rename(tmp_path / "flat/align-moved")
    (tmp_path / "flat/1pct").mkdir()
    (tmp_path / "flat/align-moved").rename(tmp_path / "flat/1pct/align")
    (folder / "1pct/conflict").rename(tmp_path / "flat/1pct/conflict")
    data = build(tmp_path / "flat", valid="own")
    assert (data.valid.labels.tolist(), data.valid.bias.tolist()) == ([0], [1])
    assert (data.test.labels.tolist(), data.test.bias.tolist()) == ([0, 2], [0, 1])


def test_conflict_subset_keeps_the_whole_test_as_an_extra(folder):
    everything, conflict = build(folder), build(folder, test_subset="conflict")
    assert (len(everything.test), everything.extra_tests) == (9, {})
    assert len(conflict.test) == 6
    assert (conflict.test.labels != conflict.test.bias).all()
    assert len(conflict.extra_tests["all"]) == 9


def test_no_conflicting_test_image_is_an_error(folder):
    for path in (folder / "test").glob("*/*"):
        y, b = path.stem.split("_")[1:]
        if y != b:
            path.unlink()
    with pytest.raises(MissingData, match="no image with target ≠ bias"):
        build(folder, test_subset="conflict")


def test_large_images_stay_files_and_travel_to_workers(folder):
    data = build(folder, size=80)
    assert isinstance(data.train, FileSplit)
    assert pickle.loads(pickle.dumps(data.train)).images(torch.tensor([0, 5])).shape == (
        2,
        3,
        80,
        80,
    )


def test_other_files_are_passed_over(folder):
    before = build(folder)
    (folder / "1pct/align/0/notes.txt").write_text("x")
    (folder / "1pct/align/0/._0_0_0.png").write_bytes(b"mac")
    (folder / "Thumbs.db").write_bytes(b"x")
    assert build(folder).info.counts.tolist() == before.info.counts.tolist()


def test_a_file_in_the_wrong_folder_is_noted_and_its_name_counts(folder):
    picture(folder / "1pct/align/0/wrong_0_2.png")
    data = build(folder, valid_fraction=0)
    assert data.info.counts[0].tolist() == [10, 1, 2]
    assert data.info.notes["misplaced"].startswith("1 training file")


def test_missing_ratio_names_what_there_is(folder):
    with pytest.raises(
        MissingData, match=r"no align images under .*5pct.*holds the folders: 1pct, test"
    ):
        build(folder, ratio="5pct")


@pytest.mark.parametrize("part", ["1pct/conflict", "test"])
def test_missing_part_is_named(folder, part):
    (folder / part).rename(folder.parent / "elsewhere")
    with pytest.raises(MissingData, match=part.split("/")[-1]):
        build(folder)


def test_missing_own_valid_names_both_places(folder):
    (folder / "1pct/valid").rename(folder / "validation")
    with pytest.raises(MissingData, match=r"1pct/valid or .*toy/valid"):
        build(folder, valid="own")


@pytest.mark.parametrize("name", ["face.png", "face_1.png", "face_a_b.png"])
def test_a_name_without_labels_is_an_error(folder, name):
    picture(folder / "test/0" / name)
    with pytest.raises(MissingData, match=name):
        build(folder)


def test_labels_beyond_the_classes_are_an_error(folder):
    picture(folder / "test/0/x_7_0.png")
    with pytest.raises(MissingData, match="target 7, bias 0; there are 3 classes and 3 biases"):
        build(folder)


def test_unknown_choices_are_named(folder):
    with pytest.raises(ValueError, match="did you mean 'conflict'"):
        build(folder, test_subset="conflicting")
    with pytest.raises(ValueError, match="'own', 'from-train'"):
        build(folder, valid="test")


def test_an_unreadable_image_is_named(folder):
    bad = folder / "1pct/align/0/bad_0_0.png"
    bad.write_bytes((folder / "1pct/align/0/000_0_0.png").read_bytes()[:40])
    with pytest.raises(UnreadableImage, match="bad_0_0"):
        build(folder)


@pytest.mark.parametrize(
    ("geometry", "size", "columns"),
    [
        (Geometry(8, stretch=True), (16, 8), [0, 1, 2, 3, 4, 5, 6, 7]),  # all columns, squeezed
        (Geometry(8), (16, 8), [2, 3, 4, 5]),  # the middle half
        (Geometry(8, crop=4), (16, 8), [3, 4]),
        (Geometry(8, square=4), (16, 8), [3, 4]),
    ],
)
def test_geometry_shows_the_expected_part_of_the_image(tmp_path, geometry, size, columns):
    """Eight vertical stripes of two pixels, of shade 30·i: which of them are seen?"""
    image = Image.new("L", size)
    image.putdata([30 * (x // 2) for _ in range(size[1]) for x in range(size[0])])
    image.save(tmp_path / "stripes.png")
    pixels = geometry(tmp_path / "stripes.png")
    assert pixels.shape == (3, geometry.side, geometry.side)
    assert pixels.dtype == torch.uint8
    row = pixels[0, 0].float()
    assert abs(row.min() - 30 * columns[0]) <= 8  # bilinear edges blend a little
    assert abs(row.max() - 30 * columns[-1]) <= 8
    assert (row.diff() >= 0).all()


def test_geometry_follows_the_usual_rounding(tmp_path):
    """Shorter side to 256, longer one rounded down.

    100×75 becomes 341×256, whose centre crop starts at 58 and 16.
    """
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (75, 100, 3), dtype=np.uint8))
    image.save(tmp_path / "x.png")
    resized = image.resize((341, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(resized)[16 : 16 + 224, 58 : 58 + 224]
    assert np.array_equal(
        Geometry(256, crop=224)(tmp_path / "x.png").permute(1, 2, 0).numpy(), expected
    )


def test_grey_palette_and_four_colour_files_become_rgb(tmp_path):
    for mode, name in (("L", "a.png"), ("P", "b.png"), ("CMYK", "c.jpg"), ("RGBA", "d.png")):
        Image.new("RGB", (9, 7), (90, 90, 90)).convert(mode).save(tmp_path / name)
        pixels = Geometry(4)(tmp_path / name)
        assert pixels.shape == (3, 4, 4)
        assert (pixels.int() - 90).abs().max() <= 20  # a palette is coarse
