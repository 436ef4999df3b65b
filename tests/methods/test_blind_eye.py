from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fairmargin.methods.blind_eye import confusion
from tests.methods import tiny


def gradients(loss, parameters):
    return torch.autograd.grad(loss, list(parameters), retain_graph=True, allow_unused=True)


def test_confusion_is_the_cross_entropy_from_uniform():
    assert confusion(torch.tensor([[0.75, 0.25]]).log()).item() == pytest.approx(0.836988, abs=1e-6)
    assert confusion(torch.full((1, 4), -2.0)).item() == pytest.approx(
        torch.tensor(4.0).log().item()
    )
    logits = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kl = F.kl_div(
        logits.log_softmax(1), torch.full((20, 4), 0.25, dtype=torch.float64), reduction="none"
    ).sum(1)
    assert torch.allclose(confusion(logits) - torch.tensor(4.0, dtype=torch.float64).log(), kl)
    assert (kl > 0).all()
    # Without bound, and finite.
    assert confusion(torch.tensor([[200.0, 0.0]])).item() == pytest.approx(100)


def test_without_confusion_it_is_cross_entropy():
    batch = tiny.batch()
    ce, method = tiny.method("ce").train(), tiny.method("blind-eye", alpha=0.0).train()
    expected = next(loss for _, loss in ce.updates(batch, 0))
    found = dict(method.updates(batch, 0))["main"]
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    mine = gradients(found, [*method.encoder.parameters(), *method.classifier.parameters()])
    theirs = gradients(expected, [*ce.encoder.parameters(), *ce.classifier.parameters()])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(mine, theirs, strict=True))


def test_the_bias_loss_sends_nothing_into_the_encoder_and_main_sees_the_moved_classifier():
    method, batch = tiny.method("blind-eye", alpha=0.3).train(), tiny.batch()
    updates = method.updates(batch, 0)
    player, bias = next(updates)
    assert player == "bias"
    assert all(g is None for g in gradients(bias, method.encoder.parameters()))
    with torch.no_grad():
        for p in method.bias_classifier.parameters():
            p.mul_(4)
    player, main = next(updates)
    assert player == "main"
    fresh = tiny.method("blind-eye").train()  # the batch norm of the first one has moved
    h = fresh.encoder(batch.images)
    log_p = (h @ method.bias_classifier.weight.T + method.bias_classifier.bias).log_softmax(1)
    by_hand = F.cross_entropy(fresh.classifier(h), batch.labels) - 0.3 * log_p.mean()
    assert main.item() == pytest.approx(by_hand.item(), rel=1e-5)
    before = F.cross_entropy(fresh.bias_classifier(h), batch.bias)
    assert bias.item() == pytest.approx(before.item(), rel=1e-5)


def test_several_bias_steps_each_see_the_last():
    method, batch = tiny.method("blind-eye", bias_steps=3).train(), tiny.batch()
    optimizer = tiny.players(method)["bias"].optimizer
    found = []
    for player, loss in method.updates(batch, 0):
        found.append((player, loss.item()))
        if player == "bias":
            optimizer.zero_grad()
            loss.backward(inputs=method.players()["bias"])
            optimizer.step()
    assert [player for player, _ in found] == ["bias"] * 3 + ["main"]
    assert found[0][1] > found[1][1] > found[2][1]
    assert method.terms["bias"].item() == pytest.approx(found[2][1])


def test_samples_of_unknown_bias_take_part_in_the_classification_only():
    make, batch = tiny.without_batch_norm(), tiny.batch()
    known = torch.arange(len(batch)) % 3 > 0
    method = tiny.method("blind-eye", make)
    masked = dict(method.updates(replace(batch, bias=batch.bias.where(known, -1)), 0))
    h = method.encoder(batch.images)
    bias = F.cross_entropy(method.bias_classifier(h[known]), batch.bias[known])
    assert masked["bias"].item() == pytest.approx(bias.item(), rel=1e-5)
    confused = confusion(method.bias_classifier(h[known])).mean()
    main = F.cross_entropy(method.classifier(h), batch.labels) + 0.1 * confused
    assert masked["main"].item() == pytest.approx(main.item(), rel=1e-5)
    nothing = dict(
        tiny.method("blind-eye", make).updates(
            replace(batch, bias=torch.full_like(batch.bias, -1)), 0
        )
    )
    assert nothing["bias"].item() == 0


def test_what_it_refuses():
    with pytest.raises(ValueError, match="needs to know the bias"):
        tiny.method("blind-eye", data_info=tiny.info(biased=False))
    with pytest.raises(ValueError, match="bias_steps"):
        tiny.method("blind-eye", bias_steps=0)
