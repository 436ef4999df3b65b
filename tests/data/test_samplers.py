import warnings

import pytest
import torch
from torch import Tensor

from fairmargin.data.samplers import (
    BiasAware,
    ClassBalanced,
    GroupBalanced,
    InOrder,
    InProportion,
    Sampler,
    Shuffled,
    Weighted,
    bias_weights,
    seeded,
)


def biased(
    n: int = 2000, rho: float = 0.99, classes: int = 5, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Labels, and a bias that equals the label with probability ρ."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    other = (labels + torch.randint(1, classes, (n,), generator=g)) % classes
    return labels, torch.where(torch.rand(n, generator=g) < rho, labels, other)


LABELS, BIAS = biased()
SAMPLERS = {
    "shuffled": lambda seed: Shuffled(len(LABELS), seed),
    "class-balanced": lambda seed: ClassBalanced(LABELS, seed),
    "group-balanced": lambda seed: GroupBalanced(LABELS, BIAS, seed),
    "weighted": lambda seed: Weighted(bias_weights(LABELS, BIAS), 10, seed),
    "bias-aware": lambda seed: BiasAware(LABELS, BIAS, seed=seed),
    "in-proportion": lambda seed: InProportion(1.0 + LABELS, seed=seed),
}


def flat(sampler: Sampler, epoch: int) -> Tensor:
    return torch.cat(sampler.batches(epoch, 128))


@pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS)
def test_order_is_a_function_of_seed_and_epoch(build):
    first = flat(build(3), 5)
    torch.manual_seed(1)
    assert torch.equal(first, flat(build(3), 5))
    assert not torch.equal(first, flat(build(3), 6))
    assert not torch.equal(first, flat(build(4), 5))
    assert not torch.equal(flat(build(4), 5), flat(build(5), 4))


@pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS)
def test_batch_sizes(build):
    kept, dropped = (build(0).batches(0, 300, drop_last) for drop_last in (False, True))
    assert [len(batch) for batch in kept] == [300] * 6 + [200]
    assert [len(batch) for batch in dropped] == [300] * 6
    assert build(0).batches(0, 5000, drop_last=True) == []


def test_keys_do_not_collide():
    keys = [(s, a, b) for s in range(2) for a in range(5) for b in range(5)]
    states = {int(torch.randint(2**62, (1,), generator=seeded(*key))) for key in keys}
    assert len(states) == len(keys)


def test_shuffled_and_in_order_cover_every_sample_once():
    assert torch.equal(Shuffled(100).indices(2).sort().values, torch.arange(100))
    assert torch.equal(InOrder(5).indices(7), torch.arange(5))
    assert [batch.tolist() for batch in InOrder(5).batches(0, 2)] == [[0, 1], [2, 3], [4]]


def test_class_balanced():
    labels = torch.tensor([0] * 3000 + [1] * 900 + [2] * 100)
    share = labels[ClassBalanced(labels).indices(0)].bincount() / 4000
    torch.testing.assert_close(share, torch.full((3,), 1 / 3), atol=0.03, rtol=0)


def test_group_balanced_gives_unknown_bias_a_group():
    labels = torch.tensor([0] * 2000 + [1] * 2000)
    bias = torch.tensor([0] * 1900 + [1] * 90 + [-1] * 10 + [1] * 2000)
    drawn = GroupBalanced(labels, bias).indices(0)
    groups = (labels * 3 + bias + 1)[drawn].bincount(minlength=6) / 4000
    torch.testing.assert_close(
        groups, torch.tensor([0.25, 0.25, 0.25, 0, 0, 0.25]), atol=0.03, rtol=0
    )


def test_bias_weights_are_inverse_conditional_frequencies():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    bias = torch.tensor([0, 0, 0, 1, 1, 1, -1])
    expected = torch.tensor([4 / 3, 4 / 3, 4 / 3, 4, 1.5, 1.5, 3], dtype=torch.double)
    torch.testing.assert_close(bias_weights(labels, bias), expected)


def test_weighted_clips_at_ratio_times_the_smallest_positive_weight():
    weights = torch.tensor([0.0, 1.0, 2.0, 500.0]).repeat_interleave(1000)
    kinds = torch.arange(4).repeat_interleave(1000)
    share = kinds[Weighted(weights, 5).indices(0)].bincount(minlength=4) / 4000
    torch.testing.assert_close(share, torch.tensor([0, 1 / 8, 2 / 8, 5 / 8]), atol=0.03, rtol=0)
    assert share[0] == 0
    free = kinds[Weighted(weights).indices(0)].bincount(minlength=4) / 4000
    assert free[3] > 0.98


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]]
)
def test_weights_that_cannot_be_drawn_from(weights):
    with pytest.raises(ValueError, match="sampling weights must be finite"):
        Weighted(torch.tensor(weights))


def test_ratio_below_one():
    with pytest.raises(ValueError, match=r"at least 1 .* got 0.5"):
        Weighted(torch.ones(3), 0.5)


def conflicting_pairs(batch: Tensor, labels: Tensor, bias: Tensor, y: int) -> int:
    values = bias[batch][(labels[batch] == y) & (bias[batch] >= 0)].tolist()
    return sum(values[i] != values[j] for i in range(len(values)) for j in range(i))


@pytest.mark.parametrize("batch_size", [2, 3, 7, 64, 256])
def test_bias_aware_pairs_every_class_of_every_batch(batch_size: int):
    batches = BiasAware(LABELS, BIAS).batches(1, batch_size)
    for batch in batches:
        assert len(batch.unique()) == len(batch)
        for y in LABELS[batch].unique().tolist():
            assert conflicting_pairs(batch, LABELS, BIAS, y) >= 1
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert len(batches) == len(Shuffled(len(LABELS)).batches(1, batch_size))


