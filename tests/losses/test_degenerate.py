"""Batches that break naive code: a finite value and gradient, or a clear error; never NaN."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmargin import losses

LOSSES = {
    **{
        f"supinfonce-{form}-{epsilon}": lambda z, y, b, c, f=form, e=epsilon: losses.eps_supinfonce(
            z, y, form=f, epsilon=e, chunk=c
        )
        for form in "abcd"
        for epsilon in (0.0, 0.5, math.inf)
    },
    "supcon-0": lambda z, y, b, c: losses.supcon(z, y, chunk=c),
    "supcon-inf": lambda z, y, b, c: losses.eps_supcon(z, y, epsilon=math.inf, chunk=c),
    "supcon-in": lambda z, y, b, c: losses.supcon_in(z, y, chunk=c),
    "biascon": lambda z, y, b, c: losses.biascon(z, y, b, chunk=c),
    "softcon": lambda z, y, b, c: (
        losses.softcon(z, y, torch.ones(len(z), 2) + b[:, None], chunk=c)
        if (b >= 0).all()
        else 0 * z.sum()
    ),
    "end": lambda z, y, b, c: losses.end(z, y, b),
    "end-released": lambda z, y, b, c: losses.end(z, y, b, pairs="released"),
    **{
        f"fairkl-{divergence}-{scope}": lambda z, y, b, c, d=divergence, s=scope: losses.fairkl(
            z, y, b, divergence=d, scope=s, negatives=True, chunk=c
        )
        for divergence in ("kl", "jeffreys", "moments", "mean", "lognormal", "absolute-mean")
        for scope in ("batch", "anchor")
    },
    **{
        f"fairkl-{divergence}-no-floor": lambda z, y, b, c, d=divergence: losses.fairkl(
            z, y, b, divergence=d, variance_floor=0, chunk=c
        )
        for divergence in ("kl", "jeffreys", "lognormal")
    },
    "fairkl-authors": lambda z, y, b, c: losses.fairkl(z, y, b, variant="authors", chunk=c),
}


def check(z, y, b, chunk):
    for name, loss in LOSSES.items():
        x = z.clone().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            value = loss(x, y, b, chunk)
        assert value.isfinite(), name
        assert value.ndim == 0, name
        (gradient,) = torch.autograd.grad(value, x)
        assert gradient.isfinite().all(), name


@st.composite
def batches(draw):
    n, d = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    y = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    b = draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n))
    # Few distinct values: duplicates, opposite vectors and zero vectors are common.
    rows = draw(
        st.lists(
            st.lists(st.sampled_from([-1.0, 0.0, 1.0, 0.5]), min_size=d, max_size=d),
            min_size=n,
            max_size=n,
        )
    )
    return (
        torch.tensor(rows),
        torch.tensor(y),
        torch.tensor(b),
        draw(st.sampled_from([None, 1, 3, 50])),
    )


@pytest.mark.slow
@given(batches())
@settings(max_examples=120, deadline=None)
def test_any_small_batch(batch):
    check(*batch)


N = 6
CASES = {
    "one sample": (
        torch.randn(1, 3),
        torch.zeros(1, dtype=torch.long),
        torch.zeros(1, dtype=torch.long),
    ),
    "one class": (torch.randn(N, 3), torch.zeros(N, dtype=torch.long), torch.arange(N) % 2),
    "no positive": (torch.randn(N, 3), torch.arange(N), torch.arange(N) % 2),
    "duplicates": (torch.ones(N, 3), torch.arange(N) // 2, torch.arange(N) % 2),
    "opposite": (torch.tensor([[1.0], [-1.0]] * 3), torch.arange(N) // 2, torch.arange(N) % 2),
    "one bias": (torch.randn(N, 3), torch.arange(N) // 2, torch.zeros(N, dtype=torch.long)),
    "bias unknown": (torch.randn(N, 3), torch.arange(N) // 2, torch.full((N,), -1)),
    "bias is the label": (torch.randn(N, 3), torch.arange(N) // 2, torch.arange(N) // 2),
    "zero vectors": (torch.zeros(N, 3), torch.arange(N) // 2, torch.arange(N) % 2),
    "huge": (torch.randn(N, 3) * 1e18, torch.arange(N) // 2, torch.arange(N) % 2),
    "tiny": (torch.randn(N, 3) * 1e-18, torch.arange(N) // 2, torch.arange(N) % 2),
    "empty": (
        torch.zeros(0, 3),
        torch.zeros(0, dtype=torch.long),
        torch.zeros(0, dtype=torch.long),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [None, 2, 4])
def test_named_cases(case, chunk):
    check(*CASES[case], chunk)


@pytest.mark.parametrize("chunk", [None, 2])
def test_no_positive_is_an_attached_zero_with_one_warning(chunk):
    z = torch.randn(4, 3, requires_grad=True)
    with pytest.warns(UserWarning, match="no anchor in this batch has a positive") as caught:
        value = losses.eps_supinfonce(z, torch.arange(4), chunk=chunk)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert value.item() == 0
    value.backward()
    assert torch.equal(z.grad, torch.zeros(4, 3))


@pytest.mark.parametrize("chunk", [None, 2])
def test_anchor_without_positive_adds_nothing(chunk):
    """A lone sample is a negative of the others and no anchor itself."""
    z, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2])
    from tests.losses import reference as ref

    value = losses.eps_supinfonce(z, y, epsilon=0.2, chunk=chunk).item()
    assert value == pytest.approx(ref.eps_supinfonce(ref.unit(z), y.tolist(), 0.2, 0.1), rel=1e-10)


@pytest.mark.parametrize("chunk", [None, 2])
def test_no_negatives_is_legal(chunk):
    """−s + log(e^{s−ε}) = −ε exactly, and nothing to learn."""
    z = torch.randn(4, 3, requires_grad=True)
    value = losses.eps_supinfonce(z, torch.zeros(4, dtype=torch.long), epsilon=0.3, chunk=chunk)
    assert value.item() == pytest.approx(-0.3)
    (gradient,) = torch.autograd.grad(value, z)
    assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_equal_bias_features_conflict_with_nobody_whatever_the_last_bit(seed):
    """The cosine of a vector with itself is 1 only up to rounding.

    As with labels, class mates of one bias have no C⁺.
    """
    g = torch.Generator().manual_seed(seed)
    z, y = torch.randn(12, 8, generator=g), torch.arange(12) % 2
    of_class = torch.randn(2, 33, generator=g)
    assert losses.softcon(z, y, of_class[y]) == losses.biascon(z, y, y) == 0
    for scores in (of_class[y], 7 * of_class[y].double()):
        found = losses.fairkl_terms(z, y, bias_features=scores)
        assert found.value == 0
        assert found.dropped
        assert found.pairs.tolist() == [60, 0]


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: losses.generalized_cross_entropy(x, y),
        lambda x, y: losses.bias_balanced_cross_entropy(x, y, y, torch.full((2, 3), 1 / 3)),
        lambda x, y: losses.l_softmax(x, torch.ones(3, 3), y),
        lambda x, y: losses.large_margin(x @ torch.ones(3, 3), [x], y),
    ],
)
def test_classification_losses_of_no_sample_are_an_attached_zero(loss):
    x = torch.zeros(0, 3, requires_grad=True)
    value = loss(x, torch.zeros(0, dtype=torch.long))
    value.backward()
    assert value.item() == 0
    assert x.grad is not None


def test_large_margin_of_a_confident_half_precision_network_is_finite():
    """A softmax that is sure has a zero gradient; in float16 so is what is added to its norm."""
    h = torch.tensor([[40.0, 0.0], [0.5, 0.0]], dtype=torch.float16, requires_grad=True)
    value = losses.large_margin(h * 2, [h], torch.tensor([0, 1]))
    value.backward()
    assert value.isfinite()
    assert h.grad.isfinite().all()


def test_hsic_of_two_precisions():
    x = torch.randn(8, 3)
    assert losses.hsic(x, x.double()).item() == pytest.approx(losses.hsic(x, x).item(), rel=1e-4)


@pytest.mark.parametrize("power", [-100, -80, 64, 80, 120])
def test_the_length_of_features_changes_nothing(power):
    """Squares of entries beyond 1.8e19 overflow in float32, those of entries near 1e-24 vanish."""
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(24, 6, generator=generator)
    y = torch.arange(24) % 3
    b = torch.randint(0, 3, (24,), generator=generator)
    factor = 2.0**power
    for name, loss in LOSSES.items():
        near = z.clone().requires_grad_()
        far = (z * factor).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            value, scaled = loss(near, y, b, None), loss(far, y, b, None)
        assert scaled == value, name
        (slope,) = torch.autograd.grad(value, near)
        (scaled_slope,) = torch.autograd.grad(scaled, far)
        assert torch.allclose(scaled_slope * factor, slope, rtol=1e-5, atol=1e-6), name


def test_losses_that_do_not_normalize_are_finite_or_refused_at_any_size():
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(12, 4, generator=generator).clamp(-3, 3)
    y = torch.arange(12) % 3
    for size in (1e19, 1e30, 1e38):
        for estimator in ("unbiased", "biased"):
            x = (z * size).requires_grad_()
            value = losses.hsic(x, z, estimator=estimator)
            assert value.isfinite()
            (slope,) = torch.autograd.grad(value, x)
            assert slope.isfinite().all()
    with pytest.raises(ValueError, match=r"overflow torch\.float32"):
        losses.l_softmax(z * 1e38, z[:3], y)


@pytest.mark.parametrize("size", [1e-34, 1e-25, 1e19, 1e25, 1e36])
def test_l_softmax_is_right_at_any_size(size):
    """Lengths of features beyond 1.8e19 were infinite, and cosines of those below 1e-19 zero."""
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(12, 4, generator=generator)
    w = torch.randn(3, 4, generator=generator)
    y = torch.arange(12) % 3
    x = (z * size).requires_grad_()
    exact = x.detach().double().requires_grad_()
    value, expected = losses.l_softmax(x, w, y), losses.l_softmax(exact, w.double(), y)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    (slope,) = torch.autograd.grad(value, x)
    (expected_slope,) = torch.autograd.grad(expected, exact)
    assert torch.allclose(slope.double(), expected_slope, rtol=1e-3, atol=1e-5)


def test_l_softmax_refuses_what_only_its_margin_makes_too_large():
    """The logits are finite, and −7 times the length is not."""
    h, w = torch.tensor([[1e38, 0.0]]), torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"overflow torch\.float32"):
        losses.l_softmax(h, w, torch.tensor([0]))


def test_hsic_of_features_far_from_the_origin_is_as_exact_as_near_it():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(16, 4, generator=generator)
    y = x + 0.1 * torch.randn(16, 4, generator=generator)
    for estimator in ("unbiased", "biased"):
        exact = losses.hsic(x.double(), y.double(), estimator=estimator)
        moved = losses.hsic(x + 1000, y - 1000, estimator=estimator)
        assert float(moved) == pytest.approx(float(exact), rel=1e-3)
