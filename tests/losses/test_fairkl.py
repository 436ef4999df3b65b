import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fairmargin import losses
from fairmargin.losses import _groups, _limits, divergences
from tests.losses import reference as ref

DIVERGENCES = ["kl", "jeffreys", "moments", "mean", "lognormal", "absolute-mean"]
OF_DISTANCES = ["kl", "jeffreys", "moments", "mean"]  # whose sums come from groups too


def matrix_up_to(monkeypatch, rows):
    """Batches of more rows take the linear way."""
    monkeypatch.setitem(_limits.LIMITS, "cpu", replace(_limits.LIMITS["cpu"], matrix=rows))


DIVERGENCES = ["kl", "jeffreys", "moments", "mean", "lognormal"]


@pytest.fixture
def by_cells(monkeypatch):
    """Small batches take the linear way too."""
    matrix_up_to(monkeypatch, 0)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("scope", ["batch", "anchor"])
@pytest.mark.parametrize("negatives", [False, True])
@pytest.mark.parametrize("normalize", ["weights", "count"])
def test_equals_loops(divergence, scope, negatives, normalize):
    z, y, b = ref.random_batch(11, n=14, d=3)
    b[2] = -1
    settings = {
        "divergence": divergence,
        "scope": scope,
        "negatives": negatives,
        "normalize": normalize,
    }
    expected = ref.fairkl(ref.unit(z[:, 0]), y.tolist(), b.tolist(), **settings)
    assert expected > 0
    for chunk in (None, 5, 14):
        assert losses.fairkl(z, y, b, chunk=chunk, **settings).item() == pytest.approx(
            expected, rel=1e-9, abs=1e-12
        )


