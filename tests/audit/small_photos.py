"""Small pictures with structure, drawn at random: blobs of colour over a gradient."""

import numpy as np
import torch

from fairmargin.batch import DataInfo
from fairmargin.data.bias import count_cells
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import plain


def photos(number: int, seed: int = 0, side: int = 32) -> torch.Tensor:
    """Return uint8 [number, 3, side, side], all different."""
    random = np.random.default_rng(seed)
    down, right = np.mgrid[0:side, 0:side] / side
    made = np.empty((number, 3, side, side), np.float32)
    for image in made:
        slope = random.uniform(-80, 80, (3, 2))
        image[:] = random.uniform(60, 190, (3, 1, 1))
        image += slope[:, :1, None] * down + slope[:, 1:, None] * right
        for _ in range(6):
            y, x = random.uniform(0, 1, 2)
            size = random.uniform(0.08, 0.25)
            inside = (down - y) ** 2 + (right - x) ** 2 < size**2
            image[:, inside] = random.uniform(0, 255, (3, 1))
        image += random.normal(0, 4, image.shape)
    return torch.from_numpy(made.clip(0, 255).astype(np.uint8))


def dataset(
    train: torch.Tensor,
    test: torch.Tensor,
    labels: torch.Tensor,
    test_labels: torch.Tensor,
    *,
    names: bool = True,
) -> Data:
    """Return a dataset without validation samples, whose pictures have names if wanted."""

    def split(pixels: torch.Tensor, y: torch.Tensor, kind: str) -> ArraySplit:
        called = [f"{kind}/{i}.png" for i in range(len(y))] if names else None
        return ArraySplit(pixels, y, names=called)

    known = split(train, labels, "train")
    classes = int(labels.max()) + 1
    info = DataInfo(
        name="photos",
        class_names=tuple(f"class {k}" for k in range(classes)),
        bias_names=(),
        image_shape=tuple(train.shape[1:]),
        counts=count_cells(known.labels, None, classes, 0),
    )
    views = plain((0.5,) * 3, (0.5,) * 3)
    none = split(train[:0], labels[:0], "valid")
    return Data(known, none, split(test, test_labels, "test"), info, views, views)
