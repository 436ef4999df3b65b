"""AFR, SELF and the class-balanced refit, against loops and torch's own optimizer."""

import math

import pytest
import torch
import torch.nn.functional as F

from fairmargin.evaluate.probe import fit_probe
from fairmargin.methods.base import RunLength
from fairmargin.methods.held_out import HeldOutSamples, afr_weights, disagreement
from fairmargin.methods.last_layer import balanced, descend
from tests.methods import tiny

MAKE = tiny.without_batch_norm()


def samples(n=30, classes=3, width=4):
    g = torch.Generator().manual_seed(0)
    h = torch.randn(n, width, generator=g).double()
    y = torch.randint(classes, (n,), generator=g)
    layer = (torch.randn(classes, width, generator=g).double(), torch.zeros(classes).double())
    early = torch.randn(n, classes, generator=g).double()
    return HeldOutSamples(h, y, F.linear(h, *layer), early, layer)


def test_afr_weights_are_those_of_the_paper():
    found = samples()
    raw = []
    for row, label in zip(found.logits.tolist(), found.y.tolist(), strict=True):
        p = math.exp(row[label]) / sum(map(math.exp, row))
        raw.append(math.exp(-4 * p) / found.y.tolist().count(label))
    expected = [w / sum(raw) for w in raw]
    assert afr_weights(found.logits, found.y, 4.0).tolist() == pytest.approx(expected)
    # A γ at which every exponential would be 0.
    assert float(afr_weights(found.logits, found.y, 1e5).sum()) == pytest.approx(1)


@pytest.mark.parametrize(("pull", "largest"), [(0.0, 1.0), (0.3, 1.0), (0.3, 0.05)])
def test_descent_is_that_of_torch(pull, largest):
    found = samples()
    weights = afr_weights(found.logits, found.y, 2.0)
    layer = torch.nn.Linear(4, 3).double()
    with torch.no_grad():
        layer.weight.copy_(found.layer[0])
        layer.bias.copy_(found.layer[1])
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(20):
        sgd.zero_grad()
        loss = (weights * F.cross_entropy(layer(found.h), found.y, reduction="none")).sum()
        loss = loss + pull * (layer.weight - found.layer[0]).square().sum()
        loss = loss + pull * (layer.bias - found.layer[1]).square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), largest)
        sgd.step()
    weight, intercept = descend(
        found.h, found.y, weights, found.layer, steps=20, rate=0.1, pull=pull, largest=largest
    )
    assert torch.allclose(weight, layer.weight, atol=1e-6)
    assert torch.allclose(intercept, layer.bias, atol=1e-6)


def test_self_chooses_by_loss_or_by_divergence():
    found = samples()
    losses, divergences = [], []
    for row, early, label in zip(
        found.logits.tolist(), found.early.tolist(), found.y.tolist(), strict=True
    ):
        p = [math.exp(v) / sum(map(math.exp, row)) for v in row]
        q = [math.exp(v) / sum(map(math.exp, early)) for v in early]
        losses.append(-math.log(p[label]))
        divergences.append(sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)))
    said = disagreement(found, "misclassification", 0.5)
    assert said.tolist() == pytest.approx(losses)
    assert disagreement(found, "early-stop", 0.5).tolist() == pytest.approx(divergences)
    dropped = disagreement(found, "dropout", 0.5)
    assert (dropped >= -1e-12).all()
    assert dropped.max() > 0.01
    assert disagreement(found, "dropout", 0.0).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["afr", "self", "class-refit"])
def test_the_new_layer_is_in_use_until_training_goes_on(name):
    method, images = tiny.method(name, MAKE), tiny.batch().images
    before = method.predict(images).detach()
    method.start_epoch(0, tiny.sweep)
    method.finish(tiny.sweep)
    after = method.predict(images).detach()
    assert not torch.allclose(before, after, atol=1e-3)
    assert torch.equal(method.classifier(method.features(images)), before)
    next(method.updates(tiny.batch(), 0))
    assert torch.equal(method.predict(images), before)


def test_self_fits_the_chosen_samples_with_balanced_classes():
    method = tiny.method("self", MAKE, selection="misclassification", number=5, steps=30)
    method.finish(tiny.sweep)
    batches = list(tiny.sweep("valid"))
    h = torch.cat([method.encoder(b.images).detach() for b in batches]).double()
    y = torch.cat([b.labels for b in batches])
    layer = method.classifier
    start = layer.weight.detach().double(), layer.bias.detach().double()
    each = F.cross_entropy(F.linear(h, *start), y, reduction="none").tolist()
    chosen = sorted(range(len(y)), key=lambda i: -each[i])[:5]
    labels = y[chosen].tolist()
    weights = torch.tensor([1 / labels.count(k) for k in labels]).double()
    expected, _ = descend(h[chosen], y[chosen], weights / weights.sum(), start, steps=30, rate=0.01)
    assert torch.allclose(method.weight.double(), expected, atol=1e-6)


def test_the_early_network_is_the_one_after_that_many_epochs():
    method = tiny.method("self", MAKE, early_epochs=2)
    with torch.no_grad():
        for epoch in range(4):
            method.classifier.bias.fill_(epoch)
            method.start_epoch(epoch, tiny.sweep)
    assert method.early[1].bias.tolist() == [2.0] * 3
    with pytest.raises(ValueError, match="early_epochs=2 and this run has 2"):
        method.plan(RunLength(2, 20))
    assert method.plan(RunLength(3, 30)).at_end
    assert tiny.method("self", MAKE, selection="dropout").early is None


def test_the_class_balanced_refit_looks_at_no_bias():
    options = {"penalty": "l2", "inverse_strength": 0.5, "draws": 2}
    method = tiny.method("class-refit", MAKE, tiny.info(biased=False), **options)
    method.start_epoch(0, tiny.sweep)
    method.finish(tiny.sweep)
    batches = list(tiny.sweep("valid"))
    h = torch.cat([method.encoder(b.images).detach() for b in batches]).double()
    y = torch.cat([x.labels for x in batches])
    deviation = h.std(0, correction=0)
    x = torch.where(deviation > 0, (h - h.mean(0)) / deviation, 0)
    expected = 0
    for draw in range(2):
        chosen = balanced(y, torch.Generator().manual_seed(draw))
        probe = fit_probe(x[chosen], y[chosen], 3, l2=1 / (0.5 * len(chosen)), standardise=False)
        expected = expected + probe.logits(x) / 2
    found = method.predict(torch.cat([b.images for b in batches]))
    assert torch.allclose(found.double(), expected, atol=1e-4)


def test_wrong_options_and_missing_samples_are_refused():
    for name, options in (
        ("afr", {"gamma": -1.0}),
        ("afr", {"source": "test"}),
        ("self", {"selection": "random"}),
        ("self", {"dropout": 1.0}),
        ("class-refit", {"balance": "all"}),
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            tiny.method(name, MAKE, **options)
    for name in ("afr", "self", "class-refit"):
        with pytest.raises(ValueError, match="none of class a, b, c"):
            tiny.method(name, MAKE).start_epoch(0, lambda split: [])
