import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fairmargin.evaluate.probe import fit_probe, knn_logits


def draw(seed=0, n=300, d=6, classes=4, apart=1.0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    centres = apart * torch.randn(classes, d, generator=g)
    return torch.randn(n, d, generator=g) + centres[labels], labels


def standardised(x):
    x = x.double()
    return (x - x.mean(0)) / x.std(0, correction=0)


def loss(weight, intercept, x, y, l2):
    logits = x @ weight.T + intercept
    return torch.nn.functional.cross_entropy(logits, y) + l2 / 2 * weight.square().sum()


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("l2", [1e-4, 1e-2])
def test_reaches_the_optimum_of_scikit_learn(standardise, l2):
    x, y = draw()
    probe = fit_probe(x, y, 4, l2=l2, standardise=standardise)
    inputs = standardised(x) if standardise else x.double()
    reference = LogisticRegression(C=1 / (len(x) * l2), tol=1e-8, max_iter=5000).fit(
        inputs.numpy(), y.numpy()
    )
    expected = loss(
        torch.from_numpy(reference.coef_), torch.from_numpy(reference.intercept_), inputs, y, l2
    )
    scale = x.double().std(0, correction=0) if standardise else 1
    penalty = l2 / 2 * (probe.weight * scale).square().sum()
    found = torch.nn.functional.cross_entropy(probe.logits(x), y) + penalty
    assert probe.converged
    assert probe.iterations > 0
    assert found <= expected + 1e-9
    p = probe.logits(x).softmax(1).numpy()
    np.testing.assert_allclose(p, reference.predict_proba(inputs.numpy()), atol=1e-4)


def test_the_gradient_vanishes():
    x, y = draw(1)
    probe = fit_probe(x, y, 4, l2=1e-3, standardise=False)
    weight, intercept = (
        probe.weight.clone().requires_grad_(),
        probe.intercept.clone().requires_grad_(),
    )
    loss(weight, intercept, x.double(), y, 1e-3).backward()
    assert weight.grad.abs().max() < 2e-7
    assert intercept.grad.abs().max() < 2e-7


def test_separable_classes_converge():
    x, y = draw(2, apart=30.0)
    probe = fit_probe(x, y, 4)
    assert probe.converged
    assert (probe.logits(x).argmax(1) == y).all()


def test_scale_and_shift_of_features_do_not_matter():
    x, y = draw(3)
    x = x.double()
    scale, shift = torch.tensor([1e-3, 1, 50, 1e3, 2, 0.1]).double(), torch.arange(6).double()
    first = fit_probe(x, y, 4).logits(x)
    second = fit_probe(x * scale + shift, y, 4).logits(x * scale + shift)
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


def test_it_is_deterministic_and_order_does_not_matter():
    x, y = draw(4)
    first, second = fit_probe(x, y, 4), fit_probe(x, y, 4)
    assert torch.equal(first.weight, second.weight)
    backwards = fit_probe(x.flip(0), y.flip(0), 4)
    torch.testing.assert_close(first.logits(x), backwards.logits(x), atol=1e-4, rtol=1e-4)


def test_constant_features_are_left_out():
    x, y = draw(5)
    noise = 1 + 1e-8 * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(0)).double()
    wide = torch.cat([x.double(), torch.zeros(len(x), 1), 3 * noise], 1)
    probe = fit_probe(wide, y, 4)
    assert (probe.weight[:, 6:] == 0).all()
    torch.testing.assert_close(
        probe.logits(wide), fit_probe(x, y, 4).logits(x), atol=1e-6, rtol=1e-6
    )


def test_classes_without_samples_are_never_answered():
    x, y = draw(6, classes=3)
    y = torch.tensor([1, 3, 4])[y]
    probe = fit_probe(x, y, 6)
    logits = probe.logits(x)
    assert probe.missing == (0, 2, 5)
    assert (logits[:, [0, 2, 5]] == -torch.inf).all()
    assert logits[:, [1, 3, 4]].isfinite().all()
    assert not logits.softmax(1).isnan().any()
    same = fit_probe(x, (y > 1).long() + (y > 3), 3)
    torch.testing.assert_close(logits[:, [1, 3, 4]], same.logits(x))


