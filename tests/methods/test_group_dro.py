from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fairmargin.methods.group_dro import group_means, tilted
from tests.methods import tiny

MAKE = tiny.without_batch_norm()


def only_loss(method, batch, step=0):
    return next(loss for _, loss in method.updates(batch, step))


def groups_of(batch):
    return batch.labels * tiny.BIASES + batch.bias


def loop_means(method, batch):
    each = F.cross_entropy(method.predict(batch.images), batch.labels, reduction="none").detach()
    return {int(g): each[groups_of(batch) == g].mean() for g in groups_of(batch).unique()}


def test_weights_move_before_the_loss():
    v = tilted(torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 2.0]), step_size=0.01).exp()
    assert v[1].item() == pytest.approx(0.5025, abs=1e-6)
    assert (v @ torch.tensor([1.0, 2.0])).item() == pytest.approx(1.5025, abs=1e-6)
    method, batch = tiny.method("group-dro", MAKE, step_size=0.5), tiny.batch()
    means, start = loop_means(method, batch), method.log_weights.exp()
    loss = only_loss(method, batch)
    unnormalized = {g: start[g] * (0.5 * mean).exp() for g, mean in means.items()}
    present = start.nonzero().flatten().tolist()
    total = sum(unnormalized.get(g, start[g]) for g in present)
    assert loss.item() == pytest.approx(
        sum(float(unnormalized[g] * means[g] / total) for g in means), rel=1e-5
    )


def test_with_step_size_0_it_is_the_mean_of_the_group_means():
    method, batch = tiny.method("group-dro", MAKE, step_size=0.0), tiny.batch()
    means = loop_means(method, batch)
    assert set(means) == set(tiny.info().counts.flatten().nonzero().flatten().tolist())
    assert only_loss(method, batch).item() == pytest.approx(
        torch.stack([*means.values()]).mean().item(), rel=1e-5
    )


def test_one_group_is_cross_entropy():
    data = tiny.split()
    data = replace(data, labels=torch.zeros_like(data.labels), bias=torch.zeros_like(data.bias))
    batch, info = tiny.batch(data), tiny.info(data)
    method = tiny.method("group-dro", MAKE, info, step_size=0.3, adjustment=2.0)
    for step in range(3):
        ce = F.cross_entropy(method.predict(batch.images), batch.labels)
        assert only_loss(method, batch, step).item() == pytest.approx(ce.item(), rel=1e-6)


def test_weights_stay_on_the_simplex_persist_and_prefer_the_worst_group():
    method, batch = tiny.method("group-dro", MAKE, step_size=1.0), tiny.batch()
    means = loop_means(method, batch)
    for step in range(200):
        only_loss(method, batch, step)
        assert method.log_weights.exp().sum().item() == pytest.approx(1, abs=1e-5)
    worst = max(means, key=means.get)
    assert int(method.log_weights.argmax()) == worst
    assert torch.isfinite(
        method.log_weights[list(means)]
    ).all()  # e⁻²⁰⁰ would not survive as a float
    other = tiny.method("group-dro", MAKE, step_size=1.0)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.log_weights, method.log_weights)


def test_groups_without_training_samples_have_no_weight():
    counts = tiny.info().counts.clone()
    counts[0, 1] = counts[2, 0] = 0
    method = tiny.method("group-dro", MAKE, replace(tiny.info(), counts=counts), adjustment=3.0)
    empty = counts.flatten() == 0
    for step in range(3):
        v = method.log_weights.exp()
        assert (v[empty] == 0).all()
        assert v.sum().item() == pytest.approx(1)
        assert torch.isfinite(only_loss(method, tiny.batch(), step))
    assert torch.equal(method.adjustments[empty], torch.zeros(int(empty.sum())))


def test_the_adjustment_favours_small_groups_without_changing_the_losses():
    n = tiny.info().counts.flatten().float()
    batch = tiny.batch()
    plain, adjusted = tiny.method("group-dro", MAKE), tiny.method("group-dro", MAKE, adjustment=4.0)
    only_loss(plain, batch)
    loss = only_loss(adjusted, batch)
    some = n > 0
    gain = (adjusted.log_weights - plain.log_weights)[some]
    expected = 0.01 * 4 / n[some].sqrt()
    assert torch.allclose(gain - gain.mean(), expected - expected.mean(), atol=1e-6)
    means = loop_means(adjusted, batch)
    by_hand = sum(float(adjusted.log_weights[g].exp() * mean) for g, mean in means.items())
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)


def test_an_absent_group_counts_as_loss_0():
    values, groups = torch.tensor([1.0, 3.0, 5.0, 7.0]), torch.tensor([0, 0, 2, -1])
    assert group_means(values, groups, 4).tolist() == [2, 0, 5, 0]


def test_no_gradient_runs_through_the_weights():
    method, batch = (
        tiny.method("group-dro", MAKE, step_size=2.0).double(),
        tiny.batch(dtype=torch.float64),
    )
    found = torch.autograd.grad(only_loss(method, batch), list(method.parameters()))
    v = method.log_weights.exp()
    each = F.cross_entropy(method.predict(batch.images), batch.labels, reduction="none")
    size = torch.bincount(groups_of(batch), minlength=len(v))
    held = (v[groups_of(batch)] / size[groups_of(batch)] * each).sum()
    expected = torch.autograd.grad(held, list(method.parameters()))
    assert all(
        torch.allclose(a, b, rtol=1e-10, atol=1e-14) for a, b in zip(found, expected, strict=True)
    )


def test_samples_of_unknown_bias_are_left_out():
    batch = tiny.batch()
    known = torch.arange(len(batch)) % 4 > 0
    masked = only_loss(
        tiny.method("group-dro", MAKE), replace(batch, bias=batch.bias.where(known, -1))
    )
    part = replace(
        batch, images=batch.images[known], labels=batch.labels[known], bias=batch.bias[known]
    )
    assert masked.item() == pytest.approx(
        only_loss(tiny.method("group-dro", MAKE), part).item(), rel=1e-6
    )


def test_it_asks_for_balanced_groups_and_refuses_nonsense():
    assert tiny.method("group-dro").sampler == "group-balanced"
    with pytest.raises(ValueError, match="needs to know the bias"):
        tiny.method("group-dro", data_info=tiny.info(biased=False))
    with pytest.raises(ValueError, match="negative"):
        tiny.method("group-dro", adjustment=-1.0)
