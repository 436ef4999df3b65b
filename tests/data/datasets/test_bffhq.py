import pytest
import torch
from PIL import Image

from fairmargin.data.datasets import bffhq
from fairmargin.data.sources import MissingData


@pytest.fixture
def root(tmp_path):
    """The published layout: 10 : 1 training images of each class.

    The valid folder is flat and aligned only, the test folder flat with all groups.
    """

    def picture(place, name):
        folder = tmp_path / "bffhq" / place
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), "red").save(folder / name)

    for y in (0, 1):
        for i in range(10):
            picture(f"0.5pct/align/{y}", f"{i}_{y}_{y}.png")
        picture(f"0.5pct/conflict/{y}", f"9{y}_{y}_{1 - y}.png")
        picture("valid", f"8{y}_{y}_{y}.png")
        for b in (0, 1):
            picture("test", f"7{y}{b}_{y}_{b}.png")
    return tmp_path


def test_the_test_is_the_conflicting_images_unless_asked(root):
    data = bffhq.build(root, valid_fraction=0)
    assert data.info.class_names == ("young", "old")
    assert data.info.bias_names == ("female", "male")
    assert data.info.counts.tolist() == [[10, 1], [1, 10]]
    assert sorted(zip(data.test.labels.tolist(), data.test.bias.tolist(), strict=True)) == [
        (0, 1),
        (1, 0),
    ]
    assert len(data.extra_tests["all"]) == 4
    assert len(bffhq.build(root, test_subset="all").test) == 4


def test_images_are_224_for_the_network_in_both_views(root):
    data = bffhq.build(root)
    batch = data.train.images(torch.tensor([0, 1]))
    assert batch.shape == (2, 3, 224, 224)
    assert data.train_views(batch).shape == data.eval_views(batch).shape == (2, 3, 224, 224)
    assert data.eval_views(batch)[0, 0, 0, 0].item() == pytest.approx(
        (1 - 0.4914) / 0.2023, abs=1e-4
    )


def test_validation_comes_from_training_because_the_own_folder_is_aligned_only(root):
    assert bffhq.build(root).info.notes["valid"].endswith("(from-train)")
    own = bffhq.build(root, valid="own")
    assert own.info.notes["valid"] == "2 aligned, 0 conflicting (own)"
    assert len(own.train) == 22


def test_ratio_names_the_folder(root):
    with pytest.raises(MissingData, match=r"2pct.*0\.5pct, test, valid"):
        bffhq.build(root, ratio=2)


def test_a_missing_archive_is_told_with_its_layout(tmp_path):
    with pytest.raises(MissingData, match=r"bffhq.*<ratio>/align/<class>"):
        bffhq.build(tmp_path)
