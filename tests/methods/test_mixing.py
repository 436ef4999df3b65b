from dataclasses import replace

import pytest
import torch

from fairmargin.methods.mixing import OFFERS, mixed_across_bias, partners
from tests.methods import tiny


@pytest.mark.parametrize("seed", range(5))
def test_partners_have_the_class_and_another_known_bias(seed):
    generator = torch.Generator().manual_seed(seed)
    n = 120
    labels = torch.randint(4, (n,), generator=generator)
    bias = torch.randint(-1, 3, (n,), generator=generator)
    found = partners(labels, bias, torch.randperm(n, generator=generator))
    for i, j in enumerate(found.tolist()):
        if j < 0:
            continue
        assert labels[i] == labels[j]
        assert -1 not in (bias[i], bias[j])
        assert bias[i] != bias[j]
    # One of two offers fits, and there are four.
    known = bias >= 0
    assert (found[known] >= 0).float().mean() > 0.8
    assert (found[~known] == -1).all()


def test_who_is_alone_with_its_class_or_bias_has_no_partner():
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    bias = torch.tensor([0, 0, 0, 1, 0, 1])
    found = partners(labels, bias, torch.arange(6))
    assert found.tolist() == [-1, -1, -1, -1, 5, 4]


def test_nobody_is_offered_more_than_a_few():
    """One of another bias stands farther along the circle than offers go."""
    n = OFFERS + 4
    labels = torch.zeros(n, dtype=torch.long)
    bias = torch.zeros(n, dtype=torch.long)
    bias[-1] = 1
    found = partners(labels, bias, torch.arange(n))
    assert found[0] == -1
    assert found[n - 1 - OFFERS] == n - 1


def test_the_order_decides_and_every_partner_can_come():
    labels = torch.zeros(6, dtype=torch.long)
    bias = torch.tensor([0, 1, 2, 3, 4, 5])
    seen = set()
    for seed in range(60):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        seen.add(int(partners(labels, bias, order)[0]))
    assert seen == {1, 2, 3, 4, 5}


def test_an_image_keeps_at_least_half_and_its_class():
    batch = tiny.batch()
    torch.manual_seed(0)
    mixed = mixed_across_bias(batch, 1.0)
    assert torch.equal(mixed.labels, batch.labels)
    assert torch.equal(mixed.bias, batch.bias)
    changed = 0
    for i, image in enumerate(mixed.images):
        own = batch.images[i]
        if torch.equal(image, own):
            continue
        changed += 1
        others = (batch.labels == batch.labels[i]) & (batch.bias != batch.bias[i])
        errors = []
        for other in batch.images[others]:
            # image = w·own + (1 − w)·other, by least squares
            along = other - own
            w = 1 - float(((image - own) * along).sum() / along.square().sum())
            left = image - (w * own + (1 - w) * other)
            errors.append((float(left.abs().max()), w))
        error, w = min(errors)
        assert error < 1e-5
        assert 0.5 <= w <= 1
    assert changed > len(batch) / 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_share_of_the_images_is_mixed_whatever_their_views(number):
    batch = tiny.batch(tiny.split(n=600), number)
    torch.manual_seed(0)
    mixed = mixed_across_bias(batch, 0.5).images
    changed = (mixed != batch.images).flatten(1).any(1).float().mean()
    assert 0.3 < changed < 0.55


def test_without_a_share_or_bias_labels_nothing_is_drawn():
    batch = tiny.batch()
    state = torch.random.get_rng_state()
    assert mixed_across_bias(batch, 0.0) is batch
    unlabelled = replace(batch, bias=None)
    assert mixed_across_bias(unlabelled, 1.0) is unlabelled
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_empty_batch_stays_empty():
    batch = tiny.part(tiny.batch(), 0, 0)
    assert len(mixed_across_bias(batch, 1.0)) == 0
