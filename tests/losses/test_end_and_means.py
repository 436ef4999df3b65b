"""Eqs. 27–31 of the appendix: when EnD and FairKL's mean constraint agree, and how they differ.

s̄ are means of |s| and μ means of d over A⁺, C⁺, A⁻, C⁻ (ordered pairs), computed in loops.
"""

import math

import pytest
import torch

from fairmargin import losses
from tests.losses import reference as ref

SETS = ("A+", "C+", "A-", "C-")


def sets_of(z, y, b, of):
    y, b = y.tolist(), b.tolist()
    aligned = [[float(p == q) for q in b] for p in b]
    found = ref.pair_sets(ref.unit(z), y, aligned, [True] * len(y), of)
    return {name: [value for _, value in pairs] for name, pairs in zip(SETS, found, strict=True)}


def means(z, y, b, of=lambda d: abs(1 - d / 2)):
    """The mean of |s|, or of something else of d, over each set."""
    return {name: math.fsum(values) / len(values) for name, values in sets_of(z, y, b, of).items()}


def lagrangian(s, first=1.0, second=1.0):
    """Eq. 28: −λ₁(s̄_C⁺ − s̄_A⁺) − λ₂(s̄_C⁻ − s̄_A⁻)."""
    return -first * (s["C+"] - s["A+"]) - second * (s["C-"] - s["A-"])


def by_bias(s, first=1.0, second=1.0):
    """Eq. 29 with EnD's weights: λ₁·R⊥ − λ₂·R∥, R⊥ = s̄_A⁺ + s̄_A⁻, R∥ = s̄_C⁺ + s̄_C⁻."""
    return first * (s["A+"] + s["A-"]) - second * (s["C+"] + s["C-"])


def with_pairs_of_one_bias_half_positive():
    """(3, 1) samples of two labels in one bias, (1, 3) in the other: A⁺ has as many pairs as A⁻."""
    y = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1])
    b = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    z = torch.rand(8, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return z, y, b


def similarity_means(z, y, b):
    """s̄ once more, differentiable, for features whose cosines are not negative."""
    z = torch.nn.functional.normalize(z, dim=1)
    s = z @ z.T
    same, aligned = torch.eq(y, y[:, None]), torch.eq(b, b[:, None])
    others = ~torch.eye(len(y), dtype=torch.bool)
    masks = (same & aligned, same & ~aligned, ~same & aligned, ~same & ~aligned)
    return {name: s[mask & others].mean() for name, mask in zip(SETS, masks, strict=True)}


def test_eq_28_is_eq_29_with_equal_multipliers():
    """The same terms, grouped by label or by bias.

    With other multipliers the two are different objectives.
    """
    z, y, b = ref.random_batch(60, n=14)
    s = means(z[:, 0], y, b)
    assert lagrangian(s) == pytest.approx(by_bias(s), rel=1e-12)
    assert lagrangian(s, 2.0, 1.0) != pytest.approx(by_bias(s, 2.0, 1.0), rel=0.01)


def test_absolute_mean_squares_the_brackets_of_eq_28():
    """So it rests at equality, where Eq. 28, linear in them, would go on."""
    z, y, b = ref.random_batch(61, n=14)
    s = means(z[:, 0], y, b)
    squares = (s["C+"] - s["A+"]) ** 2 + (s["C-"] - s["A-"]) ** 2
    value = losses.fairkl(z, y, b, divergence="absolute-mean", negatives=True)
    assert value.item() == pytest.approx(squares, rel=1e-9)


def test_end_of_positive_cosines_in_terms_of_means():
    """R⊥ weighs A⁺ and A⁻ by their numbers; R∥ has C⁺ alone, halved; any batch, any bias."""
    for seed in range(5):
        z, y, b = ref.random_batch(62 + seed, n=20, biases=3)
        z = z[:, 0].abs()
        s, sets = means(z, y, b), sets_of(z, y, b, lambda d: d)
        positive, negative = len(sets["A+"]), len(sets["A-"])
        perpendicular = (positive * s["A+"] + negative * s["A-"]) / (positive + negative)
        parallel = 1 - (1 + s["C+"]) / 2
        found = losses.end(z, y, b, disentangle=0.7, entangle=1.3).item()
        assert found == pytest.approx(0.7 * perpendicular + 1.3 * parallel, rel=1e-9)


def test_when_end_is_eq_29_but_for_one_term():
    """Cosines ≥ 0, as many pairs in A⁺ as in A⁻: 2·EnD = Eq. 29 + s̄_C⁻ + 1, gradients too."""
    z, y, b = with_pairs_of_one_bias_half_positive()
    sets = sets_of(z, y, b, lambda d: d)
    assert len(sets["A+"]) == len(sets["A-"])
    s = means(z, y, b)
    assert 2 * losses.end(z, y, b).item() == pytest.approx(by_bias(s) + s["C-"] + 1, rel=1e-10)
    x = z.clone().requires_grad_()
    s = similarity_means(x, y, b)
    (expected,) = torch.autograd.grad(by_bias(s) + s["C-"], x)
    (found,) = torch.autograd.grad(2 * losses.end(x, y, b), x)
    assert expected.abs().max() > 0.01
    assert torch.allclose(found, expected, rtol=1e-8, atol=1e-12)


def test_when_they_are_the_same_exactly():
    """The term left over, s̄_C⁻, is 0 if samples that share neither are orthogonal."""
    _, y, b = with_pairs_of_one_bias_half_positive()
    of_cell = torch.tensor(  # [label, bias, 4]
        [[[1.0, 1, 0, 0], [1, 0, 1, 0]], [[0, 1, 0, 1], [0, 0, 1, 1]]], dtype=torch.float64
    )
    z = of_cell[y, b]
    s = means(z, y, b)
    assert s["C-"] == pytest.approx(0, abs=1e-12)
    assert [s["A+"], s["C+"], s["A-"]] == pytest.approx([1, 0.5, 0.5])
    assert 2 * losses.end(z, y, b).item() == pytest.approx(by_bias(s) + 1, rel=1e-10)
    assert by_bias(s) == pytest.approx(lagrangian(s), rel=1e-12)


def test_with_signs_end_takes_the_absolute_value_after_the_sum():
    """One bias with the cosines +½√2 and −½√2: EnD's R⊥ is 0, that of Eq. 29 is not."""
    z = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    y, b = torch.tensor([0, 0, 1]), torch.zeros(3, dtype=torch.long)
    root = math.sqrt(0.5)
    s = [abs(x) for x in (root, 0.0, -root)]
    assert losses.end(z, y, b, entangle=0.0).item() == pytest.approx(0, abs=1e-15)
    assert sum(s) / 3 > 0.4
    found = sets_of(z, y, b, lambda d: abs(1 - d / 2))
    assert sorted(found["A+"] + found["A-"]) == pytest.approx(sorted(2 * s), abs=1e-12)


def test_the_mean_constraint_stops_where_it_holds_and_end_does_not():
    """Four points at equal distances: nothing to debias, but EnD pulls C⁺ in and pushes A apart."""
    y, b = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 0])
    z = (torch.eye(4, dtype=torch.float64) + 0.5).requires_grad_()
    for divergence in ("mean", "absolute-mean", "moments", "kl"):
        value = losses.fairkl(z, y, b, divergence=divergence)
        assert value.item() == pytest.approx(0, abs=1e-12)
        assert torch.autograd.grad(value, z)[0].abs().max() < 1e-7, divergence
    (gradient,) = torch.autograd.grad(losses.end(z, y, b), z)
    mu = means((z - gradient).detach(), y, b, of=lambda d: d)
    assert mu["C+"] < mu["A+"] - 0.05


