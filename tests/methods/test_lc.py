import math

import pytest
import torch
from torch.nn import functional as F

from fairmargin import losses
from fairmargin.methods.base import RunLength
from fairmargin.methods.lc import (
    corrected_cross_entropy,
    group_means,
    group_prior,
    partners,
)
from tests.methods import tiny


def updates(method, batch, step=0):
    return dict(method.train().updates(batch, step))


def corrected_by_loops(logits, labels, prior, eta):
    values = []
    for f, y, p in zip(logits.tolist(), labels.tolist(), prior.tolist(), strict=True):
        shifted = [x + math.log(q**eta + 1e-4) for x, q in zip(f, p, strict=True)]
        total = math.fsum(math.exp(x) for x in shifted)
        values.append(-math.log(math.exp(shifted[y]) / total))
    return math.fsum(values) / len(values)


def test_one_step_equals_the_published_algorithm():
    """Without mixing: the table, the correction and both losses, sample by sample."""
    method = tiny.method("lc", mixup=0.0, ema_decay=0.4, temperature=0.3, eta=0.7).double()
    batch = tiny.batch(dtype=torch.float64)
    before = torch.rand(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    method.table.copy_(before)
    found = updates(method, batch)
    with torch.no_grad():
        f_b = method.bias_classifier(method.bias_encoder(batch.images))
        f = method.predict(batch.images)
    y = batch.labels.tolist()
    guesses = f_b.argmax(1).tolist()
    p = (f_b / 0.3).softmax(1).tolist()
    table = before.tolist()
    for k in range(3):
        for a in range(3):
            inside = [p[i][k] for i in range(24) if y[i] == k and guesses[i] == a]
            mean = math.fsum(inside) / len(inside) if inside else 0.0
            table[k][a] = 0.4 * table[k][a] + 0.6 * mean
    assert torch.allclose(method.table, torch.tensor(table, dtype=torch.float64))
    prior = []
    for a in guesses:
        total = sum(table[k][a] for k in range(3))
        prior.append([table[k][a] / total for k in range(3)])
    expected = corrected_by_loops(f, batch.labels, torch.tensor(prior), 0.7)
    assert found["main"].item() == pytest.approx(expected, rel=1e-6)
    gce = losses.generalized_cross_entropy(f_b, batch.labels, q=0.7)
    assert found["bias"].item() == pytest.approx(gce.item(), rel=1e-6)


def test_with_labels_and_without_mixing_it_is_biasbal_but_for_the_floor():
    method = tiny.method("lc", source="labels", mixup=0.0).double()
    batch = tiny.batch(dtype=torch.float64)
    batch.bias[5] = -1
    found = updates(method, batch)
    assert found.keys() == {"main"}
    counts = tiny.info().counts.double()
    prior = (counts / counts.sum(0)).T  # [biases, classes]
    logits = method.predict(batch.images)
    with_floor = prior + 1e-4 - 1e-9  # BiasBal adds 1e-9
    expected = losses.bias_balanced_cross_entropy(logits, batch.labels, batch.bias, with_floor)
    assert found["main"].item() == pytest.approx(expected.item(), rel=1e-6)


def test_group_means_and_priors():
    values = torch.tensor([0.2, 0.4, 0.9])
    table = group_means(values, torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), 2)
    assert torch.allclose(table, torch.tensor([[0, 0.3], [0.9, 0]]))
    prior = group_prior(torch.tensor([[0.1, 0.0], [0.3, 0.0]]), torch.tensor([0, 1, -1]))
    # A group that was never seen, and one that is not known, correct nothing.
    assert torch.allclose(prior, torch.tensor([[0.25, 0.75], [1, 1], [1, 1]]))


def test_partners_have_the_class_and_an_uncommon_bias_if_there_is_one():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(4, (50,), generator=g)
    rare = (torch.rand(50, generator=g) < 0.2) & (y != 2)
    seen = set()
    for _ in range(40):
        found = partners(y, rare, torch.rand(50, generator=g))
        assert torch.equal(y[found], y)
        has_rare = torch.stack([rare[y == k].any() for k in range(4)])[y]
        assert rare[found][has_rare].all()
        seen |= set(found.tolist())
    allowed = set(rare.nonzero()[:, 0].tolist()) | set((y == 2).nonzero()[:, 0].tolist())
    assert seen == allowed  # all of them are drawn
    assert len(partners(y[:0], rare[:0], torch.rand(0))) == 0


def test_mixing_blends_images_and_corrections():
    method = tiny.method("lc", source="labels", mixup=0.5, ramp_steps=1).double()
    batch = tiny.batch(dtype=torch.float64)
    torch.manual_seed(7)
    found = updates(method, batch, step=1)
    torch.manual_seed(7)
    draws = torch.rand(25)
    share = float(0.5 * draws[-1])  # U(0, 0.5)
    assert method.terms["own share"].item() == pytest.approx(share)
    table = method.table
    priors = tiny.info().counts.double().sum(1) / 24
    rare = table[batch.labels, batch.bias] < priors[batch.labels]
    partner = partners(batch.labels, rare, draws[:-1])
    prior = table.T[batch.bias]
    x = share * batch.images + (1 - share) * batch.images[partner]
    mixed = share * prior + (1 - share) * prior[partner]
    expected = corrected_by_loops(method.predict(x), batch.labels, mixed, 1.0)
    assert found["main"].item() == pytest.approx(expected, rel=1e-6)


def test_mixing_comes_in_gradually():
    method = tiny.method("lc")
    method.plan(RunLength(10, 200))
    rise = [method._tau(step) for step in (0, 50, 100, 200)]
    assert rise == pytest.approx([0.5 * math.exp(-5), 0.5 * math.exp(-1.25), 0.5, 0.5])
    assert tiny.method("lc", mixup=0.0)._tau(100) == 0


def test_gradients():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, dtype=torch.float64, generator=g, requires_grad=True)
    y = torch.arange(6) % 3
    prior = torch.rand(6, 3, dtype=torch.float64, generator=g).softmax(1)
    assert torch.autograd.gradcheck(lambda z: corrected_cross_entropy(z, y, prior, eta=0.5), (x,))
    ones = torch.ones_like(prior)
    assert torch.allclose(corrected_cross_entropy(x, y, ones), F.cross_entropy(x, y))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "label"}, "source"),
        ({"ema_decay": 1.0}, "ema_decay from 0 to below 1"),
        ({"mixup": 0.6}, "mixup must lie in"),
    ],
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        tiny.method("lc", **options)


def test_labels_must_be_known_to_use_them():
    with pytest.raises(ValueError, match="needs to know the bias"):
        tiny.method("lc", source="labels", data_info=tiny.info(biased=False))