def test_one_class_and_one_sample():
    x, _ = draw(7)
    probe = fit_probe(x, torch.full((len(x),), 2), 4)
    assert probe.converged
    assert (probe.logits(x).argmax(1) == 2).all()
    assert fit_probe(x[:1], torch.tensor([1]), 2).logits(x).argmax(1).unique().tolist() == [1]


def test_too_few_iterations_are_admitted():
    x, y = draw(8)
    probe = fit_probe(x, y, 4, max_iterations=2)
    assert not probe.converged
    assert probe.iterations <= 2


def test_the_size_of_a_small_benchmark_takes_a_moment():
    x, y = draw(9, n=4000, d=64, classes=10, apart=0.3)
    probe = fit_probe(torch.nn.functional.normalize(x), y, 10)
    assert probe.converged
    assert probe.iterations < 500


def test_probe_errors_say_what_was_given():
    x, y = draw()
    with pytest.raises(ValueError, match="needs training samples and there are none"):
        fit_probe(x[:0], y[:0], 4)
    with pytest.raises(ValueError, match="labels must be from 0 to 2; got 0 to 3"):
        fit_probe(x, y, 3)
    with pytest.raises(ValueError, match="NaN or inf in 1 of 300 rows"):
        fit_probe(x.index_fill(0, torch.tensor([5]), torch.nan), y, 4)
    with pytest.raises(ValueError, match="l2 must be above 0"):
        fit_probe(x, y, 4, l2=0)
    with pytest.raises(ValueError, match=r"fitted on 6 features per sample; got \[300, 5\]"):
        fit_probe(x, y, 4).logits(x[:, :5])


@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_neighbours_equal_brute_force(chunk):
    x, y = draw(10, n=60)
    queries, _ = draw(11, n=25)
    k, classes = 5, 4
    logits = knn_logits(x, y, queries, classes, k=k, chunk=chunk)
    for query, row in zip(queries.tolist(), logits.tolist(), strict=True):
        cosines = []
        for other, label in zip(x.tolist(), y.tolist(), strict=True):
            lengths = math.sqrt(sum(v * v for v in query) * sum(v * v for v in other))
            cosines.append((sum(a * b for a, b in zip(query, other, strict=True)) / lengths, label))
        nearest = [label for _, label in sorted(cosines, reverse=True)[:k]]
        shares = [(nearest.count(c) + 1 / classes) / (k + 1) for c in range(classes)]
        assert [math.exp(v) for v in row] == pytest.approx(shares, rel=1e-5)
        assert sum(map(math.exp, row)) == pytest.approx(1, rel=1e-5)


def test_neighbours_at_the_edges():
    x, y = draw(12, n=8)
    everything = knn_logits(x, y, x, 4, k=1000).exp()  # clamped: every sample votes
    share = (torch.bincount(y, minlength=4) + 0.25) / 9
    torch.testing.assert_close(everything, share.expand(8, 4))
    assert torch.equal(knn_logits(x, y, x, 4, k=1).argmax(1), y)
    assert torch.equal(knn_logits(x, y, 5 * x, 4, k=1).argmax(1), y)  # the length does not matter
    assert knn_logits(x, y, x[:0], 4).shape == (0, 4)
    assert knn_logits(x, y, torch.zeros(2, 6), 4).isfinite().all()
    with pytest.raises(ValueError, match="got k=0 and 8"):
        knn_logits(x, y, x, 4, k=0)
    with pytest.raises(ValueError, match="labels must be from 0 to 1"):
        knn_logits(x, y, x, 2)


def test_the_size_of_biased_mnist_converges():
    x, y = draw(13, n=60_000, d=128, classes=10, apart=0.1)
    assert fit_probe(torch.nn.functional.normalize(x), y, 10).converged


def test_weights_count_like_repeated_samples():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(30, 4, generator=generator)
    y = torch.arange(30) % 3
    times = torch.arange(30) % 4  # some samples count nothing
    repeated = torch.arange(30).repeat_interleave(times)
    weighted = fit_probe(x, y, 3, standardise=False, weights=times)
    plain = fit_probe(x[repeated], y[repeated], 3, standardise=False)
    assert torch.allclose(weighted.weight, plain.weight, atol=1e-5)
    assert torch.allclose(weighted.intercept, plain.intercept, atol=1e-5)
    with pytest.raises(ValueError, match="30 finite numbers from 0 up"):
        fit_probe(x, y, 3, weights=torch.ones(29))
