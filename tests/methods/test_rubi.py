import pytest
import torch
import torch.nn.functional as F

from fairmargin.methods.rubi import masked_losses
from tests.methods import tiny


def test_a_mask_of_one_half():
    f, c, y = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2), torch.tensor([0])
    main, mask = masked_losses(f, c, c, y)
    assert main.item() == pytest.approx(0.313262, abs=1e-6)  # of logits (1, 0)
    assert mask.item() == pytest.approx(0.693147, abs=1e-6)
    assert (main + mask).item() == pytest.approx(1.006409, abs=1e-6)


def test_an_open_mask_is_cross_entropy():
    f, y = torch.randn(6, 4), torch.arange(6) % 4
    assert masked_losses(f, torch.full((6, 4), 50.0), f, y)[0] == pytest.approx(
        F.cross_entropy(f, y).item(), rel=1e-6
    )


def test_the_mask_loss_reaches_the_mask_as_well_as_the_logits():
    f, c = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    main, mask = masked_losses(f, c, c, torch.arange(6) % 4)
    assert all(g.abs().max() > 0 for g in torch.autograd.grad(main, (f, c)))
    reached = torch.autograd.grad(mask, (f, c), allow_unused=True)
    assert reached[0] is None
    assert reached[1].abs().max() > 0


@pytest.mark.parametrize("second_layer", [False, True])
def test_the_main_loss_is_the_formula_and_spares_g(second_layer):
    batch = tiny.batch()
    method = tiny.method("rubi", weight=0.4, second_layer=second_layer).train()
    found = dict(method.updates(batch, 0))  # nobody moves
    c = method.mask(method.bias_encoder(batch.images))
    f = method.classifier(method.encoder(batch.images))
    expected = F.cross_entropy(f * c.sigmoid(), batch.labels) + 0.4 * F.cross_entropy(
        method.after_mask(c), batch.labels
    )
    assert found["main"].item() == pytest.approx(expected.item(), rel=1e-5)
    players = method.players()
    assert all(
        g is None for g in torch.autograd.grad(found["main"], players["bias"], allow_unused=True)
    )
    assert all(
        g is None for g in torch.autograd.grad(found["bias"], players["main"], allow_unused=True)
    )


@pytest.mark.parametrize("second_layer", [False, True])
def test_the_mask_is_trained_with_the_main_network(second_layer):
    method = tiny.method("rubi", second_layer=second_layer).train()
    players = tiny.players(method)
    trained = [method.mask.weight, *method.after_mask.parameters()]
    assert len(trained) == (3 if second_layer else 1)
    before = [p.detach().clone() for p in trained]
    for name, loss in method.updates(tiny.batch(), 0):
        players[name].optimizer.zero_grad()
        loss.backward(inputs=players[name].parameters)
        players[name].optimizer.step()
    assert all(not torch.equal(p, b) for p, b in zip(trained, before, strict=True))


def test_g_moves_first_and_the_mask_sees_the_moved_g():
    batch, method = tiny.batch(), tiny.method("rubi").train()
    still = dict(tiny.method("rubi").train().updates(batch, 0))
    updates, players = method.updates(batch, 0), tiny.players(method, tiny.SGD)
    name, loss = next(updates)
    assert name == "bias"
    assert loss.item() == pytest.approx(still["bias"].item())
    loss.backward(inputs=players[name].parameters)
    players[name].optimizer.step()
    assert next(updates)[1].item() != pytest.approx(still["main"].item(), rel=1e-6)


def test_prediction_is_not_masked():
    method, images = tiny.method("rubi").eval(), tiny.batch().images
    before = method.predict(images)
    torch.nn.init.constant_(method.mask.weight, 9.0)
    assert torch.equal(method.predict(images), before)
    assert torch.equal(before, method.classifier(method.encoder(images)))
