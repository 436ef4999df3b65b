"""Memory is estimated before it is taken, and the message says what would fit."""

import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from fairmargin import config as configuration
from fairmargin.methods import METHODS
from fairmargin.run import run
from fairmargin.runs import build, footprint
from fairmargin.runtime import memory

GIB = 1 << 30
# One of each class.
NETWORKS = ["simple-conv-3", "resnet18", "resnet50", "resnet20", "bagnet18", "mlp"]
# Methods that do not train on these data.
NEED_MORE = {"sin", "softcon"}
SMALL = ["data.train=80", "data.test=16", "data.side=8", "train.batch_size=16", "train.device=cpu"]


def config(*changes, network="simple-conv-3", method="ce"):
    overrides = [*SMALL, *changes]
    return configuration.load(
        None, dataset="planted", network=network, method=method, overrides=overrides
    )


@pytest.fixture
def free(monkeypatch):
    """Set how much memory seems to be free, for networks or for data."""

    def set_free(size, module=footprint):
        monkeypatch.setattr(module, "free_memory", lambda: size)

    return set_free


def refused(chosen, tmp_path):
    with pytest.raises(ValueError, match="of memory and") as caught:
        run(chosen, tmp_path / "run", console=Console(quiet=True))
    return str(caught.value)


class TestWeights:
    def test_too_large_are_refused_before_they_are_made(self, free, tmp_path):
        free(8 * GIB)
        says = refused(config("network.widths=[60000, 60000]"), tmp_path)
        assert "the weights of ce on simple-conv-3 need about 120.7 GiB" in says
        assert "8.0 GiB are free" in says

    def test_the_widths_that_would_fit_do_fit(self, free, tmp_path):
        free(8 * GIB)
        says = refused(config("network.widths=[60000, 60000]"), tmp_path)
        fits = re.search(r"--set '(network.widths=[^']+)'", says).group(1)
        info = build.data(config()).info
        footprint.check_weights_fit(config(fits), info)

    def test_of_a_head_count(self, free, tmp_path):
        """An encoder that fits, with a head on it that does not."""
        free(1 * GIB)
        wide = ["network.widths=[4, 30000]", "method.head=mlp"]
        assert "the weights of supcon on" in refused(config(*wide, method="supcon"), tmp_path)

    def test_are_those_of_the_method(self):
        chosen = config()
        data = build.data(chosen)
        method = build.method(chosen, data)
        real = [*method.parameters(), *method.buffers()]
        size = sum(tensor.numel() * tensor.element_size() for tensor in real)
        assert footprint.weights_of(chosen, data.info) == size

    @pytest.mark.parametrize("name", sorted(METHODS.keys() - NEED_MORE))
    def test_of_every_method_can_be_sketched(self, name):
        info = replace(build.data(config()).info, train_size=64)
        assert footprint.weights_of(config(method=name), info)

    def test_sketching_draws_no_random_numbers_of_the_run(self, monkeypatch):
        chosen = config()
        data = build.data(chosen)
        first = build.method(chosen, data).state_dict()
        monkeypatch.setattr(build, "check_weights_fit", lambda *arguments: None)
        second = build.method(chosen, data).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


class TestTraining:
    def test_too_large_a_batch_is_refused_with_one_that_fits(self, free, tmp_path):
        free(100_000)
        says = refused(config("network.widths=[16, 16]"), tmp_path)
        assert "of memory and 0.1 MiB are free" in says
        assert "one batch of 16 samples" in says
        fits = int(re.search(r"--set train.batch_size=(\d+)$", says).group(1))
        assert 1 < fits < 16

    def test_with_the_batch_that_fits_it_runs(self, free, tmp_path):
        free(100_000)
        says = refused(config("network.widths=[16, 16]"), tmp_path)
        fits = re.search(r"--set (train.batch_size=\d+)$", says).group(1)
        short = ["train.steps=1", "evaluate.resamples=10", "evaluate.classifiers=own"]
        chosen = config("network.widths=[16, 16]", fits, *short)
        run(chosen, tmp_path / "run", console=Console(quiet=True))

    def test_a_network_for_which_no_batch_fits(self, free, tmp_path):
        free(40_000)
        says = refused(config("network.widths=[16, 16]"), tmp_path)
        assert says.endswith(
            "choose a smaller network (network.name, network.widths) or smaller images"
        )

    @pytest.mark.parametrize("name", NETWORKS)
    @pytest.mark.parametrize("method", ["ce", "fairmargin", "simclr"])
    def test_a_small_network_needs_no_sketch_and_is_not_underestimated(self, name, method):
        options = ["data.side=32"] + (["data.views=jitter"] if method == "simclr" else [])
        chosen = config(*options, network=name, method=method)
        data = build.data(chosen)
        made = build.training(chosen, build.method(chosen, data), data, torch.device("cpu"))
        assert footprint.at_most(chosen, made, data.info) > (
            footprint.footprint(chosen, made, data.info).total
        )

    @pytest.mark.parametrize("name", NETWORKS)
    def test_activations_of_every_encoder_can_be_sketched(self, name):
        chosen = config("data.side=32", network=name)
        data = build.data(chosen)
        method = build.method(chosen, data)
        before = {key: tensor.clone() for key, tensor in method.state_dict().items()}
        assert footprint.activations(method, tuple(data.info.image_shape)) > 0
        after = method.state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)


def test_pictures_are_counted_before_they_are_drawn(free):
    free(1 * GIB, memory)
    with pytest.raises(ValueError, match=r"pictures of 1000 × 1000 pixels need about .* would fit"):
        build.data(config("data.train=100000", "data.side=1000"))
