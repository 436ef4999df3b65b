"""Honest data have no shortcut; each planted kind is found; bonds tell one from the other."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from fairmargin.audit._dataset import audit_data
from fairmargin.audit.attributes import Attribute, file_attributes
from fairmargin.audit.bond import Bonds
from fairmargin.audit.learned import fixed_pattern, small_marks
from fairmargin.audit.significance import halves
from fairmargin.batch import DataInfo
from fairmargin.cli.app import app
from fairmargin.data.decode import open_rgb
from fairmargin.data.inject import INJECTIONS, inject
from fairmargin.data.split import ArraySplit, Data, FileSplit
from fairmargin.data.views import HALF, plain

# Left out of the inner loop.
pytestmark = pytest.mark.slow


def dataset(pixels: np.ndarray, labels: np.ndarray) -> Data:
    """uint8 [N, H, W] as a dataset of grey pictures."""
    images = torch.from_numpy(pixels)[:, None].expand(-1, 3, -1, -1).contiguous()
    y = torch.from_numpy(labels).long()
    names = tuple(f"class {k}" for k in range(int(y.max()) + 1))
    info = DataInfo("honest", names, (), tuple(images.shape[1:]), torch.zeros(len(names), 0).long())
    return Data(
        ArraySplit(images, y),
        ArraySplit(images[:60], y[:60]),
        ArraySplit(images[:60], y[:60]),
        info,
        plain(*HALF),
        plain(*HALF),
    )


def digits(*classes: int) -> Data:
    loaded = load_digits()
    at = np.isin(loaded.target, classes or range(10))
    _, labels = np.unique(loaded.target[at], return_inverse=True)
    return dataset((loaded.images[at] * 15.9).astype(np.uint8), labels)


def shapes(n: int = 800, seed: int = 0) -> Data:
    """Discs and upright bars of any size, place and grey before a noisy ground."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    down, right = np.mgrid[:28, :28]
    pixels = np.empty((n, 28, 28), np.uint8)
    for i, y in enumerate(labels):
        top, left = random.uniform(10, 18, 2)
        size = random.uniform(4, 9)
        disc = (down - top) ** 2 + (right - left) ** 2 < size**2
        bar = (abs(down - top) < 1.6 * size) & (abs(right - left) < 0.5 * size)
        ground = random.uniform(20, 80) + random.normal(0, 8, (28, 28))
        ink = random.uniform(120, 250)
        pixels[i] = np.where(bar if y else disc, ink, ground).clip(0, 255)
    return dataset(pixels, labels)


def clouds(n: int = 800, seed: int = 0) -> Data:
    """Clouds of grey with fine grain, a little lighter on the left in one class: weak objects."""
    random = torch.Generator().manual_seed(seed)
    labels = np.arange(n) % 2
    coarse = torch.randn(n, 1, 6, 6, generator=random)
    x = torch.nn.functional.interpolate(coarse, (28, 28), mode="bilinear")[:, 0]
    slope = torch.linspace(-0.5, 0.5, 28) * torch.from_numpy(1 - 2 * labels)[:, None]
    x = 128 + 30 * (x + slope[:, None]) + 10 * torch.randn(n, 28, 28, generator=random)
    return dataset(x.clamp(0, 255).to(torch.uint8).numpy(), labels)


@pytest.mark.parametrize("classes", [(), (0, 1), (6, 8), (2, 4), (1, 7)])
def test_honest_digits_have_no_shortcut(classes):
    found = audit_data(digits(*classes), permutations=199).json
    assert found["shortcuts"] == []
    # The test is worth something only if something was strong enough to be taken for one.
    bonds = [one["bond"] for one in found["attributes"] if one["bond"] is not None]
    assert bonds
    assert min(bonds) > 0.1


@pytest.mark.parametrize("made", [shapes, clouds])
def test_honest_drawings_have_no_shortcut(made):
    assert audit_data(made(seed=1), permutations=199).json["shortcuts"] == []


