"""Bad input gets an error that names the argument, what was given, and what to do."""

import math
from functools import partial
from typing import get_args

import pytest
import torch

from fairmargin import losses
from fairmargin.losses import choices
from fairmargin.losses.divergences import DIVERGENCES
from fairmargin.losses.margin import DUAL_NORM
from fairmargin.losses.members import FORMS

Z = torch.randn(6, 4)
Y = torch.tensor([0, 0, 1, 1, 2, 2])
B = torch.tensor([0, 1, 0, 1, 0, 1])
G = torch.rand(6, 3) + 0.1

PAIRWISE = {
    "eps_supinfonce": losses.eps_supinfonce,
    "eps_supcon": losses.eps_supcon,
    "supcon": losses.supcon,
    "supcon_in": losses.supcon_in,
    "fairkl": lambda z, y: losses.fairkl(z, y, B),
    "end": lambda z, y: losses.end(z, y, B),
    "biascon": lambda z, y: losses.biascon(z, y, B),
    "softcon": lambda z, y: losses.softcon(z, y, G),
}


@pytest.mark.parametrize("name", PAIRWISE)
class TestEveryPairwiseLoss:
    def test_mismatched_length(self, name):
        with pytest.raises(
            ValueError,
            match=r"labels has 5 entries but features has 6 samples; give one for each sample",
        ):
            PAIRWISE[name](Z, Y[:5])

    def test_wrong_ndim(self, name):
        with pytest.raises(
            ValueError, match=r"features must have shape \[N, D\] or \[N, V, D\]; got \[6\]"
        ):
            PAIRWISE[name](Z[:, 0], Y)
        with pytest.raises(ValueError, match=r"labels must have shape \[N\]; got \[6, 1\]"):
            PAIRWISE[name](Z, Y[:, None])

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_not_finite(self, name, bad):
        z = Z.clone()
        z[3, 1] = bad
        with pytest.raises(
            ValueError,
            match=(
                r"features has NaN or inf in 1 of 6 rows \(first: row 3\).*"
                r"lower the learning rate"
            ),
        ):
            PAIRWISE[name](z, Y)

    def test_float_labels(self, name):
        with pytest.raises(
            TypeError, match=r"labels must be integers; got torch.float32.*labels.long\(\)"
        ):
            PAIRWISE[name](Z, Y.float())

    def test_not_tensors(self, name):
        with pytest.raises(
            TypeError, match=r"features must be a torch.Tensor; got list.*torch.as_tensor"
        ):
            PAIRWISE[name]([[1.0, 2.0]], Y)
        with pytest.raises(TypeError, match=r"labels must be a torch.Tensor of integers; got list"):
            PAIRWISE[name](Z, [0, 0, 1, 1, 2, 2])

    def test_integer_features(self, name):
        with pytest.raises(TypeError, match=r"features must be floating point; got torch.int64"):
            PAIRWISE[name](torch.ones(6, 4, dtype=torch.long), Y)


@pytest.mark.parametrize(
    "loss", [losses.eps_infonce, losses.simclr, losses.supcon, losses.supcon_in]
)
def test_not_tensors_and_no_labels(loss):
    with pytest.raises(
        TypeError, match=r"features must be a torch.Tensor; got list.*torch.as_tensor"
    ):
        loss([[1.0, 2.0]])


@pytest.mark.parametrize(
    "loss", [losses.eps_supinfonce, losses.eps_supcon, losses.supcon, losses.supcon_in]
)
@pytest.mark.parametrize("temperature", [0, -0.1, math.nan, math.inf, "0.1"])
def test_temperature(loss, temperature):
    with pytest.raises(
        ValueError, match=r"temperature must be a finite number above 0; got .*The paper uses 0.1"
    ):
        loss(Z, Y, temperature=temperature)


