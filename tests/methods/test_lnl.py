import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from fairmargin.methods.lnl import halves, mean_where_known, negative_entropy
from fairmargin.networks import BagNet18, BasicBlock, Encoder, ResNet, build_encoder
from tests.methods import tiny


def small_resnet():
    return ResNet(BasicBlock, (1, 1, 1), widths=(4, 6, 8), stem="cifar")


def gradients(loss, parameters):
    return torch.autograd.grad(loss, list(parameters), retain_graph=True, allow_unused=True)


def test_negative_entropy_is_least_where_the_guess_is_uniform():
    assert negative_entropy(torch.tensor([[0.75, 0.25]]).log()).item() == pytest.approx(
        -0.562335, abs=1e-6
    )
    uniform = torch.full((1, 5), 3.0, requires_grad=True)
    assert negative_entropy(uniform).item() == pytest.approx(-torch.tensor(5.0).log().item())
    assert torch.allclose(
        gradients(negative_entropy(uniform).sum(), [uniform])[0], torch.zeros(1, 5), atol=1e-7
    )
    others = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    assert (negative_entropy(others) > negative_entropy(uniform)).all()
    assert torch.isfinite(
        negative_entropy(torch.tensor([[1e4, 0.0]]))
    ).all()  # log-softmax, not log of softmax


def test_means_leave_unknown_bias_out():
    values, bias = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, -1, 2])
    assert mean_where_known(values, bias).item() == 3.5
    assert mean_where_known(values, torch.full((3,), -1)).item() == 0


@pytest.mark.parametrize("reversal", [0.1, 0.5])
def test_the_reversed_gradient_is_minus_r_times_the_predictors_and_its_own_is_unchanged(reversal):
    method, batch = (
        tiny.method("lnl", reversal=reversal).double().train(),
        tiny.batch(dtype=torch.float64),
    )
    plain = copy.deepcopy(method)
    loss = F.cross_entropy(plain.predictor(plain.trunk(batch.images)), batch.bias)
    unreversed = gradients(loss, plain.trunk.parameters())
    of_predictor = gradients(loss, plain.predictor.parameters())

    updates = method.updates(batch, 0)
    next(updates)  # nobody moves: the second half of the step sees the same weights
    player, reversed_ = next(updates)
    assert player == "main"
    for a, b in zip(gradients(reversed_, method.trunk.parameters()), unreversed, strict=True):
        assert torch.allclose(a, -reversal * b, rtol=1e-12, atol=1e-15)
    after = [*method.rest.parameters(), *method.classifier.parameters()]
    # 0, not None.
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients(reversed_, after))
    player, own = next(updates)
    assert player == "predictor"
    for a, b in zip(gradients(own, method.predictor.parameters()), of_predictor, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-15)
    assert all(g is None for g in gradients(own, method.trunk.parameters()))
    assert next(updates, None) is None


def test_the_second_half_sees_the_moved_trunk_and_both_players_the_same_one():
    method, batch = tiny.method("lnl", tiny.without_batch_norm()).train(), tiny.batch()
    before = F.cross_entropy(method.predictor(method.trunk(batch.images)), batch.bias).item()
    updates = method.updates(batch, 0)
    next(updates)
    with torch.no_grad():
        for p in method.trunk.parameters():
            p.mul_(2)
    moved = F.cross_entropy(method.predictor(method.trunk(batch.images)), batch.bias).item()
    assert moved != pytest.approx(before, rel=1e-3)
    _, reversed_ = next(updates)
    assert reversed_.item() == pytest.approx(-0.1 * moved, rel=1e-5)
    with torch.no_grad():
        for p in method.trunk.parameters():
            p.mul_(3)  # main's reversed step must not change what the predictor learns from
    _, own = next(updates)
    assert own.item() == pytest.approx(moved, rel=1e-5)
    own.backward()


def test_without_entropy_the_first_step_is_cross_entropy():
    batch = tiny.batch()
    ce, lnl = tiny.method("ce").train(), tiny.method("lnl", lambda_=0.0).train()
    expected = next(loss for _, loss in ce.updates(batch, 0))
    found = next(loss for _, loss in lnl.updates(batch, 0))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    mine = gradients(
        found, [*lnl.trunk.parameters(), *lnl.rest.parameters(), *lnl.classifier.parameters()]
    )
    theirs = gradients(expected, [*ce.encoder.parameters(), *ce.classifier.parameters()])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(mine, theirs, strict=True))


