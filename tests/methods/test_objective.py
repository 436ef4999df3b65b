import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from fairmargin import config, losses
from fairmargin.methods.base import RunLength
from tests.methods import tiny

NEEDS_NO_VIEWS = {
    "supcon": lambda z, y: losses.supcon(z, y),
    "supcon-in": lambda z, y: losses.supcon_in(z, y),
    "eps-supcon": lambda z, y: losses.eps_supcon(z, y, epsilon=0.25),
    "eps-supinfonce": lambda z, y: losses.eps_supinfonce(z, y, epsilon=0.25),
}
NEEDS_VIEWS = {
    "simclr": lambda z: losses.simclr(z),
    "eps-infonce": lambda z: losses.eps_infonce(z, epsilon=0.25),
    "infol1o": lambda z: losses.eps_infonce(z, epsilon=torch.inf),
}


def first_losses(method, batch):
    return {player: loss.detach() for player, loss in method.train().updates(batch, 0)}


@pytest.mark.parametrize("name", sorted(NEEDS_NO_VIEWS))
@pytest.mark.parametrize("number", [1, 2])
def test_embedding_rows_are_their_losses(name, number):
    method, batch = tiny.method(name), tiny.batch(number=number)
    h = method.encoder(batch.images.flatten(0, 1) if number == 2 else batch.images)
    h = h.unflatten(0, (-1, 2)) if number == 2 else h
    method = tiny.method(name)  # the batch norm of the first one has moved
    assert first_losses(method, batch)["main"] == pytest.approx(
        NEEDS_NO_VIEWS[name](h, batch.labels).item(), rel=1e-5
    )


@pytest.mark.parametrize("name", sorted(NEEDS_VIEWS))
def test_view_rows_are_their_losses_and_refuse_single_views(name):
    batch = tiny.batch(number=2)
    h = tiny.method(name).encoder(batch.images.flatten(0, 1)).unflatten(0, (-1, 2))
    assert first_losses(tiny.method(name), batch)["main"] == pytest.approx(
        NEEDS_VIEWS[name](h).item(), rel=1e-5
    )
    with pytest.raises(ValueError, match="compares views"):
        first_losses(tiny.method(name), tiny.batch())


def test_cross_entropy_is_cross_entropy_and_has_no_probe():
    method, batch = tiny.method("ce"), tiny.batch()
    logits = method.classifier(method.encoder(batch.images))
    assert list(method.players()) == ["main"]
    assert first_losses(tiny.method("ce"), batch)["main"] == pytest.approx(
        F.cross_entropy(logits, batch.labels).item(), rel=1e-6
    )


def test_generalized_cross_entropy_trusts_what_is_easy():
    """(1 − p^q)/q: at q = 1 the probability missed, near q = 0 cross-entropy."""
    method, batch = tiny.method("gce"), tiny.batch()
    p = (
        method.classifier(method.encoder(batch.images))
        .softmax(1)
        .gather(1, batch.labels[:, None])
        .detach()
    )
    for q, expected in ((0.7, (1 - p**0.7) / 0.7), (1.0, 1 - p), (1e-3, -p.log())):
        found = first_losses(tiny.method("gce", q=q), batch)["main"]
        assert found == pytest.approx(expected.mean().item(), rel=1e-3)
    assert first_losses(tiny.method("gce"), batch) == first_losses(tiny.method("gce", q=0.7), batch)


def test_max_margin_starts_as_cross_entropy_and_anneals():
    """At λ = 1000 L-Softmax is nearly cross-entropy; the margin grows with the step."""
    batch = tiny.batch()
    start = first_losses(tiny.method("max-margin"), batch)["main"]
    method = tiny.method("max-margin")
    h = method.encoder(batch.images)
    assert start == pytest.approx(
        F.cross_entropy(h @ method.classifier.weight.T, batch.labels).item(), rel=0.01
    )
    late = next(loss for _, loss in tiny.method("max-margin").train().updates(batch, 100_000))
    assert late > start * 1.2


def test_the_margin_comes_in_over_the_run_however_short():
    """The published schedule has 30,000 steps; a run of 300 must not see only its beginning."""
    batch = tiny.batch()

    def at(step, run=None, **options):
        method = tiny.method("max-margin", **options).train()
        if run is not None:
            method.plan(RunLength(epochs=3.0, steps=run))
        return next(loss for _, loss in method.updates(batch, step)).item()

    assert at(0, run=300) == at(0)
    for step in (1, 100, 299):
        assert at(step, run=300) == pytest.approx(at(100 * step), rel=1e-6)
    assert at(299, run=300) > 1.2 * at(0)
    assert at(299, run=300, anneal_steps=30_000) == at(299)  # as published, whatever the run
    assert at(299, run=300, least_anneal=1e9) == pytest.approx(at(0), rel=0.01)


