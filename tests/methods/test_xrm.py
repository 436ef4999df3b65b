import math

import pytest
import torch

from tests.methods import tiny

MAKE = tiny.without_batch_norm()


def test_each_twin_learns_from_its_half_by_class_balanced_cross_entropy():
    method, batch = tiny.method("xrm-twins", MAKE), tiny.batch()
    half = method.in_first.clone()
    assert int(half.sum()) == 12
    method.flipped[:3] = torch.tensor([2, 2, -1])
    y = [2, 2, *batch.labels[2:].tolist()]
    h = method.inspect(batch.images)[0]
    logits = method.twins(h).detach()
    total, weights = 0.0, 0.0
    for i, label in enumerate(y):
        own = logits[0 if half[i] else 1, i].double()
        loss = float(own.exp().sum().log() - own[label])
        total += loss / y.count(label)
        weights += 1 / y.count(label)
    _, loss = next(method.updates(batch, 0))
    assert float(loss.detach()) == pytest.approx(total / weights, rel=1e-5)
    # A batch of the other half only moves nothing of the first twin.
    index = (~half).nonzero()[:, 0]
    alone = tiny.split()
    part = tiny.batch(type(alone)(alone.pixels[index], alone.labels[index], alone.bias[index]))
    object.__setattr__(part, "index", index)
    _, loss = next(method.updates(part, 0))
    gradients = torch.autograd.grad(loss, list(method.encoder.parameters()))
    assert all(not g.any() for g in gradients)


def test_labels_become_the_other_twins_confident_answers():
    method, batch = tiny.method("xrm-twins", MAKE), tiny.batch()
    n, k = len(batch), tiny.CLASSES
    with torch.no_grad():
        for layer, answer in ((method.classifier, 1), (method.other_classifier, 2)):
            layer.weight.zero_()
            layer.bias.copy_(torch.where(torch.arange(k) == answer, 50.0, 0.0))
    next(method.updates(batch, 0))
    expected = [2 if own else 1 for own in method.in_first.tolist()]
    assert method.flipped.tolist() == expected
    # A twin that only guesses flips nothing.
    unsure = tiny.method("xrm-twins", MAKE)
    with torch.no_grad():
        for layer in (unsure.classifier, unsure.other_classifier):
            layer.weight.zero_()
            layer.bias.zero_()
    next(unsure.updates(batch, 0))
    assert unsure.flipped.tolist() == [-1] * n


def test_flips_are_as_frequent_as_the_formula_says():
    method = tiny.method("xrm-twins", MAKE)
    p = 0.8
    sure = torch.tensor([p, 0.1, 0.1]).log().expand(24, 3)
    torch.manual_seed(0)
    flips = 0
    for _ in range(200):
        method.flipped.fill_(-1)
        method._flip(torch.arange(24), sure)
        flips += int((method.flipped >= 0).sum())
    expected = (p - 1 / 3) * 3 / 2
    error = math.sqrt(expected * (1 - expected) / 4800)
    assert abs(flips / 4800 - expected) < 4 * error


def test_predictions_are_by_the_mean_of_both():
    method, images = tiny.method("xrm-twins", MAKE), tiny.batch().images
    features, logits = method.inspect(images)
    assert torch.allclose(logits, method.twins(features).mean(0))
