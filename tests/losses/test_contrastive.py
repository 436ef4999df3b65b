import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from fairmargin import losses
from fairmargin.losses import _limits, members
from fairmargin.losses.pairs import PairLoss, dense
from tests.losses import reference as ref

EPSILONS = [0.0, 0.1, 0.5, 2.0, 20.0, math.inf]
MEMBERS = {
    **{f"supinfonce-{form}": partial(losses.eps_supinfonce, form=form) for form in "abcd"},
    "supinfonce-c-sum": partial(losses.eps_supinfonce, form="c", positives="sum"),
    "supcon-eps": losses.eps_supcon,
}


def looped(name, z, y, epsilon, temperature):
    if name == "supcon-eps":
        return ref.eps_supcon(z, y, epsilon, temperature)
    form = name.split("-")[1]
    return ref.eps_supinfonce(
        z, y, epsilon, temperature, form, "sum" if name.endswith("sum") else "mean"
    )


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("views", [1, 2])
def test_equals_loops_dense_and_streamed(name, epsilon, views):
    z, y, _ = ref.random_batch(1, n=9, views=views)
    expected = looped(
        name, ref.unit(z.flatten(0, 1)), y.repeat_interleave(views).tolist(), epsilon, 0.2
    )
    for chunk in (None, 1, 4, 100):
        value = MEMBERS[name](z, y, epsilon=epsilon, temperature=0.2, chunk=chunk)
        assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-10), chunk


@pytest.mark.parametrize("chunk", [None, 3])
def test_l_in_equals_loops(chunk):
    z, y, _ = ref.random_batch(2, n=11)
    value = losses.supcon_in(z, y, temperature=0.3, chunk=chunk)
    assert value.item() == pytest.approx(
        ref.supcon_in(ref.unit(z[:, 0]), y.tolist(), 0.3), rel=1e-10
    )


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, math.inf])
def test_gradcheck_dense_and_streamed(name, epsilon):
    z, y, _ = ref.random_batch(3, n=7, d=4)
    z = z.requires_grad_()
    for chunk in (None, 3):
        assert torch.autograd.gradcheck(
            lambda x, c=chunk: MEMBERS[name](x, y, epsilon=epsilon, chunk=c), (z,)
        )


@pytest.mark.parametrize("loss", [losses.supcon_in, losses.supcon])
def test_gradcheck_supcon(loss):
    z, y, _ = ref.random_batch(4, n=7, d=4)
    for chunk in (None, 2):
        assert torch.autograd.gradcheck(
            lambda x, c=chunk: loss(x, y, chunk=c), (z.requires_grad_(),)
        )


