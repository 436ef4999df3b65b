from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fairmargin import losses
from tests.methods import tiny


def loss_of(method, batch):
    torch.manual_seed(3)
    (step,) = method.train().updates(batch, 0)
    assert step[0] == "main"
    return step[1]


def seen(method, batch):
    """h and the logits as training computes them, without what a step does besides."""
    h = method.train().encoder(batch.images)
    return h, method.classifier(h)


@pytest.mark.parametrize(("alpha", "lambda_"), [(1.0, 1.0), (0.5, 3.0), (0.0, 1.0), (1.0, 0.0)])
def test_with_bias_labels_it_is_the_sum_of_three_losses(alpha, lambda_):
    make = tiny.without_batch_norm()
    method = tiny.method("fairmargin", make, alpha=alpha, lambda_=lambda_, mix=0.0)
    batch = tiny.batch()
    h, logits = seen(method, batch)
    y, b = batch.labels, batch.bias
    expected = F.cross_entropy(logits, y)
    expected = expected + alpha * losses.biascon(F.normalize(h), y, b, temperature=0.1)
    expected = expected + lambda_ * losses.fairkl(h, y, b, divergence="moments", negatives=True)
    torch.testing.assert_close(loss_of(method, batch), expected)
    assert method.sampler == "group-balanced"


def test_with_bias_features_softcon_takes_the_place_of_biascon():
    info = replace(tiny.info(biased=False), bias_features=tiny.BIASES)
    method = tiny.method("fairmargin", tiny.without_batch_norm(), info, alpha=0.5)
    features = tiny.bias_features(tiny.split())
    batch = replace(tiny.batch(), bias=None, bias_features=features)
    h, logits = seen(method, batch)
    y = batch.labels
    expected = F.cross_entropy(logits, y)
    expected = expected + 0.5 * losses.softcon(F.normalize(h), y, features, temperature=0.1)
    expected = expected + losses.fairkl(
        h, y, bias_features=features, divergence="moments", negatives=True
    )
    torch.testing.assert_close(loss_of(method, batch), expected)
    assert method.sampler == "shuffled"


def one_bias():
    info = tiny.info()
    return replace(info, bias_names=("red",), counts=info.counts.sum(1, keepdim=True))


@pytest.mark.parametrize("info", [tiny.info(biased=False), one_bias()], ids=["none", "one value"])
def test_without_a_bias_it_is_cross_entropy(info):
    method, plain = (tiny.method(name, data_info=info) for name in ("fairmargin", "ce"))
    batch = replace(tiny.batch(), bias=None)
    assert torch.equal(loss_of(method, batch), loss_of(plain, batch))
    assert method.sampler == "shuffled"


def test_values_of_a_bias_go_to_fairkl():
    method = tiny.method("fairmargin", tiny.without_batch_norm(), mix=0.0)
    batch = tiny.batch()
    values = torch.linspace(0, 1, len(batch))[:, None]
    loss_of(method, replace(batch, bias_values=values))
    h, _ = seen(method, batch)
    expected = losses.fairkl(
        h, batch.labels, values, divergence="moments", negatives=True, bandwidth=1.0
    )
    torch.testing.assert_close(method.terms["fairkl"], expected.detach())


def test_mixing_changes_what_is_trained_on_and_not_what_is_predicted():
    batch = tiny.batch()
    mixed, plain = (tiny.method("fairmargin", mix=share) for share in (1.0, 0.0))
    assert not torch.equal(loss_of(mixed, batch), loss_of(plain, batch))
    images = batch.images
    assert torch.equal(mixed.eval().predict(images), mixed.predict(images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha is a weight and must not be negative; got -1.0"),
        ({"lambda_": -0.5}, "lambda is a weight and must not be negative; got -0.5"),
        ({"mix": 1.5}, "mix is a share and must lie in"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tiny.method("fairmargin", **options)
