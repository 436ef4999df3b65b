"""FairKL with real-valued biases and with several biases."""

import itertools
import math

import pytest
import torch

from fairmargin import losses
from fairmargin.vectors import MEDIAN_VALUES, median_distance
from tests.losses import reference as ref


def a_batch(seed=3, n=14, columns=1):
    z, y, b = ref.random_batch(seed, n=n, d=3, classes=2, biases=3)
    g = torch.Generator().manual_seed(seed)
    values = 20 + 10 * torch.randn(n, columns, generator=g, dtype=torch.float64)
    return z, y, b, values


def near(values, kernel, bandwidths):
    """k(b_i, b_j) by loops; `None` where a value is not known."""

    def weight(a, c):
        steps = [(p - q) / h for p, q, h in zip(a, c, bandwidths, strict=True)]
        if kernel == "box":
            return float(all(abs(step) <= 1 for step in steps))
        return math.exp(-0.5 * sum(step**2 for step in steps))

    rows = values.tolist()
    return [[weight(a, c) for c in rows] for a in rows]


def medians(values):
    """The lower median of the distances of different values, column by column."""
    found = []
    for column in values.T.tolist():
        steps = sorted(abs(a - c) for a, c in itertools.combinations(column, 2) if a != c)
        found.append(steps[(len(steps) - 1) // 2])
    return found


@pytest.mark.parametrize("divergence", ["kl", "moments", "lognormal"])
@pytest.mark.parametrize("scope", ["batch", "anchor"])
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("kernel", ["gaussian", "box"])
@pytest.mark.parametrize("bandwidth", [0.0, 7.0])
def test_values_equal_loops(divergence, scope, columns, kernel, bandwidth):
    z, y, _, values = a_batch(columns=columns)
    widths = [bandwidth] * columns if bandwidth else medians(values)
    settings = {"divergence": divergence, "scope": scope, "negatives": True}
    expected = ref.fairkl(
        ref.unit(z[:, 0]), y.tolist(), aligned=near(values, kernel, widths), **settings
    )
    assert expected > 0
    for chunk in (None, 5):
        value = losses.fairkl(
            z, y, values, kernel=kernel, bandwidth=bandwidth, chunk=chunk, **settings
        )
        assert value.item() == pytest.approx(expected, rel=1e-5)  # weights near 0 and 1 are settled


def test_one_column_may_be_a_vector():
    z, y, _, values = a_batch()
    assert torch.equal(losses.fairkl(z, y, values[:, 0]), losses.fairkl(z, y, values))


@pytest.mark.parametrize("scope", ["batch", "anchor"])
@pytest.mark.parametrize("kernel", ["gaussian", "box"])
@pytest.mark.parametrize("normalize", ["weights", "count"])
def test_a_kernel_of_ones_and_zeros_is_the_discrete_form(scope, kernel, normalize):
    """A bandwidth far below the step from one label to the next; −1 is NaN."""
    z, y, b, _ = a_batch(n=20)
    b[4] = -1
    values = torch.where(b >= 0, b.double(), math.nan)
    settings = {"scope": scope, "normalize": normalize, "negatives": True}
    x, w = z.clone().requires_grad_(), z.clone().requires_grad_()
    discrete = losses.fairkl_terms(x, y, b, **settings)
    smooth = losses.fairkl_terms(w, y, values, kernel=kernel, bandwidth=0.01, **settings)
    assert smooth.value.item() == pytest.approx(discrete.value.item(), rel=1e-12)
    assert torch.equal(smooth.pairs, discrete.pairs)
    smooth.value.backward()
    discrete.value.backward()
    assert torch.allclose(x.grad, w.grad, rtol=1e-9, atol=1e-12)


def test_unknown_values_leave_the_sample_out():
    z, y, _, values = a_batch(n=16, columns=2)
    values[5, 1] = math.nan
    rest = torch.arange(16) != 5
    whole = losses.fairkl(z, y, values, bandwidth=4.0, normalize="count")
    without = losses.fairkl(z[rest], y[rest], values[rest], bandwidth=4.0, normalize="count")
    assert whole.item() == pytest.approx(without.item(), rel=1e-12)
    only = values[:, 1:]
    assert losses.fairkl(z, y, only).item() == pytest.approx(
        losses.fairkl(z[rest], y[rest], only[rest]).item(), rel=1e-12
    )


@pytest.mark.parametrize("kind", ["labels", "values"])
def test_the_sum_over_columns_is_the_sum_of_the_losses(kind):
    z, y, b, values = a_batch(n=18, columns=2)
    columns = torch.stack([b, (b + y) % 2], 1) if kind == "labels" else values
    together = losses.fairkl_terms(z, y, columns, biases="sum")
    each = [losses.fairkl_terms(z, y, column) for column in columns.unbind(1)]
    assert together.value.item() == pytest.approx(sum(t.value.item() for t in each), rel=1e-12)
    assert torch.equal(together.pairs, sum(t.pairs for t in each))
    one_sided = torch.stack([columns[:, 0], torch.zeros_like(columns[:, 0])], 1)
    found = losses.fairkl_terms(z, y, one_sided, biases="sum")  # the second is dropped
    assert found.value.item() == pytest.approx(each[0].value.item(), rel=1e-12)
    assert not found.dropped


def test_joint_labels_are_shared_in_every_column():
    z, y, b, _ = a_batch(n=24)
    other = (torch.arange(24) // 3) % 2
    other[7] = -1
    joint = torch.where((other >= 0) & (b >= 0), 2 * b + other, -1)
    value = losses.fairkl(z, y, torch.stack([b, other], 1), negatives=True)
    assert value.item() == pytest.approx(losses.fairkl(z, y, joint, negatives=True).item(), 1e-12)


@pytest.mark.parametrize("scope", ["batch", "anchor"])
@pytest.mark.parametrize("biases", ["joint", "sum"])
@pytest.mark.parametrize("chunk", [None, 4])
def test_gradients(scope, biases, chunk):
    z, y, _, values = a_batch(n=10, columns=2)
    assert torch.autograd.gradcheck(
        lambda x: losses.fairkl(
            x, y, values, scope=scope, biases=biases, negatives=True, chunk=chunk
        ),
        (z.requires_grad_(),),
    )


def test_views_share_the_value_of_their_sample():
    _, y, _, values = a_batch(n=8)
    z = torch.randn(8, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    flat = losses.fairkl(z.flatten(0, 1), y.repeat_interleave(2), values.repeat_interleave(2, 0))
    assert torch.equal(losses.fairkl(z, y, values), flat)


class TestMedianDistance:
    def test_equals_loops(self):
        values = a_batch(n=31, columns=3)[3]
        assert median_distance(values).tolist() == pytest.approx(medians(values))

    def test_of_many_samples_is_near_and_does_not_depend_on_their_order(self):
        values = torch.randn(4 * MEDIAN_VALUES, 1, generator=torch.Generator().manual_seed(0))
        found = median_distance(values)
        assert torch.equal(found, median_distance(values.flip(0)))
        steps = torch.pdist(values).median()
        assert float(found) == pytest.approx(float(steps), rel=0.01)

    def test_equal_or_unknown_values_have_the_distance_one(self):
        assert median_distance(torch.full((4, 1), 3.0)).tolist() == [1]
        assert median_distance(torch.full((4, 1), math.nan)).tolist() == [1]
        assert median_distance(torch.zeros(0, 2)).tolist() == [1, 1]


class TestRefusals:
    z, y, b, values = a_batch()

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"bandwidth": -1.0}, "bandwidth must be a finite number"),
            ({"kernel": "cosine"}, "kernel"),
            ({"biases": "each"}, "biases"),
            ({"variant": "authors"}, "defined for bias labels"),
        ],
    )
    def test_settings(self, settings, said):
        with pytest.raises(ValueError, match=said):
            losses.fairkl(self.z, self.y, self.values, **settings)

    def test_values(self):
        with pytest.raises(ValueError, match=r"shape \[N\] or \[N, k\]"):
            losses.fairkl(self.z, self.y, self.values[:, :, None])
        with pytest.raises(ValueError, match="13 rows but features has 14"):
            losses.fairkl(self.z, self.y, self.values[1:])
        with pytest.raises(ValueError, match="infinite"):
            losses.fairkl(self.z, self.y, self.values / 0)