class TestIdentities:
    z, y, _ = ref.random_batch(5, n=16, views=2)

    def test_epsilon_zero_is_supcon(self):
        assert torch.equal(losses.eps_supcon(self.z, self.y), losses.supcon(self.z, self.y))

    def test_epsilon_zero_supinfonce_is_not_supcon(self):
        assert (
            losses.eps_supinfonce(self.z, self.y).item()
            < losses.supcon(self.z, self.y).item() - 0.1
        )

    def test_one_positive_makes_forms_c_and_a_equal_eps_infonce(self):
        for epsilon in EPSILONS:
            one = losses.eps_infonce(self.z, epsilon=epsilon)
            for form in "ac":
                assert torch.allclose(
                    one, losses.eps_supinfonce(self.z, torch.arange(16), epsilon=epsilon, form=form)
                )

    def test_one_positive_and_one_negative_make_all_forms_equal(self):
        z = torch.tensor([[1.0, 0.2], [0.7, -0.4], [-0.3, 1.0]], dtype=torch.float64)
        y = torch.tensor([0, 0, 1])
        values = [losses.eps_supinfonce(z, y, epsilon=0.3, form=form).item() for form in "abcd"]
        assert values == pytest.approx([values[0]] * 4, rel=1e-12)

    def test_epsilon_inf_is_info_l1o_and_the_limit(self):
        limit = losses.eps_infonce(self.z, epsilon=math.inf)
        assert torch.allclose(limit, losses.eps_infonce(self.z, epsilon=200.0), rtol=1e-12)
        rows = F.normalize(self.z.flatten(0, 1), dim=1)
        s = rows @ rows.T / 0.1
        image = torch.arange(32) // 2
        negatives = s.masked_fill(image[:, None] == image, -math.inf).logsumexp(1)
        positive = s[torch.arange(32), torch.arange(32) ^ 1]
        assert torch.allclose(limit, (negatives - positive).mean())

    def test_infonce_minus_l1o(self):
        z = torch.tensor(
            [[[1.0, 0.0], [1.0, 0.0]], [[-1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64
        )
        assert losses.eps_infonce(
            z[:, :1].repeat(1, 2, 1), temperature=1.0, epsilon=math.inf
        ).item() == pytest.approx(
            -2 + math.log(2)  # two negatives, the two views of the other image
        )
        labels = torch.tensor([0, 0, 1])
        one_negative = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        loss = partial(losses.eps_supinfonce, one_negative, labels, temperature=1.0)
        assert loss(epsilon=math.inf).item() == pytest.approx(-2)
        assert loss(epsilon=0.0).item() == pytest.approx(0.126928, abs=1e-6)

    @pytest.mark.parametrize("name", MEMBERS)
    def test_decreasing_in_epsilon(self, name):
        values = [MEMBERS[name](self.z, self.y, epsilon=epsilon).item() for epsilon in EPSILONS]
        assert all(a > b for a, b in pairwise(values))

    def test_appendix_max_form(self):
        """ε-SupCon + ε is the smooth maximum of the appendix.

        log(1 + Σ_n e^{s_n−s_i+ε} + Σ_{t≠i} e^{s_t−s_i})
        """
        z, y = ref.unit(self.z[:, 0]), self.y.tolist()
        total = []
        for p, n, _ in ref.anchors(z, y, 0.1):
            if p:
                terms = [
                    ref.log_sum_exp([sn - si + 0.4 for sn in n] + [st - si for st in p]) for si in p
                ]
                total.append(math.fsum(terms) / len(p))
        value = losses.eps_supcon(self.z[:, 0], self.y, epsilon=0.4).item() + 0.4
        assert value == pytest.approx(ref.mean_over_valid(total), rel=1e-10)

    def test_l_in_below_l_out_and_equal_with_one_positive(self):
        assert losses.supcon_in(self.z, self.y) < losses.supcon(self.z, self.y)
        assert torch.allclose(losses.supcon_in(self.z), losses.supcon(self.z))

    def test_simclr_is_supcon_with_distinct_labels(self):
        assert torch.equal(losses.simclr(self.z), losses.supcon(self.z, torch.arange(16)))

    def test_simclr_vectors(self):
        two = torch.eye(2)[:, None].repeat(1, 2, 1)
        assert losses.simclr(two, temperature=1.0).item() == pytest.approx(math.log(1 + 2 / math.e))
        assert losses.simclr(two[:1], temperature=1.0).item() == 0

    def test_views_are_rows(self):
        flat = self.z.flatten(0, 1)
        labels = self.y.repeat_interleave(2)
        assert torch.equal(
            losses.eps_supinfonce(self.z, self.y), losses.eps_supinfonce(flat, labels)
        )

    def test_normalized_input_gives_the_same_value(self):
        unit = F.normalize(self.z, dim=2)
        assert torch.allclose(
            losses.supcon(self.z * 7, self.y), losses.supcon(unit, self.y), rtol=1e-12
        )
        assert torch.allclose(
            losses.supcon(unit, self.y), losses.supcon(unit, self.y, unit_norm=False), rtol=1e-12
        )

    @pytest.mark.parametrize("name", [*MEMBERS, "in"])
    def test_permutation_and_relabelling(self, name):
        loss = losses.supcon_in if name == "in" else partial(MEMBERS[name], epsilon=0.3)
        order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
        for chunk in (None, 5):
            value = loss(self.z, self.y, chunk=chunk)
            assert torch.allclose(
                value, loss(self.z[order], self.y[order], chunk=chunk), rtol=1e-12
            )
            assert torch.allclose(value, loss(self.z, 40 - 3 * self.y, chunk=chunk), rtol=1e-12)


class TestReferenceBatch:
    """The four-point batch R4, τ = 1: values by hand."""

    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 1])

    @pytest.mark.parametrize(
        ("loss", "per_anchor"),
        [
            (losses.supcon, (0.907606, 1.098612, 0.907606)),
            (losses.supcon_in, (0.787491, 1.098612, 0.787491)),
            (partial(losses.eps_supcon, epsilon=0.5), (0.464369, 0.794377, 0.464369)),
            (losses.eps_supinfonce, (0.220095, 0.693147, 0.220095)),
            (partial(losses.eps_supinfonce, epsilon=0.5), (-0.162255, 0.474077, -0.162255)),
        ],
    )
    @pytest.mark.parametrize("chunk", [None, 2])
    def test_values(self, loss, per_anchor, chunk):
        value = loss(self.z, self.y, temperature=1.0, chunk=chunk).item()
        assert value == pytest.approx(sum(per_anchor) / 3, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.01, 0.02, 0.05, 0.07, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 20.0, math.inf])