def test_shuffled_batches_lack_pairs_on_the_same_data():
    lacking = [
        y
        for batch in Shuffled(len(LABELS)).batches(1, 64)
        for y in LABELS[batch].unique().tolist()
        if conflicting_pairs(batch, LABELS, BIAS, y) == 0
    ]
    assert len(lacking) > 100  # of about 160


def test_bias_aware_rest_is_natural_sampling_without_replacement():
    sampler = BiasAware(LABELS, BIAS)
    times = flat(sampler, 0).bincount(minlength=len(LABELS))
    aligned = LABELS == BIAS
    assert (
        times[aligned].max() <= 2
    )  # once in its turn; as a partner only for a class part of conflicting samples
    assert times[aligned].float().mean() > 0.9
    assert times[~aligned].float().mean() > 2
    assert torch.equal(sampler.indices(0).sort().values, torch.arange(len(LABELS)))


def test_bias_aware_with_several_pairs_and_unknown_bias():
    labels, bias = biased(3000, 0.9, classes=5, seed=1)
    bias[torch.rand(3000, generator=torch.Generator().manual_seed(2)) < 0.8] = -1
    for batch in BiasAware(labels, bias, per_batch=3).batches(0, 16):
        for y in labels[batch].unique().tolist():
            assert conflicting_pairs(batch, labels, bias, y) >= 3


def test_bias_aware_promises_no_more_than_the_data_hold():
    labels, bias = torch.zeros(50, dtype=torch.long), torch.zeros(50, dtype=torch.long)
    bias[7] = 1
    for batch in BiasAware(labels, bias, per_batch=4).batches(0, 10):
        assert 7 in batch.tolist()


def test_bias_aware_warns_once_and_names_the_classes_without_pairs():
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 4])
    bias = torch.tensor([0, 1, 1, 1, 2, -1, -1])
    with pytest.warns(UserWarning, match=r"in class 1, 2, 4:") as caught:
        sampler = BiasAware(labels, bias)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = sampler.batches(0, 3)
        BiasAware(labels[:2], bias[:2])
    for batch in batches:
        if 0 in labels[batch].tolist():
            assert {0, 1} <= set(batch.tolist())


def test_bias_aware_needs_room_for_a_pair():
    with pytest.raises(ValueError, match="1 pairs per class need a batch of at least 2; got 1"):
        BiasAware(LABELS, BIAS).batches(0, 1)
    with pytest.raises(ValueError, match="per_batch must be at least 1"):
        BiasAware(LABELS, BIAS, per_batch=0)


def test_in_proportion_draws_each_share_exactly_on_average():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(500, generator=generator).square()
    weights[::7] = 0
    weights[3] = 20
    share = 500 * weights.double() / weights.double().sum()
    epochs = 400
    counts = torch.zeros(500, dtype=torch.double)
    sampler = InProportion(weights, seed=1)
    for epoch in range(epochs):
        drawn = torch.bincount(sampler.indices(epoch), minlength=500).double()
        assert int(drawn.sum()) == 500
        # Each comes its share of times, rounded down or up, in every epoch.
        assert bool(((drawn - share).abs() < 1).all())
        counts += drawn
    assert bool((counts[::7] == 0).all())
    # A rounded share has variance f(1 − f); five deviations of the mean over all epochs.
    part = share - share.floor()
    deviation = (part * (1 - part) / epochs).sqrt()
    assert bool(((counts / epochs - share).abs() <= 5 * deviation + 1e-9).all())
    # The order is random too: positions of the heaviest sample are spread over the epoch.
    places = (sampler.indices(0) == 3).nonzero().double().mean()
    assert 150 < float(places) < 350


def test_in_proportion_with_equal_weights_shows_every_sample_once():
    drawn = InProportion(torch.full((300,), 0.1), seed=2).indices(4)
    assert torch.equal(drawn.sort().values, torch.arange(300))
    assert not torch.equal(drawn, torch.arange(300))


def test_in_proportion_balances_groups_and_keeps_weights_within_them():
    labels, bias = biased(1000, 0.9, 3)
    weights = torch.rand(1000, generator=torch.Generator().manual_seed(5)) + 0.1
    groups = torch.stack([labels, bias], 1)
    sampler = InProportion(weights, groups, seed=3)
    counts = torch.zeros(1000, dtype=torch.double)
    for epoch in range(300):
        counts += torch.bincount(sampler.indices(epoch), minlength=1000)
    _, group = groups.unique(dim=0, return_inverse=True)
    number = int(group.max()) + 1
    each = torch.zeros(number, dtype=torch.double).index_add(0, group, counts)
    assert torch.allclose(each / each.sum(), torch.full((number,), 1 / number).double(), atol=1e-3)
    totals = torch.zeros(number, dtype=torch.double).index_add(0, group, weights.double())
    share = 1000 * weights.double() / totals[group] / number
    part = share - share.floor()
    deviation = (part * (1 - part) / 300).sqrt()
    assert bool(((counts / 300 - share).abs() <= 5 * deviation + 1e-9).all())


def test_in_proportion_refuses_what_cannot_be_drawn():
    for weights in ([1.0, -1.0], [1.0, float("nan")], [float("inf"), 1.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="must be finite"):
            InProportion(torch.tensor(weights))
    groups = torch.tensor([[0], [0], [1]])
    with pytest.raises(ValueError, match="whose samples all have weight 0"):
        InProportion(torch.tensor([1.0, 1.0, 0.0]), groups)