@pytest.mark.parametrize("divergence", OF_DISTANCES)
@pytest.mark.parametrize("scope", ["batch", "anchor"])
@pytest.mark.parametrize("negatives", [False, True])
def test_cells_equal_pairs_in_value_and_gradient(monkeypatch, divergence, scope, negatives):
    z, y, b = ref.random_batch(12, n=60, d=4, classes=3, biases=2)
    b[:3] = -1
    settings = {"divergence": divergence, "scope": scope, "negatives": negatives}
    results = []
    for limit in (0, 1000):
        matrix_up_to(monkeypatch, limit)
        x = z[:, 0].clone().requires_grad_()
        value = losses.fairkl(x, y, b, **settings)
        results.append((value.item(), torch.autograd.grad(value, x)[0]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-10)
    assert (results[0][1] - results[1][1]).abs().max() < 1e-10


@pytest.mark.parametrize("negatives", [False, True])
def test_float32_cells_agree_with_float64_pairs(negatives):
    z, y, b = ref.random_batch(13, n=2000, d=64, classes=10, biases=10, agree=0.95)
    tight = (
        z[:, 0] * 0.05 + F.one_hot(y, 64) * 3
    )  # spreads far below the mean: the hard case for E[d²] − E[d]²
    for features in (z[:, 0], tight):
        exact = losses.fairkl(
            features.float().double(), y, b, negatives=negatives, chunk=500, variance_floor=1e-3
        )
        value = losses.fairkl(features.float(), y, b, negatives=negatives, variance_floor=1e-3)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("divergence", ["moments", "kl"])
def test_small_batches_of_nearly_equal_features(divergence, collapsed):
    """Cosines of 0.9999: their variance is a millionth, and squares in float32 would not show it.

    Within a class, with other classes' near 0; or of all features.
    """
    torch.manual_seed(0)
    y, b = torch.arange(256) % 4, torch.randint(3, (256,))
    z = F.normalize(F.one_hot(y * (not collapsed), 32) + 0.0018 * torch.randn(256, 32)).float()
    values, gradients = [], []
    for x in (z.clone().requires_grad_(), z.double().requires_grad_()):
        value = losses.fairkl(
            x,
            y,
            b,
            divergence=divergence,
            negatives=True,
            variance_floor=0.0,
            chunk=None if x.dtype == z.dtype else 64,
        )
        values.append(value.item())
        gradients.append(torch.autograd.grad(value, x)[0].double())
    assert 0.9998 < float((z[y == 0] @ z[y == 0].T).mean()) < 0.99995
    assert values[0] == pytest.approx(values[1], rel=0.02)
    assert (gradients[0] - gradients[1]).norm() < 0.02 * gradients[1].norm()


@pytest.mark.parametrize(
    "settings",
    [{"variant": "authors"}, {"normalize": "count"}, {"normalize": "count", "scope": "anchor"}],
)
def test_compiled_with_unknown_bias(settings):
    z, y, b = ref.random_batch(16, n=24, d=5)
    b[::5] = -1
    loss = lambda x: losses.fairkl(x, y, b, negatives=True, **settings)
    expected, found = loss(z), torch.compile(loss, backend="aot_eager", fullgraph=True)(z)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_many_cells_fall_back_to_pairs(monkeypatch):
    matrix_up_to(monkeypatch, 0)
    called = []
    monkeypatch.setattr(_groups, "_CellSums", called)
    z, y, b = ref.random_batch(14, n=40, d=8, classes=40, biases=40)
    y[1], b[1] = y[0], b[0] + 1
    expected = ref.fairkl(
        ref.unit(z[:, 0]), y.tolist(), b.tolist(), divergence="mean", negatives=True
    )
    assert losses.fairkl(z, y, b, divergence="mean", negatives=True).item() == pytest.approx(
        expected
    )
    assert not called


class TestAuthors:
    def test_r4(self):
        z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        y, b = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 0, 1])
        assert losses.fairkl(z, y, b, variant="authors").item() == pytest.approx(2.45)

    @pytest.mark.parametrize("spread", [True, False])
    @pytest.mark.parametrize("limit", [0, 1000])
    def test_equals_loops(self, monkeypatch, spread, limit):
        matrix_up_to(monkeypatch, limit)
        z, y, b = ref.random_batch(15, n=40, d=4, classes=2, biases=2)
        value = losses.fairkl(z, y, b, variant="authors", divergence="kl" if spread else "mean")
        assert value.item() == pytest.approx(
            ref.fairkl_authors(ref.unit(z[:, 0]), y.tolist(), b.tolist(), spread)
        )

    def test_refuses_what_it_does_not_define(self):
        z, y, b = ref.random_batch(16)
        with pytest.raises(ValueError, match='scope="batch" only'):
            losses.fairkl(z, y, b, variant="authors", scope="anchor")
        with pytest.raises(ValueError, match="bias labels"):
            losses.fairkl(z, y, bias_features=z[:, 0], variant="authors")
        for divergence in ("lognormal", "absolute-mean"):
            with pytest.raises(ValueError, match="formula of its own"):
                losses.fairkl(z, y, b, variant="authors", divergence=divergence)

    def test_other_divergences_of_distances_change_nothing(self):
        z, y, b = ref.random_batch(16)
        whole = losses.fairkl(z, y, b, variant="authors")
        for divergence in ("jeffreys", "moments"):
            assert torch.equal(
                whole, losses.fairkl(z, y, b, variant="authors", divergence=divergence)
            )


