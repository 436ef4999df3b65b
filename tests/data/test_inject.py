import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fairmargin.batch import DataInfo
from fairmargin.data import build, inject
from fairmargin.data.datasets.biased_mnist import PALETTES
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import InOrder
from fairmargin.data.split import ArraySplit, Data, FileSplit, as_evaluated
from fairmargin.data.views import HALF, plain
from fairmargin.evaluate.accuracy import aligned_cells

PLAIN = build("mnist-mini")


def photographs(n: int, classes: int, *, side: int = 16, seed: int = 0) -> ArraySplit:
    g = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=g)
    return ArraySplit(pixels, torch.arange(n) % classes)


def of(train: ArraySplit | FileSplit, classes: int, **others: ArraySplit) -> Data:
    test = photographs(100 * classes, classes, seed=1)
    info = DataInfo(
        "photographs",
        tuple(map(str, range(classes))),
        (),
        (3, 16, 16),
        torch.zeros(classes, 0).long(),
    )
    return Data(
        train,
        photographs(20 * classes, classes, seed=2),
        test,
        info,
        plain(*HALF),
        plain(*HALF),
        others,
    )


@pytest.mark.parametrize("kind", inject.INJECTIONS)
def test_shares_are_counts_and_the_test_split_says_nothing(kind):
    data = inject.inject(PLAIN, f"{kind}:0.95")
    for split, size in ((data.train, 3600), (data.valid, 400)):
        own = split.bias == split.labels
        by_class = [int(own[split.labels == y].sum()) for y in range(10)]
        assert by_class == [int(0.95 * size / 10)] * 10
    cells = torch.bincount(data.test.labels * 10 + data.test.bias, minlength=100)
    assert cells.tolist() == [10] * 100
    assert torch.equal(data.info.counts.diagonal(), torch.tensor([342] * 10))
    assert int(data.info.counts.sum()) == 3600
    assert len(data.info.bias_names) == 10
    assert data.info.notes["injected"] == f"{kind}:0.95"


def test_what_was_there_stays_there():
    before = PLAIN.train.pixels.clone()
    data = inject.inject(PLAIN, "colour:0.95")
    assert torch.equal(PLAIN.train.pixels, before)
    assert torch.equal(data.train.labels, PLAIN.train.labels)
    assert data.train.pixels.shape == before.shape
    assert PLAIN.train.bias is None
    assert PLAIN.info.bias_names == ()


def test_the_seed_decides_who_conflicts():
    a, b, c = (inject.inject(PLAIN, "patch:0.9", seed) for seed in (0, 0, 1))
    assert torch.equal(a.train.bias, b.train.bias)
    assert torch.equal(a.train.pixels, b.train.pixels)
    assert not torch.equal(a.train.bias, c.train.bias)


