"""One small finished run, and pictures that its dataset never saw."""

import numpy as np
import pytest
from PIL import Image

from fairmargin import config as configuration
from fairmargin.run import run as train

SMALL = [
    "data.train=120",
    "data.test=64",
    "data.side=16",
    "train.epochs=1",
    "train.batch_size=32",
    "train.device=cpu",
    "evaluate.resamples=20",
    'evaluate.classifiers=["own"]',
]


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    train(configuration.load(dataset="planted", method="ce+fairkl", overrides=SMALL), folder)
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Ten PNG files of several sizes and modes."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for i in range(10):
        size = (20 + 3 * i, 50 - 2 * i)
        mode = ("RGB", "L", "RGBA")[i % 3]
        shape = size if mode == "L" else (*size, len(mode))
        # Smooth, as photographs are: noise would be all edges.
        coarse = random.integers(0, 256, (4, 4, *shape[2:]), dtype=np.uint8)
        picture = Image.fromarray(coarse, mode).resize(size[::-1], Image.Resampling.BICUBIC)
        picture.save(folder / f"{i}.png")
    return folder
