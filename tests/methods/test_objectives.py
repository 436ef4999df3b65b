"""Rows that know the bias or the class balance: EnD, BiasBal, BiasCon, SoftCon, weighted losses."""

import math
import warnings
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairmargin import losses
from fairmargin.data import views
from fairmargin.methods.objectives import ROWS, LossInputs
from fairmargin.methods.row_builders import OBJECTIVES, SECOND_VIEWS
from fairmargin.methods.row_options import SECOND_SAMPLERS, SecondViews
from fairmargin.runs import build
from tests.methods import tiny

Z4 = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
Y4, B4 = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 0, 1])
KNOW_THE_BIAS = [
    "biasbal",
    "biascon",
    "biascon+biasbal",
    "biascon+ce",
    "end",
    "group-balanced",
    "group-reweighted",
]


def seen(h, labels, bias=None, *, features=None, counts=None, row=None, weight=None):
    """With a classifier whose logits are 0, unless it is given weights [K, D]."""
    classifier = nn.Linear(h.shape[-1], 2 if weight is None else len(weight), bias=False).to(
        h.dtype
    )
    nn.init.zeros_(classifier.weight)
    if weight is not None:
        classifier.weight.data.copy_(weight)
    prior = ROWS[row].prior(counts) if row else torch.empty(0)
    return LossInputs(h, F.normalize(h, dim=-1), h, labels, bias, features, classifier, prior, 0)


def value(row, x, **settings):
    return ROWS[row].loss(x, **settings).item()


def first_losses(method, batch):
    return {player: loss.detach() for player, loss in method.train().updates(batch, 0)}


def hidden(name, batch, **options):
    """The features and logits that a fresh method's training pass sees."""
    x = tiny.method(name, **options).train()._see(batch, 0)
    return x.h, x.logits.detach()


# Which methods there are, and what they need


def test_rows_that_correct_for_the_bias_have_no_fairkl_twin():
    alone = {name for name in ROWS if f"{name}+fairkl" not in OBJECTIVES}
    assert alone == {*KNOW_THE_BIAS, "softcon"}


@pytest.mark.parametrize("name", KNOW_THE_BIAS)
def test_without_bias_labels_they_say_so(name):
    with pytest.raises(
        ValueError,
        match=f"{name.replace('+', '.')} needs to know the bias and tiny has no bias labels",
    ):
        tiny.method(name, data_info=tiny.info(biased=False))


@pytest.mark.parametrize("name", sorted({*KNOW_THE_BIAS} - {"group-balanced"}))
def test_a_batch_without_bias_labels_is_refused(name):
    with pytest.raises(ValueError, match="needs bias labels and this batch has none"):
        first_losses(tiny.method(name), replace(tiny.batch(), bias=None))


# EnD