@pytest.mark.parametrize(
    "loss",
    [
        losses.eps_supinfonce,
        losses.eps_supcon,
        lambda z, y, **k: losses.eps_infonce(z[:, None].repeat(1, 2, 1), **k),
    ],
)
@pytest.mark.parametrize("epsilon", [-0.1, math.nan, -math.inf, None])
def test_epsilon(loss, epsilon):
    with pytest.raises(ValueError, match="epsilon must be a number from 0 to inf; got"):
        loss(Z, Y, epsilon=epsilon)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            partial(losses.fairkl, Z, Y, B, divergence="jefreys"),
            "unknown divergence 'jefreys': did you mean 'jeffreys'?",
        ),
        (
            partial(losses.fairkl, Z, Y, B, scope="anchors"),
            "unknown scope 'anchors': did you mean 'anchor'?",
        ),
        (
            partial(losses.fairkl, Z, Y, B, variant="author"),
            "unknown variant 'author': did you mean 'authors'?",
        ),
        (
            partial(losses.fairkl, Z, Y, B, normalize="weight"),
            "unknown normalize 'weight': did you mean 'weights'?",
        ),
        (
            partial(losses.fairkl, Z, Y, B, views="frist"),
            "unknown views 'frist': did you mean 'first'?",
        ),
        (partial(losses.fairkl, Z, Y, B, variance_floor=-1), "variance_floor must be ≥ 0; got -1"),
        (
            partial(losses.fairkl, Z, Y),
            "FairKL needs bias labels or bias features and this batch has neither; give the ",
        ),
        (
            partial(losses.fairkl, Z, Y, B, bias_features=G),
            "either bias or bias_features, not both",
        ),
        (
            partial(losses.fairkl, Z, Y, bias_features=G[:4]),
            "bias_features has 4 rows but features has 6 samples",
        ),
        (
            partial(losses.fairkl, Z, Y, bias_features=torch.zeros(6, 2)),
            "bias_features has 6 rows of zeros",
        ),
        (partial(losses.fairkl, Z, Y, B[:2]), "bias has 2 entries but features has 6 samples"),
        (partial(losses.fairkl, Z, Y, B - 3), "bias must be ≥ 0, or −1 for unknown; got -3"),
        (partial(losses.eps_supinfonce, Z, Y, form="e"), "unknown form 'e'"),
        (partial(losses.eps_supinfonce, Z, Y, positives="average"), "unknown positives 'average'"),
        (partial(losses.eps_supinfonce, Z, Y, chunk=0), "chunk must be a whole number of rows ≥ 1"),
        (partial(losses.eps_infonce, Z), "without labels the positives are other views"),
        (partial(losses.supcon, Z), "without labels the positives are other views"),
        (partial(losses.biascon, Z, Y, None), "BiasCon needs bias labels; got None"),
        (partial(losses.biascon, Z, Y, B, anchors="some"), "unknown anchors 'some'"),
        (partial(losses.end, Z, Y, B, pairs="half"), "unknown pairs 'half'"),
        (partial(losses.hsic, Z, Z[:3]), "x has 6 rows and y has 3"),
        (partial(losses.hsic, Z, Z, sigma_x=0), "sigma_x must be above 0; got 0"),
        (partial(losses.generalized_cross_entropy, Z, Y, q=2), "q must lie in [0, 1]; got 2"),
        (
            partial(losses.generalized_cross_entropy, Z[:, :2], Y),
            "labels must lie in 0…1 for 2 classes; got 0…2",
        ),
        (
            partial(losses.l_softmax, Z, torch.ones(3, 4), Y, margin=0.5),
            "margin must be a whole number ≥ 1; got 0.5",
        ),
        (
            partial(losses.l_softmax, Z, torch.ones(2, 4), Y),
            "labels must lie in 0…1 for 2 classes; got 0…2",
        ),
        (partial(losses.large_margin, Z, [], Y), "layers is empty"),
        (
            partial(losses.large_margin, Z[:, :2], [Z], Y),
            "labels must lie in 0…1 for 2 classes; got 0…2",
        ),
        (partial(losses.large_margin, Z, [Z], Y), "one of them has no gradient"),
        (partial(losses.fairkl, Z, Y, B, chunk=-1), "chunk must be a whole number of rows ≥ 1"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert message in str(error.value)


def test_small_integer_and_bool_labels_are_fine():
    expected = losses.supcon(Z[:4], Y[:4])
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.bool):
        for chunk in (None, 2):
            assert torch.allclose(losses.supcon(Z[:4], Y[:4].to(dtype), chunk=chunk), expected)


def test_tables_have_an_entry_for_every_choice():
    assert set(DIVERGENCES) == set(get_args(choices.Divergence))
    assert set(FORMS) == set(get_args(choices.Form))
    assert set(DUAL_NORM) == set(get_args(choices.Norm))


def test_a_module_takes_the_keywords_of_its_function():
    assert losses.FairKL(scope="anchor").settings["scope"] == "anchor"
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilom'"):
        losses.EpsSupInfoNCE(epsilom=0.25)
    with pytest.raises(TypeError, match="unexpected keyword argument 'bias_features'"):
        losses.FairKL(bias_features=G)
