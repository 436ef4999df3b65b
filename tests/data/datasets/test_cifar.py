import numpy as np
import pytest
import torch

from fairmargin.data import raw, sources
from fairmargin.data.datasets import cifar


@pytest.mark.parametrize(
    ("build", "reader", "classes"),
    [(cifar.build_10, "cifar10", 10), (cifar.build_100, "cifar100", 100)],
)
def test_splits_views_and_info(monkeypatch, tmp_path, build, reader, classes):
    random = np.random.default_rng(0)
    arrays = []
    for n in (1000, 200):
        arrays += [
            random.integers(256, size=(n, 32, 32, 3), dtype=np.uint8),
            np.arange(n) % classes,
        ]
    monkeypatch.setattr(sources, "locate", lambda name, root: {})
    monkeypatch.setattr(raw, reader, lambda files: tuple(arrays))
    data = build(tmp_path)
    assert (len(data.train), len(data.valid), len(data.test)) == (900, 100, 200)
    assert data.info.num_classes == classes
    assert data.info.num_biases == 0
    assert data.train.bias is None
    assert data.valid.labels.bincount().tolist() == [100 // classes] * classes
    assert torch.equal(data.test.pixels[7].permute(1, 2, 0), torch.from_numpy(arrays[2][7]))
    assert data.train_views(data.train.images(torch.arange(4))).shape == (4, 3, 32, 32)
    one = build(tmp_path, views="resized-crop-flip").train_views
    assert one(data.train.images(torch.arange(4))).shape == (4, 3, 32, 32)
    assert [type(step).__name__ for step in one.steps] != [
        type(step).__name__ for step in data.train_views.steps
    ]
    assert build(tmp_path, views="supcon").train_views(
        data.train.images(torch.arange(4))
    ).shape == (4, 2, 3, 32, 32)
    assert len(build(tmp_path, valid_fraction=0.0).train) == 1000
    with pytest.raises(ValueError, match="unknown views 'supcom': did you mean 'supcon'"):
        build(tmp_path, views="supcom")
