"""DFA: four stop-gradients, one permutation, and when the exchange begins."""

import pytest
import torch
import torch.nn.functional as F

from fairmargin import losses
from fairmargin.builder_options import options_of
from fairmargin.methods import METHODS
from tests.methods import tiny

SWAPPING = {"swap_start": -1}
WEIGHTS = {"lambda_dis": 2.0, "lambda_swap": 0.1, "lambda_swap_b": 3.0}


def first_losses(method, batch, step=0):
    torch.manual_seed(5)
    return dict(method.train().updates(batch, step))


@pytest.mark.parametrize("options", [{}, SWAPPING])
def test_neither_half_teaches_the_other(options):
    method = tiny.method("dfa", **options)
    updates = first_losses(method, tiny.batch())
    assert ("main, swapped" in method.terms) is bool(options)
    for player, stranger in (("bias", "main"), ("main", "bias")):
        own = torch.autograd.grad(updates[player], method.players()[player], retain_graph=True)
        assert any(g.abs().max() > 1e-4 for g in own)
        alien = torch.autograd.grad(updates[player], method.players()[stranger], allow_unused=True, retain_graph=True)
        assert all(g is None for g in alien)


def test_each_classifier_reads_both_halves():
    method = tiny.method("dfa")
    dim = method.encoder.dim
    updates = first_losses(method, tiny.batch())
    for player, classifier in (("main", method.classifier), ("bias", method.bias_classifier)):
        (g,) = torch.autograd.grad(updates[player], classifier.weight)
        assert g.shape == (tiny.CLASSES, 2 * dim)
        assert g[:, :dim].abs().max() > 1e-4
        assert g[:, dim:].abs().max() > 1e-4


def test_the_identity_permutation_gives_the_same_loss_twice(monkeypatch):
    monkeypatch.setattr(torch, "randperm", torch.arange)
    without = first_losses(tiny.method("dfa"), tiny.batch())
    with_swap = first_losses(tiny.method("dfa", **SWAPPING), tiny.batch())
    for player in ("bias", "main"):
        assert with_swap[player].item() == pytest.approx(2 * without[player].item(), rel=1e-6)


def test_the_exchange_begins_after_swap_start():
    at = {step: first_losses(tiny.method("dfa", swap_start=3), tiny.batch(), step) for step in (0, 3, 4)}
    before = first_losses(tiny.method("dfa"), tiny.batch(), 10_000)
    for player in ("bias", "main"):
        assert at[0][player].item() == at[3][player].item() == before[player].item()
        assert at[4][player].item() > 1.5 * at[3][player].item()
    method = tiny.method("dfa")
    first_losses(method, tiny.batch(), 10_001)
    assert "main, swapped" in method.terms


@pytest.mark.parametrize("surrogate", [False, True])
def test_the_whole_loss_by_hand(surrogate):
    """W belongs to the samples of z_l; ỹ moves with z̃_b."""
    batch = tiny.batch(dtype=torch.float64)
    y = batch.labels
    method = tiny.method("dfa", **SWAPPING, **WEIGHTS, surrogate=surrogate).double()
    got = first_losses(method, batch)
    same = tiny.method("dfa").double().train()
    z_l, z_b = same.encoder(batch.images), same.bias_encoder(batch.images)
    torch.manual_seed(5)
    pi = torch.randperm(len(y))
    assert (y != y[pi]).any()

    def ce(classifier, z, labels):
        return F.cross_entropy(classifier(torch.cat([z_l, z], 1)), labels, reduction="none")

    def gce(z, labels):
        logits = same.bias_classifier(torch.cat([z_l, z], 1))
        return losses.generalized_cross_entropy(logits, labels, surrogate=surrogate)

    e_b, e_d = ce(same.bias_classifier, z_b, y), ce(same.classifier, z_b, y)
    for c in range(tiny.CLASSES):
        e_b, e_d = (torch.where(y == c, e / e[y == c].max(), e) for e in (e_b, e_d))
    W = e_b / (e_b + e_d + 1e-8)
    main = (W * ce(same.classifier, z_b, y)).mean() + 0.1 * (W * ce(same.classifier, z_b[pi], y)).mean()
    bias = 2.0 * gce(z_b, y) + 0.1 * 3.0 * gce(z_b[pi], y[pi])
    assert got["main"].item() == pytest.approx(main.item(), rel=1e-10)
    assert got["bias"].item() == pytest.approx(bias.item(), rel=1e-10)


def test_gradients_equal_those_of_one_joint_loss():
    """As the public code does: one sum and one backward pass."""
    method = tiny.method("dfa", **SWAPPING, **WEIGHTS)
    updates = first_losses(method, tiny.batch())
    apart = {
        player: torch.autograd.grad(updates[player], method.players()[player], retain_graph=True) for player in updates
    }
    everything = [p for parameters in method.players().values() for p in parameters]
    joint = torch.autograd.grad(sum(updates.values()), everything)
    for a, b in zip([*apart["bias"], *apart["main"]], joint, strict=True):
        assert torch.equal(a, b)


def test_without_weight_the_exchange_changes_nothing():
    without = first_losses(tiny.method("dfa"), tiny.batch())
    weightless = first_losses(tiny.method("dfa", **SWAPPING, lambda_swap=0.0), tiny.batch())
    assert {k: v.item() for k, v in weightless.items()} == {k: v.item() for k, v in without.items()}


def test_the_permutation_changes_with_the_generator():
    batch, values = tiny.batch(), set()
    for seed in range(3):
        torch.manual_seed(seed)
        method = tiny.method("dfa", **SWAPPING).train()
        torch.manual_seed(seed)
        values.add(next(loss for _, loss in method.updates(batch, 0)).item())
    assert len(values) == 3


def test_predictions_read_both_halves_and_features_are_the_intrinsic_one():
    method, images = tiny.method("dfa").eval(), tiny.batch().images
    z_l, z_b = method.encoder(images), method.bias_encoder(images)
    assert torch.equal(method.features(images), z_l)
    assert torch.equal(method.predict(images), method.classifier(torch.cat([z_l, z_b], 1)))


def test_one_sample_and_several_views():
    for batch in (tiny.part(tiny.batch(), 0, 1), tiny.batch(number=2)):
        values = first_losses(tiny.method("dfa", **SWAPPING), batch)
        assert all(torch.isfinite(loss) for loss in values.values())


def test_mixed_precision_gives_losses_in_full_precision():
    method = tiny.method("dfa", **SWAPPING).train()
    with torch.autocast("cpu", torch.bfloat16):
        updates = list(method.updates(tiny.batch(), 0))
    assert all(loss.dtype == torch.float32 and torch.isfinite(loss) for _, loss in updates)


def test_options():
    assert {name: o.default for name, o in options_of(METHODS["dfa"]).items()} == {
        "lambda_dis": 1.0,
        "lambda_swap": 1.0,
        "lambda_swap_b": 1.0,
        "swap_start": 10_000,
        "q": 0.7,
        "ema_decay": 0.7,
        "surrogate": False,
    }
