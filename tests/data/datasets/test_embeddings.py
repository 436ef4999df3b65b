"""Embeddings as a dataset."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.data import build
from fairmargin.runs import build as runs
from tests.vectors import LENGTH, embeddings


@pytest.fixture
def file(tmp_path):
    return embeddings(tmp_path / "e.npz")


def test_splits_names_and_counts(file):
    data = build("embeddings", file)
    assert (len(data.train), len(data.valid), len(data.test)) == (60, 12, 18)
    assert data.info.class_names == ("ant", "bee", "cat")
    assert data.info.bias_names == ("blue", "green", "red")
    assert data.info.image_shape == (LENGTH,)
    assert int(data.info.counts.sum()) == 60


def test_standardized_with_the_statistics_of_training(file):
    data = build("embeddings", file)
    seen = data.train_views(data.train.images(torch.arange(60)))
    assert torch.allclose(seen.mean(0), torch.zeros(LENGTH), atol=1e-5)
    assert torch.allclose(seen[:, :7].std(0, correction=0), torch.ones(7), atol=1e-4)
    # A constant column becomes 0, not NaN.
    assert torch.equal(seen[:, 7], torch.zeros(60))
    raw = torch.from_numpy(np.load(file)["embeddings"]).float()
    expected = (raw[72:] - raw[:60].mean(0)) / raw[:60].std(0, correction=0).clamp(min=1e-6)
    found = data.eval_views(data.test.images(torch.arange(18)))
    assert torch.allclose(found[:, :7], expected[:, :7], atol=1e-4)


def test_the_test_split_is_marked_or_held_out(tmp_path):
    bare = embeddings(tmp_path / "bare.npz", split=None, bias=None)
    with pytest.raises(ValueError, match="marks no usable test samples"):
        build("embeddings", bare)
    data = build("embeddings", bare, test_fraction=0.2)
    assert len(data.test) == 18
    assert data.train.bias is None
    assert data.info.bias_names == ()


def test_words_that_are_no_split(tmp_path):
    wrong = embeddings(tmp_path / "w.npz", split=np.array(["train"] * 89 + ["holdout"]))
    with pytest.raises(ValueError, match=r'"holdout" \(first in row 89\); write train'):
        build("embeddings", wrong)
    none = embeddings(tmp_path / "n.npz", split=np.array(["test"] * 90))
    with pytest.raises(ValueError, match="no training samples"):
        build("embeddings", none)


def test_a_path_chooses_dataset_and_preset(file):
    config = configuration.load(dataset=str(file), method="ce+fairkl")
    assert (config.data.name, config.network.name) == ("embeddings", "mlp")
    assert runs.source(config).keys() == {"source"}


def test_without_a_path(tmp_path):
    with pytest.raises(ValueError, match=r"the path of an \.npz file"):
        configuration.load(dataset="embeddings")


def test_networks_for_images_are_refused(file):
    config = configuration.load(dataset=str(file), method="ce", network="resnet18")
    with pytest.raises(ValueError, match="holds vectors and resnet18 takes images"):
        runs.method(config, runs.data(config))


def test_nothing_is_painted_on_vectors(file):
    config = configuration.load(dataset=str(file), overrides=["data.inject=colour:0.9"])
    with pytest.raises(ValueError, match="holds vectors"):
        runs.data(config)


def test_data_show_says_what_there_is(file):
    found = CliRunner().invoke(app, ["data", "show", str(file)])
    assert found.exit_code == 0
    assert "60 train, 12 valid, 18 test" in found.output
    assert "vectors of 8 numbers" in found.output
    assert "ant: 20 train (blue " in found.output


def test_scores_are_for_images(file, tmp_path):
    found = CliRunner().invoke(
        app, ["scores", "--dataset", str(file), "--out", str(tmp_path / "s")]
    )
    assert found.exit_code == 2
    assert "embeddings have none" in found.output