@pytest.mark.parametrize("name", ["ce", "eps-supinfonce"])
def test_fairkl_is_added_with_its_weight(name):
    batch, options = tiny.batch(), {"lambda_": 0.5, "alpha": 0.3, "variant": "authors"}
    method = tiny.method(f"{name}+fairkl", **options)
    total = first_losses(method, batch)["main"]
    h = tiny.method(f"{name}+fairkl", **options).encoder(batch.images)
    fairkl = losses.fairkl(h, batch.labels, batch.bias, variant="authors")
    assert method.terms["fairkl"] == pytest.approx(fairkl.item(), rel=1e-5)
    assert total == pytest.approx(0.3 * method.terms[name].item() + 0.5 * fairkl.item(), rel=1e-5)
    same = torch.eq(batch.labels, batch.labels[:, None]) & ~torch.eye(len(batch), dtype=torch.bool)
    aligned = torch.eq(batch.bias, batch.bias[:, None])
    assert method.counts["pairs"][:2].tolist() == [
        int((same & aligned).sum()),
        int((same & ~aligned).sum()),
    ]


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_fairkl_may_see_the_first_view_alone(variant):
    batch, options = tiny.batch(number=2), {"views": "first", "variant": variant}
    method = tiny.method("eps-supinfonce+fairkl", **options)
    first_losses(method, batch)
    h = (
        tiny.method("eps-supinfonce+fairkl", **options)
        .encoder(batch.images.flatten(0, 1))
        .unflatten(0, (-1, 2))
    )
    expected = losses.fairkl(h[:, 0], batch.labels, batch.bias, variant=variant)
    assert method.terms["fairkl"] == pytest.approx(expected.item(), rel=1e-5)
    n = len(batch)
    assert int(method.counts["pairs"].sum()) <= n * (n - 1)
    # The row's own loss sees both views all the same.
    both = losses.eps_supinfonce(h, batch.labels, epsilon=0.25)
    assert method.terms["eps-supinfonce"] == pytest.approx(both.item(), rel=1e-5)


BOUNDED = {
    **dict.fromkeys(("supcon", "eps-supcon", "eps-supinfonce", "eps-supinfonce+fairkl"), "labels"),
    **dict.fromkeys(("simclr", "eps-infonce", "infol1o"), "views"),
}


@pytest.mark.parametrize(("name", "positives"), BOUNDED.items())
def test_the_bounds_of_the_information_are_logged_on_request(name, positives):
    batch, options = tiny.batch(number=2), {"temperature": 0.2}
    method = tiny.method(name, log_bounds=True, **options)
    first_losses(method, batch)
    h = tiny.method(name, **options).encoder(batch.images.flatten(0, 1)).unflatten(0, (-1, 2))
    labels = batch.labels if positives == "labels" else None
    expected = losses.information_bounds(h, labels, temperature=0.2)
    assert method.terms["InfoNCE bound"] == pytest.approx(expected.lower.item(), rel=1e-4)
    assert method.terms["InfoL1O bound"] == pytest.approx(expected.upper.item(), rel=1e-4)
    assert not any(value.requires_grad for value in method.terms.values())
    silent = tiny.method(name, **options)
    first_losses(silent, batch)
    assert method.terms.keys() - silent.terms.keys() == {"InfoNCE bound", "InfoL1O bound"}


@pytest.mark.parametrize("name", BOUNDED)
def test_logging_bounds_changes_no_weight(name):
    batch, after = tiny.batch(number=2), []
    for log_bounds in (False, True):
        method = tiny.method(name, log_bounds=log_bounds).train()
        before = {k: v.clone() for k, v in method.state_dict().items()}
        optimizers = tiny.players(method)
        for step in range(4):
            for player, loss in method.updates(batch, step):
                optimizers[player].optimizer.zero_grad(set_to_none=True)
                loss.backward(inputs=method.players()[player])
                optimizers[player].optimizer.step()
        after.append(method.state_dict())
    assert after[0].keys() == after[1].keys()
    assert all(torch.equal(after[0][k], after[1][k]) for k in after[0])
    assert any(not torch.equal(before[k], after[1][k]) for k in before)


def test_rows_without_bounds_have_no_such_option():
    for name in ("ce", "supcon-in", "biascon"):
        with pytest.raises(ValueError, match="log_bounds"):
            tiny.method(name, log_bounds=True)


@pytest.mark.parametrize(
    ("name", "most", "among"),
    [  # 3 classes: 1.5/τ; 24 images: 24/23/τ
        ("eps-supinfonce", 15, "3 classes"),
        ("eps-supcon+fairkl", 15, "3 classes"),
        ("eps-infonce", 240 / 23, "24 images"),
    ],
)
def test_an_epsilon_that_cannot_be_met_is_warned_of_once_at_construction(name, most, among):
    with pytest.warns(UserWarning, match=f"epsilon=.* at most among {among}") as caught:
        method = tiny.method(name, epsilon=most + 0.1)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first_losses(method, tiny.batch(number=2))
        for epsilon in (most - 0.1, math.inf):
            tiny.method(name, epsilon=epsilon)