@pytest.mark.parametrize("chunk", [None, 37])
def test_float32_is_right_at_every_temperature(temperature, epsilon, chunk):
    z, y, _ = ref.random_batch(6, n=128, d=64, classes=5)
    z = z[:, 0].float()
    for name in ("supinfonce-c", "supcon-eps", "supinfonce-a"):
        exact = MEMBERS[name](z.double(), y, temperature=temperature, epsilon=epsilon)
        value = MEMBERS[name](z, y, temperature=temperature, epsilon=epsilon, chunk=chunk)
        assert value.item() == pytest.approx(exact.item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.01, 0.03, 0.1])
def test_float32_gradient_is_right_at_low_temperature(temperature):
    z, y, _ = ref.random_batch(7, n=96, d=32, classes=4)
    gradients = []
    for dtype, chunk in ((torch.float64, None), (torch.float32, None), (torch.float32, 40)):
        x = z[:, 0].to(torch.float32).to(dtype).requires_grad_()
        losses.eps_supinfonce(x, y, temperature=temperature, epsilon=0.5, chunk=chunk).backward()
        gradients.append(x.grad.double())
    for other in gradients[1:]:
        assert (other - gradients[0]).norm() < 2e-4 * gradients[0].norm()


@pytest.mark.parametrize("name", [n for n in MEMBERS if n != "supinfonce-d"])
@pytest.mark.parametrize("classes", [2, 10, 450])
def test_large_batch_is_streamed_and_equals_dense(name, classes):
    """Few large classes, many, and about one sample in each."""
    n = 900
    assert n > _limits.LIMITS["cpu"].one_block
    z, y, _ = ref.random_batch(8, n=n, d=16, classes=classes)
    z = z[:, 0]
    form = name.split("-")[1]
    if name == "supcon-eps":
        member = partial(members.supcon_out, epsilon=0.25)
    else:
        member = partial(members.FORMS[form], epsilon=0.25)
    if form == "c":
        member = partial(member, positives="sum" if name.endswith("sum") else "mean")
    x = z.clone().requires_grad_()
    total, valid = dense(F.normalize(x, dim=1), y, PairLoss(member, temperature=0.1))
    (expected,) = torch.autograd.grad(total / valid, x)
    value = MEMBERS[name](x, y, epsilon=0.25)
    (gradient,) = torch.autograd.grad(value, x)
    assert value.item() == pytest.approx((total / valid).item(), rel=1e-11)
    assert (gradient - expected).abs().max() < 1e-9 * expected.abs().max()


def test_streamed_has_no_second_derivative_and_says_so():
    z, y, _ = ref.random_batch(9)
    x = z[:, 0].requires_grad_()
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(losses.supcon(x, y, chunk=4), x, create_graph=True)


@pytest.mark.parametrize("name", MEMBERS)
def test_second_derivatives_of_small_batches(name):
    z, y, _ = ref.random_batch(9, n=6, d=3)
    x = z[:, 0].requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: MEMBERS[name](x, y, epsilon=0.3), (x,))


def test_value_alone_needs_no_gradient_work():
    z, y, _ = ref.random_batch(10)
    with torch.no_grad():
        value = losses.supcon(z, y, chunk=4)
    assert not value.requires_grad
    assert value.item() == pytest.approx(losses.supcon(z, y).item())
