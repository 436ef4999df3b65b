import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fairmargin.methods.flac import flac_loss
from tests.methods import tiny


def a_batch():
    n = torch.arange(12.0)
    h = torch.stack([n.sin(), (2 * n).cos(), (3 * n).sin() + 0.1 * n], 1).double()
    b = torch.stack([n.cos(), (n * n).sin()], 1).double()
    return h, torch.arange(12) % 3, b


def loops(h, y, b, exponent):
    """FLAC by its formula, pair by pair; a row of zeros in b is in no pair."""
    n = len(h)

    def similarity(x):
        return [
            [1 / (1 + math.sqrt(math.dist(p, q) ** 2 + 1e-6) ** exponent) for q in x] for p in x
        ]

    known = [any(row) for row in b]
    s, s_b = similarity(h), similarity(b)
    pairs = [(i, j) for i in range(n) for j in range(n) if known[i] and known[j]]
    all_b = [s_b[i][j] for i, j in pairs]
    t = (max(all_b) + min(all_b)) / 2
    chosen = [(i, j) for i, j in pairs if (s_b[i][j] < t if y[i] == y[j] else s_b[i][j] > t)]
    values = []
    for i, j in chosen:
        row = [m for k, m in chosen if k == i]
        p = s[i][j] / math.fsum(s[i][m] for m in row)
        p_b = (1 - s_b[i][j]) / math.fsum(1 - s_b[i][m] for m in row)
        values.append((p - p_b) * (math.log(p) - math.log(p_b)))
    return math.fsum(values) / len(values), len(values)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("unknown", [False, True])
def test_the_loss_equals_loops(exponent, unknown):
    h, y, b = a_batch()
    if unknown:
        b[4] = 0
    expected, pairs = loops(h.tolist(), y.tolist(), b.tolist(), exponent)
    value, found = flac_loss(h, y, b, exponent=exponent)
    assert value.item() == pytest.approx(expected, rel=1e-9)
    assert found == pairs > 0


@pytest.mark.parametrize(
    ("exponent", "value", "gradient"),
    [
        (0.5, 0.01720669689731235, 0.013634541452341411),
        (1.0, 0.03987911413717518, 0.02373904699002243),
        (2.0, 0.11979341663168779, 0.06227179687637213),
    ],
)
def test_the_public_code_gives_the_same(exponent, value, gradient):
    """Value and norm of the gradient of gsarridis/FLAC on this batch; its 1e-7 is the rest."""
    h, y, b = a_batch()
    found, _ = flac_loss(h.requires_grad_(), y, b, exponent=exponent)
    found.backward()
    assert found.item() == pytest.approx(value, rel=1e-6)
    assert h.grad.norm().item() == pytest.approx(gradient, rel=1e-6)


def test_gradients():
    h, y, b = a_batch()
    b = b.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: flac_loss(x, y, b.detach())[0], (h.requires_grad_(),))
    flac_loss(h, y, b)[0].backward()
    assert b.grad is None


def test_without_pairs_it_is_a_zero_with_a_gradient():
    h, y, b = a_batch()
    for bias in (torch.ones_like(b), torch.zeros_like(b)):
        h = h.detach().requires_grad_()
        value, pairs = flac_loss(h, y, bias)
        value.backward()
        assert (value.item(), pairs.item()) == (0, 0)
        assert h.grad.abs().sum() == 0
    value, _ = flac_loss(h[:0], y[:0], b[:0])
    assert value == 0


def test_the_method_adds_it_to_cross_entropy():
    method = tiny.method("flac", alpha=30.0).train()
    batch = tiny.batch()
    ((player, loss),) = method.updates(batch, 0)
    assert player == "main"
    h = method.encoder(batch.images)
    code = F.one_hot(batch.bias, tiny.BIASES).float()
    divergence, _ = flac_loss(h, batch.labels, code)
    expected = F.cross_entropy(method.classifier(h), batch.labels) + 30 * divergence
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert divergence > 0


def test_scores_take_the_place_of_labels():
    info = replace(tiny.info(biased=False), bias_features=4)
    method = tiny.method("flac", data_info=info, alpha=30.0).train()
    features = torch.randn(24, 4, generator=torch.Generator().manual_seed(3))
    ((_, loss),) = method.updates(replace(tiny.batch(), bias=None, bias_features=features), 0)
    h = method.encoder(tiny.batch().images)
    divergence, _ = flac_loss(h, tiny.batch().labels, features)
    assert loss.item() == pytest.approx(
        (F.cross_entropy(method.classifier(h), tiny.batch().labels) + 30 * divergence).item(),
        rel=1e-5,
    )


def test_what_it_refuses():
    with pytest.raises(ValueError, match="alpha must be 0 or more and exponent above 0"):
        tiny.method("flac", exponent=0.0)
    with pytest.raises(ValueError, match="this batch has none"):
        list(tiny.method("flac").updates(replace(tiny.batch(), bias=None), 0))