def test_end_vectors():
    x, ce = seen(Z4, Y4, B4), math.log(2)
    assert value("end", x, entangle=0.0) == pytest.approx(ce + 0.5)
    assert value("end", x, disentangle=0.0) == pytest.approx(ce + 0.5)
    assert value("end", x, disentangle=0.0, entangle=0.0) == pytest.approx(ce)
    pair = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)]])
    one = seen(pair, torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert value("end", one, disentangle=0.0) == pytest.approx(ce + 0.25)


def test_end_without_weights_is_cross_entropy_on_unit_tanh_features():
    batch, options = tiny.batch(), {"disentangle": 0.0, "entangle": 0.0}
    method = tiny.method("end", **options)
    assert type(method.encoder.blocks[-1][-1]).__name__ == "Tanh"
    logits = method.classifier(F.normalize(method.train().encoder(batch.images), dim=1))
    assert first_losses(tiny.method("end", **options), batch)["main"] == pytest.approx(
        F.cross_entropy(logits, batch.labels).item(), rel=1e-5
    )
    assert list(method.players()) == ["main"]


def test_end_adds_both_terms():
    batch, options = tiny.batch(), {"disentangle": 0.3, "entangle": 2.0, "pairs": "released"}
    h, logits = hidden("end", batch, **options)
    expected = F.cross_entropy(logits, batch.labels) + losses.end(
        h, batch.labels, batch.bias, **options
    )
    assert first_losses(tiny.method("end", **options), batch)["main"] == pytest.approx(
        expected.item(), rel=1e-5
    )


def test_end_keeps_the_activation_of_other_networks():
    make = tiny.without_batch_norm()
    auto, plain = tiny.method("end", make), make()
    assert [type(m) for m in auto.encoder.modules()] == [type(m) for m in plain.modules()]


def test_descent_on_entangling_raises_cross_bias_similarity():
    h = torch.tensor([[1.0, 0.1], [0.1, 1.0]], requires_grad=True)
    ROWS["end"].loss(
        seen(h, torch.tensor([0, 0]), torch.tensor([0, 1])), disentangle=0.0
    ).backward()
    moved = (h - 0.5 * h.grad).detach()
    assert F.cosine_similarity(*moved, dim=0) > F.cosine_similarity(*h.detach(), dim=0) + 0.1


# Cross-entropies that look at counts


def test_biasbal_vector_and_uniform_prior():
    counts = torch.tensor([[9.0, 5.0], [1.0, 5.0]])  # p(·|b=0) = (0.9, 0.1), p(·|b=1) uniform
    zeros = torch.zeros(1, 2)
    x = seen(zeros, torch.tensor([1]), torch.tensor([0]), counts=counts, row="biasbal")
    assert value("biasbal", x) == pytest.approx(2.302585, abs=1e-6)
    balanced = seen(zeros, torch.tensor([1]), torch.tensor([1]), counts=counts, row="biasbal")
    assert value("biasbal", balanced) == pytest.approx(math.log(2))
    unknown = seen(zeros, torch.tensor([1]), torch.tensor([-1]), counts=counts, row="biasbal")
    assert value("biasbal", unknown) == pytest.approx(math.log(2))


def test_biasbal_trains_with_the_prior_and_predicts_without():
    batch, info = tiny.batch(), tiny.info()
    method = tiny.method("biasbal").train()
    prior = info.counts.T / info.counts.sum(0)[:, None]
    assert torch.allclose(method.state_dict()["prior"], prior)
    assert torch.allclose(prior.sum(1), torch.ones(tiny.BIASES))  # over labels, for each bias
    _, logits = hidden("biasbal", batch)
    expected = F.cross_entropy(logits + (prior + 1e-9).log()[batch.bias], batch.labels)
    assert first_losses(method, batch)["main"] == pytest.approx(expected.item(), rel=1e-5)
    method.eval()
    assert torch.equal(
        method.predict(batch.images), method.classifier(method.encoder(batch.images))
    )


def test_biasbal_survives_an_empty_cell():
    counts = tiny.info().counts.clone()
    counts[0, 1] = 0
    method = tiny.method("biasbal", data_info=replace(tiny.info(), counts=counts))
    assert torch.isfinite(first_losses(method, tiny.batch())["main"])


def test_logit_adjustment_vector_and_limits():
    counts = torch.tensor([[900.0], [100.0]])
    x = seen(torch.zeros(1, 2), torch.tensor([1]), counts=counts, row="logit-adjusted")
    assert value("logit-adjusted", x) == pytest.approx(2.302585, abs=1e-6)
    assert value("logit-adjusted", x, strength=0.0) == pytest.approx(math.log(2))
    # 0.1²/(0.9² + 0.1²) = 1/82.
    assert value("logit-adjusted", x, strength=2.0) == pytest.approx(math.log(82), abs=1e-6)
    equal = seen(
        torch.zeros(1, 2), torch.tensor([1]), counts=torch.full((2, 3), 7.0), row="logit-adjusted"
    )
    assert value("logit-adjusted", equal) == pytest.approx(math.log(2))


def test_reweighting_is_the_mean_over_classes_or_groups():
    """On the counted samples themselves: every group counts the same, however small it is."""
    data = tiny.split(50)
    batch = tiny.batch(data)
    labels, bias = batch.labels, batch.bias.clone()
    bias[(labels == 1) & (bias == 2)] = 1  # an empty group does not count
    counts = torch.zeros(3, 3)
    counts.index_put_((labels, bias), torch.tensor(1.0), accumulate=True)
    h, weight = torch.randn(50, 4), torch.randn(3, 4)
    each = F.cross_entropy(h @ weight.T, labels, reduction="none")
    x = seen(h, labels, bias, counts=counts, row="class-reweighted", weight=weight)
    by_class = torch.stack([each[labels == y].mean() for y in range(3)])
    assert value("class-reweighted", x) == pytest.approx(by_class.mean().item(), rel=1e-5)
    cells = [(y, b) for y in range(3) for b in range(3) if counts[y, b]]
    by_group = torch.stack([each[(labels == y) & (bias == b)].mean() for y, b in cells])
    x = seen(h, labels, bias, counts=counts, row="group-reweighted", weight=weight)
    assert value("group-reweighted", x) == pytest.approx(by_group.mean().item(), rel=1e-5)
    assert x.prior[labels, bias].mean() == pytest.approx(1)


def test_an_unknown_bias_weighs_as_the_average_sample():
    counts = torch.tensor([[90.0, 10.0], [10.0, 90.0]])
    bias = torch.tensor([-1, 1])
    x = seen(torch.zeros(2, 2), torch.tensor([0, 0]), bias, counts=counts, row="group-reweighted")
    assert value("group-reweighted", x) == pytest.approx((1 + 50 / 10) / 2 * math.log(2))


@pytest.mark.parametrize("name", ["logit-adjusted", "class-reweighted", "group-reweighted"])
def test_balanced_counts_leave_cross_entropy(name):
    even = replace(tiny.info(), counts=torch.full((3, 3), 9))
    assert first_losses(tiny.method(name, data_info=even), tiny.batch())["main"] == pytest.approx(
        first_losses(tiny.method("ce"), tiny.batch())["main"].item(), rel=1e-5
    )


@pytest.mark.parametrize(
    "name", ["biasbal", "logit-adjusted", "class-reweighted", "group-reweighted"]
)
def test_every_view_gets_its_samples_label_and_bias(name):
    one = tiny.batch(tiny.split(12))
    twice = replace(one, images=torch.stack([one.images, one.images], 1))
    skewed = replace(tiny.info(), counts=torch.tensor([[50, 1, 3], [2, 9, 4], [7, 7, 1]]))
    make = tiny.without_batch_norm()
    single, double = (
        first_losses(tiny.method(name, make, skewed), b)["main"] for b in (one, twice)
    )
    assert double == pytest.approx(single.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["logit-adjusted", "class-reweighted"])
def test_classes_are_counted_where_bias_labels_are_missing(name):
    known = tiny.method(name)
    skewed = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    asked = []

    def sweep(split):
        asked.append(split)
        yield from (
            replace(tiny.batch(tiny.split(len(part))), labels=part) for part in skewed.split(4)
        )

    known.start_epoch(0, sweep)
    assert not asked  # the counts say it already
    method = tiny.method(name, data_info=tiny.info(biased=False))
    method.start_epoch(0, sweep)
    assert asked == ["train"]
    expected = ROWS[name].prior(torch.tensor([[4.0], [2.0], [1.0]]))
    assert torch.allclose(method.prior, expected)
    method.start_epoch(1, sweep)
    assert asked == ["train"]  # once
    assert torch.equal(method.state_dict()["prior"], method.prior)  # and kept
    partly = replace(tiny.info(), train_size=30)  # six samples of unknown bias
    tiny.method(name, data_info=partly).start_epoch(0, sweep)
    assert asked == ["train", "train"]


def test_group_balanced_is_cross_entropy_on_other_batches():
    method = tiny.method("group-balanced")
    assert method.sampler == "group-balanced"
    assert tiny.method("ce").sampler == "shuffled"
    assert first_losses(method, tiny.batch()) == first_losses(tiny.method("ce"), tiny.batch())


# BiasCon


def test_biascon_vectors():
    assert value("biascon", seen(Z4, Y4, B4), temperature=1.0) == pytest.approx(0.978456, abs=1e-6)
    relabelled = seen(Z4, Y4, 5 - 3 * B4)
    assert value("biascon", relabelled, temperature=1.0) == pytest.approx(0.978456, abs=1e-6)
    distinct = seen(Z4, Y4, torch.arange(4))
    # SupCon.
    assert value("biascon", distinct, temperature=1.0) == pytest.approx(0.728456, abs=1e-6)


@pytest.mark.parametrize("bias", [[0, 0, 0, 1], [-1, -1, 0, 1]])
def test_without_conflicting_pairs_biascon_is_zero_and_silent(bias):
    h = Z4.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = ROWS["biascon"].loss(seen(h, Y4, torch.tensor(bias)))
    assert loss.item() == 0
    assert torch.equal(torch.autograd.grad(loss, h)[0], torch.zeros_like(h))


def test_biascon_alone_has_a_probe_on_unit_features():
    method, batch = tiny.method("biascon"), tiny.batch()
    h, _ = hidden("biascon", batch)
    found = first_losses(method, batch)
    assert list(found) == ["main", "probe"]
    assert found["main"] == pytest.approx(
        losses.biascon(h, batch.labels, batch.bias).item(), rel=1e-5
    )
    assert method.on_unit_features


@pytest.mark.parametrize(("name", "other"), [("biascon+ce", "ce"), ("biascon+biasbal", "biasbal")])
def test_biascon_joins_a_classifier_on_the_features_themselves(name, other):
    method, batch = tiny.method(name), tiny.batch()
    h, logits = hidden(name, batch)
    found = first_losses(method, batch)
    assert list(found) == ["main"]
    assert type(method.encoder.blocks[-1][-1]).__name__ == "ReLU"
    assert torch.allclose(logits, tiny.method(name).classifier(h))  # not of unit length
    contrast = losses.biascon(h, batch.labels, batch.bias).item()
    classification = first_losses(tiny.method(other), batch)["main"].item()  # the same weights
    assert method.terms[name] == pytest.approx(contrast, rel=1e-5)
    assert method.terms["cross-entropy"] == pytest.approx(classification, rel=1e-5)
    assert found["main"] == pytest.approx(contrast + 0.01 * classification, rel=1e-5)


def test_without_the_joint_classifier_there_is_a_probe():
    assert list(tiny.method("biascon+ce", beta=0.0).players()) == ["main", "probe"]


# SoftCon


def test_softcon_identities():
    y, b = torch.arange(12) % 2, torch.arange(12) // 2 % 3
    h = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one_hot, orthogonal = F.one_hot(b).double(), torch.eye(12, dtype=torch.float64)
    hard = value("biascon", seen(h, y, b))
    assert value("softcon", seen(h, y, features=one_hot)) == pytest.approx(hard)
    assert value("softcon", seen(h, y, features=7 * one_hot)) == pytest.approx(hard)
    supcon = value("supcon", seen(h, y), temperature=0.07)
    assert value("softcon", seen(h, y, features=orthogonal)) == pytest.approx(supcon)
    assert hard != pytest.approx(supcon)


def test_softcon_adds_cross_entropy_and_needs_no_bias_labels():
    batch = replace(tiny.batch(), bias=None, bias_features=torch.rand(24, 5))
    method = tiny.method("softcon", data_info=tiny.info(biased=False))
    h, logits = hidden("softcon", batch)
    contrast = losses.softcon(h, batch.labels, batch.bias_features)
    expected = contrast + 0.01 * F.cross_entropy(logits, batch.labels)
    assert first_losses(method, batch)["main"] == pytest.approx(expected.item(), rel=1e-5)
    assert list(method.players()) == ["main"]


def test_softcon_without_features_says_what_to_run():
    with pytest.raises(ValueError, match=r'this batch has none.*"fairmargin scores"'):
        first_losses(tiny.method("softcon"), tiny.batch())


# The second stream


def test_there_is_no_second_stream_unless_asked_for():
    assert tiny.method("biascon+ce").second is None
    stream = tiny.method("biascon+ce", second="weighted").second
    assert (stream.sampler, stream.batch_size) == ("weighted", 64)
    own = views.plain(*views.HALF)
    assert stream.views(own) == views.biascon_mnist(*views.HALF)  # as published for Biased-MNIST
    assert set(SECOND_SAMPLERS) - {"none"} == set(build.SAMPLERS)
    assert set(get_args(SecondViews)) == SECOND_VIEWS.keys()


def test_views_of_the_second_stream():
    def of(kind, own):
        return tiny.method(
            "biascon", second="shuffled", second_views=kind, second_batch=9
        ).second.views(own)

    cropped = views.crop_flip(8, 1, *views.CIFAR10)
    assert of("supcon", cropped) == views.supcon(tiny.SIDE, *views.CIFAR10)
    assert of("own", cropped) == replace(cropped, number=2)
    assert of("own", views.plain(*views.HALF)).number == 1  # two equal views would say nothing


@pytest.mark.parametrize(
    "wrong", [{"second": "wieghted"}, {"second_views": "crop"}, {"second_batch": 1}]
)
def test_a_wrong_second_stream_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tiny.method("biascon+ce", **wrong)
    with pytest.raises(ValueError, match="option of ce"):
        tiny.method("ce", **wrong)


def test_pairs_come_from_the_second_stream_and_the_classification_from_the_first():
    first, second = tiny.batch(tiny.split(12)), tiny.batch(tiny.split(18, seed=5), number=2)
    make, options = tiny.without_batch_norm(), {"second": "weighted"}

    def terms(batch):
        method = tiny.method("biascon+ce", make, **options)
        total = first_losses(method, batch)["main"]
        assert total == pytest.approx(
            (method.terms["biascon+ce"] + 0.01 * method.terms["cross-entropy"]).item()
        )
        return method.terms["biascon+ce"].item(), method.terms["cross-entropy"].item()

    contrast, classification = terms(replace(first, second=second))
    h, _ = hidden("biascon+ce", second, make_encoder=make)
    assert contrast == pytest.approx(losses.biascon(h, second.labels, second.bias).item(), rel=1e-5)
    _, logits = hidden("biascon+ce", first, make_encoder=make)
    assert classification == pytest.approx(F.cross_entropy(logits, first.labels).item(), rel=1e-5)
    other = replace(
        first, bias=first.bias.flip(0), second=replace(second, bias=second.bias.flip(0))
    )
    assert terms(other)[0] != pytest.approx(contrast)
    assert terms(other)[1] == pytest.approx(classification)


def test_a_batch_without_its_second_stream_is_refused():
    with pytest.raises(
        ValueError, match=r"second stream of batches and this batch brings none.*second=.none"
    ):
        first_losses(tiny.method("biascon+ce", second="weighted"), tiny.batch())
