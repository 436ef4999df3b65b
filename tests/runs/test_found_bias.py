"""Own images whose table names no bias: the audit is asked before a method is chosen."""

import csv

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.runs.found_bias import with_found_bias

# Left out of the inner loop.
pytestmark = pytest.mark.slow

CLASSES = ("left", "right", "up")
COLOURS = ((200, 40, 40), (40, 160, 40), (40, 40, 200))


def draw(kind, colour, random):
    """Bars at a place of their own on a ground whose colour follows the class, or not."""
    image = np.zeros((20, 20, 3)) + colour + random.normal(0, 12, 3)
    image += random.normal(0, 10, image.shape)
    at = 5 + int(random.integers(0, 8))
    # What the classes differ in is small and moves.
    if kind == 0:
        image[at, 6:12] = 255
    elif kind == 1:
        image[6:12, at] = 255
    else:
        image[range(6, 12), range(at, at + 6)] = 255
    return np.clip(image, 0, 255).astype(np.uint8)


def write(folder, follows, seed=0):
    """A table without a bias column; in `follows` of the images the ground tells the class."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    rows = []
    for i in range(360):
        kind, split = i % 3, "test" if i >= 300 else "train"
        told = kind if split == "train" and random.random() < follows else int(random.integers(3))
        Image.fromarray(draw(kind, COLOURS[told], random)).save(folder / f"{i}.png")
        rows.append((f"{i}.png", CLASSES[kind], split))
    with (folder / "photos.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("path", "label", "split"), *rows])
    return folder / "photos.csv"


def chosen_for(table, **options):
    def load(bias):
        return configuration.load(dataset=str(table), bias=bias, **options)

    return with_found_bias(load(options.pop("bias", None)), load)


@pytest.fixture(scope="module")
def biased(tmp_path_factory):
    return write(tmp_path_factory.mktemp("photos") / "biased", follows=0.95)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return write(tmp_path_factory.mktemp("photos") / "honest", follows=0.0)


def test_a_shortcut_that_the_audit_finds_becomes_the_bias(biased):
    config = chosen_for(biased)
    assert config.data.bias.startswith("audit:")
    assert "colour" in config.data.bias or "hue" in config.data.bias
    assert config.method.name == "fairmargin"
    assert any("auto takes the audit's" in note for note in config.notes)


def test_without_a_shortcut_cross_entropy_is_trained(honest):
    config = chosen_for(honest)
    assert (config.data.bias, config.method.name) == ("labels", "fairmargin")
    assert any("as plain cross-entropy" in note for note in config.notes)
    assert any("the audit sees no shortcut" in note for note in config.notes)


def test_who_names_a_method_is_not_second_guessed(biased):
    config = chosen_for(biased, method="supcon")
    assert (config.data.bias, config.method.name) == ("labels", "supcon")
    assert not any("bias:" in note for note in config.notes)


@pytest.mark.slow
def test_the_command_says_what_it_found_and_trains(biased, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--dataset", str(biased), "--set", "train.epochs=1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "auto takes the audit's" in said
    assert "method: fairmargin, with the bias labels of --bias audit:" in said
    (run,) = tmp_path.glob("runs/photos-bias-audit-*/fairmargin/seed-0")
    assert (run / "bias.npz").is_file()
