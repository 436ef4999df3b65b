from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from tests.methods import tiny


def loss_of(method, batch):
    ((player, loss),) = method.train().updates(batch, 0)
    assert player == "main"
    return loss


def test_the_bias_label_is_added_to_the_features():
    method = tiny.method("badd", weight=2.0)
    batch = tiny.batch()
    batch.bias[3] = -1
    loss = loss_of(method, batch)
    h = method.encoder(batch.images)
    logits = []
    for row, b in zip(h, batch.bias.tolist(), strict=True):
        added = method.map.weight[:, b] if b >= 0 else torch.zeros(method.encoder.dim)
        logits.append(method.classifier(row + 2 * added))
    assert torch.allclose(loss, F.cross_entropy(torch.stack(logits), batch.labels), atol=1e-6)


def with_features(width):
    info = replace(tiny.info(biased=False), bias_features=width)
    method = tiny.method("badd", data_info=info)
    features = torch.randn(24, width, generator=torch.Generator().manual_seed(4))
    return method, replace(tiny.batch(), bias=None, bias_features=features)


def test_features_as_wide_as_its_own_are_added_as_they_are():
    dim = tiny.method("badd").encoder.dim
    method, batch = with_features(dim)
    h = method.train().encoder(batch.images)
    expected = F.cross_entropy(method.classifier(h + batch.bias_features), batch.labels)
    assert torch.allclose(loss_of(method, batch), expected, atol=1e-6)
    assert list(method.map.parameters()) == []


def test_features_of_another_width_pass_a_map_that_learns():
    method, batch = with_features(5)
    loss_of(method, batch).backward()
    assert method.map.weight.shape == (method.encoder.dim, 5)
    assert method.map.weight.grad.abs().sum() > 0


def test_predictions_do_not_see_the_bias():
    method = tiny.method("badd").eval()
    images = tiny.batch().images
    before = method.predict(images)
    with torch.no_grad():
        method.map.weight.fill_(100)
    assert torch.equal(method.predict(images), before)


def test_with_labels_it_shifts_the_logits_by_the_bias():
    """As BiasBal does, by what it has learnt instead of by counted shares."""
    method = tiny.method("badd")
    batch = tiny.batch()
    shift = method.map.weight.T @ method.classifier.weight.T  # [biases, classes]
    h = method.train().encoder(batch.images)
    expected = F.cross_entropy(method.classifier(h) + shift[batch.bias], batch.labels)
    assert torch.allclose(loss_of(method, batch), expected, atol=1e-6)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="weight must be 0 or more"):
        tiny.method("badd", weight=-1.0)
    with pytest.raises(ValueError, match="this batch has none"):
        loss_of(tiny.method("badd"), replace(tiny.batch(), bias=None))