def test_released_weighting_takes_alpha_twice_and_scales_by_temperature():
    paper = tiny.method("eps-supinfonce+fairkl", alpha=0.1)
    released = tiny.method(
        "eps-supinfonce+fairkl", alpha=0.1, weighting="released", temperature=0.1
    )
    assert paper.alpha == pytest.approx(0.1)
    assert released.alpha == pytest.approx(0.1 * 0.1 * 0.1 / 0.07)
    alone = tiny.method("eps-supinfonce", alpha=0.1, weighting="released", temperature=0.1)
    assert alone.alpha == pytest.approx(0.1 * 0.1 / 0.07)
    without = tiny.method(
        "eps-supinfonce+fairkl", alpha=0.1, weighting="released", temperature=0.1, lambda_=0.0
    )
    assert without.alpha == pytest.approx(0.1 * 0.1 / 0.07)


def test_a_mistyped_weighting_is_refused():
    with pytest.raises(ValueError, match="unknown weighting 'relased': did you mean 'released'"):
        tiny.method("supcon", weighting="relased")


@pytest.mark.parametrize(
    ("name", "player"), [("eps-supinfonce", "probe"), ("learned-mixin", "bias")]
)
def test_a_constant_rate_has_no_warm_up(name, player):
    wants = tiny.method(name).optimizers[player]
    chosen = config.load(dataset="cifar10", method=name)
    assert chosen.schedule.warmup_epochs > 0
    assert chosen.for_player(player, wants)[1].warmup_epochs == 0


def test_beta_trains_the_classifier_with_the_encoder():
    method = tiny.method("eps-supinfonce", beta=0.5)
    assert list(method.players()) == ["main"]
    total = first_losses(method, tiny.batch())["main"]
    assert total == pytest.approx(
        (method.terms["eps-supinfonce"] + 0.5 * method.terms["cross-entropy"]).item(), rel=1e-6
    )


def test_the_probe_sends_no_gradient_into_the_encoder():
    method = tiny.method("supcon").train()
    updates = method.updates(tiny.batch(), 0)
    next(updates)
    _, loss = next(updates)
    inside = torch.autograd.grad(loss, list(method.encoder.parameters()), allow_unused=True)
    assert all(g is None for g in inside)


def test_a_head_separates_what_the_loss_and_the_classifier_see():
    method, batch = tiny.method("eps-supinfonce+fairkl", head="mlp"), tiny.batch()
    x = method.eval()._see(batch, 0)
    assert x.z.shape[1] == 128
    assert torch.allclose(x.z.norm(dim=1), torch.ones(len(batch)))
    assert torch.equal(x.inputs, x.h)  # raw features for the classifier
    identity = tiny.method("eps-supinfonce").eval()._see(batch, 0)
    assert torch.allclose(identity.inputs.norm(dim=1), torch.ones(len(batch)), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("eps-supinfonce", {}, "Tanh"),
        ("eps-supinfonce", {"head": "mlp"}, "ReLU"),
        ("ce", {}, "ReLU"),
        ("ce+fairkl", {}, "Tanh"),
        ("ce", {"last_activation": "tanh"}, "Tanh"),
        ("eps-supinfonce+fairkl", {"last_activation": "relu"}, "ReLU"),
    ],
)
def test_the_last_activation_is_the_authors_unless_told(name, options, expected):
    blocks = tiny.method(name, **options).encoder.blocks
    assert type(blocks[-1][-1]).__name__ == expected


def test_options_of_another_row_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="alpha"):
        tiny.method("ce", alhpa=1.0)
    with pytest.raises(ValueError, match="epsilon"):
        tiny.method("ce", epsilon=0.5)
    with pytest.raises(ValueError, match="eps-supinfonce"):
        tiny.method("eps-supinfnce")


def test_bias_features_take_the_place_of_labels():
    from dataclasses import replace

    batch = tiny.batch()
    one_hot = F.one_hot(batch.bias, tiny.BIASES).float()
    labelled = tiny.method("supcon+fairkl", negatives=True)
    first_losses(labelled, batch)
    scored = tiny.method("supcon+fairkl", negatives=True)
    first_losses(scored, replace(batch, bias=None, bias_features=one_hot))
    assert scored.terms["fairkl"] == pytest.approx(labelled.terms["fairkl"].item(), rel=1e-5)


def test_mixed_precision_gives_losses_in_full_precision():
    method, batch = tiny.method("eps-supinfonce+fairkl").train(), tiny.batch()
    with torch.autocast("cpu", torch.bfloat16):
        pairs = list(method.updates(batch, 0))
    assert all(loss.dtype == torch.float32 and torch.isfinite(loss) for _, loss in pairs)
