"""LfF: tables, weights, who teaches whom, and a reference that minimises both losses at once."""

from dataclasses import replace
from math import log

import pytest
import torch
import torch.nn.functional as F

from fairmargin import losses
from fairmargin.config.options import options_of
from fairmargin.methods import METHODS
from fairmargin.methods.lff import RelativeDifficulty
from tests.methods import tiny


def table(samples=6, decay=0.7):
    return RelativeDifficulty(replace(tiny.info(), train_size=samples), decay).double()


def visit(weights, index, labels, biased, other):
    return weights(
        *(torch.tensor(x) for x in (index, labels)),
        *(torch.tensor(x).double() for x in (biased, other)),
    )


def test_generalized_cross_entropy_of_two_zero_logits():
    logits, y = torch.zeros(1, 2, requires_grad=True), torch.tensor([0])
    exact = losses.generalized_cross_entropy(logits, y, q=0.7)
    surrogate = losses.generalized_cross_entropy(logits, y, q=0.7, surrogate=True)
    assert exact.item() == pytest.approx(0.549183, abs=1e-6)
    assert surrogate.item() == pytest.approx(0.298677, abs=1e-6)
    (a,), (b,) = (torch.autograd.grad(loss, logits) for loss in (exact, surrogate))
    assert torch.allclose(b, 0.7 * a)


def test_the_first_loss_is_kept_and_later_ones_are_mixed_in():
    weights = table()
    visit(weights, [2], [0], [1.0], [4.0])
    assert weights.smoothed[:, 2].tolist() == [1.0, 4.0]
    visit(weights, [2], [0], [3.0], [4.0])
    assert weights.smoothed[0, 2].item() == pytest.approx(1.6)
    assert weights.smoothed[1, 2].item() == pytest.approx(4.0)
    assert not weights.smoothed[:, [0, 1, 3, 4, 5]].any()


def test_a_loss_of_zero_on_the_first_visit_is_a_visit():
    weights = table()
    visit(weights, [0], [0], [0.0], [0.0])
    visit(weights, [0], [0], [1.0], [2.0])
    assert weights.smoothed[:, 0].tolist() == pytest.approx([0.3, 0.6])


def test_equal_difficulty_weighs_half_and_more_for_the_biased_network_weighs_more():
    # 1, ½ in both.
    assert visit(table(), [0, 1], [0, 0], [2.0, 1.0], [8.0, 4.0]).tolist() == pytest.approx(
        [0.5, 0.5]
    )
    rising = [
        visit(table(), [0, 1], [0, 0], [2.0, b], [2.0, 1.0])[1].item() for b in (0.2, 0.9, 1.0, 1.8)
    ]
    assert rising == sorted(rising)
    assert rising[2] == pytest.approx(0.5)
    assert rising[0] == pytest.approx(0.1 / 0.6)


def test_the_maximum_is_that_of_the_class_over_all_samples_seen():
    weights = table()
    visit(weights, [0, 1], [0, 1], [4.0, 100.0], [1.0, 100.0])
    # Neither 1/1 nor 1/100.
    assert visit(weights, [2], [0], [1.0], [1.0]).item() == pytest.approx(0.25 / (0.25 + 1))


def test_a_maximum_that_falls_is_followed():
    weights = table(decay=0.0)
    visit(weights, [0, 1], [0, 0], [4.0, 1.0], [1.0, 1.0])
    visit(weights, [0], [0], [2.0], [1.0])
    assert visit(weights, [1], [0], [1.0], [1.0]).item() == pytest.approx(0.5 / 1.5)


def test_a_class_learnt_perfectly_gives_no_nan():
    assert visit(table(), [0, 1], [0, 0], [0.0, 0.0], [1.0, 0.5]).tolist() == [0.0, 0.0]
    assert visit(table(), [0], [0], [0.0], [0.0]).tolist() == [0.0]
    assert visit(table(), [0], [0], [1e-310], [0.0]).isfinite().all()