def test_coloured_light_by_hand():
    images = torch.tensor([0, 100, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(1, 3, 1, 3)
    painted = inject.coloured_light(images, torch.tensor([6]), 10)[0, :, 0]
    for channel in range(3):
        c = PALETTES["paper"][6][channel] / 255  # orange
        expected = [round(255 * (1 - (1 - x / 255) * (1 - 0.5 * c))) for x in (0, 100, 255)]
        assert painted[channel].tolist() == expected
    assert painted[:, 2].tolist() == [255, 255, 255]  # white stays: digits remain legible


def test_patch_is_the_only_change_and_its_place_tells_the_value():
    images = photographs(10, 10).pixels
    painted = inject.patch(images, torch.arange(10), 10)
    changed = (painted != images).any(1)
    places = set()
    for v in range(10):
        where = (painted[v] == torch.tensor([255, 0, 255], dtype=torch.uint8).view(3, 1, 1)).all(0)
        assert int(where.sum()) == 4  # 2 × 2 of 16 × 16
        assert not bool((changed[v] & ~where).any())
        down, right = where.nonzero()[0].tolist()
        assert 0 in (down, right) or 14 in (down, right)
        places.add((down, right))
    assert len(places) == 10


def test_brightness_levels_are_even_steps():
    images = photographs(1, 1).pixels.expand(5, -1, -1, -1)
    painted = inject.brightness(images, torch.arange(5), 5).double()
    steps = painted.mean((1, 2, 3)).diff()
    assert torch.allclose(steps, torch.full((4,), 255 / 8, dtype=torch.double), atol=0.6)
    assert (
        int(
            inject.brightness(
                torch.full((1, 3, 2, 2), 255, dtype=torch.uint8), torch.tensor([4]), 5
            ).max()
        )
        == 255
    )


def test_many_classes_share_ten_values():
    data = inject.inject(of(photographs(600, 12), 12), "colour:0.8")
    assert data.info.counts.shape == (12, 10)
    own = data.train.bias == data.train.labels % 10
    assert int(own.sum()) == 480
    assert torch.equal(aligned_cells(data.info.counts).int().argmax(1), torch.arange(12) % 10)


def test_two_classes():
    data = inject.inject(of(photographs(100, 2), 2), "patch:0.9")
    assert data.info.bias_names == ("place 1", "place 2")
    assert data.info.counts.tolist() == [[45, 5], [5, 45]]


def test_extra_tests_are_planted_too():
    data = inject.inject(of(photographs(100, 2), 2, other=photographs(40, 2, seed=9)), "colour:1")
    other = data.extra_tests["other"]
    assert torch.bincount(other.labels * 2 + other.bias).tolist() == [10] * 4
    assert bool((data.train.bias == data.train.labels).all())


def files(tmp_path, n: int) -> FileSplit:
    pixels = photographs(n, 2).pixels
    paths = []
    for i in range(n):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(pixels[i].permute(1, 2, 0).numpy()).save(paths[-1])
    return FileSplit(paths, torch.arange(n) % 2, decode)


def decode(path) -> torch.Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("kind", inject.INJECTIONS)
def test_files_are_painted_as_arrays_are(tmp_path, kind):
    from_files = inject.inject(of(files(tmp_path, 40), 2), f"{kind}:0.9", 3)
    from_array = inject.inject(of(photographs(40, 2), 2), f"{kind}:0.9", 3)
    everyone = torch.arange(40)
    assert isinstance(from_files.train, FileSplit)
    assert torch.equal(from_files.train.bias, from_array.train.bias)
    assert torch.equal(from_files.train.images(everyone), from_array.train.images(everyone))
    some = torch.tensor([7, 3, 21])
    assert torch.equal(
        from_files.train.subset(some).images(torch.arange(3)), from_array.train.images(some)
    )


def test_files_without_their_bias_labels_are_painted_still(tmp_path):
    """Methods that may not see the bias get the split without its labels.

    The pictures must not change.
    """
    data = inject.inject(of(files(tmp_path, 40), 2), "colour:0.9")
    hidden = replace(data.train, bias=None)
    assert torch.equal(hidden.images(torch.arange(40)), data.train.images(torch.arange(40)))
    sent = pickle.loads(pickle.dumps(hidden))  # as to a worker process
    assert torch.equal(sent.images(torch.arange(5)), data.train.images(torch.arange(5)))
    batch = next(iter(Loader(hidden, data.train_views, InOrder(40), 8)))
    assert batch.bias is None


def test_files_are_painted_in_both_geometries(tmp_path):
    split = files(tmp_path, 40).to_crop_from(doubled)
    data = inject.inject(of(split, 2), "patch:0.9")
    still = as_evaluated(data.train)
    assert data.train.images(torch.arange(4)).shape[-2:] == (32, 32)
    assert torch.equal(
        still.images(torch.arange(40)),
        inject.inject(of(files(tmp_path, 40), 2), "patch:0.9").train.images(torch.arange(40)),
    )
    assert torch.equal(
        still.subset(torch.tensor([3])).images(torch.tensor([0])), still.images(torch.tensor([3]))
    )


def doubled(path) -> torch.Tensor:
    return decode(path).repeat_interleave(2, 1).repeat_interleave(2, 2)


def test_a_file_twice_is_refused(tmp_path):
    split = files(tmp_path, 40)
    with pytest.raises(ValueError, match="1 files are in the split more than once"):
        inject.inject(
            of(replace(split, paths=[*split.paths[:39], split.paths[0]]), 2), "colour:0.9"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("color:0.9", "did you mean 'colour'"),
        ("colour", 'such as "colour:0.95"; got "colour"'),
        ("colour:", "RHO from 0 to 1"),
        ("colour:much", "RHO from 0 to 1"),
        ("colour:1.2", 'got "colour:1.2"'),
        ("colour:nan", "RHO from 0 to 1"),
    ],
)
def test_wrong_texts(text, message):
    with pytest.raises(ValueError, match=message):
        inject.inject(PLAIN, text)


def test_wrong_data():
    with pytest.raises(ValueError, match="tells classes apart and photographs has 1"):
        inject.inject(of(photographs(10, 1), 1), "colour:0.9")
    grey = of(photographs(10, 2), 2)
    with pytest.raises(ValueError, match="3 channels and these have 1"):
        inject.inject(replace(grey, info=replace(grey.info, image_shape=(1, 16, 16))), "colour:0.9")
