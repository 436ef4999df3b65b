import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmargin.data.bias import assign_by_count, assign_by_milestones, count_cells, split_off

TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # MNIST's label histogram
CONFLICTING = {
    0.999: [6, 7, 6, 7, 6, 6, 6, 7, 6, 6],
    0.997: [18, 21, 18, 19, 18, 17, 18, 19, 18, 18],
    0.995: [30, 34, 30, 31, 30, 28, 30, 32, 30, 30],
    0.99: [60, 68, 60, 62, 59, 55, 60, 63, 59, 60],
    0.98: [119, 135, 120, 123, 117, 109, 119, 126, 118, 119],
    0.95: [297, 338, 298, 307, 293, 272, 296, 314, 293, 298],
    0.9: [593, 675, 596, 614, 585, 543, 592, 627, 586, 595],
}


def labels_like_mnist():
    y = np.repeat(np.arange(10), TRAIN)
    return np.random.RandomState(5).permutation(y)


@pytest.mark.parametrize("rho", CONFLICTING)
def test_counts_of_conflicting_samples(rho):
    y = labels_like_mnist()
    source, bias = assign_by_count(y, rho, np.random.RandomState(0))
    assert sorted(source.tolist()) == list(range(60000))
    conflicting = np.bincount(y[source][bias != y[source]], minlength=10)
    assert conflicting.tolist() == CONFLICTING[rho]
    counts = count_cells(torch.from_numpy(y[source]), torch.from_numpy(bias), 10, 10)
    chunk = [-(-c // 9) for c in CONFLICTING[rho]]  # ceil((n−a)/9)
    off_diagonal = counts - torch.diag(counts.diagonal())
    assert off_diagonal.max(1).values.tolist() == chunk


def test_edges_of_rho():
    y = np.repeat(np.arange(10), 7)
    source, bias = assign_by_count(y, 1.0, np.random.RandomState(0))
    assert (bias == y[source]).all()
    source, bias = assign_by_count(y, 0.0, np.random.RandomState(0))
    assert (bias != y[source]).all()
    source, bias = assign_by_count(y, 0.0, np.random.RandomState(0), confusing=2)
    assert set(((bias - y[source]) % 10).tolist()) == {1, 2}
    with pytest.raises(ValueError, match="rho must lie"):
        assign_by_count(y, 1.1, np.random.RandomState(0))


def test_milestones_have_no_randomness_and_right_counts():
    y = np.repeat(np.arange(10), 5000)
    for skew, conflicting in ((0.005, 250), (0.01, 500), (0.02, 1000), (0.05, 2500)):
        bias = assign_by_milestones(y, 1 - skew)
        assert int((bias != y).sum()) == conflicting
    test = assign_by_milestones(np.repeat(np.arange(10), 1000), 0.1)
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (np.repeat(np.arange(10), 1000), test), 1)
    assert (counts == 100).all()


@pytest.mark.parametrize(
    ("skew", "conflicting", "digest"),
    [
        (0.05, 3000, "5319ad143632c0d0"),
        (0.02, 1199, "c318d9b130444020"),
        (0.01, 598, "2679c3589b3befba"),
        (0.005, 300, "ca3a737a91f84677"),
        (None, None, "a8fbaf9ddd47db4b"),  # the test set, a tenth aligned
    ],
)
def test_milestones_on_mnist_equal_the_published_hashes(skew, conflicting, digest):
    from fairmargin.data import raw, sources

    try:
        files = sources.locate("mnist", Path(os.environ.get("FAIRMARGIN_DATA", "no-such-folder")))
    except sources.MissingData:
        pytest.skip("needs the MNIST files under $FAIRMARGIN_DATA")
    _, train, _, test = raw.mnist(files)
    y = train if skew else test
    bias = assign_by_milestones(y, 1 - skew if skew else 0.1)
    assert hashlib.sha256(bias.astype(np.uint8).tobytes()).hexdigest()[:16] == digest
    if skew:
        assert int((bias != y).sum()) == conflicting


class TestSplitOff:
    y = torch.arange(10).repeat_interleave(400)
    b = torch.where(torch.arange(4000) % 20 == 0, (y + 1 + torch.arange(4000) // 20 % 9) % 10, y)

    def test_partition_in_proportion(self):
        kept, out = split_off(self.y, self.b, 0.1, seed=3)
        assert sorted(torch.cat([kept, out]).tolist()) == list(range(4000))
        assert len(out) == 400
        whole, held = (count_cells(self.y[i], self.b[i], 10, 10) for i in (torch.arange(4000), out))
        assert (held.diagonal() == 38).all()  # of 380
        conflicting = int(held.sum() - held.diagonal().sum())
        assert conflicting == 20  # of 200: in proportion although every cell has only two or three
        assert ((whole - held)[whole > 0] > 0).all()  # no cell is emptied

    def test_deterministic_and_seeded(self):
        a, b, c = (split_off(self.y, self.b, 0.1, seed=s)[1] for s in (0, 0, 1))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)

    def test_zero_and_no_bias(self):
        kept, out = split_off(self.y, self.b, 0.0)
        assert len(out) == 0
        assert torch.equal(kept, torch.arange(4000))
        _, out = split_off(self.y, None, 0.25)
        assert self.y[out].bincount().tolist() == [100] * 10


def test_count_cells_leaves_unknown_out():
    y, b = torch.tensor([0, 0, 1, 1]), torch.tensor([0, -1, 1, 1])
    assert count_cells(y, b, 2, 2).tolist() == [[1, 0], [0, 2]]
    assert count_cells(y, None, 2, 0).shape == (2, 0)