class TestBiasFeatures:
    @pytest.mark.parametrize("divergence", DIVERGENCES)
    @pytest.mark.parametrize("scope", ["batch", "anchor"])
    @pytest.mark.parametrize("normalize", ["weights", "count"])
    def test_equals_loops(self, divergence, scope, normalize):
        z, y, _ = ref.random_batch(17, n=10, d=3)
        g = torch.randn(10, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        unit = ref.unit(g)
        aligned = [[max(0.0, ref.dot(a, c)) for c in unit] for a in unit]
        settings = {"divergence": divergence, "scope": scope, "normalize": normalize}
        expected = ref.fairkl(ref.unit(z[:, 0]), y.tolist(), aligned=aligned, **settings)
        for chunk in (None, 3):
            value = losses.fairkl(z, y, bias_features=g, chunk=chunk, **settings)
            assert value.item() == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("divergence", DIVERGENCES)
    @pytest.mark.parametrize("scope", ["batch", "anchor"])
    @pytest.mark.parametrize("normalize", ["weights", "count"])
    def test_zero_one_scores_are_discrete_labels(self, divergence, scope, normalize):
        z, y, b = ref.random_batch(18, n=20, biases=4)
        settings = {
            "divergence": divergence,
            "scope": scope,
            "normalize": normalize,
            "negatives": True,
        }
        g = F.one_hot(b, 4).double()
        scores = losses.fairkl(z, y, bias_features=g, **settings)
        assert torch.equal(
            losses.fairkl(z, y, b, chunk=7, **settings),
            losses.fairkl(z, y, bias_features=g, chunk=7, **settings),
        )
        assert losses.fairkl(z, y, b, **settings).item() == pytest.approx(scores.item(), rel=1e-12)

    def test_no_gradient_into_the_bias_model(self):
        z, y, _ = ref.random_batch(19)
        g = torch.rand(12, 3, dtype=torch.float64, requires_grad=True)
        losses.fairkl(z.requires_grad_(), y, bias_features=g).backward()
        assert g.grad is None
        assert z.grad.abs().sum() > 0


class TestMeanOfAbsoluteSimilarities:
    """Eq. 9: mean d of A⁺ = mean d of C⁺ "⟺" mean |s| of A⁺ = mean |s| of C⁺."""

    y = torch.zeros(3, dtype=torch.long)
    b = torch.tensor([0, 0, 1])

    def both(self, z, y, b, **settings):
        return [
            losses.fairkl(z, y, b, divergence=name, **settings)
            for name in ("mean", "absolute-mean")
        ]

    @pytest.mark.parametrize("scope", ["batch", "anchor"])
    @pytest.mark.parametrize("normalize", ["weights", "count"])
    def test_the_sides_agree_where_no_cosine_is_negative(self, scope, normalize):
        """d = 2 − 2s and |s| = s: (Δμ)² of d is four times that of |s|, with the same gradient."""
        z, y, b = ref.random_batch(40, n=18)
        x = z.abs().requires_grad_()
        left, right = self.both(x, y, b, negatives=True, scope=scope, normalize="weights")
        assert left.item() > 0.01
        assert left.item() == pytest.approx(4 * right.item(), rel=1e-10)
        gradients = [torch.autograd.grad(value, x)[0] for value in (left, right)]
        assert torch.allclose(gradients[0], 4 * gradients[1], rtol=1e-8, atol=1e-12)
        signed = [
            value.item()
            for value in self.both(z, y, b, negatives=True, scope=scope, normalize=normalize)
        ]
        assert signed[0] != pytest.approx(4 * signed[1], rel=0.01)

    def test_the_left_side_can_hold_without_the_right(self):
        """C⁺ has the cosines ±√½ and A⁺ 0: equal means, but not of absolute values."""
        z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        left, right = self.both(z, self.y, self.b)
        assert left.item() == pytest.approx(0, abs=1e-15)
        assert right.item() == pytest.approx(0.5)

    def test_the_right_side_can_hold_without_the_left(self):
        """A⁺ has the cosine −1 and C⁺ ±1: absolute value 1, at the mean distances 4 and 2."""
        z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
        left, right = self.both(z, self.y, self.b)
        assert left.item() == pytest.approx(4)
        assert right.item() == pytest.approx(0, abs=1e-15)


class TestViews:
    z, y, b = ref.random_batch(41, n=15, views=3)
    g = torch.rand(15, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"negatives": True, "divergence": "moments"},
            {"scope": "anchor", "divergence": "mean"},
            {"divergence": "lognormal", "chunk": 4},
            {"variant": "authors"},
            {"variant": "authors", "divergence": "mean"},
        ],
    )
    def test_first_is_the_first_view_alone(self, settings):
        x = self.z.clone().requires_grad_()
        value = losses.fairkl(x, self.y, self.b, views="first", **settings)
        first = self.z[:, 0].clone().requires_grad_()
        expected = losses.fairkl(first, self.y, self.b, **settings)
        assert torch.equal(value, expected)
        assert value.item() != pytest.approx(
            losses.fairkl(x, self.y, self.b, **settings).item(), rel=1e-3
        )
        (gradient,) = torch.autograd.grad(value, x)
        assert torch.equal(gradient[:, 0], torch.autograd.grad(expected, first)[0])
        assert gradient[:, 1:].abs().max() == 0

    @pytest.mark.parametrize("normalize", ["weights", "count"])
    def test_with_bias_features(self, normalize):
        settings = {"bias_features": self.g, "normalize": normalize}
        value = losses.fairkl(self.z, self.y, views="first", **settings)
        assert torch.equal(value, losses.fairkl(self.z[:, 0], self.y, **settings))
        assert value.item() != pytest.approx(
            losses.fairkl(self.z, self.y, **settings).item(), rel=1e-3
        )

    def test_terms_and_module(self):
        terms = losses.fairkl_terms(self.z, self.y, self.b, views="first", negatives=True)
        assert int(terms.pairs.sum()) == 15 * 14
        module = losses.FairKL(views="first", negatives=True)
        assert torch.equal(module(self.z, self.y, self.b), terms.value)
        assert torch.equal(module.pairs, terms.pairs.long())
        assert "views='first'" in repr(module)

    def test_one_view_is_all_views(self):
        z = self.z[:, 0]
        assert torch.equal(
            losses.fairkl(z, self.y, self.b, views="first"), losses.fairkl(z, self.y, self.b)
        )

    def test_what_is_no_batch_is_still_refused(self):
        with pytest.raises(TypeError, match=r"features must be a torch.Tensor; got list"):
            losses.fairkl([[1.0]], self.y, self.b, views="first")
        with pytest.raises(ValueError, match=r"features must have shape"):
            losses.fairkl(self.z[0, 0], self.y, self.b, views="first")


