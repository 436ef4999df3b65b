"""A bias that is numbers, or several columns, from the table to the loss."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from fairmargin import config as configuration
from fairmargin import losses
from fairmargin.bias.visible import visible_bias
from fairmargin.data import build
from fairmargin.data.problems import BadManifest
from fairmargin.runs import build as runs

AGES = [str(20 + 7 * i % 41 + i / 4) for i in range(47)] + ["?"]


@pytest.fixture
def table(tmp_path):
    def make(ages=AGES):
        lines = ["path,label,age,sex,split"]
        for i in range(60):
            Image.new("RGB", (8, 8), (4 * i, 0, 9)).save(tmp_path / f"{i}.png")
            age = ages[i] if i < 48 else str(30 + i)
            split = "train" if i < 48 else "test"
            lines.append(f"{i}.png,{'ab'[i % 2]},{age},{'fm'[i // 2 % 2]},{split}")
        file = tmp_path / "t.csv"
        file.write_text("\n".join(lines))
        return file

    return make


def continuous(file, columns="age", **more):
    settings = {"image_size": 8, "valid_fraction": 0.0, "bias_kind": "continuous"}
    return build("folder", file, bias_columns=columns, **settings, **more)


def test_values_reach_the_split_in_units_of_their_median_distance(table):
    data = continuous(table())
    ages = np.array([float(a) for a in AGES[:-1]])
    steps = np.abs(ages[:, None] - ages)[np.triu_indices(47, 1)]
    steps = np.sort(steps[steps > 0])
    expected = torch.tensor(ages / steps[(len(steps) - 1) // 2])
    assert_close(data.train.bias_values[:-1, 0].double(), expected, rtol=1e-6, atol=0)
    assert math.isnan(data.train.bias_values[-1, 0])
    assert data.test.bias_values.shape == (12, 1)


@pytest.mark.parametrize("bins", [2, 4, 5])
def test_groups_are_quantiles_of_the_training_values(table, bins):
    data = continuous(table(), bias_bins=bins)
    ages = np.array([float(a) for a in AGES[:-1]])
    edges = np.quantile(ages, np.arange(1, bins) / bins)
    # The names are in the order of the bins.
    found = data.train.bias[:-1].tolist()
    assert found == np.digitize(ages, edges).tolist()
    assert data.train.bias[-1] == -1
    assert data.info.num_biases == bins
    assert data.info.bias_names[0] == f"age q1 (below {edges[0]:.4g})"
    assert "quantiles of the training values" in data.info.notes["bins of age"]


def test_bins_that_would_be_empty_are_not_made(table):
    data = continuous(table(["20"] * 40 + ["30"] * 8))
    assert data.info.num_biases < 4
    assert int(data.info.counts.sum(0).min()) > 0


def test_what_is_no_number_is_refused_with_its_row(table):
    with pytest.raises(BadManifest, match='"old" is no finite number'):
        continuous(table(["old", *AGES[1:]]))
    with pytest.raises(ValueError, match=r"name it with data\.bias_columns"):
        continuous(table(["?"] * 48))
    with pytest.raises(ValueError, match="bias_bins must be at least 2"):
        continuous(table(), bias_bins=1)
    with pytest.raises(ValueError, match=r"data\.bias_kind"):
        build("folder", table(), bias_columns="age", bias_kind="numbers")


def test_without_the_word_numbers_stay_labels(table):
    data = build("folder", table(), image_size=8, bias_columns="age")
    assert data.train.bias_values is None
    assert data.info.num_biases > 40


def test_parts_of_several_columns(table):
    data = build("folder", table(), image_size=8, bias_columns="age,sex")
    parts = torch.tensor(data.info.bias_parts)
    names = [name.split("×") for name in data.info.bias_names]
    for k in (0, 1):
        for a, name in enumerate(names):
            for b, other in enumerate(names):
                assert (parts[a, k] == parts[b, k]) == (name[k] == other[k])
    assert build("folder", table(), image_size=8, bias_columns="sex").info.bias_parts == ()


def configured(file, *changes):
    words = ["data.image_size=8", "data.valid_fraction=0", "network.name=simple-conv-3"]
    return configuration.load(dataset=str(file), method="ce+fairkl", overrides=[*words, *changes])


def first_step(config):
    data = runs.data(config)
    method = runs.method(config, data)
    seen = []
    forward = method.fairkl.forward
    method.fairkl.forward = lambda *args, **more: seen.append(args) or forward(*args, **more)
    training = runs.training(config, method, data, torch.device("cpu"))
    batch = next(iter(training.loader))
    method.train()
    list(method.updates(batch, 0))
    return data, batch, seen[0], method


def test_training_sees_the_values(table):
    config = configured(
        table(), "data.bias_columns=age", "data.bias_kind=continuous", "method.kernel=box"
    )
    data, batch, (h, labels, bias), method = first_step(config)
    seen = data.train.bias_values[batch.index]
    assert torch.equal(bias.nan_to_num(), seen.nan_to_num())
    settings = method.fairkl.settings
    assert (settings["kernel"], settings["bandwidth"]) == ("box", 1.0)
    expected = losses.fairkl(h, labels, seen, **settings)
    assert method.terms["fairkl"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_training_sees_every_column(table):
    config = configured(table(), 'data.bias_columns=["age","sex"]', "method.biases=sum")
    _, batch, (h, labels, bias), method = first_step(config)
    assert bias.shape == (len(batch), 2)
    each = [losses.fairkl(h, labels, bias[:, k], **method.fairkl.settings) for k in (0, 1)]
    assert method.terms["fairkl"].item() == pytest.approx(sum(each).item(), rel=1e-5)


def test_what_is_hidden_is_hidden_as_values_too(table):
    file = table()
    changes = ("data.bias_columns=age", "data.bias_kind=continuous", "data.bias=none")
    config = configured(file, *changes)
    bias = visible_bias(config, runs.data(config))
    assert all(split.bias_values is None for split in bias.splits.values())


def test_other_values_are_other_data(table):
    before = continuous(table()).hashes["train"]
    assert continuous(table()).hashes["train"] == before
    assert continuous(table([f"{float(AGES[0]) + 0.01}", *AGES[1:]])).hashes["train"] != before
