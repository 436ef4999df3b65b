"""The losses inside other people's loops: autocast, half precision, float64, torch.compile."""

import math

import pytest
import torch
from torch import nn

from fairmargin import losses
from tests.losses import reference as ref

LOSSES = {
    **{
        f"supinfonce-{form}": lambda z, y, b, f=form: losses.eps_supinfonce(
            z, y, epsilon=0.25, form=f
        )
        for form in "abcd"
    },
    "supinfonce-inf": lambda z, y, b: losses.eps_supinfonce(z, y, epsilon=math.inf),
    "supinfonce-streamed": lambda z, y, b: losses.eps_supinfonce(z, y, epsilon=0.25, chunk=7),
    "supcon-eps": lambda z, y, b: losses.eps_supcon(z, y, epsilon=0.25),
    "supcon-in": lambda z, y, b: losses.supcon_in(z, y),
    "fairkl": lambda z, y, b: losses.fairkl(z, y, b, negatives=True),
    "fairkl-anchor": lambda z, y, b: losses.fairkl(z, y, b, scope="anchor"),
    "fairkl-authors": lambda z, y, b: losses.fairkl(z, y, b, variant="authors"),
    "fairkl-features": lambda z, y, b: losses.fairkl(
        z, y, bias_features=torch.nn.functional.one_hot(b, 3).float()
    ),
    "biascon": lambda z, y, b: losses.biascon(z, y, b),
    "softcon": lambda z, y, b: losses.softcon(
        z, y, torch.nn.functional.one_hot(b, 3) + torch.rand(1)
    ),
    "end": lambda z, y, b: losses.end(z, y, b),
}


def batch(dtype=torch.float32, views=2):
    z, y, b = ref.random_batch(40, n=20, d=8, views=views)
    return (z if views > 1 else z[:, 0]).to(dtype), y, b


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_computes_in_float32(name):
    z, y, b = batch()
    torch.manual_seed(0)
    expected = LOSSES[name](z, y, b)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = LOSSES[name](z, y, b)
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_half_features_from_a_network_under_autocast(name):
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    z, y, b = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = net(z)
        assert features.dtype == torch.bfloat16
        value = LOSSES[name](features, y, b)
    value.backward()
    torch.manual_seed(1)
    exact = LOSSES[name](features.detach().double(), y, b)
    torch.manual_seed(1)
    again = LOSSES[name](features.detach(), y, b)
    assert value.dtype == torch.float32
    assert again.item() == pytest.approx(exact.item(), rel=1e-5, abs=1e-5)
    assert net.weight.grad.isfinite().all()
    assert net.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", LOSSES)
def test_float64_stays_and_views_are_rows(name):
    z, y, b = batch(torch.float64)
    torch.manual_seed(0)
    value = LOSSES[name](z, y, b)
    torch.manual_seed(0)
    rows = LOSSES[name](z.flatten(0, 1), y.repeat_interleave(2), b.repeat_interleave(2))
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(rows.item(), rel=1e-12)


QUICK = ("supinfonce-c", "fairkl")
COMPILED = [
    pytest.param(name, "aot_eager", marks=[] if name in QUICK else pytest.mark.slow)
    for name in LOSSES
    if name != "softcon"  # which draws random numbers above
]
COMPILED += [
    pytest.param(name, "inductor", marks=pytest.mark.slow) for name in ("supinfonce-c", "fairkl")
]


@pytest.mark.parametrize(("name", "backend"), COMPILED)
def test_compile(name, backend):
    z, y, b = batch()
    torch._dynamo.reset()
    compiled = torch.compile(LOSSES[name], backend=backend)
    results = []
    for loss in (LOSSES[name], compiled):
        x = z.clone().requires_grad_()
        value = loss(x, y, b)
        value.backward()
        results.append((value.item(), x.grad))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-5)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["supinfonce-c", "supcon-eps", "supcon-in", "fairkl", "biascon"])
def test_small_batches_compile_into_one_graph(name):
    z, y, b = batch()
    torch._dynamo.reset()
    value = torch.compile(LOSSES[name], fullgraph=True, backend="aot_eager")(z, y, b)
    assert value.item() == pytest.approx(LOSSES[name](z, y, b).item(), rel=1e-5)


@pytest.mark.slow
def test_compile_at_a_streamed_size():
    z, y, b = ref.random_batch(41, n=800, d=16, classes=10)
    x = z[:, 0].float().requires_grad_()
    loss = lambda z: losses.eps_supinfonce(z, y, epsilon=0.25) + losses.fairkl(z, y, b)
    torch._dynamo.reset()
    expected, value = loss(x), torch.compile(loss, backend="aot_eager")(x)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(
        torch.autograd.grad(value, x)[0], torch.autograd.grad(expected, x)[0], rtol=1e-3, atol=1e-7
    )


def test_modules_equal_functions():
    z, y, b = batch()
    one = z[:, 0]
    g = torch.nn.functional.one_hot(b, 3).float()
    logits = one[:, :3]
    prior = torch.rand(3, 3)
    pairs = [
        (losses.EpsInfoNCE(epsilon=0.2)(z), losses.eps_infonce(z, epsilon=0.2)),
        (
            losses.EpsSupInfoNCE(epsilon=0.2, form="a")(z, y),
            losses.eps_supinfonce(z, y, epsilon=0.2, form="a"),
        ),
        (losses.EpsSupCon(epsilon=0.2)(z, y), losses.eps_supcon(z, y, epsilon=0.2)),
        (losses.SupCon(temperature=0.2)(z, y), losses.supcon(z, y, temperature=0.2)),
        (losses.SupConIn()(z, y), losses.supcon_in(z, y)),
        (losses.SimCLR()(z), losses.simclr(z)),
        (
            losses.FairKL(divergence="moments")(z, y, b),
            losses.fairkl(z, y, b, divergence="moments"),
        ),
        (losses.FairKL()(z, y, bias_features=g), losses.fairkl(z, y, bias_features=g)),
        (losses.EnD(entangle=2)(z, y, b), losses.end(z, y, b, entangle=2)),
        (losses.BiasCon()(z, y, b), losses.biascon(z, y, b)),
        (losses.SoftCon()(z, y, g), losses.softcon(z, y, g)),
        (
            losses.BiasBalancedCrossEntropy(prior)(logits, y, b),
            losses.bias_balanced_cross_entropy(logits, y, b, prior),
        ),
        (
            losses.GeneralizedCrossEntropy(q=0.5)(logits, y),
            losses.generalized_cross_entropy(logits, y, q=0.5),
        ),
        (losses.HSIC(sigma_x=2.0)(one, logits), losses.hsic(one, logits, sigma_x=2.0)),
    ]
    for module, function in pairs:
        assert torch.equal(module, function)
    shown = repr(losses.EpsSupInfoNCE(epsilon=0.2, form="a"))
    assert "epsilon=0.2" in shown
    assert "form='a'" in shown


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [n for n in LOSSES if n not in ("softcon", "fairkl-features")])
def test_cuda_equals_cpu(name):
    z, y, b = batch()
    value = LOSSES[name](z.cuda(), y.cuda(), b.cuda())
    assert value.item() == pytest.approx(LOSSES[name](z, y, b).item(), rel=1e-4)