class TestProperties:
    z, y, b = ref.random_batch(20, n=24)

    @pytest.mark.parametrize("divergence", DIVERGENCES)
    @pytest.mark.parametrize("scope", ["batch", "anchor"])
    def test_gradcheck(self, divergence, scope):
        z = self.z[:10].clone().requires_grad_()
        y, b = self.y[:10] % 2, self.b[:10] % 2
        for chunk in (None, 4):
            loss = lambda x, c=chunk: losses.fairkl(
                x, y, b, divergence=divergence, scope=scope, negatives=True, chunk=c
            )
            assert torch.autograd.gradcheck(loss, (z,))

    @pytest.mark.parametrize("scope", ["batch", "anchor"])
    def test_gradcheck_by_cells(self, by_cells, scope):
        z = self.z[:14, :, :3].clone().requires_grad_()
        y, b = self.y[:14] % 2, self.b[:14] % 2
        assert torch.autograd.gradcheck(
            lambda x: losses.fairkl(x, y, b, scope=scope, negatives=True), (z,)
        )

    @pytest.mark.parametrize("scope", ["batch", "anchor"])
    def test_second_derivatives_of_small_batches(self, scope):
        z = self.z[:8].clone().requires_grad_()
        y, b = self.y[:8] % 2, self.b[:8] % 2
        assert torch.autograd.gradgradcheck(
            lambda x: losses.fairkl(x, y, b, scope=scope, negatives=True), (z,)
        )

    def test_second_derivatives_of_large_batches_are_refused(self, by_cells):
        z = self.z.clone().requires_grad_()
        with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
            torch.autograd.grad(losses.fairkl(z, self.y % 2, self.b % 2), z, create_graph=True)

    @pytest.mark.parametrize("divergence", DIVERGENCES)
    def test_permutation_and_relabelling(self, divergence):
        order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
        value = losses.fairkl(self.z, self.y, self.b, divergence=divergence)
        moved = losses.fairkl(
            self.z[order], 9 - self.y[order], 5 + 2 * self.b[order], divergence=divergence
        )
        assert torch.allclose(value, moved, rtol=1e-11)

    @pytest.mark.parametrize("divergence", DIVERGENCES)
    def test_zero_when_the_two_distributions_are_one(self, divergence):
        """Each point of one bias has an exact twin of the other bias.

        Self-twins are far apart in neither set.
        """
        z = torch.eye(4, dtype=torch.float64)  # all distances equal
        y, b = torch.zeros(4, dtype=torch.long), torch.tensor([0, 0, 1, 1])
        assert losses.fairkl(z, y, b, divergence=divergence).item() == pytest.approx(0, abs=1e-12)

    def test_kl_by_hand(self):
        a = divergences.Moments(torch.tensor(1.0), torch.tensor(0.25))
        c = divergences.Moments(torch.tensor(2.0), torch.tensor(1.0))
        expected = 0.5 * ((0.25 + 1) / 1 - math.log(0.25) - 1)
        assert divergences.gaussian_kl(a, c, 0.0).item() == pytest.approx(expected)
        both = expected + 0.5 * ((1 + 1) / 0.25 - math.log(4) - 1)
        assert divergences.jeffreys(a, c, 0.0).item() == pytest.approx(both)

    def test_equal_means_different_spreads_is_seen_by_kl_and_not_by_mean(self):
        a = divergences.Moments(torch.tensor(2.0), torch.tensor(0.04))
        c = divergences.Moments(torch.tensor(2.0), torch.tensor(1.0))
        assert divergences.mean_gap(a, c).item() == 0
        assert divergences.gaussian_kl(a, c, 0.0).item() > 1

    def test_descent_closes_the_gap(self):
        g = torch.Generator().manual_seed(0)
        y = torch.arange(64) % 2
        b = torch.arange(64) // 2 % 2
        x = (
            torch.randn(64, 8, generator=g) * 0.3 + F.one_hot(b, 8) * 2 + F.one_hot(2 + y, 8)
        ).requires_grad_()
        step = torch.optim.Adam([x], lr=0.05)

        def gap():
            s = F.normalize(x, dim=1) @ F.normalize(x, dim=1).T
            same = (y[:, None] == y) & ~torch.eye(64, dtype=torch.bool)
            return (s[same & (b[:, None] == b)].mean() - s[same & (b[:, None] != b)].mean()).item()

        before = gap()
        for _ in range(100):
            step.zero_grad()
            losses.fairkl(x, y, b).backward()
            step.step()
        assert before > 0.4
        assert abs(gap()) < 0.05


