"""DFA: four stop-gradients, one permutation, and when the exchange begins."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from fairmargin import losses
from fairmargin.config import load
from fairmargin.config.options import options_of
from fairmargin.loop import fit
from fairmargin.methods import METHODS
from fairmargin.methods.base import RunLength, Unsuited
from fairmargin.runs import build
from tests.methods import tiny

NOT_YET, SWAPPING = {"swap_start": 10_000}, {"swap_start": 0}
WEIGHTS = {"lambda_dis": 2.0, "lambda_swap": 0.1, "lambda_swap_b": 3.0}


def first_losses(method, batch, step=1):
    torch.manual_seed(5)
    return dict(method.train().updates(batch, step))


@pytest.mark.parametrize("options", [NOT_YET, SWAPPING])
def test_neither_half_teaches_the_other(options):
    method = tiny.method("dfa", **options)
    updates = first_losses(method, tiny.batch())
    assert ("main, swapped" in method.terms) is (options == SWAPPING)
    for player, stranger in (("bias", "main"), ("main", "bias")):
        own = torch.autograd.grad(updates[player], method.players()[player], retain_graph=True)
        assert any(g.abs().max() > 1e-4 for g in own)
        alien = torch.autograd.grad(
            updates[player], method.players()[stranger], allow_unused=True, retain_graph=True
        )
        assert all(g is None for g in alien)


def test_each_classifier_reads_both_halves():
    method = tiny.method("dfa", **NOT_YET)
    dim = method.encoder.dim
    updates = first_losses(method, tiny.batch())
    for player, classifier in (("main", method.classifier), ("bias", method.bias_classifier)):
        (g,) = torch.autograd.grad(updates[player], classifier.weight)
        assert g.shape == (tiny.CLASSES, 2 * dim)
        assert g[:, :dim].abs().max() > 1e-4
        assert g[:, dim:].abs().max() > 1e-4


def test_the_identity_permutation_gives_the_same_loss_twice(monkeypatch):
    monkeypatch.setattr(torch, "randperm", torch.arange)
    without = first_losses(tiny.method("dfa", **NOT_YET), tiny.batch())
    with_swap = first_losses(tiny.method("dfa", **SWAPPING), tiny.batch())
    for player in ("bias", "main"):
        assert with_swap[player].item() == pytest.approx(2 * without[player].item(), rel=1e-6)


def test_the_exchange_begins_after_swap_start():
    at = {
        step: first_losses(tiny.method("dfa", swap_start=3), tiny.batch(), step)
        for step in (0, 3, 4)
    }
    before = first_losses(tiny.method("dfa", **NOT_YET), tiny.batch(), 10_000)
    for player in ("bias", "main"):
        assert at[0][player].item() == at[3][player].item() == before[player].item()
        assert at[4][player].item() > 1.5 * at[3][player].item()
    method = tiny.method("dfa", **NOT_YET)
    first_losses(method, tiny.batch(), 10_001)
    assert "main, swapped" in method.terms


@pytest.mark.parametrize(
    ("share", "steps", "start"),
    [(0.2, 50_000, 10_000), (0.2, 1_368, 274), (0.5, 2, 1), (0.0, 9, 0)],
)
def test_a_share_is_of_the_steps_of_the_run(share, steps, start):
    """The default is what was published: from step 10,000 of 50,000."""
    planned, batch = tiny.method("dfa", swap_start=share), tiny.batch()
    stage = planned.plan(RunLength(epochs=3.0, steps=steps))
    assert stage.steps == start + 1  # step 0 included
    for step in (start, start + 1):
        of_share = first_losses(planned, batch, step)
        of_steps = first_losses(tiny.method("dfa", swap_start=start), batch, step)
        assert ("main, swapped" in planned.terms) is (step > start)
        assert {k: v.item() for k, v in of_share.items()} == {
            k: v.item() for k, v in of_steps.items()
        }
        # The losses that it remembers are those of one step.
        planned = tiny.method("dfa", swap_start=share)
        planned.plan(RunLength(epochs=3.0, steps=steps))


def test_a_share_of_a_run_of_unknown_length_is_not_guessed():
    with pytest.raises(ValueError, match=r"method\.plan\(RunLength\(epochs, steps\)\)"):
        first_losses(tiny.method("dfa"), tiny.batch())


@pytest.mark.parametrize("start", [-1, -0.1, 1.0, 10_000.0])
def test_a_start_is_a_share_or_a_number_of_steps(start):
    with pytest.raises(
        ValueError, match=r"share of the run, from 0\.0 to below 1\.0, or a whole number of steps"
    ):
        tiny.method("dfa", swap_start=start)


def of_planted(*changes):
    # 8 steps an epoch.
    size = [
        "data.train=300",
        "train.batch_size=30",
        "network.widths=[4]",
        "train.device=cpu",
    ]
    config = load(
        dataset="planted", method="dfa", network="simple-conv-3", overrides=[*size, *changes]
    )
    data = build.data(config)
    return config, build.training(config, build.method(config, data), data, torch.device("cpu"))


@pytest.mark.parametrize(
    "changes", [["train.epochs=2"], ["train.epochs=1"], ["train.epochs=9", "train.steps=4"]]
)
def test_a_run_of_any_length_swaps(changes):
    config, training = of_planted(*changes)
    swapped = []
    note = lambda batch: swapped.append("main, swapped" in training.method.terms)
    fit(training, config.train.epochs, steps=config.train.steps, after_step=note)
    assert not swapped[0]
    assert sum(swapped) >= 0.5 * len(swapped)
    # Once begun it goes on.
    assert [b for a, b in pairwise(swapped) if a] == [True] * (sum(swapped) - 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["method.swap_start=10_000"],
            r"first 10001 steps \(method\.swap_start=10000\), and this run has 16",
        ),
        (
            ["method.swap_start=15"],
            r"first 16 steps \(method\.swap_start=15\), and this run has 16",
        ),
        (["train.steps=1"], r"first 1 steps \(method\.swap_start=0\.2\), and this run has 1"),
    ],
)
def test_a_start_that_is_never_reached_is_refused_with_what_to_do(changes, said):
    with pytest.raises(Unsuited, match=said) as refused:
        of_planted("train.epochs=2", *changes)
    assert "raise train.epochs" in str(refused.value)
    assert "lower method.swap_start (a share of the run such as 0.2 fits any length)" in str(
        refused.value
    )
    of_planted("train.epochs=2", "method.swap_start=14")  # the last step swaps


@pytest.mark.parametrize("dataset", ["corrupted-cifar10", "bffhq"])
def test_the_published_runs_swap_and_decay_at_the_published_steps(dataset):
    config = load(dataset=dataset, method="dfa")
    assert (config.method.options["swap_start"], config.train.steps) == (10_000, 50_000)
    assert config.schedule.per == "step"
    assert [round(share * 50_000) for share in config.schedule.milestones] == [
        20_000,
        30_000,
        40_000,
    ]


@pytest.mark.parametrize("surrogate", [False, True])
def test_the_whole_loss_by_hand(surrogate):
    """W belongs to the samples of z_l; ỹ moves with z̃_b."""
    batch = tiny.batch(dtype=torch.float64)
    y = batch.labels
    method = tiny.method("dfa", **SWAPPING, **WEIGHTS, surrogate=surrogate).double()
    got = first_losses(method, batch)
    same = tiny.method("dfa", **NOT_YET).double().train()
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
    main = (W * ce(same.classifier, z_b, y)).mean() + 0.1 * (
        W * ce(same.classifier, z_b[pi], y)
    ).mean()
    bias = 2.0 * gce(z_b, y) + 0.1 * 3.0 * gce(z_b[pi], y[pi])
    assert got["main"].item() == pytest.approx(main.item(), rel=1e-10)
    assert got["bias"].item() == pytest.approx(bias.item(), rel=1e-10)


def test_gradients_equal_those_of_one_joint_loss():
    """As the public code does: one sum and one backward pass."""
    method = tiny.method("dfa", **SWAPPING, **WEIGHTS)
    updates = first_losses(method, tiny.batch())
    apart = {
        player: torch.autograd.grad(updates[player], method.players()[player], retain_graph=True)
        for player in updates
    }
    everything = [p for parameters in method.players().values() for p in parameters]
    joint = torch.autograd.grad(sum(updates.values()), everything)
    for a, b in zip([*apart["bias"], *apart["main"]], joint, strict=True):
        assert torch.equal(a, b)


def test_without_weight_the_exchange_changes_nothing():
    without = first_losses(tiny.method("dfa", **NOT_YET), tiny.batch())
    weightless = first_losses(tiny.method("dfa", **SWAPPING, lambda_swap=0.0), tiny.batch())
    assert {k: v.item() for k, v in weightless.items()} == {k: v.item() for k, v in without.items()}


def test_the_permutation_changes_with_the_generator():
    batch, values = tiny.batch(), set()
    for seed in range(3):
        torch.manual_seed(seed)
        method = tiny.method("dfa", **SWAPPING).train()
        torch.manual_seed(seed)
        values.add(next(loss for _, loss in method.updates(batch, 1)).item())
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
        updates = list(method.updates(tiny.batch(), 1))
    assert all(loss.dtype == torch.float32 and torch.isfinite(loss) for _, loss in updates)


def test_options():
    assert {name: o.default for name, o in options_of(METHODS["dfa"]).items()} == {
        "lambda_dis": 1.0,
        "lambda_swap": 1.0,
        "lambda_swap_b": 1.0,
        "swap_start": 0.2,
        "q": 0.7,
        "ema_decay": 0.7,
        "surrogate": False,
    }
