"""Problems of single pictures: planted ones are found, honest data have few."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from fairmargin.audit import problems
from fairmargin.audit.sight import look
from fairmargin.data import build
from fairmargin.data.split import ArraySplit, Data
from tests.audit.small_photos import dataset, photos


def _sight(data: Data):
    return look(data, {"train": np.arange(len(data.train)), "valid": [], "test": []})


@pytest.fixture(scope="module")
def digits():
    return _sight(build("mnist-mini"))


def test_flipped_labels_are_found(digits):
    random = np.random.default_rng(0)
    n = len(digits)
    flipped = random.choice(n, round(0.03 * n), replace=False)
    labels = digits.labels.copy()
    labels[flipped] = (labels[flipped] + random.integers(1, 10, len(flipped))) % 10
    found = problems.doubtful_labels(problems.features(digits), labels)
    right = np.isin(np.flatnonzero(found.flagged), flipped)
    assert right.mean() >= 0.9  # precision
    assert right.sum() >= 0.7 * len(flipped)  # recall
    suggested = found.suggested[flipped[found.flagged[flipped]]]
    assert (suggested == digits.labels[flipped[found.flagged[flipped]]]).mean() > 0.95


def test_honest_digits_have_few_problems(digits):
    x = problems.features(digits)
    doubts = problems.doubtful_labels(x, digits.labels)
    assert doubts.accuracy > 0.95
    assert doubts.flagged.mean() < 0.005
    for name, flags in problems.flags(digits, problems.isolation(x), None):
        assert flags.mean() < 0.005, name


def test_labels_of_tiny_classes_are_not_judged(digits):
    x, labels = problems.features(digits)[::9], digits.labels[::9].copy()
    labels[:3] = 10
    found = problems.doubtful_labels(x, labels)
    assert np.isnan(found.confidence[:3]).all()
    assert not found.flagged[:3].any()
    assert not problems.doubtful_labels(x, np.zeros_like(labels)).flagged.any()


def test_dark_bright_blurred_and_outlying_pictures_are_found():
    pixels = photos(200)
    pixels[0] = pixels[0] // 8
    pixels[1] = 200 + pixels[1] // 5
    image = Image.fromarray(pixels[2].permute(1, 2, 0).numpy())
    blurred = np.array(image.filter(ImageFilter.GaussianBlur(4)))
    pixels[2] = torch.from_numpy(blurred).permute(2, 0, 1)
    pixels[3] = 255 * (torch.arange(32) % 16 < 8)
    y = torch.arange(200) % 2
    sight = _sight(dataset(pixels, pixels[:0], y, y[:0]))
    sizes = np.tile([640, 480], (200, 1))
    sizes[4], sizes[5] = (64, 48), (1280, 240)
    far = problems.isolation(problems.features(sight))
    found = {name: np.flatnonzero(flags) for name, flags in problems.flags(sight, far, sizes)}
    assert found["dark"].tolist() == [0]
    assert found["bright"].tolist() == [1]
    assert 2 in found["blurred"]
    assert len(found["blurred"]) <= 2
    assert 3 in found["outlier"]
    assert len(found["outlier"]) <= 3
    assert found["odd size"].tolist() == [4]
    assert found["odd shape"].tolist() == [5]
    assert set(found) | {"label error"} == set(problems.MEANINGS)


def test_pictures_of_one_pixel_are_looked_at():
    tiny = ArraySplit(torch.randint(0, 255, (20, 1, 1, 1)).byte(), torch.arange(20) % 2)
    sight = _sight(Data(tiny, tiny, tiny, None, None, None))  # type: ignore[arg-type]
    assert np.isfinite(sight.edges).all()
    assert np.isfinite(sight.blur).all()
