"""Every method either learns from vectors or says why not."""

import pytest
import torch

from fairmargin import config as configuration
from fairmargin.bias.visible import visible_bias
from fairmargin.loop import fit
from fairmargin.methods import METHODS
from fairmargin.methods.base import Unsuited
from fairmargin.methods.vectors import OF_IMAGES, check_takes_vectors
from fairmargin.runs import build
from tests.vectors import LENGTH, embeddings

SMALL = ["train.batch_size=60", "network.widths=[8]", "train.epochs=4"]
TWO_VIEWS = ("simclr", "eps-infonce", "infol1o")
REFUSED = {*OF_IMAGES, *TWO_VIEWS, *(f"{name}+fairkl" for name in TWO_VIEWS), "softcon"}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return embeddings(tmp_path_factory.mktemp("vectors") / "e.npz")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_on_vectors(name, file):
    config = configuration.load(dataset=str(file), method=name, overrides=SMALL)
    data = build.data(config)
    bias = visible_bias(config, data)
    if name in REFUSED:
        with pytest.raises(Unsuited):
            build.method(config, data, bias=bias)
        return
    method = build.method(config, data, bias=bias)
    training = build.training(config, method, data, torch.device("cpu"), bias=bias)
    fit(training, 4)
    assert method.predict(torch.zeros(2, LENGTH)).shape == (2, 3)


def test_what_is_refused_says_why():
    with pytest.raises(Unsuited, match="vectors have no augmentation"):
        check_takes_vectors("simclr+fairkl")
    with pytest.raises(Unsuited, match="textures or patches"):
        check_takes_vectors("rebias")
    with pytest.raises(Unsuited, match=r"biascon with method\.second"):
        check_takes_vectors("biascon", second=True)
    check_takes_vectors("biascon")