def test_the_first_loss_by_hand():
    method, batch = tiny.method("lnl", lambda_=0.7).train(), tiny.batch()
    maps = method.trunk(batch.images)
    p = method.predictor(maps).softmax(1).detach()
    logits = method.classifier(method.rest(maps))
    expected = F.cross_entropy(logits, batch.labels) + 0.7 * sum(
        float(row @ row.log()) for row in p
    ) / len(p)
    assert next(method.updates(batch, 0))[1].item() == pytest.approx(expected.item(), rel=1e-5)


def test_samples_of_unknown_bias_take_part_in_the_classification_only():
    make, batch = tiny.without_batch_norm(), tiny.batch()
    known = torch.arange(len(batch)) % 3 > 0
    masked = list(
        tiny.method("lnl", make).updates(replace(batch, bias=batch.bias.where(known, -1)), 0)
    )
    part = replace(
        batch, images=batch.images[known], labels=batch.labels[known], bias=batch.bias[known]
    )
    alone = list(tiny.method("lnl", make).updates(part, 0))
    for (_, a), (_, b) in zip(masked[1:], alone[1:], strict=True):
        assert a.item() == pytest.approx(b.item(), rel=1e-5)
    method = tiny.method("lnl", make)
    nothing = list(method.updates(replace(batch, bias=torch.full_like(batch.bias, -1)), 0))
    ce = next(tiny.method("ce", make).updates(batch, 0))[1]
    assert nothing[0][1].item() == pytest.approx(ce.item(), rel=1e-6)
    assert nothing[1][1].item() == nothing[2][1].item() == 0
    assert all(not g.any() for g in gradients(nothing[2][1], method.predictor.parameters()))


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (partial(build_encoder, "simple-conv-3"), 32),
        (small_resnet, 6),
        (BagNet18, 128),
        (partial(build_encoder, "mlp", in_features=3 * 16 * 16), 100),
    ],
)
def test_the_halves_make_the_network(make, width):
    torch.manual_seed(0)
    encoder, images = make().eval(), torch.randn(2, 3, 16, 16)
    trunk, rest = halves(encoder)
    maps = trunk(images)
    assert maps.shape[1] == width
    h = rest(maps)
    assert torch.equal(h.mean((2, 3)) if h.ndim == 4 else h, encoder(images))
    assert {id(p) for p in encoder.parameters()} == {
        id(p) for half in (trunk, rest) for p in half.parameters()
    }


def test_the_predictor_is_hong_and_yangs():
    method = tiny.method("lnl", partial(build_encoder, "simple-conv-7"))
    assert [tuple(p.shape) for p in method.trunk.parameters() if p.ndim == 4] == [
        (16, 3, 7, 7),
        (32, 16, 7, 7),
    ]
    assert [tuple(p.shape) for p in method.predictor.parameters() if p.ndim > 1] == [
        (64, 32, 7, 7),
        (128, 64, 7, 7),
        (tiny.BIASES, 128),
    ]
    linear = tiny.method("lnl", small_resnet)
    assert [tuple(p.shape) for p in linear.predictor.parameters()] == [
        (tiny.BIASES, 6),
        (tiny.BIASES,),
    ]
    assert linear.trunk.training  # finding the width leaves no trace
    assert len(list(tiny.method("lnl", small_resnet, predictor="half").predictor.parameters())) > 2


def test_what_it_refuses():
    with pytest.raises(ValueError, match="needs to know the bias"):
        tiny.method("lnl", data_info=tiny.info(biased=False))
    with pytest.raises(ValueError, match="predictor"):
        tiny.method("lnl", predictor="quarter")
    with pytest.raises(ValueError, match="middle"):
        halves(Encoder(3))


def test_of_several_views_the_first_is_used():
    several = tiny.batch(number=2)
    single = replace(several, images=several.images[:, 0])
    found = [
        [loss.item() for _, loss in tiny.method("lnl").train().updates(b, 0)]
        for b in (several, single)
    ]
    assert found[0] == found[1]