@pytest.mark.parametrize("kind", INJECTIONS)
def test_each_planted_kind_is_found(kind):
    found = audit_data(inject(clouds(), f"{kind}:0.95"), permutations=199).json
    assert found["planted"]["found"], found["attributes"][:3]


@pytest.mark.parametrize("kind", INJECTIONS)
def test_each_kind_keeps_shape_and_is_the_same_twice(kind):
    data = shapes(20)
    once, twice = (inject(data, f"{kind}:0.9").train.pixels for _ in range(2))
    assert once.shape == data.train.pixels.shape
    assert once.dtype == torch.uint8
    assert torch.equal(once, twice)
    values = inject(data, f"{kind}:1").train
    assert not torch.equal(values.pixels, data.train.pixels)


def test_the_help_lists_every_kind():
    shown = CliRunner().invoke(app, ["audit", "--help"], env={"COLUMNS": "200"}).output
    words = set(re.findall(r"\w+", shown))
    assert set(INJECTIONS) <= words


def bonds_of(data: Data) -> tuple[Bonds, np.ndarray]:
    labels = data.train.labels.numpy()
    fit, score = halves(labels, 0)
    return Bonds(data.train, np.arange(len(labels)), labels, fit, score, 0), labels


def test_a_bond_is_with_the_object_inside_classes():
    data = shapes()
    bonds, labels = bonds_of(data)
    random = np.random.default_rng(0)
    wide = (data.train.pixels[:, 0].float() > 110).float().mean((1, 2)).numpy()
    bound = Attribute("ink", "light", "number", wide[:, None])
    coin = np.where(random.random(len(labels)) < 0.9, labels, 1 - labels).astype(np.float32)
    free = Attribute("coin", "light", "number", coin[:, None])
    same = Attribute("same", "light", "number", labels[:, None].astype(np.float32))
    column = Attribute("place", "metadata", "number", coin[:, None])
    assert bonds.of(bound) > 0.3
    assert not bonds.may_hold(bonds.of(free))
    assert bonds.may_hold(bonds.of(bound))
    assert bonds.of(same) == 0
    assert bonds.of(column) is None
    assert not bonds.may_hold(None)


def test_few_samples_are_given_the_benefit_of_the_doubt():
    many, few = bonds_of(shapes(800))[0], bonds_of(shapes(60))[0]
    assert not many.may_hold(0.1)
    assert few.may_hold(0.1)


def test_two_classes_need_more_than_half_of_the_gap():
    found = audit_data(inject(shapes(), "frame:0.8"), permutations=199).json
    strong = next(one for one in found["attributes"] if one["name"] == "background colour")
    assert strong["strength"] > 0.5
    assert strong["verdict"] == "correlate"
    lower = audit_data(inject(shapes(), "frame:0.8"), permutations=199, strong=0.3).json
    assert "background colour" in lower["shortcuts"]


def test_learned_attributes_do_not_see_labels_of_the_scored_half():
    data = shapes(200)
    labels = data.train.labels.numpy()
    fit, score = halves(labels, 0)
    index = np.arange(len(labels))
    other = labels.copy()
    other[score] = 1 - other[score]
    one = fixed_pattern(data.train, index, labels, fit, 2).values
    two = fixed_pattern(data.train, index, other, fit, 2).values
    assert np.array_equal(one, two)
    marks = [small_marks(data.train, index, fit, 0).values for _ in range(2)]
    assert np.array_equal(*marks)


def test_exif_is_an_attribute_of_files(tmp_path):
    paths = []
    for k in range(40):
        tags = Image.Exif()
        tags[0x0110] = f"camera {k % 2}"
        paths.append(tmp_path / f"{k}.jpg")
        Image.new("RGB", (8, 8)).save(paths[-1], exif=tags)
    split = FileSplit(tuple(paths), torch.arange(40) % 2, open_rgb)
    found = {one.name: one for one in file_attributes(split, torch.arange(40))}
    assert found["camera"].levels == ("camera 0", "camera 1")
    assert found["camera"].values.tolist() == [k % 2 for k in range(40)]
    # What no file says is no attribute.
    assert "software" not in found
