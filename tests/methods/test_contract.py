"""What the training loop may expect of every registered method."""

import copy

import pytest
import torch
import torch.nn.functional as F

from fairmargin.data.loader import Loader
from fairmargin.data.samplers import Shuffled
from fairmargin.loop import Training, fit
from fairmargin.methods import METHODS, Method
from fairmargin.methods.catalog import CARDS
from tests.methods import tiny

EVERY = sorted(METHODS)
LATER = {"jtt": {"main"}, "cnc": {"main"}}  # players whose turn comes in a later epoch
# Keys of a line of metrics.jsonl that no count may replace.
LOGGED = {"event", "epoch", "step", "lr", "terms", "seconds", "images_per_second"}
NEEDS_BIAS = {name for name, card in CARDS.items() if card.needs_bias_labels}


def snapshot(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


@pytest.mark.parametrize("name", EVERY)
def test_only_the_named_player_moves_and_it_does(name):
    method = tiny.tamed(name).train()
    batch = tiny.batch_for(method)
    owner = {id(p): who for who, parameters in method.players().items() for p in parameters}
    # No parameter has two optimizers.
    assert len(owner) == sum(len(p) for p in method.players().values())
    # And none is forgotten.
    assert {id(p) for p in method.parameters() if p.requires_grad} == set(owner)
    optimizers = tiny.players(method)
    moved = set()
    method.start_epoch(0, tiny.sweep)
    method.train()
    for player, loss in method.updates(batch, 0):
        assert loss.ndim == 0
        assert torch.isfinite(loss)
        before = snapshot(method)
        optimizers[player].optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=method.players()[player])
        optimizers[player].optimizer.step()
        changed = {n for n, p in method.named_parameters() if not torch.equal(p, before[n])}
        assert changed
        assert {owner[id(p)] for n, p in method.named_parameters() if n in changed} == {player}
        moved.add(player)
    assert moved == set(method.players()) - LATER.get(name, set())
    assert all(not value.requires_grad and torch.isfinite(value) for value in method.terms.values())
    assert method.terms
    assert all(v.ndim == 1 and not v.is_floating_point() for v in method.counts.values())
    assert not method.counts.keys() & LOGGED


@pytest.mark.parametrize("name", EVERY)
def test_predict_and_inspect_agree(name):
    method = tiny.tamed(name).eval()
    images = tiny.batch().images
    with torch.inference_mode():
        features, logits = method.inspect(images)
        assert logits.shape == (len(images), tiny.CLASSES)
        assert torch.equal(logits, method.predict(images))
        assert torch.equal(features, method.features(images))
    assert features.ndim == 2
    assert len(features) == len(images)


def training(name):
    method, data = tiny.tamed(name), tiny.split()
    features = tiny.bias_features(data) if tiny.needs_bias_features(method) else None
    loader = Loader(
        data,
        tiny.views(tiny.number_of_views(method)),
        Shuffled(len(data)),
        8,
        bias_features=features,
    )
    second = method.second and Loader(data, tiny.views(2), Shuffled(len(data), seed=1), 8, seed=1)
    return Training(method, tiny.players(method), loader, seed=3, second=second, sweep=tiny.sweep)


@pytest.mark.parametrize("name", EVERY)
def test_a_saved_and_loaded_training_takes_the_same_steps(name):
    """Also from the middle of an epoch of three batches: it is saved after the fourth step."""
    whole = training(name)
    fit(whole, 3, steps=7)
    first = training(name)
    fit(first, 3, steps=4)
    state = copy.deepcopy(first.state_dict())
    second = training(name)
    with torch.no_grad():
        for p in second.method.parameters():
            p.add_(1)  # whatever was there is replaced
    second.load_state_dict(state)
    fit(second, 3, steps=7)
    assert second.step == whole.step == 7
    for (key, a), (_, b) in zip(
        whole.method.state_dict().items(), second.method.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), key
    assert {k: float(v) for k, v in whole.method.terms.items()} == {
        k: float(v) for k, v in second.method.terms.items()
    }


@pytest.mark.parametrize("name", EVERY)
def test_without_bias_labels_it_trains_or_says_why_not(name):
    if name in NEEDS_BIAS:
        with pytest.raises(ValueError, match="needs to know the bias"):
            tiny.tamed(name, data_info=tiny.info(biased=False))
        return
    method = tiny.tamed(name, data_info=tiny.info(biased=False)).train()
    data = tiny.split()
    unlabelled = tiny.batch_for(method, type(data)(data.pixels, data.labels, None))
    method.start_epoch(0, tiny.sweep)
    method.train()
    assert all(torch.isfinite(loss) for _, loss in method.updates(unlabelled, 0))


@pytest.mark.parametrize("name", EVERY)
def test_a_method_learns_its_training_set(name):
    """After some epochs its own predictions fit the labels it was shown better."""
    run = training(name)
    batch = tiny.batch()

    def misfit():
        return float(
            F.cross_entropy(run.method.train().predict(batch.images).detach(), batch.labels)
        )

    before = misfit()
    fit(run, 12)
    assert misfit() < before - 0.01


def test_methods_are_methods():
    assert all(isinstance(tiny.tamed(name), Method) for name in EVERY)
