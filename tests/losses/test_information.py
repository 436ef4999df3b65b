"""Bounds of the mutual information (Eq. 3), and the largest ε that can be met."""

import math
import warnings

import pytest
import torch
from torch.nn import functional as F

from fairmargin import losses
from fairmargin.losses import _limits
from tests.losses import reference as ref

NAMES = ("infonce", "infol1o", "lower", "upper")


def numbers(bounds):
    return [getattr(bounds, name).item() for name in NAMES]


def gaussians(n, dimensions, rho, generator):
    """Pairs whose coordinates have the correlation rho: I = −dimensions/2·log(1 − rho²)."""
    x, noise = torch.randn(2, n, dimensions, generator=generator, dtype=torch.float64)
    return x, rho * x + math.sqrt(1 - rho**2) * noise


def log_density_ratio(x, y, rho):
    """log p(y_j|x_i)/p(y_j), [N, N]."""
    left = -((y[None] - rho * x[:, None]) ** 2) / (2 * (1 - rho**2)) + y[None] ** 2 / 2
    return (left - math.log(1 - rho**2) / 2).sum(2)


def over_batches(batches, one):
    """Means of the four numbers over batches, and the largest error of `lower` and `upper`."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.tensor([numbers(one(generator)) for _ in range(batches)], dtype=torch.float64)
    error = rows.std(0)[2:].max().item() / math.sqrt(batches)
    return dict(zip(NAMES, rows.mean(0).tolist(), strict=True)), error


class TestGaussians:
    @pytest.mark.parametrize("n", [4, 32, 128])
    @pytest.mark.parametrize(("dimensions", "rho"), [(1, 0.5), (2, 0.8), (4, 0.9)])
    def test_the_optimal_critic_has_the_truth_between(self, n, dimensions, rho):
        truth = -dimensions / 2 * math.log(1 - rho**2)

        def one(generator):
            x, y = gaussians(n, dimensions, rho, generator)
            return losses.information_bounds_from_scores(log_density_ratio(x, y, rho))

        mean, error = over_batches(12_000 // n, one)
        assert error < 0.1
        assert mean["lower"] < truth + 3 * error
        assert mean["upper"] > truth - 3 * error
        assert mean["lower"] < math.log(n)

    def test_both_come_close_in_large_batches(self):
        rho, truth = 0.8, -math.log(1 - 0.8**2)
        x, y = gaussians(2000, 2, rho, torch.Generator().manual_seed(1))
        found = losses.information_bounds_from_scores(log_density_ratio(x, y, rho))
        assert found.lower.item() == pytest.approx(truth, abs=0.06)
        assert found.upper.item() == pytest.approx(truth, abs=0.06)

    def test_the_printed_forms_do_not_hold_it(self):
        """The left side of Eq. 3 is negative whatever the truth, the right side far below it."""
        rho, truth = 0.8, -math.log(1 - 0.8**2)
        x, y = gaussians(256, 2, rho, torch.Generator().manual_seed(2))
        found = losses.information_bounds_from_scores(log_density_ratio(x, y, rho))
        assert found.infonce.item() < 0
        assert found.infol1o.item() < truth - 3
        assert found.lower.item() - found.infonce.item() == pytest.approx(math.log(256), rel=1e-12)
        assert found.upper.item() - found.infol1o.item() == pytest.approx(math.log(255), rel=1e-12)

    def test_any_critic_gives_a_lower_bound_and_a_wrong_one_no_upper(self):
        rho, truth = 0.9, -0.5 * 3 * math.log(1 - 0.9**2)

        def one(generator):
            x, y = gaussians(64, 3, rho, generator)
            return losses.information_bounds_from_scores(0.2 * log_density_ratio(x, y, rho))

        mean, error = over_batches(100, one)
        assert mean["lower"] < truth - 3 * error
        assert mean["upper"] < truth - 3 * error

    def test_a_function_of_the_anchor_does_not_matter(self):
        x, y = gaussians(20, 2, 0.7, torch.Generator().manual_seed(3))
        scores = log_density_ratio(x, y, 0.7)
        shifted = scores + torch.linspace(-30, 30, 20, dtype=torch.float64)[:, None]
        plain, moved = (
            numbers(losses.information_bounds_from_scores(s)) for s in (scores, shifted)
        )
        assert plain == pytest.approx(moved, rel=1e-9)

    def test_independent_pairs_have_none(self):
        found = numbers(losses.information_bounds_from_scores(torch.zeros(9, 9)))
        assert found == pytest.approx([-math.log(9), -math.log(8), 0, 0], abs=1e-6)


class TestLabels:
    """Two classes N(±m, 1): KL(p(x|y) ‖ p(x|other)) = 2m².

    The critic is log N(x⁺; y·m)/N(x⁺; −y·m) = 2m·y·x⁺.
    """

    @pytest.mark.parametrize("m", [0.5, 0.9])
    @pytest.mark.parametrize("n", [8, 64])
    def test_bound_the_divergence_between_a_class_and_the_others(self, m, n):
        sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)

        def one(generator):
            x = sign * m + torch.randn(n, generator=generator, dtype=torch.float64)
            scores = 2 * m * sign[:, None] * x
            return losses.information_bounds_from_scores(scores, (sign > 0).long())

        mean, error = over_batches(20_000 // n, one)
        assert mean["lower"] < 2 * m**2 + 3 * error
        assert mean["upper"] > 2 * m**2 - 3 * error

    def test_are_no_bound_of_the_information_of_the_pair(self):
        """Two classes told apart: I(X⁺, X) = log 2, and "lower" is the log of the batch."""
        y = torch.arange(64) % 2
        found = losses.information_bounds(F.one_hot(y, 2).double(), y, temperature=0.01)
        assert found.lower.item() == pytest.approx(math.log(33), abs=1e-9)
        assert found.lower.item() > math.log(2) + 2


class TestFeatures:
    z, y, _ = ref.random_batch(70, n=9, views=2)

    def looped(self, z, y, temperature):
        """`y` of each image; views of one image follow each other."""
        views = z.shape[1]
        rows, labels = ref.unit(z.flatten(0, 1)), [label for label in y for _ in range(views)]
        everyone = range(len(rows))
        scores = [[ref.dot(a, c) / temperature for c in rows] for a in rows]
        positives = [[j for j in everyone if j != i and labels[j] == labels[i]] for i in everyone]
        negatives = [[j for j in everyone if labels[j] != labels[i]] for i in everyone]
        images = [len({j // views for j in n}) for n in negatives]
        return ref.information_bounds(scores, positives, negatives, images)

    @pytest.mark.parametrize("chunk", [None, 1, 4, 100])
    @pytest.mark.parametrize("labelled", [False, True])
    def test_equal_loops(self, labelled, chunk):
        expected = self.looped(self.z, self.y.tolist() if labelled else list(range(9)), 0.2)
        labels = self.y if labelled else None
        found = losses.information_bounds(self.z, labels, temperature=0.2, chunk=chunk)
        assert numbers(found) == pytest.approx(expected, rel=1e-10)

    def test_labels_without_views_equal_loops_and_their_scores(self):
        z, y = self.z[:, 0], self.y
        found = numbers(losses.information_bounds(z, y))
        assert found == pytest.approx(self.looped(z[:, None], y.tolist(), 0.1), rel=1e-10)
        unit = F.normalize(z, dim=1)
        assert found == pytest.approx(
            numbers(losses.information_bounds_from_scores(unit @ unit.T / 0.1, y)), rel=1e-10
        )

    def test_the_printed_forms_are_the_losses_at_both_ends(self):
        views = losses.information_bounds(self.z)
        labelled = losses.information_bounds(self.z, self.y)
        for epsilon, name in ((0.0, "infonce"), (math.inf, "infol1o")):
            assert torch.allclose(
                getattr(views, name), -losses.eps_infonce(self.z, epsilon=epsilon)
            )
            expected = -losses.eps_supinfonce(self.z, self.y, epsilon=epsilon)
            assert torch.allclose(getattr(labelled, name), expected)

    def test_the_constants(self):
        """Without labels log N and log V(N−1); with labels the means over the anchors."""
        found = losses.information_bounds(self.z)
        assert (found.lower - found.infonce).item() == pytest.approx(math.log(9), rel=1e-10)
        assert (found.upper - found.infol1o).item() == pytest.approx(math.log(16), rel=1e-10)
        y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
        found = losses.information_bounds(self.z[:, 0], y)
        negatives = [5] * 4 + [6] * 3 + [7] * 2
        lower, upper = (sum(math.log(k + extra) for k in negatives) / 9 for extra in (1, 0))
        assert (found.lower - found.infonce).item() == pytest.approx(lower, rel=1e-10)
        assert (found.upper - found.infol1o).item() == pytest.approx(upper, rel=1e-10)

    def test_views_count_once_or_the_lower_bound_would_not_be_one(self):
        """Every view tells its image, in a batch of all images: I = log N, not log(1 + V(N−1))."""
        z = torch.eye(16, dtype=torch.float64)[:, None].repeat(1, 4, 1)
        found = losses.information_bounds(z, temperature=0.01)
        assert found.lower.item() == pytest.approx(math.log(16), abs=1e-9)
        assert found.lower.item() < math.log(1 + 4 * 15) - 1

    def test_alone_in_its_class_is_no_anchor(self):
        y = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2])
        found = losses.information_bounds(self.z[:, 0], y)
        assert numbers(found) == pytest.approx(
            self.looped(self.z[:, :1], y.tolist(), 0.1), rel=1e-10
        )

    @pytest.mark.parametrize(
        "y", [torch.zeros(9, dtype=torch.long), torch.arange(9)], ids=["one class", "no pair"]
    )
    def test_nothing_to_compare_is_nan_without_a_warning(self, y):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = [losses.information_bounds(self.z[:, 0], y, chunk=chunk) for chunk in (None, 2)]
            found.append(losses.information_bounds_from_scores(torch.zeros(9, 9), y))
            found.append(losses.information_bounds(torch.zeros(0, 2, 3)))
            found.append(losses.information_bounds_from_scores(torch.zeros(1, 1)))
        assert all(math.isnan(x) for bounds in found for x in numbers(bounds))

    def test_large_batches_are_streamed(self):
        z, y, _ = ref.random_batch(71, n=_limits.LIMITS["cpu"].one_block + 100, d=8, classes=5)
        unit = F.normalize(z[:, 0], dim=1)
        expected = numbers(losses.information_bounds_from_scores(unit @ unit.T / 0.1, y))
        assert numbers(losses.information_bounds(z, y)) == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("name", NAMES)
    def test_gradcheck(self, name):
        z = self.z[:5].clone().requires_grad_()
        for chunk in (None, 3):
            bound = lambda x, c=chunk: getattr(
                losses.information_bounds(x, self.y[:5] % 2, chunk=c), name
            )
            assert torch.autograd.gradcheck(bound, (z,))
        scores = torch.randn(
            4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        ).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda s: getattr(losses.information_bounds_from_scores(s), name), (scores,)
        )

    def test_compiled(self):
        bounds = lambda z, y: losses.information_bounds(z, y).upper
        compiled = torch.compile(bounds, backend="aot_eager", fullgraph=True)
        assert compiled(self.z, self.y).item() == pytest.approx(
            bounds(self.z, self.y).item(), rel=1e-9
        )

    def test_half_precision_is_raised_and_double_kept(self):
        assert losses.information_bounds(self.z.bfloat16()).lower.dtype == torch.float32
        assert losses.information_bounds(self.z).upper.dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            inside = losses.information_bounds(self.z.float())
        assert torch.equal(inside.lower, losses.information_bounds(self.z.float()).lower)

    def test_messages(self):
        with pytest.raises(ValueError, match="without labels the positives are other views"):
            losses.information_bounds(self.z[:, 0])
        with pytest.raises(TypeError, match=r"features must be a torch.Tensor; got list"):
            losses.information_bounds([[1.0]])
        with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
            losses.information_bounds(self.z, temperature=0)
        with pytest.raises(ValueError, match=r"scores must be square.*got \[9, 2\]"):
            losses.information_bounds_from_scores(self.z[:, :, 0])
        with pytest.raises(ValueError, match="labels has 4 entries"):
            losses.information_bounds_from_scores(torch.zeros(9, 9), self.y[:4])


def smallest_lead(z, temperature):
    """Of the positives over the negatives, each class with all its samples at one point."""
    z = F.normalize(z, dim=1)
    cosines = (z @ z.T)[~torch.eye(len(z), dtype=torch.bool)]
    return ((1 - cosines.max()) / temperature).item()


class TestLargestEpsilon:
    def test_values(self):
        assert losses.largest_epsilon() == pytest.approx(20)
        assert losses.largest_epsilon(temperature=0.5) == pytest.approx(4)
        assert losses.largest_epsilon(2) == pytest.approx(20)
        assert losses.largest_epsilon(10) == pytest.approx(100 / 9)
        assert losses.largest_epsilon(1000, 0.07) == pytest.approx(1000 / 999 / 0.07)

    @pytest.mark.parametrize("classes", [2, 3, 10])
    def test_a_simplex_meets_it_and_nothing_exceeds_it(self, classes):
        most = losses.largest_epsilon(classes, 0.2)
        simplex = torch.eye(classes, dtype=torch.float64) - 1 / classes
        assert smallest_lead(simplex, 0.2) == pytest.approx(most, rel=1e-9)
        g = torch.Generator().manual_seed(classes)
        for dimensions in (2, 9):
            for _ in range(50):
                z = torch.randn(classes, dimensions, generator=g, dtype=torch.float64)
                assert smallest_lead(z, 0.2) <= most + 1e-9

    def test_descent_on_supcon_ends_there(self):
        """Graf et al.: the minimum of SupCon is the simplex, with the gap K/(K−1) of cosines."""
        y = torch.arange(12) % 4
        x = torch.randn(
            12, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        ).requires_grad_()
        step = torch.optim.Adam([x], lr=0.05)
        for _ in range(600):
            step.zero_grad()
            losses.supcon(x, y, temperature=0.5).backward()
            step.step()
        z = F.normalize(x.detach(), dim=1)
        s, same = z @ z.T, torch.eq(y, y[:, None])
        assert ((s[same].min() - s[~same].max()) / 0.5).item() == pytest.approx(
            losses.largest_epsilon(4, 0.5), rel=0.02
        )

    def test_messages(self):
        with pytest.raises(ValueError, match="classes must be at least 2"):
            losses.largest_epsilon(1)
        with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
            losses.largest_epsilon(3, 0.0)


class TestWarning:
    MODULES = (losses.EpsInfoNCE, losses.EpsSupInfoNCE, losses.EpsSupCon)

    @pytest.mark.parametrize("module", MODULES)
    def test_a_module_warns_once_where_it_is_made(self, module):
        with pytest.warns(
            UserWarning, match="epsilon=30 is more than any embedding can meet"
        ) as caught:
            loss = module(epsilon=30)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            z, y, _ = ref.random_batch(72, n=4, views=2)
            arguments = (z,) if module is losses.EpsInfoNCE else (z, y)
            loss(*arguments)

    @pytest.mark.parametrize("module", MODULES)
    @pytest.mark.parametrize(
        "settings",
        [{"epsilon": 20}, {"epsilon": math.inf}, {"epsilon": 30, "unit_norm": False}, {}],
    )
    def test_what_is_legal_or_unbounded_is_silent(self, module, settings):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert module(**settings).settings["unit_norm"] is settings.get("unit_norm", True)

    def test_the_function_never_warns(self):
        z, y, _ = ref.random_batch(73)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert losses.eps_supinfonce(z, y, epsilon=1e3).isfinite()
