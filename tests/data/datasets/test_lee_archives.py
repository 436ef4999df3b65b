import pytest
import torch
from PIL import Image

from fairmargin.data import build
from fairmargin.data.sources import MissingData


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (28, 28), "red").save(path)


def fill(folder, classes, train="5pct"):
    for y in range(classes):
        for i in range(10):
            picture(folder / train / f"align/{y}/{i}_{y}_{y}.png")
        picture(
            folder / train / f"conflict/{y}/9_{y}_{(y + 2) % classes if classes > 2 else 1 - y}.png"
        )
        for b in range(classes):
            picture(folder / f"test/{y}/{b}_{y}_{b}.png")


@pytest.mark.parametrize(
    ("name", "folder", "classes", "size"),
    [("cmnist", "cmnist", 10, 28), ("dogs-and-cats", "dogs_and_cats", 2, 224)],
)
def test_archives_of_the_common_layout(tmp_path, name, folder, classes, size):
    fill(tmp_path / folder, classes)
    data = build(name, tmp_path, valid_fraction=0)
    assert data.info.image_shape == (3, size, size)
    assert data.info.counts.sum(1).tolist() == [11] * classes
    assert data.info.counts.diagonal().tolist() == [10] * classes
    assert len(data.test) == classes**2
    assert data.eval_views(data.test.images(torch.tensor([0]))).shape == (1, 3, size, size)
    assert len(build(name, tmp_path, valid_fraction=0.2).valid) == round(0.2 * 11 * classes)
    with pytest.raises(MissingData, match="1pct"):
        build(name, tmp_path, ratio=1)


def test_bar_has_its_own_folders_and_no_bias_in_its_training_names(tmp_path):
    for y in range(6):
        for i in range(4):
            picture(tmp_path / f"bar/train/align/{y}/{i}_{y}_0.jpg")
        picture(tmp_path / f"bar/train/conflict/5pct/{y}/7_{y}_0.jpg")
        picture(tmp_path / f"bar/test/{y}/0_{y}_{(y + 3) % 6}.jpg")
    data = build("bar", tmp_path, valid_fraction=0)
    expected = 4 * torch.eye(6, dtype=torch.long) + torch.eye(6, dtype=torch.long).roll(1, 1)
    assert torch.equal(data.info.counts, expected)
    assert torch.equal(data.test.bias, (data.test.labels + 3) % 6)
    assert "misplaced" not in data.info.notes
    assert data.info.class_names[0] == "climbing"