def test_a_sample_drawn_twice_does_not_depend_on_the_order():
    there, back = table(), table()
    visit(there, [3, 3], [1, 1], [1.0, 2.0], [5.0, 4.0])
    visit(back, [3, 3], [1, 1], [2.0, 1.0], [4.0, 5.0])
    assert torch.equal(there.smoothed, back.smoothed)
    assert there.smoothed[:, 3].tolist() == [2.0, 5.0]


def test_weights_equal_a_loop_over_samples():
    g = torch.Generator().manual_seed(0)
    n, K, m = 12, tiny.CLASSES, 0.7
    y = torch.arange(n) % K
    weights = table(n)
    e = [{}, {}]
    for _ in range(9):
        index = torch.randperm(n, generator=g)[:5]
        ce = torch.rand(2, 5, generator=g, dtype=torch.float64) * 3
        for k in range(2):
            for i, loss in zip(index.tolist(), ce[k].tolist(), strict=True):
                e[k][i] = m * e[k][i] + (1 - m) * loss if i in e[k] else loss
        expected = []
        for i in index.tolist():
            b, d = (e[k][i] / max(v for j, v in e[k].items() if y[j] == y[i]) for k in range(2))
            expected.append(b / (b + d + 1e-8))
        assert weights(index, y[index], *ce).tolist() == pytest.approx(expected, rel=1e-12)


def silenced(method):
    """With classifiers that say nothing: every probability is 1/3."""
    with torch.no_grad():
        for classifier in (method.classifier, method.bias_classifier):
            classifier.weight.zero_()
            classifier.bias.zero_()
    return method.train()


@pytest.mark.parametrize(
    ("surrogate", "gce"), [(False, (1 - 3**-0.7) / 0.7), (True, 0.7 * 3**-0.7 * log(3))]
)
def test_a_step_by_hand(surrogate, gce):
    method = silenced(tiny.method("lff", surrogate=surrogate))
    values = {player: loss.item() for player, loss in method.updates(tiny.batch(), 0)}
    assert values == {
        "bias": pytest.approx(gce, rel=1e-6),
        "main": pytest.approx(log(3) / 2, rel=1e-6),
    }
    # Cross-entropy in both tables.
    assert torch.allclose(method.difficulty.smoothed, torch.full((2, 24), log(3)))
    assert torch.equal(method.difficulty.labels, tiny.batch().labels)
    assert method.terms["weight"].item() == pytest.approx(0.5)


def test_q_zero_is_cross_entropy_for_the_biased_network():
    batch = tiny.batch()
    method = tiny.method("lff", q=0.0).train()
    bias = next(loss for _, loss in method.updates(batch, 0))
    same = tiny.method("lff").train()
    logits = same.bias_classifier(same.bias_encoder(batch.images))
    assert bias.item() == pytest.approx(F.cross_entropy(logits, batch.labels).item(), rel=1e-6)


def test_no_network_teaches_the_other():
    method = tiny.method("lff").train()
    updates = dict(method.updates(tiny.batch(), 0))
    for player, stranger in (("bias", "main"), ("main", "bias")):
        inside = torch.autograd.grad(
            updates[player], method.players()[stranger], allow_unused=True, retain_graph=True
        )
        assert all(g is None for g in inside)
    assert not any(b.requires_grad for b in method.buffers())


