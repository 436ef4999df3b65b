import math

import pytest
import torch

from fairmargin.loop import fit
from fairmargin.methods.base import RunLength
from fairmargin.methods.cnc import cnc_loss
from tests.losses import reference as ref
from tests.methods import test_contract, tiny


def loops(z, y, guess, temperature):
    """The contrastive loss by its formula, anchor by anchor."""
    z = ref.unit(z)
    values = []
    for i in range(len(z)):
        s = [ref.dot(z[i], z[j]) / temperature for j in range(len(z))]
        positives = [s[j] for j in range(len(z)) if y[j] == y[i] and guess[j] != guess[i]]
        negatives = [s[j] for j in range(len(z)) if y[j] != y[i] and guess[j] == guess[i]]
        if positives and negatives:
            total = math.fsum(math.exp(x) for x in positives + negatives)
            terms = [-math.log(math.exp(x) / total) for x in positives]
            values.append(math.fsum(terms) / len(terms))
    return math.fsum(values) / len(values), len(values)


def a_batch(n=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 4, generator=g, dtype=torch.float64)
    y = torch.randint(3, (n,), generator=g)
    guess = torch.where(torch.rand(n, generator=g) < 0.6, y, torch.randint(3, (n,), generator=g))
    return z, y, guess


@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_equals_loops(temperature, seed):
    z, y, guess = a_batch(seed=seed)
    expected, anchors = loops(z, y.tolist(), guess.tolist(), temperature)
    value, found = cnc_loss(z, y, guess, temperature=temperature)
    assert value.item() == pytest.approx(expected, rel=1e-10)
    assert found == anchors < len(z)


def test_gradients():
    z, y, guess = a_batch(10)
    assert torch.autograd.gradcheck(lambda x: cnc_loss(x, y, guess)[0], (z.requires_grad_(),))


@pytest.mark.parametrize("guess", ["the labels", "all alike"])
def test_without_pairs_it_is_a_zero_with_a_gradient(guess):
    z, y, _ = a_batch()
    guesses = y if guess == "the labels" else torch.zeros_like(y)
    value, anchors = cnc_loss(z.requires_grad_(), y, guesses)
    value.backward()
    assert (value.item(), anchors.item()) == (0, 0)
    assert z.grad.abs().sum() == 0


def test_the_second_stage_knows_what_the_first_network_predicts():
    run = test_contract.training("cnc")
    fit(run, 1)
    method = run.method
    assert not method.second_stage
    assert (method.predicted == -1).all()
    method.start_epoch(1, tiny.sweep)
    assert method.second_stage
    (batch,) = [tiny.batch()]
    expected = torch.cat(
        [
            method.identifier_classifier(method.identifier(b.images)).argmax(1)
            for b in tiny.sweep("train")
        ]
    )
    assert torch.equal(method.predicted, expected)
    ((player, loss),) = method.train().updates(batch, 4)
    assert player == "main"
    terms = method.terms
    share = method.contrast
    mixed = share * terms["contrast"] + (1 - share) * terms["cross-entropy"]
    assert loss.item() == pytest.approx(mixed.item(), rel=1e-6)


def test_its_final_stage_is_the_second():
    stage = tiny.method("cnc", first_epochs=3).plan(RunLength(10, 100))
    assert stage.epochs == 3


@pytest.mark.parametrize("options", [{"first_epochs": 0}, {"contrast": 1.5}, {"temperature": 0.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="first_epochs must be at least 1, contrast from 0 to 1"):
        tiny.method("cnc", **options)