class TestDistances:
    """Eqs. 30 and 31 are in mean distances μ, d = 2 − 2s; here s ≥ 0, so s̄ = 1 − μ/2."""

    z, y, b = with_pairs_of_one_bias_half_positive()
    s = means(z, y, b)
    mu = means(z, y, b, of=lambda d: d)

    def test_eq_30_is_twice_eq_28(self):
        for first, second in ((1.0, 1.0), (0.3, 2.0)):
            eq_30 = first * (self.mu["C+"] - self.mu["A+"]) + second * (
                self.mu["C-"] - self.mu["A-"]
            )
            assert eq_30 == pytest.approx(2 * lagrangian(self.s, first, second), rel=1e-10)

    def test_end_in_distances_is_grouped_by_bias_with_one_sign_each(self):
        for first, second in ((1.0, 1.0), (0.3, 2.0)):
            grouped = -first * (self.mu["A+"] + self.mu["A-"]) + second * (
                self.mu["C+"] + self.mu["C-"]
            )
            constant = 4 * (first - second)
            assert grouped + constant == pytest.approx(
                2 * by_bias(self.s, first, second), rel=1e-10
            )

    def test_eq_31_as_printed_is_another_objective(self):
        """λ₁(μ_A⁺ − μ_A⁻) + λ₂(μ_C⁺ − μ_C⁻): two of its signs are not those of Eqs. 28 to 30."""
        eq_30 = (self.mu["C+"] - self.mu["A+"]) + (self.mu["C-"] - self.mu["A-"])
        eq_31 = (self.mu["A+"] - self.mu["A-"]) + (self.mu["C+"] - self.mu["C-"])
        assert eq_31 - eq_30 == pytest.approx(2 * (self.mu["A+"] - self.mu["C-"]), rel=1e-10)
        assert abs(eq_31 - eq_30) > 0.05