@pytest.mark.parametrize("surrogate", [False, True])
def test_steps_equal_those_of_one_joint_loss(surrogate):
    """As the public code does: one sum, one backward pass, two Adams; weights as constants."""
    method = tiny.method("lff", surrogate=surrogate).double().train()
    other = tiny.method("lff", surrogate=surrogate).double().train()
    optimizers = tiny.players(method)
    adams = [torch.optim.Adam(parameters, 1e-2) for parameters in other.players().values()]
    batch, e = tiny.batch(dtype=torch.float64), None
    for step in range(3):
        for player, loss in method.updates(batch, step):
            optimizers[player].optimizer.zero_grad()
            loss.backward(inputs=method.players()[player])
            optimizers[player].optimizer.step()
        f_b, f_d = (
            other.bias_classifier(other.bias_encoder(batch.images)),
            other.predict(batch.images),
        )
        ce = torch.stack([F.cross_entropy(f, batch.labels, reduction="none") for f in (f_b, f_d)])
        e = ce.detach() if e is None else 0.7 * e + 0.3 * ce.detach()
        top = torch.stack([e[:, batch.labels == c].amax(1) for c in range(tiny.CLASSES)], 1)[
            :, batch.labels
        ]
        b, d = e / top
        p = f_b.softmax(1)[range(len(batch)), batch.labels]
        gce = 0.7 * p.detach() ** 0.7 * ce[0] if surrogate else (1 - p**0.7) / 0.7
        for adam in adams:
            adam.zero_grad()
        (gce.mean() + (b / (b + d + 1e-8) * ce[1]).mean()).backward()
        for adam in adams:
            adam.step()
    for (name, p), expected in zip(method.named_parameters(), other.parameters(), strict=True):
        if "blocks" not in name or not name.endswith(
            "0.bias"
        ):  # before a batch norm: rounding, which Adam blows up
            assert torch.allclose(p, expected, rtol=1e-9, atol=1e-11), name


def test_the_table_follows_the_sample_not_its_place_in_the_batch():
    batch = tiny.batch()
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    shuffled = replace(
        batch, images=batch.images[order], labels=batch.labels[order], index=batch.index[order]
    )
    tables = []
    for given in (batch, shuffled):
        method = tiny.method("lff").train()
        list(method.updates(given, 0))
        tables.append(method.difficulty.smoothed)
    assert torch.allclose(*tables, rtol=1e-5)


def test_samples_against_the_shortcut_come_to_weigh_more():
    """The label is faint and the colour is bright; nobody says which is which."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    bias = torch.where(torch.arange(60) < 51, y, (y + 1) % 3)
    x = 0.1 * torch.randn(60, 3, 8, 8, generator=g)
    x += torch.eye(3)[bias][:, :, None, None]
    x[range(60), :, y, y] += 2
    batch = replace(tiny.batch(), images=x, labels=y, bias=None, index=torch.arange(60))
    method = tiny.method(
        "lff", tiny.without_batch_norm(), replace(tiny.info(), train_size=60)
    ).train()
    optimizers = tiny.players(method)
    for step in range(15):
        for player, loss in method.updates(batch, step):
            optimizers[player].optimizer.zero_grad()
            loss.backward(inputs=method.players()[player])
            optimizers[player].optimizer.step()
    weights = method.difficulty(batch.index, y, *method.difficulty.smoothed)
    assert weights[bias != y].mean() > weights[bias == y].mean() + 0.1


def test_of_several_views_the_first_is_used():
    batch = tiny.batch(number=2)
    several = [loss.item() for _, loss in tiny.method("lff").train().updates(batch, 0)]
    first = replace(batch, images=batch.images[:, 0])
    assert several == [loss.item() for _, loss in tiny.method("lff").train().updates(first, 0)]


def test_mixed_precision_gives_losses_and_tables_in_full_precision():
    method = tiny.method("lff").train()
    with torch.autocast("cpu", torch.bfloat16):
        updates = list(method.updates(tiny.batch(), 0))
    assert all(loss.dtype == torch.float32 and torch.isfinite(loss) for _, loss in updates)
    assert method.difficulty.smoothed.dtype == torch.float32


def test_options_and_what_is_refused():
    assert {name: o.default for name, o in options_of(METHODS["lff"]).items()} == {
        "q": 0.7,
        "ema_decay": 0.7,
        "surrogate": False,
    }
    with pytest.raises(ValueError, match="train_size of tiny is 0"):
        tiny.method("lff", data_info=replace(tiny.info(), train_size=0))
    with pytest.raises(ValueError, match=r"ema_decay must lie in \[0, 1\]; got 7"):
        tiny.method("lff", ema_decay=7.0)
