import math

import pytest
import torch
import torch.nn.functional as F

from fairmargin.config.options import options_of
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import Shuffled
from fairmargin.loop import Training, fit
from fairmargin.methods import METHODS
from fairmargin.methods.learned_mixin import mixed_losses
from tests.methods import tiny

BOTH = ("learned-mixin", "learned-mixin+h")


class TestLosses:
    f, one, y = torch.tensor([[1.0, 0.0]]), torch.ones(1, 1), torch.tensor([1])

    def test_values(self):
        main, entropy = mixed_losses(self.f, self.one, torch.tensor([[0.9, 0.1]]).log(), self.y)
        assert main.item() == pytest.approx(3.237287, abs=1e-6)
        assert entropy.item() == pytest.approx(0.325083, abs=1e-6)

    def test_a_bias_that_says_nothing_or_is_not_trusted_leaves_cross_entropy(self):
        f, y = torch.randn(6, 3), torch.arange(6) % 3
        t, log_g = torch.rand(6, 1) * 3, F.log_softmax(torch.randn(6, 3), 1)
        for trust, log_bias in ((t, torch.full((6, 3), 1 / 3).log()), (torch.zeros(6, 1), log_g)):
            main, entropy = mixed_losses(f, trust, log_bias, y)
            assert main.item() == pytest.approx(F.cross_entropy(f, y).item(), rel=1e-5)
            assert entropy.item() == pytest.approx(math.log(3), rel=1e-5)

    def test_logits_of_g_are_as_good_as_its_log_probabilities(self):
        f, g, t, y = torch.randn(6, 3), torch.randn(6, 3), torch.rand(6, 1), torch.arange(6) % 3
        logits, log_p = mixed_losses(f, t, g, y), mixed_losses(f, t, F.log_softmax(g, 1), y)
        assert torch.allclose(torch.stack(logits), torch.stack(log_p), atol=1e-6)

    def test_trust_sharpens(self):
        log_g = F.log_softmax(torch.randn(6, 3), 1)
        entropies = [
            mixed_losses(log_g, torch.full((6, 1), t), log_g, torch.zeros(6).long())[1]
            for t in (0.1, 1.0, 9.0)
        ]
        assert entropies[0] > entropies[1] > entropies[2]


def frozen(name):
    """A method after its pre-training."""
    method = tiny.method(name, pretrain_epochs=1)
    method.start_epoch(method.pretrain_epochs, tiny.sweep)
    return method.train()


@pytest.mark.parametrize(("name", "weight"), [("learned-mixin", 0.0), ("learned-mixin+h", 0.36)])
def test_the_main_loss_is_the_formula_with_g_under_stop_gradient(name, weight):
    batch, method = tiny.batch(), frozen(name)
    found = dict(method.updates(batch, 0))
    assert list(found) == ["main"]
    h = method.encoder(batch.images)
    t = F.softplus(h @ method.trust.weight.T + method.trust.bias)
    log_g = F.log_softmax(method.bias_classifier(method.bias_encoder(batch.images)), 1)
    o = F.log_softmax(method.classifier(h), 1) + t * log_g
    q = F.softmax(t * log_g, 1)
    expected = F.cross_entropy(o, batch.labels) - weight * (q * q.log()).sum(1).mean()
    assert found["main"].item() == pytest.approx(expected.item(), rel=1e-5)
    players = method.players()
    assert all(
        g is None
        for g in torch.autograd.grad(
            found["main"], players["bias"], retain_graph=True, allow_unused=True
        )
    )
    assert all(
        g is not None
        for g in torch.autograd.grad(found["main"], players["main"], allow_unused=True)
    )


def training(name, **options):
    method, data = tiny.method(name, **options), tiny.split()
    loader = Loader(data, tiny.views(), Shuffled(len(data)), 10)
    return Training(method, tiny.players(method), loader, seed=3, sweep=tiny.sweep)


def copy_of(parameters):
    return [p.detach().clone() for p in parameters]


def same(parameters, before):
    return all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))


def test_g_learns_first_and_is_frozen_then():
    run = training("learned-mixin", pretrain_epochs=1)
    players = run.method.players()
    start = {name: copy_of(p) for name, p in players.items()}
    seen = []

    def watch(_batch):
        state = ("moved" if not same(players[p], start[p]) else "still" for p in ("bias", "main"))
        seen.append((*state, tuple(run.method.terms)))
        if len(seen) == 3:
            start["frozen"] = copy_of(players["bias"])

    fit(run, 3, after_step=watch)  # three steps make an epoch
    assert seen[:3] == [("moved", "still", ("bias",))] * 3
    assert all(main == "moved" and "bias" not in terms for _, main, terms in seen[3:])
    assert same(players["bias"], start["frozen"])


def test_the_phase_survives_a_checkpoint():
    first = training("learned-mixin", pretrain_epochs=1)
    fit(first, 2, steps=4)  # in the middle of the second epoch
    second = training("learned-mixin", pretrain_epochs=1)
    assert second.method.pretraining
    second.load_state_dict(first.state_dict())
    assert not second.method.pretraining


def test_a_run_that_ends_before_the_main_network_starts_says_so():
    with pytest.raises(ValueError, match=r"raise train\.epochs"):
        fit(training("learned-mixin", pretrain_epochs=2), 2)


def test_without_pretraining_g_learns_along():
    method = tiny.method("learned-mixin", pretrain_epochs=0).train()
    method.start_epoch(0, tiny.sweep)
    assert [name for name, _ in method.updates(tiny.batch(), 0)] == ["bias", "main"]
    method.start_epoch(7, tiny.sweep)
    assert [name for name, _ in method.updates(tiny.batch(), 0)] == ["bias", "main"]


@pytest.mark.parametrize("name", BOTH)
def test_prediction_is_of_f_alone(name):
    method, images = tiny.method(name).eval(), tiny.batch().images
    assert torch.equal(method.predict(images), method.classifier(method.encoder(images)))


def test_the_entropy_is_the_difference_between_the_two_and_an_option():
    defaults = [options_of(METHODS[name])["entropy_weight"].default for name in BOTH]
    assert defaults == [0.0, 0.36]
    assert tiny.method("learned-mixin+h", entropy_weight=0.1).entropy_weight == 0.1


def test_g_keeps_its_rate_while_the_schedule_of_the_run_falls():
    assert tiny.method("learned-mixin").optimizers == {
        "bias": {"schedule": "constant", "warmup_epochs": 0.0}
    }
