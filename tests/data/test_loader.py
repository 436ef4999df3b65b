from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fairmargin.batch import Batch
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import BiasAware, InOrder, Sampler, Shuffled
from fairmargin.data.split import ArraySplit, FileSplit, Split
from fairmargin.data.views import HALF, Views, crop_flip, plain, supcon

N = 23


def array_split() -> ArraySplit:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (N,), generator=g)
    bias = torch.randint(3, (N,), generator=g)
    return ArraySplit(
        torch.randint(0, 256, (N, 3, 8, 8), dtype=torch.uint8, generator=g), labels, bias
    )


def decode(path: Path) -> Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.fixture
def file_split(tmp_path: Path) -> FileSplit:
    source = array_split()
    paths = [tmp_path / f"{i:02}.png" for i in range(N)]
    for path, pixels in zip(paths, source.pixels, strict=True):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    return FileSplit(paths, source.labels, decode, source.bias)


def loader(
    split: Split, views: Views | None = None, sampler: Sampler | None = None, **options
) -> Loader:
    return Loader(split, views or supcon(8, *HALF), sampler or Shuffled(N), 5, seed=1, **options)


def assert_same(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.index, b.index)
        assert torch.equal(a.labels, b.labels)


def test_a_batch_holds_what_the_split_holds():
    split = array_split()
    features = torch.arange(N * 2.0).view(N, 2)
    batches = list(loader(split, plain(*HALF), bias_features=features))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3]
    assert torch.cat([batch.index for batch in batches]).sort().values.tolist() == list(range(N))
    for batch in batches:
        torch.testing.assert_close(batch.images, split.pixels[batch.index] / 127.5 - 1)
        assert torch.equal(batch.labels, split.labels[batch.index])
        assert batch.bias is not None
        assert torch.equal(batch.bias, split.bias[batch.index])
        assert torch.equal(batch.bias_features, features[batch.index])


def test_without_bias_there_is_none():
    split = array_split()
    batch = next(iter(loader(ArraySplit(split.pixels, split.labels))))
    assert batch.bias is None
    assert batch.bias_features is None


def test_drop_last():
    assert [len(batch) for batch in loader(array_split(), drop_last=True)] == [5, 5, 5, 5]
    assert len(loader(array_split(), drop_last=True)) == 4
    assert len(loader(array_split())) == 5


def test_epochs_advance_and_can_be_set():
    data = loader(array_split())
    first, second = list(data), list(data)
    assert data.epoch == 2
    assert [batch.index.tolist() for batch in first] != [batch.index.tolist() for batch in second]
    data.set_epoch(0)
    assert_same(list(data), first)
    assert_same(list(data), second)


def test_views_of_a_sample_change_from_epoch_to_epoch():
    data = loader(array_split(), sampler=InOrder(N))
    first, second = list(data), list(data)
    assert not torch.equal(first[0].images, second[0].images)


def test_global_randomness_is_neither_used_nor_touched(file_split: FileSplit):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = list(loader(file_split, workers=1))
    assert torch.equal(torch.rand(3), expected)
    assert_same(first, list(loader(file_split)))


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize("bias_aware", [False, True])
def test_resuming_equals_going_on(stop: int, bias_aware: bool):
    split = array_split()
    sampler = BiasAware(split.labels, split.bias) if bias_aware else None
    whole = loader(split, sampler=sampler)
    expected = [*whole, *whole]
    interrupted = loader(split, sampler=sampler)
    seen = []
    for batch in interrupted:
        seen.append(batch)
        if len(seen) == stop:
            break
    resumed = loader(split, sampler=sampler)
    resumed.load_state_dict(interrupted.state_dict())
    assert_same([*seen, *resumed, *resumed], expected)
    assert len(resumed) == 5


def test_resuming_with_workers(file_split: FileSplit):
    expected = list(loader(file_split))
    interrupted = loader(file_split, workers=2)
    stream = iter(interrupted)
    seen = [next(stream), next(stream)]
    resumed = loader(file_split, workers=1)
    resumed.load_state_dict(interrupted.state_dict())
    assert_same([*seen, *resumed], expected)


def test_a_position_of_another_run_is_refused():
    state = loader(array_split()).state_dict()
    with pytest.raises(ValueError, match="batch_size=5 and this one has batch_size=4"):
        Loader(array_split(), plain(*HALF), Shuffled(N), 4, seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="seed=1 and this one has seed=0"):
        Loader(array_split(), plain(*HALF), Shuffled(N), 5).load_state_dict(state)


def test_files_and_workers_give_the_batches_of_memory(file_split: FileSplit):
    expected = list(loader(array_split()))
    assert_same(list(loader(file_split)), expected)
    assert_same(list(loader(file_split, workers=2)), expected)


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize(
    "views", [supcon(8, *HALF), crop_flip(8, 2, *HALF)], ids=["supcon", "crop-flip"]
)
def test_ranks_together_hold_the_batches_of_one_process(
    world_size: int, views: Views, file_split: FileSplit
):
    expected = list(loader(array_split(), views))
    for split in (array_split(), file_split):
        ranks = [
            list(loader(split, views, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        for whole, *parts in zip(expected, *ranks, strict=True):
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert torch.equal(torch.cat([part.index for part in parts]), whole.index)
            torch.testing.assert_close(torch.cat([part.images for part in parts]), whole.images)


@pytest.mark.parametrize(
    ("damage", "workers"),
    [
        ("not an image", 0),
        ("truncated", 0),
        ("missing", 0),
        ("truncated", 1),
    ],  # torch takes 5 s to end failed workers
)
def test_a_broken_file_is_named(file_split: FileSplit, damage: str, workers: int):
    path = file_split.paths[13]
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-60])
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"hello")
    with pytest.raises(RuntimeError, match=r"cannot read .*13\.png; repair or remove it"):
        list(loader(file_split, workers=workers))


@pytest.mark.slow
def test_images_of_different_sizes_are_explained(file_split: FileSplit):
    Image.new("RGB", (9, 9)).save(file_split.paths[0])
    with pytest.raises(RuntimeError, match="do they have one size"):
        list(loader(file_split))


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="bias_features has 3 rows and the split 23 samples"):
        loader(array_split(), bias_features=torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"rank must be from 0 to world_size − 1 = 1; got 2"):
        loader(array_split(), rank=2, world_size=2)
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        Loader(array_split(), plain(*HALF), Shuffled(N), 0)
