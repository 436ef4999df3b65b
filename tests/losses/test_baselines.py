"""EnD, BiasCon, SoftCon, BiasBal, generalized cross-entropy, HSIC, L-Softmax, large margin."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fairmargin import losses
from fairmargin.losses.margin import angular_margin
from tests.losses import reference as ref

Z4 = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
Y4, B4 = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 0, 1])


class TestEnD:
    def test_r4(self):
        assert losses.end(Z4, Y4, B4, entangle=0).item() == pytest.approx(0.5)
        assert losses.end(Z4, Y4, B4, disentangle=0).item() == pytest.approx(0.5)

    def test_one_pair(self):
        z = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)]])
        value = losses.end(z, torch.tensor([3, 3]), torch.tensor([0, 1]), disentangle=0)
        assert value.item() == pytest.approx(0.25)

    @pytest.mark.parametrize("pairs", ["all", "released"])
    def test_equals_loops(self, pairs):
        z, y, b = ref.random_batch(30, n=30, views=2)
        b[3] = -1
        rows = ref.unit(z.flatten(0, 1))
        labels, biases = y.repeat_interleave(2).tolist(), b.repeat_interleave(2).tolist()
        first, second = ref.end_terms(rows, labels, biases, released=pairs == "released")
        value = losses.end(z, y, b, disentangle=0.7, entangle=2.0, pairs=pairs)
        assert value.item() == pytest.approx(0.7 * first + 2 * second, rel=1e-10)

    def test_no_pairs_is_an_attached_zero(self):
        z = torch.randn(3, 2, requires_grad=True)
        for y, b in (
            (torch.arange(3), torch.arange(3)),
            (torch.zeros(3).long(), torch.full((3,), -1)),
        ):
            value = losses.end(z, y, b)
            assert value.item() == 0
            assert torch.autograd.grad(value, z)[0].abs().sum() == 0

    def test_gradcheck_and_permutation(self):
        z, y, b = ref.random_batch(31)
        assert torch.autograd.gradcheck(lambda x: losses.end(x, y, b), (z.requires_grad_(),))
        order = torch.randperm(12)
        assert torch.allclose(losses.end(z, y, b), losses.end(z[order], y[order], 4 - b[order]))

    def test_descent_on_entangling_raises_cross_bias_similarity(self):
        z = torch.tensor([[1.0, 0.1], [0.1, 1.0]], requires_grad=True)
        losses.end(z, torch.tensor([0, 0]), torch.tensor([0, 1]), disentangle=0).backward()
        moved = (z - 0.5 * z.grad).detach()
        assert F.cosine_similarity(*moved, dim=0) > F.cosine_similarity(*z.detach(), dim=0) + 0.1


class TestBiasContrastive:
    def test_biascon_r4(self):
        value = losses.biascon(Z4, Y4, B4, temperature=1.0)
        assert value.item() == pytest.approx(0.978456, abs=1e-6)
        valid = losses.biascon(Z4, Y4, B4, temperature=1.0, anchors="valid")
        assert valid.item() == pytest.approx((1.407606 * 2 + 1.098612) / 3, abs=1e-6)

    @pytest.mark.parametrize("chunk", [None, 4])
    def test_equal_loops(self, chunk):
        z, y, b = ref.random_batch(32, n=11)
        rows = ref.unit(z[:, 0])
        differ = [[float(p != q) for q in b.tolist()] for p in b.tolist()]
        expected = ref.weighted_supcon(rows, y.tolist(), differ, 0.07)
        assert losses.biascon(z, y, b, chunk=chunk).item() == pytest.approx(expected, rel=1e-9)
        g = torch.rand(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        unit = ref.unit(g)
        soft = [[max(0.0, 1 - ref.dot(p, q)) for q in unit] for p in unit]
        expected = ref.weighted_supcon(rows, y.tolist(), soft, 0.07)
        assert losses.softcon(z, y, g, chunk=chunk).item() == pytest.approx(expected, rel=1e-9)

    def test_identities(self):
        z, y, b = ref.random_batch(33, n=15, classes=2)
        assert torch.allclose(
            losses.biascon(z, y, torch.arange(15)), losses.supcon(z, y, temperature=0.07)
        )
        one_hot = F.one_hot(b, 3).double()
        assert torch.allclose(losses.softcon(z, y, one_hot), losses.biascon(z, y, b))
        assert torch.allclose(losses.softcon(z, y, 5 * one_hot), losses.softcon(z, y, one_hot))
        orthogonal = torch.eye(15, dtype=torch.float64)
        assert torch.allclose(
            losses.softcon(z, y, orthogonal), losses.supcon(z, y, temperature=0.07)
        )
        assert torch.allclose(losses.biascon(z, y, 7 - 2 * b), losses.biascon(z, y, b))

    def test_one_bias_is_zero_with_zero_gradient(self):
        z, y, b = ref.random_batch(34)
        z = z.requires_grad_()
        for chunk in (None, 5):
            with pytest.warns(UserWarning, match="no anchor in this batch has a positive"):
                value = losses.biascon(z, y, torch.zeros_like(b), chunk=chunk)
            assert value.item() == 0
            assert torch.autograd.grad(value, z)[0].abs().sum() == 0

    def test_unknown_bias_is_never_a_positive(self):
        z, y, b = ref.random_batch(35, n=14)
        b[4] = -1
        values = b.tolist()
        q = [[float(p != r and p >= 0 and r >= 0) for r in values] for p in values]
        expected = ref.weighted_supcon(ref.unit(z[:, 0]), y.tolist(), q, 0.07)
        assert losses.biascon(z, y, b).item() == pytest.approx(expected, rel=1e-9)

    def test_gradcheck(self):
        z, y, b = ref.random_batch(36, n=8, d=3)
        g = torch.rand(8, 3, dtype=torch.float64)
        for chunk in (None, 3):
            assert torch.autograd.gradcheck(
                lambda x, c=chunk: losses.biascon(x, y, b, chunk=c), (z.requires_grad_(),)
            )
            assert torch.autograd.gradcheck(
                lambda x, c=chunk: losses.softcon(x, y, g, chunk=c), (z.requires_grad_(),)
            )

    def test_zero_bias_features_are_refused(self):
        z, y, _ = ref.random_batch(37)
        g = torch.rand(12, 3)
        g[5] = 0
        with pytest.raises(ValueError, match=r"bias_features has 1 rows of zeros .first: row 5"):
            losses.softcon(z, y, g)


class TestBiasBalancedCrossEntropy:
    def test_vectors(self):
        logits, label, bias = torch.zeros(1, 2), torch.tensor([1]), torch.tensor([0])
        value = losses.bias_balanced_cross_entropy(logits, label, bias, torch.tensor([[0.9, 0.1]]))
        assert value.item() == pytest.approx(2.302585, abs=1e-6)

    def test_uniform_prior_and_unknown_bias_are_cross_entropy(self):
        logits = torch.randn(6, 3, dtype=torch.float64)
        y, b = torch.arange(6) % 3, torch.arange(6) % 2
        uniform = torch.full((2, 3), 1 / 3, dtype=torch.float64)
        assert torch.allclose(
            losses.bias_balanced_cross_entropy(logits, y, b, uniform), F.cross_entropy(logits, y)
        )
        skewed = torch.tensor([[0.8, 0.1, 0.1], [0.0, 0.0, 1.0]], dtype=torch.float64)
        unknown = torch.full((6,), -1)
        assert torch.allclose(
            losses.bias_balanced_cross_entropy(logits, y, unknown, skewed),
            F.cross_entropy(logits, y),
        )
        assert losses.bias_balanced_cross_entropy(logits, y, b, skewed).isfinite()

    def test_logits_are_not_changed(self):
        logits = torch.zeros(2, 2)
        losses.bias_balanced_cross_entropy(
            logits, torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([[0.9, 0.1]])
        )
        assert torch.equal(logits, torch.zeros(2, 2))

    def test_prior_from_counts(self):
        counts = torch.tensor([[8, 1, 0], [2, 3, 0]])  # counts[y, b]
        prior = losses.BiasBalancedCrossEntropy.from_counts(counts).prior
        assert torch.allclose(prior, torch.tensor([[0.8, 0.2], [0.25, 0.75], [0.5, 0.5]]))

    def test_transposed_prior_is_refused(self):
        with pytest.raises(ValueError, match=r"prior must be \[biases, 3\].*transposed"):
            losses.bias_balanced_cross_entropy(
                torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([0, 1]), torch.ones(3, 2)
            )


class TestGeneralizedCrossEntropy:
    def test_vectors(self):
        logits, y = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0])
        assert losses.generalized_cross_entropy(logits, y).item() == pytest.approx(
            0.549183, abs=1e-6
        )
        assert losses.generalized_cross_entropy(logits, y, surrogate=True).item() == pytest.approx(
            0.298677, abs=1e-6
        )

    def test_surrogate_gradient_is_q_times(self):
        logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        y = torch.arange(5) % 4
        (exact,) = torch.autograd.grad(losses.generalized_cross_entropy(logits, y), logits)
        (surrogate,) = torch.autograd.grad(
            losses.generalized_cross_entropy(logits, y, surrogate=True), logits
        )
        assert torch.allclose(surrogate, 0.7 * exact)

    def test_q_to_zero_is_cross_entropy(self):
        logits, y = torch.randn(5, 4, dtype=torch.float64), torch.arange(5) % 4
        for q in (0.0, 1e-9):
            assert torch.allclose(
                losses.generalized_cross_entropy(logits, y, q=q), F.cross_entropy(logits, y)
            )

    def test_confident_mistake_is_finite(self):
        logits = torch.tensor([[1e4, 0.0]], requires_grad=True)
        losses.generalized_cross_entropy(logits, torch.tensor([1])).backward()
        assert logits.grad.isfinite().all()


class TestHSIC:
    x = torch.tensor([[0.0], [0.0], [1.0], [1.0]], dtype=torch.float64)

    def test_vectors(self):
        assert losses.hsic(self.x, self.x).item() == pytest.approx(
            2 / 3 * (1 - math.exp(-0.5)) ** 2
        )
        crossed = torch.tensor([[0.0], [1.0], [0.0], [1.0]], dtype=torch.float64)
        assert losses.hsic(self.x, crossed).item() == pytest.approx(-0.051606, abs=1e-6)
        assert losses.hsic(self.x, torch.ones(4, 1).double()).item() == pytest.approx(0, abs=1e-15)

    def test_equals_the_sum_over_distinct_quadruples(self):
        """The unbiased estimate is a U-statistic over distinct indices i, j, q, r."""
        g = torch.Generator().manual_seed(0)
        x, y = torch.randn(6, 2, generator=g).double(), torch.randn(6, 3, generator=g).double()
        k = (-(torch.cdist(x, x) ** 2) / 2).exp().tolist()
        l = (-(torch.cdist(y, y) ** 2) / (2 * 1.5**2)).exp().tolist()  # noqa: E741
        n = range(6)
        two = [k[i][j] * l[i][j] for i in n for j in n if i != j]
        three = [k[i][j] * l[i][q] for i in n for j in n for q in n if len({i, j, q}) == 3]
        four = [
            k[i][j] * l[q][r] for i in n for j in n for q in n for r in n if len({i, j, q, r}) == 4
        ]
        expected = sum(two) / len(two) - 2 * sum(three) / len(three) + sum(four) / len(four)
        assert losses.hsic(x, y, sigma_y=1.5).item() == pytest.approx(expected, rel=1e-9)

    def test_biased_is_the_trace(self):
        x, y = torch.randn(7, 2).double(), torch.randn(7, 3).double()
        k, l = ((-(torch.cdist(a, a) ** 2) / 2).exp() for a in (x, y))  # noqa: E741
        h = torch.eye(7).double() - 1 / 7
        assert torch.allclose(
            losses.hsic(x, y, estimator="biased"), torch.trace(k @ h @ l @ h) / 36
        )

    def test_gradcheck_and_size(self):
        x, y = (
            torch.randn(6, 2).double().requires_grad_(),
            torch.randn(6, 2).double().requires_grad_(),
        )
        for estimator in ("unbiased", "biased"):
            assert torch.autograd.gradcheck(
                lambda a, b, e=estimator: losses.hsic(a, b, estimator=e), (x, y)
            )
        with pytest.raises(ValueError, match="needs at least 4 samples; got 3"):
            losses.hsic(x[:3], y[:3])


class TestLSoftmax:
    def test_margin_one_is_cross_entropy(self):
        h, w, y = torch.randn(6, 4).double(), torch.randn(3, 4).double(), torch.arange(6) % 3
        assert torch.allclose(losses.l_softmax(h, w, y, margin=1), F.cross_entropy(h @ w.T, y))
        annealed = losses.l_softmax(h, w, y, margin=4, anneal=1e9)
        assert torch.allclose(annealed, F.cross_entropy(h @ w.T, y), rtol=1e-6)

    @pytest.mark.parametrize("margin", [1, 2, 3, 4])
    def test_psi(self, margin):
        theta = torch.linspace(0, math.pi, 2001, dtype=torch.float64)
        psi = angular_margin(theta.cos(), margin)
        assert psi[0].item() == pytest.approx(1)
        assert psi[-1].item() == pytest.approx(1 - 2 * margin)
        assert (psi.diff() <= 1e-9).all()
        assert psi.diff().abs().max() < 0.01
        k = (theta * margin / math.pi).floor().clamp_max(margin - 1)
        assert torch.allclose(psi, (-1) ** k * (margin * theta).cos() - 2 * k, atol=1e-6)

    def test_harder_than_cross_entropy_with_finite_gradients_at_the_poles(self):
        h = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
        w, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
        value = losses.l_softmax(h, w, y)
        value.backward()
        assert value > F.cross_entropy(h @ w.T, y)
        assert h.grad.isfinite().all()

    def test_module_anneals_and_keeps_its_step(self):
        layer = losses.LSoftmax(4, 3)
        h, y = torch.randn(6, 4), torch.arange(6) % 3
        first = layer(h, y)
        for _ in range(20000):
            layer.steps += 1
        assert layer(h, y) > first
        assert int(layer.state_dict()["steps"]) == 20002
        assert layer.logits(h).shape == (6, 3)

    def test_annealing_stretches_over_the_steps_it_is_given(self):
        anneal = losses.l_softmax_anneal
        assert anneal(0) == anneal(0, steps=100) == 1000
        assert anneal(8_727) == pytest.approx(1, rel=1e-3)  # 29 % of the published 30,000
        assert anneal(30, steps=100) == pytest.approx(anneal(9_000))
        assert anneal(30, steps=100, least=5.0) == 5
        layer, usual = losses.LSoftmax(4, 3, anneal_steps=100), losses.LSoftmax(4, 3)
        usual.load_state_dict(layer.state_dict())
        h, y = torch.randn(6, 4), torch.arange(6) % 3
        layer.steps += 90
        usual.steps += 27_000
        assert layer(h, y) == usual(h, y)

    def test_learns(self):
        torch.manual_seed(0)
        x, y = torch.randn(128, 5), torch.randint(3, (128,))
        x[:, :3] += 2 * F.one_hot(y, 3)
        net, layer = nn.Linear(5, 8), losses.LSoftmax(8, 3, margin=2)
        step = torch.optim.Adam([*net.parameters(), *layer.parameters()], lr=0.02)
        for _ in range(150):
            step.zero_grad()
            layer(net(x), y).backward()
            step.step()
        assert (layer.logits(net(x)).argmax(1) == y).float().mean() > 0.85


class TestLargeMargin:
    def test_vector(self):
        w = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        h = torch.tensor([[0.3, 5.0]], requires_grad=True)
        value = losses.large_margin(h @ w.T, [h], torch.tensor([0]), scores="logits")
        assert value.item() == pytest.approx(0.7)
        value.backward()
        assert torch.allclose(h.grad, torch.tensor([[-1.0, 0.0]]))

    @pytest.mark.parametrize(("norm", "dual"), [("l1", math.inf), ("l2", 2), ("linf", 1)])
    def test_linear_model_distance(self, norm, dual):
        """For a linear model the estimate is the exact distance to the nearest boundary."""
        torch.manual_seed(0)
        w, h, y = torch.randn(4, 3), torch.randn(9, 3, requires_grad=True), torch.arange(9) % 4
        value = losses.large_margin(
            h @ w.T, [h], y, gamma=2.0, alpha=5.0, norm=norm, top_k=3, scores="logits"
        )
        logits, expected = h @ w.T, []
        for i in range(9):
            rivals = [j for j in range(4) if j != y[i]]
            d = min(
                ((logits[i, y[i]] - logits[i, j]) / (w[y[i]] - w[j]).norm(p=dual)).item()
                for j in rivals
            )
            expected.append(max(0.0, 2 - max(d, 2 * (1 - 5))))
        assert value.item() == pytest.approx(sum(expected) / 9, rel=1e-5)

    def test_several_layers_and_probabilities(self):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
        x = torch.randn(5, 3, requires_grad=True)
        hidden = net[0](x)
        logits = net[2](net[1](hidden))
        losses.large_margin(logits, [x, hidden], torch.arange(5) % 4, top_k=2).backward()
        assert net[0].weight.grad.abs().sum() > 0


def test_cross_entropy_vector():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    assert F.cross_entropy(logits, torch.tensor([0])).item() == pytest.approx(0.407606, abs=1e-6)
    uniform = torch.ones(1, 3) / 3
    value = losses.bias_balanced_cross_entropy(
        logits + 7, torch.tensor([0]), torch.tensor([0]), uniform
    )
    assert value.item() == pytest.approx(0.407606, abs=1e-6)
