import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fairmargin.config import load
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import Shuffled
from fairmargin.loop import Training, fit
from fairmargin.runs import build
from tests.methods import tiny

MAKE = tiny.without_batch_norm()


def training(**options):
    method, data = tiny.method("jtt", MAKE, **options), tiny.split()
    loader = Loader(data, tiny.views(), Shuffled(len(data)), 10)
    return Training(method, tiny.players(method), loader, seed=3, sweep=tiny.sweep)


def weights(modules):
    return [p.detach().clone() for module in modules for p in module.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_first_stage_is_cross_entropy_and_leaves_main_fresh():
    run = training(first_epochs=2)
    method = run.method
    start = weights([method.encoder, method.classifier])
    identifier = weights([method.identifier, method.identifier_classifier])
    batch = tiny.batch()
    player, loss = next(method.updates(batch, 0))
    assert player == "identifier"
    expected = F.cross_entropy(
        method.identifier_classifier(method.identifier(batch.images)), batch.labels
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    fit(run, 2)
    assert not method.second_stage
    assert same(weights([method.encoder, method.classifier]), start)
    assert not same(weights([method.identifier, method.identifier_classifier]), identifier)
    assert not run.players["main"].optimizer.state  # its optimizer is as fresh as it is


def test_the_second_stage_starts_with_who_is_wrong_and_moves_main_only():
    run = training(first_epochs=1)
    fit(run, 1)
    method = run.method
    wrong = torch.zeros(24, dtype=torch.bool)
    for batch in tiny.sweep("train"):
        wrong[batch.index] = method.predict(batch.images).argmax(1) != batch.labels
    assert 0 < wrong.sum() < 24
    identifier = weights([method.identifier, method.identifier_classifier])
    main = weights([method.encoder, method.classifier])
    fit(run, 2)
    assert method.second_stage
    assert torch.equal(method.wrong, wrong)
    assert same(weights([method.identifier, method.identifier_classifier]), identifier)
    assert not same(weights([method.encoder, method.classifier]), main)
    fit(run, 3)
    assert torch.equal(method.wrong, wrong)  # looked for once


def in_second_stage(**options):
    method = tiny.method("jtt", MAKE, **options).double()
    method.wrong[::5] = True
    method.second_stage.fill_(True)
    return method


def test_weighting_is_training_on_the_repeated_set():
    """Over the whole training set: the mean loss where the samples of E are there λ_up times."""
    method, batch = in_second_stage(up_weight=7.0), tiny.batch(dtype=torch.float64)
    player, loss = next(method.updates(batch, 0))
    assert player == "main"
    repeated = torch.cat([torch.arange(24), *[torch.arange(24)[::5]] * 6])
    logits = method.classifier(method.encoder(batch.images[repeated]))
    expected = F.cross_entropy(logits, batch.labels[repeated])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    found = torch.autograd.grad(loss, method.players()["main"])
    theirs = torch.autograd.grad(expected, method.players()["main"])
    assert all(
        torch.allclose(a, b, rtol=1e-10, atol=1e-14) for a, b in zip(found, theirs, strict=True)
    )


def test_batches_average_to_the_whole_set():
    """The factor n/Σw is of the training set, so batches have the expectation of the whole."""
    method, batch = in_second_stage(up_weight=7.0), tiny.batch(dtype=torch.float64)
    whole = next(method.updates(batch, 0))[1].item()
    parts = [next(method.updates(tiny.part(batch, i, i + 4), 0))[1].item() for i in range(0, 24, 4)]
    assert sum(parts) / 6 == pytest.approx(whole, rel=1e-12)


def test_samples_are_found_by_their_index():
    method, batch = in_second_stage(up_weight=7.0), tiny.batch(dtype=torch.float64)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    shuffled = replace(batch, images=batch.images[order], labels=batch.labels[order], index=order)
    a, b = (next(method.updates(x, 0))[1].item() for x in (batch, shuffled))
    assert a == pytest.approx(b, rel=1e-12)


def test_with_up_weight_1_the_second_stage_is_cross_entropy():
    method, batch = in_second_stage(up_weight=1.0), tiny.batch(dtype=torch.float64)
    expected = F.cross_entropy(method.classifier(method.encoder(batch.images)), batch.labels)
    assert next(method.updates(batch, 0))[1].item() == pytest.approx(expected.item(), rel=1e-12)


def test_predictions_are_those_of_the_network_that_learns():
    method, images = tiny.method("jtt").eval(), tiny.batch().images
    assert torch.equal(method.features(images), method.identifier(images))
    method.second_stage.fill_(True)
    assert torch.equal(method.features(images), method.encoder(images))
    assert torch.equal(method.predict(images), method.classifier(method.encoder(images)))


def test_the_error_set_is_in_the_checkpoint():
    run = training()
    fit(run, 3, steps=5)  # inside the second epoch
    again = training()
    again.load_state_dict(copy.deepcopy(run.state_dict()))
    assert again.method.second_stage
    assert torch.equal(again.method.wrong, run.method.wrong)
    assert run.method.wrong.any()


def test_it_needs_no_bias_and_refuses_nonsense():
    tiny.method("jtt", data_info=tiny.info(biased=False))
    with pytest.raises(ValueError, match="first_epochs"):
        tiny.method("jtt", first_epochs=0)
    with pytest.raises(ValueError, match="train_size"):
        tiny.method("jtt", data_info=replace(tiny.info(), train_size=0))


@pytest.mark.parametrize(
    ("name", "option", "changes"),
    [
        ("jtt", "first_epochs=2", ["train.epochs=2"]),
        ("jtt", "first_epochs=2", ["train.epochs=9", "train.steps=10"]),  # of 9 an epoch
        ("hex", "pretrain_epochs=1", ["train.epochs=1"]),
        ("learned-mixin", "pretrain_epochs=3", ["train.epochs=2"]),
    ],
)
def test_a_run_too_short_for_it_to_begin_is_refused_at_once(name, option, changes):
    size = ["data.train=300", "train.batch_size=30", f"method.{option}"]
    config = load(
        dataset="planted", method=name, network="simple-conv-3", overrides=[*size, *changes]
    )
    data = build.data(config)
    method = build.method(config, data)
    count = option.partition("=")[2]
    said = rf"{name} begins after the first {count} epochs \(method\.{option}\), and this run has"
    with pytest.raises(ValueError, match=said):
        build.training(config, method, data, torch.device("cpu"))
