"""Image statistics against plain loops and known pictures; files and metadata of all kinds."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from fairmargin.audit import attributes
from fairmargin.audit.attributes import (
    Attribute,
    Pictures,
    file_attributes,
    image_statistics,
    metadata_attributes,
)
from fairmargin.data.problems import BadManifest
from fairmargin.data.split import ArraySplit, FileSplit


def random_pictures(n: int = 3, height: int = 15, width: int = 16) -> torch.Tensor:
    return torch.randint(
        0, 256, (n, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def flat(*colours: tuple[int, int, int], side: int = 16) -> torch.Tensor:
    return (
        torch.tensor(colours, dtype=torch.uint8)[:, :, None, None]
        .expand(-1, -1, side, side)
        .clone()
    )


def grey_of(image: np.ndarray) -> np.ndarray:
    """[H, W] of [3, H, W], pixel by pixel."""
    return np.array(
        [
            [image[:, i, j] @ [0.299, 0.587, 0.114] for j in range(image.shape[2])]
            for i in range(image.shape[1])
        ]
    )


class TestAgainstLoops:
    images = random_pictures()
    pictures = Pictures(images)
    grey = tuple(grey_of(image.numpy() / 255) for image in images)

    def test_brightness_and_contrast(self):
        for i, grey in enumerate(self.grey):
            assert float(attributes.brightness(self.pictures)[i]) == pytest.approx(
                grey.mean(), abs=1e-5
            )
            assert float(attributes.contrast(self.pictures)[i]) == pytest.approx(
                grey.std(), abs=1e-5
            )

    def test_sharpness(self):
        for i, grey in enumerate(self.grey):
            inner = [
                grey[r - 1, c] + grey[r + 1, c] + grey[r, c - 1] + grey[r, c + 1] - 4 * grey[r, c]
                for r in range(1, grey.shape[0] - 1)
                for c in range(1, grey.shape[1] - 1)
            ]
            expected = math.log(np.var(inner) + 1e-6)
            assert float(attributes.sharpness(self.pictures)[i]) == pytest.approx(
                expected, abs=1e-4
            )

    def test_edge_density(self):
        for i, grey in enumerate(self.grey):
            steep = [
                (grey[r + 1, c] - grey[r, c]) ** 2 + (grey[r, c + 1] - grey[r, c]) ** 2 > 0.01
                for r in range(grey.shape[0] - 1)
                for c in range(grey.shape[1] - 1)
            ]
            assert float(attributes.edge_density(self.pictures)[i]) == pytest.approx(
                np.mean(steep), abs=1e-6
            )

    def test_background_is_the_median_of_the_outermost_pixels(self):
        for i, image in enumerate(self.images.numpy()):
            height, width = image.shape[1:]
            border = [
                image[:, r, c]
                for r in range(height)
                for c in range(width)
                if r in (0, height - 1) or c in (0, width - 1)
            ]
            median = np.sort(border, axis=0)[(len(border) - 1) // 2] / 255
            np.testing.assert_allclose(
                attributes.background_colour(self.pictures)[i], median, atol=1e-6
            )
            deviation = (np.array(border) / 255).std(0).mean()
            assert float(attributes.background_texture(self.pictures)[i]) == pytest.approx(
                deviation, abs=1e-5
            )

    def test_commonest_colour(self):
        for i, image in enumerate(self.images.numpy()):
            boxes = [
                tuple(image[:, r, c] // 64)
                for r in range(image.shape[1])
                for c in range(image.shape[2])
            ]
            most = max(sorted(set(boxes)), key=boxes.count)
            np.testing.assert_allclose(
                attributes.commonest_colour(self.pictures)[i], (np.array(most) + 0.5) / 4
            )

    def test_saturation_and_tonal_range(self):
        for i, image in enumerate(self.images.numpy() / 255):
            chroma = (image.max(0) - image.min(0)).mean()
            assert float(attributes.saturation(self.pictures)[i]) == pytest.approx(chroma, abs=1e-5)
            grey = self.grey[i]
            spots = [
                grey[r : r + 3, c : c + 3].mean()
                for r in range(grey.shape[0] - 2)
                for c in range(grey.shape[1] - 2)
            ]
            np.testing.assert_allclose(
                attributes.tonal_range(self.pictures)[i], [min(spots), max(spots)], atol=1e-5
            )


def test_hue_goes_around_the_wheel():
    turned = attributes.hue(Pictures(flat((255, 0, 0), (0, 255, 0), (0, 0, 255), (90, 90, 90))))
    expected = [[math.cos(a), math.sin(a)] for a in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    np.testing.assert_allclose(turned, [*expected, [0, 0]], atol=1e-6)


def test_a_flat_background_is_exact_although_the_object_touches_it():
    image = flat((10, 200, 30), side=28)
    image[:, :, :, 10:14] = 255
    assert (attributes.background_colour(Pictures(image)) * 255).round().tolist() == [[10, 200, 30]]
    assert attributes.middle_against_border(Pictures(image))[0, 0] > 0.1


def test_border_layout_sees_the_edge_and_not_the_middle():
    bare, middle, edge = (
        flat((0, 0, 0), side=28),
        flat((0, 0, 0), side=28),
        flat((0, 0, 0), side=28),
    )
    middle[:, :, 4:24, 4:24] = 200
    edge[:, :, :3, :3] = 200
    layout = lambda images: attributes.border_layout(Pictures(images))
    assert torch.equal(layout(bare), layout(middle))
    assert not torch.equal(layout(bare), layout(edge))


def test_blur_lowers_sharpness():
    sharp = random_pictures(2, 16, 16)
    blurred = torch.nn.functional.avg_pool2d(sharp.float(), 3, 1, 1).to(torch.uint8)
    assert bool(
        (attributes.sharpness(Pictures(blurred)) < attributes.sharpness(Pictures(sharp)) - 1).all()
    )


@pytest.mark.parametrize("shape", [(2, 1, 9, 9), (2, 3, 1, 1), (2, 3, 2, 5), (2, 4, 8, 8)])
def test_odd_shapes_have_finite_attributes(shape):
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    found, thumbnails = image_statistics(ArraySplit(images, torch.zeros(2).long()), torch.arange(2))
    assert all(np.isfinite(one.values).all() for one in found)
    assert thumbnails.shape == (2, 192)


def test_chunks_make_no_difference_and_progress_reaches_the_end(monkeypatch):
    split, threads = (
        ArraySplit(random_pictures(11), torch.zeros(11).long()),
        torch.get_num_threads(),
    )
    index, told = torch.tensor([10, 3, 4, 0, 9, 8, 1]), []
    whole, thumbnails = image_statistics(split, index)
    monkeypatch.setattr(attributes, "AT_ONCE", 2 * 3 * 15 * 16)
    parts, others = image_statistics(split, index, lambda *said: told.append(said))
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a.values, b.values, atol=1e-6)
    np.testing.assert_allclose(thumbnails, others, atol=1e-6)
    assert torch.get_num_threads() == threads  # as it was
    assert [done for _, done, _ in told] == [2, 4, 6, 7]
    assert told[-1] == ("looking at pictures", 7, 7)
    assert [one.name for one in parts] == list(attributes.STATISTICS)


def one_file(path) -> FileSplit:
    return FileSplit(
        [path], torch.zeros(1).long(), lambda path: torch.zeros(3, 8, 8, dtype=torch.uint8)
    )


@pytest.mark.parametrize("ending", ["png", "webp"])
def test_broken_exif_says_nothing(ending, tmp_path):
    """Such a picture can be decoded, so that it is trained on, and audited."""
    path = tmp_path / f"a.{ending}"
    Image.new("RGB", (10, 20)).save(path, exif=b"Exif\0\0no TIFF header")
    found = {one.name: one for one in file_attributes(one_file(path), torch.tensor([0]))}
    assert found["picture size"].values.tolist() == [[10, 20]]
    assert not set(found) & set(attributes.EXIF)


def test_a_picture_above_the_limit_of_pillow_has_a_size(tmp_path, monkeypatch):
    """Whoever raises `data.largest_image` has it raised here too."""
    path = tmp_path / "a.png"
    Image.new("RGB", (30, 20)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    found = {one.name: one for one in file_attributes(one_file(path), torch.tensor([0]))}
    assert found["picture size"].values.tolist() == [[30, 20]]


def test_files_tell_size_and_type(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "b.JPG", tmp_path / "c.png"]
    for path, (width, height) in zip(paths, [(10, 20), (30, 20), (10, 10)], strict=True):
        Image.new("RGB", (width, height)).save(path)
    split = FileSplit(
        paths, torch.zeros(3).long(), lambda path: torch.zeros(3, 8, 8, dtype=torch.uint8)
    )
    found = {one.name: one for one in file_attributes(split, torch.tensor([2, 1, 0]))}
    assert found["picture size"].values.tolist() == [[10, 10], [30, 20], [10, 20]]
    assert found["aspect ratio"].values[:, 0].tolist() == [1, 1.5, 0.5]
    assert found["file type"].levels == (".jpg", ".png")
    assert found["file type"].values.tolist() == [1, 0, 1]
    expected = math.log10(paths[2].stat().st_size)
    assert float(found["file size"].values[0, 0]) == pytest.approx(expected, abs=1e-5)
    assert (
        file_attributes(ArraySplit(random_pictures(), torch.zeros(3).long()), torch.arange(3)) == []
    )


class TestMetadata:
    def one(self, cells: list[str]) -> Attribute:
        found, left_out = metadata_attributes({"column": cells})
        assert left_out == []
        return found[0]

    def test_a_category(self):
        found = self.one(["b", "a", "", " b "] * 5)
        assert (found.kind, found.levels) == ("category", ("(empty)", "a", "b"))
        assert found.values[:4].tolist() == [2, 1, 0, 2]

    def test_few_numbers_are_a_category(self):
        assert self.one(["10", "2", "1"] * 10).levels == ("1", "2", "10")

    def test_many_numbers_are_a_number_and_empty_lies_below(self):
        found = self.one([*map(str, range(5, 105)), ""])
        assert found.kind == "number"
        assert found.values[:-1, 0].tolist() == list(range(5, 105))
        assert found.values[-1, 0] < 5

    @pytest.mark.parametrize("word", ["nan", "inf"])
    def test_words_that_float_accepts_are_no_numbers(self, word):
        assert (
            metadata_attributes({"c": [*map(str, range(100)), word]})[0] == []
        )  # so the column is a name

    def test_names_and_constants_are_left_out_and_said_so(self):
        found, left_out = metadata_attributes(
            {"id": [f"p{i}" for i in range(50)], "same": ["x"] * 50}
        )
        assert found == []
        assert 'column "id": 50 different values' in left_out[0]
        assert 'column "same": one value' in left_out[1]


class TestManifestColumns:
    def columns(self, tmp_path, text, paths, **changes):
        (tmp_path / "m.csv").write_text(text)
        options = {
            "base": tmp_path,
            "path_column": "path",
            "leave_out": ("label", "split"),
        } | changes
        return attributes.manifest_columns(tmp_path / "m.csv", paths, **options)

    def test_in_the_order_of_the_files(self, tmp_path):
        text = "path,label,split,bias,camera\na.png,x,train,u,1\nsub/../b.png,y,train,v,2\n"
        found = self.columns(tmp_path, text, [tmp_path / "b.png", tmp_path / "a.png"])
        assert found == {"bias": ["v", "u"], "camera": ["2", "1"]}

    def test_other_names_and_bad_rows(self, tmp_path):
        text = "file,label,split,camera\na.png,x,train,1\nbroken\n"
        assert self.columns(tmp_path, text, [tmp_path / "a.png"], path_column="file") == {
            "camera": ["1"]
        }
        with pytest.raises(BadManifest, match='no column "path"'):
            self.columns(tmp_path, text, [])