class TestDegenerate:
    def test_unknown_bias_is_left_out(self):
        z, y, b = ref.random_batch(21, n=16)
        b[::4] = -1
        kept = b >= 0
        for settings in ({}, {"negatives": True}, {"scope": "anchor"}, {"variant": "authors"}):
            assert torch.allclose(
                losses.fairkl(z, y, b, **settings),
                losses.fairkl(z[kept], y[kept], b[kept], **settings),
                rtol=1e-12,
            )

    @pytest.mark.parametrize("limit", [0, 1000])
    @pytest.mark.parametrize("scope", ["batch", "anchor"])
    @pytest.mark.parametrize(
        "b",
        [torch.zeros(6, dtype=torch.long), torch.full((6,), -1), torch.arange(6)],
        ids=["one", "unknown", "distinct"],
    )
    def test_no_term_is_an_attached_zero(self, monkeypatch, limit, scope, b):
        matrix_up_to(monkeypatch, limit)
        z = torch.randn(6, 3, requires_grad=True)
        value = losses.fairkl(z, torch.zeros(6, dtype=torch.long), b, scope=scope)
        value.backward()
        assert value.item() == 0
        assert torch.equal(z.grad, torch.zeros_like(z))

    def test_one_conflicting_pair_counts_as_two_ordered(self):
        z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        y, b = torch.tensor([0, 0, 0]), torch.tensor([0, 0, 1])
        terms = losses.fairkl_terms(z, y, b)
        assert terms.pairs.tolist() == [2, 4]
        assert terms.value > 0
        assert not terms.dropped

    @pytest.mark.parametrize("divergence", DIVERGENCES)
    def test_duplicates_have_finite_gradients(self, divergence):
        z = torch.ones(8, 3, requires_grad=True)
        y, b = torch.arange(8) // 4, torch.arange(8) % 2
        value = losses.fairkl(z, y, b, divergence=divergence, negatives=True)
        value.backward()
        assert value.isfinite()
        assert z.grad.isfinite().all()

    def test_module_counts_what_was_dropped(self):
        loss = losses.FairKL(negatives=True)
        z, y, b = ref.random_batch(22)
        loss(z, y, b)
        assert int(loss.dropped) == 0
        assert int(loss.pairs.sum()) == 12 * 11
        loss(z, y, torch.full_like(b, -1))
        assert (int(loss.calls), int(loss.dropped)) == (2, 1)
        assert loss.pairs.tolist() == [0, 0, 0, 0]
