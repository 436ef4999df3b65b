import math

import pytest
import torch
import torch.nn.functional as F

from fairmargin import losses
from fairmargin.config.options import options_of
from fairmargin.methods.rebias import ReBias, median_distance
from tests.methods import tiny

UP_DOWN = torch.tensor([[0.0], [0.0], [1.0], [1.0]], dtype=torch.float64)
DOWN_UP = torch.tensor([[0.0], [1.0], [0.0], [1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("features", "bias_features", "expected"),
    [
        (UP_DOWN, UP_DOWN, 2 / 3 * (1 - math.exp(-0.5)) ** 2),
        (UP_DOWN, DOWN_UP, -0.051606),
        (UP_DOWN, torch.ones_like(UP_DOWN), 0.0),
    ],
)
def test_dependence_of_four_samples(features, bias_features, expected):
    method = tiny.method("rebias", sigma=1.0)
    assert method._dependence(features, bias_features).item() == pytest.approx(expected, abs=1e-6)


def test_a_constant_added_to_all_off_diagonal_entries_changes_nothing(monkeypatch):
    """So the public code, which removes the diagonal by k − 1 everywhere, gives the same number."""
    x, y = torch.randn(7, 2).double(), torch.randn(7, 3).double()
    before = losses.hsic(x, y)
    from fairmargin.losses import dependence

    rbf = dependence._rbf
    monkeypatch.setattr(dependence, "_rbf", lambda *a: rbf(*a) + 0.7)
    assert torch.allclose(losses.hsic(x, y), before, atol=1e-12)


def moves(method, batch, optimizer=tiny.SGD):
    """{player: loss}, with the players' steps taken."""
    players, found = tiny.players(method, optimizer), {}
    for name, loss in method.updates(batch, 0):
        found[name] = loss
        players[name].optimizer.zero_grad()
        loss.backward(inputs=players[name].parameters)
        players[name].optimizer.step()
    return found


def test_the_two_losses_are_those_of_the_paper_with_g_recomputed():
    batch, options = (
        tiny.batch(dtype=torch.float64),
        {"lambda_": 700.0, "lambda_bias": 300.0, "sigma": 0.5},
    )
    method = tiny.method("rebias", **options).double().train()
    found = moves(method, batch)

    first = tiny.method("rebias", **options).double().train()
    h_f, h_g = first.encoder(batch.images), first.bias_encoder(batch.images)
    bias = F.cross_entropy(first.bias_classifier(h_g), batch.labels) - 300 * losses.hsic(
        h_f, h_g, sigma_x=0.5
    )
    moved = method.bias_encoder(batch.images)  # f has moved since, g has not
    main = F.cross_entropy(first.classifier(h_f), batch.labels) + 700 * losses.hsic(
        h_f, moved, sigma_x=0.5
    )
    stale = F.cross_entropy(first.classifier(h_f), batch.labels) + 700 * losses.hsic(
        h_f, h_g, sigma_x=0.5
    )
    assert found["bias"].item() == pytest.approx(bias.item(), rel=1e-10)
    assert found["main"].item() == pytest.approx(main.item(), rel=1e-10)
    assert found["main"].item() != pytest.approx(stale.item(), rel=1e-3)


def test_no_gradient_crosses_over():
    method = tiny.method("rebias").train()
    players = method.players()
    for name, loss in method.updates(tiny.batch(), 0):
        other = players["main" if name == "bias" else "bias"]
        assert all(
            g is None
            for g in torch.autograd.grad(loss, other, retain_graph=True, allow_unused=True)
        )


def test_signs_g_seeks_dependence_and_f_avoids_it():
    batch = tiny.batch(dtype=torch.float64)
    for player, sign in (("bias", 1), ("main", -1)):
        method = tiny.method("rebias", lambda_=1e4, lambda_bias=1e4).double().train()
        players = tiny.players(method, tiny.SGD | {"lr": 1e-5})

        def dependence(method=method):
            return losses.hsic(
                method.encoder(batch.images), method.bias_encoder(batch.images)
            ).item()

        before = dependence()
        loss = next(loss for name, loss in method.updates(batch, 0) if name == player)
        loss.backward(inputs=players[player].parameters)
        players[player].optimizer.step()
        assert sign * (dependence() - before) > 1e-4 * before


def test_without_weights_it_is_two_cross_entropies():
    batch = tiny.batch()
    plain, method = (
        tiny.method("ce").train(),
        tiny.method("rebias", lambda_=0.0, lambda_bias=0.0).train(),
    )
    plain.encoder.load_state_dict(method.encoder.state_dict())
    plain.classifier.load_state_dict(method.classifier.state_dict())
    moves(plain, batch)
    moves(method, batch)
    for a, b in zip(plain.encoder.parameters(), method.encoder.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(plain.classifier.weight, method.classifier.weight)


def test_a_batch_too_small_for_an_estimate_trains_on_cross_entropy():
    method = tiny.method("rebias").train()
    batch = tiny.part(tiny.batch(), 0, 3)
    losses_ = dict(method.updates(batch, 0))
    assert method.terms["hsic"] == 0
    assert losses_["main"].item() == pytest.approx(method.terms["main"].item())


class TestMedian:
    def test_is_over_pairs_of_different_samples(self):
        h = torch.tensor([[0.0], [1.0], [3.0]])  # distances 1, 2, 3
        assert median_distance(h, torch.tensor(1.0)) == pytest.approx(2.0)

    def test_of_equal_features_keeps_the_width(self):
        assert median_distance(torch.ones(5, 2), torch.tensor(0.3)) == pytest.approx(0.3)
        assert median_distance(torch.ones(1, 2), torch.tensor(0.3)) == pytest.approx(0.3)

    def test_is_found_at_the_first_step_of_each_epoch_and_kept(self):
        batch = tiny.batch()
        method = tiny.method("rebias", sigma="median").train()
        method.start_epoch(0, tiny.sweep)
        first = tiny.method("rebias", sigma="median").train()
        expected = [
            torch.pdist(net(batch.images)).median().item()
            for net in (first.encoder, first.bias_encoder)
        ]
        moves(method, batch)
        # Torch's median is the lower of two.
        assert method.sigmas.tolist() == pytest.approx(expected, rel=0.02)
        assert method.sigmas[0] != method.sigmas[1]
        found = method.sigmas.clone()
        moves(method, batch)
        assert torch.equal(method.sigmas, found)
        method.start_epoch(1, tiny.sweep)
        moves(method, batch)
        assert not torch.equal(method.sigmas, found)

    def test_each_kernel_has_its_own_width(self):
        method = tiny.method("rebias", sigma="median")
        method.sigmas.copy_(torch.tensor([0.5, 3.0]))
        h_f, h_g = torch.randn(8, 2), torch.randn(8, 4)
        expected = losses.hsic(h_f, h_g, sigma_x=0.5, sigma_y=3.0)
        assert method._dependence(h_f, h_g) == pytest.approx(expected.item())

    def test_a_fixed_width_stays(self):
        method = tiny.method("rebias", sigma=0.5).train()
        method.start_epoch(0, tiny.sweep)
        moves(method, tiny.batch())
        assert method.sigmas.tolist() == [0.5, 0.5]


def test_several_views_use_the_first():
    two = tiny.batch(number=2)
    one = type(two)(two.images[:, 0], two.labels, two.bias, two.index)
    a, b = (dict(tiny.method("rebias").train().updates(x, 0)) for x in (two, one))
    assert a["main"] == b["main"]


def test_sigma_is_a_number_or_median():
    sigma = options_of(ReBias)["sigma"]
    assert sigma.convert("median") == "median"
    assert sigma.convert(2) == 2
    for wrong in ("mean", 0.0, -1.0):
        with pytest.raises(ValueError, match="sigma must be"):
            tiny.method("rebias", sigma=wrong)


def test_a_bias_network_that_sees_the_whole_image_is_refused():
    with pytest.raises(ValueError, match="unknown bias_network 'mlp'"):
        tiny.method("rebias", bias_network="mlp")
