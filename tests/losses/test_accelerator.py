"""What accelerators and torch.compile ask of the losses: no looks at values, one graph, float32.

The table of limits makes a CPU behave like another device: with its row replaced, real values run
through the code that a GPU would run.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from fairmargin import losses
from fairmargin.losses import _limits, _streamed
from tests.losses.every import CASES, NO_LOSSES, batch

HOST = _limits.LIMITS["cpu"]
N = 96
SMALL = {"one_block": 16, "chunk_bytes": 20 * N * 4, "chunk_rows": (4, 20), "pairs": 20 * N}
ROWS = {
    "cuda, one block": _limits.LIMITS["cuda"],
    "cuda, chunks": replace(_limits.LIMITS["cuda"], **SMALL),
    "cuda, windows and cells": replace(_limits.LIMITS["cuda"], **SMALL, windows=0, matrix=0),
    "mps, chunks": replace(_limits.LIMITS["mps"], **SMALL),
}
FUNCTIONS = [name for name in CASES if name[0].islower()]
EPSILON_FAMILY = [
    name
    for name in CASES
    if name.split()[0].lower().replace("_", "")
    in (
        "epsinfonce",
        "epssupinfonce",
        "epssupcon",
        "supcon",
        "supconin",
        "simclr",
        "biascon",
        "softcon",
        "informationbounds",
    )
]
# FairKL by pairs, and half as many rows when one of two views is taken.
NOT_BY_CELLS = ("scores", "values", "lognormal", "absolute", "first view")
BY_CELLS = [
    name for name in CASES if name.lower().startswith("fairkl") and not name.endswith(NOT_BY_CELLS)
]


def use(monkeypatch, row):
    """Let the CPU be treated like the device of this row."""
    monkeypatch.setitem(_limits.LIMITS, "cpu", row)


def value_and_gradient(loss, x):
    value = loss(x)
    return value.detach(), torch.autograd.grad(value, x.z)[0]


def test_every_loss_is_among_the_cases():
    assert {name.split()[0] for name in CASES} == set(losses.__all__) - NO_LOSSES


# Up to one block; chunks; so large that a look pays.
SIZES = (256, 5000, 20000)
FORM_D = (
    "it holds anchors × positives × negatives, so it has to know the largest class: "
    "its work is cubic anyway"
)
WINDOWS = "above 16384 rows narrow windows of class mates save more than a look costs"
CELLS = "above 16384 rows FairKL counts (label, bias) cells, N·D² work instead of N²·D"
ALLOWED = {
    **{("eps_supinfonce form d", n): FORM_D for n in SIZES},
    **{(name, 20000): WINDOWS for name in EPSILON_FAMILY},
    **{(name, 20000): CELLS for name in BY_CELLS},
}


class TestNoLooks:
    """On a device without values every look at one raises, forward or backward.

    So does a copy from the host.
    """

    @pytest.fixture(scope="class")
    def found(self):
        if not torch.backends.cuda.is_built() and not hasattr(
            torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"
        ):
            pytest.skip("this PyTorch can neither fake CUDA nor take a device of our own")
        root = Path(__file__).parents[2]
        paths = [str(root), *sys.path]
        done = subprocess.run(
            [sys.executable, "-m", "tests.losses.fake_device", *map(str, SIZES)],
            capture_output=True,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    @pytest.mark.parametrize(
        ("name", "n"), [(name, n) for n in SIZES for name in CASES if n == 256 or name in FUNCTIONS]
    )
    def test_loss(self, found, name, n):
        raised = found[f"{name}, {n} rows"]
        if (name, n) in ALLOWED:
            assert raised is not None, (
                f"it no longer looks: take it off the list ({ALLOWED[name, n]})"
            )
        else:
            assert raised is None, raised


class TestValues:
    """Every device's way gives the CPU's value and gradient."""

    @pytest.fixture(scope="class")
    def exact(self):
        """In float64, on the CPU."""
        found = {}
        for name in FUNCTIONS:
            single = batch(N)
            doubled = {
                key: t.double() if t.is_floating_point() else t for key, t in vars(single).items()
            }
            x = replace(single, **{**doubled, "z": single.z.detach().double().requires_grad_()})
            found[name] = value_and_gradient(CASES[name], x)
        return found

    @pytest.mark.parametrize("row", ROWS)
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_float32(self, monkeypatch, exact, name, row):
        use(monkeypatch, ROWS[row])
        value, gradient = value_and_gradient(CASES[name], batch(N))
        expected, expected_gradient = exact[name]
        assert value.dtype == gradient.dtype == torch.float32
        assert value.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
        error = 2e-5 if _limits.LIMITS["cpu"].scalars == torch.float64 else 1e-4
        assert (gradient - expected_gradient).norm() < error * expected_gradient.norm()

    @pytest.mark.parametrize("row", ["cuda, chunks", "cuda, windows and cells"])
    @pytest.mark.parametrize(
        "name", [name for name in FUNCTIONS if not name.startswith(("l", "h", "b", "g"))]
    )
    def test_float64_stays_exact(self, monkeypatch, exact, name, row):
        use(monkeypatch, ROWS[row])
        x = batch(N)
        x = replace(x, z=x.z.detach().double().requires_grad_(), g=x.g.double())
        value, gradient = value_and_gradient(CASES[name], x)
        assert value.item() == pytest.approx(exact[name][0].item(), rel=1e-10)
        assert (gradient - exact[name][1]).norm() < 1e-9 * exact[name][1].norm()

    @pytest.mark.parametrize("collapsed", [False, True])
    @pytest.mark.parametrize("divergence", ["moments", "kl"])
    @pytest.mark.parametrize(
        ("row", "error"), [("cuda, one block", 2e-3), ("cuda, chunks", 2e-3), ("mps, chunks", 5e-3)]
    )
    def test_fairkl_of_nearly_equal_features(self, monkeypatch, row, error, divergence, collapsed):
        """Cosines of 0.9999, as in test_fairkl.py.

        No sum over pairs is in float64, and none loses what tells them apart.
        """
        torch.manual_seed(0)
        y, b = torch.arange(256) % 4, torch.randint(3, (256,))
        z = F.normalize(F.one_hot(y * (not collapsed), 32) + 0.0018 * torch.randn(256, 32)).float()
        results = []
        for x, used in (
            (z.double().requires_grad_(), HOST),
            (z.clone().requires_grad_(), ROWS[row]),
        ):
            use(monkeypatch, used)
            value = losses.fairkl(
                x, y, b, divergence=divergence, negatives=True, variance_floor=0.0
            )
            results.append((value.item(), torch.autograd.grad(value, x)[0].double()))
        (expected, expected_gradient), (value, gradient) = results
        assert value == pytest.approx(expected, rel=error)
        assert (gradient - expected_gradient).norm() < error * expected_gradient.norm()

    @pytest.mark.parametrize(
        "name", ["eps_supinfonce", "biascon", "fairkl negatives", "fairkl any length"]
    )
    def test_gradcheck(self, monkeypatch, name):
        use(
            monkeypatch,
            replace(
                _limits.LIMITS["cuda"], one_block=6, chunk_bytes=1, chunk_rows=(4, 4), pairs=4 * 14
            ),
        )
        x = batch(14, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda z: CASES[name](replace(x, z=z)), (x.z,))

    def test_second_derivatives_of_fairkl(self, monkeypatch):
        """Pivots and centres are constants that cancel, in the second derivative too."""
        use(monkeypatch, _limits.LIMITS["cuda"])
        x = batch(6, dtype=torch.float64)
        loss = lambda z: losses.fairkl(z, x.y % 2, x.b.clamp_min(0) % 2, negatives=True)
        assert torch.autograd.gradgradcheck(loss, (x.z.detach()[:, :2].requires_grad_(),))

    def test_only_one_block_can_be_differentiated_twice(self, monkeypatch):
        use(monkeypatch, ROWS["cuda, chunks"])
        x = batch(N)
        with pytest.raises(RuntimeError, match="use a batch of at most 16 rows"):
            torch.autograd.grad(losses.supcon(x.z, x.y), x.z, create_graph=True)

    @pytest.mark.parametrize("row", ["cuda, chunks", "cuda, windows and cells"])
    @pytest.mark.parametrize("fill", ["no positive", "unknown bias", "empty"])
    def test_batches_with_nothing_to_compare(self, monkeypatch, fill, row):
        use(monkeypatch, ROWS[row])
        x = batch(0 if fill == "empty" else N)
        y = torch.arange(len(x.z)) if fill == "no positive" else x.y
        b = torch.full_like(x.b, -1) if fill == "unknown bias" else x.b
        for loss in (losses.fairkl, losses.biascon, losses.end):
            value = loss(x.z, y, b)
            assert torch.autograd.grad(value, x.z)[0].isfinite().all()
            assert value.isfinite()
        assert losses.fairkl(x.z, y, b) == 0
        assert losses.fairkl_terms(x.z, y, b).dropped


EMBEDDING = [
    "eps_supinfonce",
    "supcon_in",
    "fairkl negatives",
    "fairkl anchor",
    "fairkl scores",
    "end",
    "biascon",
]


class TestHalf:
    """Half-precision features, under autocast as from a network."""

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("row", ["cuda, one block", "cuda, chunks"])
    @pytest.mark.parametrize("name", EMBEDDING)
    def test_computed_in_float32(self, monkeypatch, name, row, dtype):
        use(monkeypatch, ROWS[row])
        x = batch(N)
        half = x.z.detach().to(dtype)
        expected, expected_gradient = value_and_gradient(
            CASES[name], replace(x, z=half.float().requires_grad_())
        )
        z = half.clone().requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            value = CASES[name](replace(x, z=z))
        (gradient,) = torch.autograd.grad(value, z)
        assert value.dtype == torch.float32
        assert gradient.dtype == dtype
        assert torch.equal(value, expected)
        # Rounded once, at the end; what is below float16's range is lost there.
        assert torch.allclose(gradient.float(), expected_gradient, rtol=0.02, atol=1e-6)

    def test_a_scaled_loss_keeps_small_gradients_in_a_compiled_operator(self):
        x = batch(N)
        half, far = x.z.detach().half(), 1e-6

        def loss(z):
            return far * losses.eps_supinfonce(z, x.y, chunk=20)

        gradients = []
        for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
            z = half.clone().requires_grad_()
            (function(z) * 2.0**16).backward()
            gradients.append(z.grad.float())
        # In float16 everything below 6e-8 is 0, which the gradient would be before it is scaled.
        assert gradients[0].abs().median() > 1e-5
        assert torch.allclose(*gradients, rtol=4e-3, atol=1e-7)


BAD = {
    "features": lambda x: losses.supcon(torch.full_like(x.z, math.nan), x.y),
    "bias": lambda x: losses.fairkl(x.z, x.y, x.b - 5),
    "bias_features": lambda x: losses.softcon(x.z, x.y, x.g * 0),
    "labels": lambda x: losses.generalized_cross_entropy(x.logits, x.y - 1),
    "prior": lambda x: losses.bias_balanced_cross_entropy(x.logits, x.y, x.b, x.prior * math.inf),
}


class TestChecks:
    @pytest.fixture(autouse=True)
    def default(self):
        yield
        losses.check(None)

    @pytest.mark.parametrize("name", [name for name in BAD if name != "labels"])
    def test_on_request_off_the_cpu(self, monkeypatch, name):
        x = batch(N)
        with pytest.raises(ValueError, match=name):
            BAD[name](x)
        use(monkeypatch, ROWS["cuda, chunks"])
        BAD[name](x)
        with losses.check(True), pytest.raises(ValueError, match=name):
            BAD[name](x)
        BAD[name](x)
        losses.check(True)
        with pytest.raises(ValueError, match=name):
            BAD[name](x)

    def test_blocks_end_where_they_began(self):
        x = batch(N)
        with losses.check(False):
            BAD["features"](x)
            with losses.check(True), pytest.raises(ValueError, match="features has NaN"):
                BAD["features"](x)
            BAD["features"](x)
        with pytest.raises(ValueError, match="features has NaN"):
            BAD["features"](x)
        with pytest.raises(TypeError, match="check takes True, False, or None"):
            losses.check("yes")

    def test_the_warning_of_no_positive(self, monkeypatch):
        x = batch(N)
        alone = torch.arange(N)
        with pytest.warns(UserWarning, match="no anchor in this batch has a positive"):
            losses.supcon(x.z, alone)
        use(monkeypatch, ROWS["cuda, chunks"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert losses.supcon(x.z, alone) == 0
        with (
            losses.check(True),
            pytest.warns(UserWarning, match="no anchor in this batch has a positive"),
        ):
            losses.supcon(x.z, alone)

    @pytest.mark.parametrize("row", ["cuda, one block", "cuda, chunks"])
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_a_nan_shows_in_the_loss(self, monkeypatch, name, row):
        """Where nothing is checked, that is what stops a training."""
        use(monkeypatch, ROWS[row])
        x = batch(N)
        z = x.z.detach().clone()
        z[6, 1] = math.nan
        assert CASES[name](replace(x, z=z.requires_grad_())).isnan()

    @pytest.mark.parametrize("name", ["eps_supinfonce inf", "eps_supcon", "supcon_in"])
    def test_a_nan_shows_in_a_compiled_loss(self, name):
        x = batch(24)
        z = x.z.detach().clone()
        z[7, 1] = math.nan
        torch._dynamo.reset()
        assert torch.compile(CASES[name], backend="eager")(replace(x, z=z)).isnan()


def graphs_of(loss, x):
    """What torch.compile makes of a loss: (graph breaks, our operators in the graphs)."""
    torch._dynamo.reset()
    explained = torch._dynamo.explain(loss)(x)
    nodes = [
        node
        for graph in explained.graphs
        for node in graph.graph.nodes
        if node.op == "call_function"
    ]
    return explained.graph_break_count, [
        str(node.target) for node in nodes if "fairmargin" in str(node.target)
    ]


ONE_BLOCK = [
    "eps_infonce", "eps_supinfonce", "eps_supinfonce form b", "supcon_in", "softcon",
    "fairkl negatives", "fairkl anchor", "fairkl authors", "end", "bias_balanced_cross_entropy",
    "generalized_cross_entropy", "hsic", "l_softmax", "large_margin", "FairKL", "LSoftmax",
]  # fmt: skip
STREAMED = [
    "eps_infonce",
    "eps_supinfonce",
    "eps_supinfonce form d",
    "supcon",
    "supcon_in",
    "biascon",
    "softcon",
]
LARGE = [*STREAMED, "fairkl", "fairkl anchor", "fairkl scores", "end"]
SIZED = [
    (name, n)
    for names, n in ((ONE_BLOCK, 256), ([*STREAMED, "fairkl"], 1024), (LARGE, 4096))
    for name in names
]


@pytest.mark.slow
class TestOneGraph:
    @pytest.mark.parametrize(("name", "n"), SIZED)
    def test_no_graph_breaks(self, name, n):
        """Fake tensors: the graph is what matters, and nothing is computed."""
        with FakeTensorMode():
            assert graphs_of(CASES[name], batch(n))[0] == 0

    @pytest.mark.parametrize("name", ["eps_supinfonce", "fairkl negatives", "fairkl scores"])
    def test_dense_up_to_the_threshold_of_the_device(self, monkeypatch, name):
        use(monkeypatch, _limits.LIMITS["cuda"])
        with FakeTensorMode():
            assert graphs_of(CASES[name], batch(4096)) == (0, [])
            breaks, operators = graphs_of(CASES[name], batch(4098))
        assert breaks == 0
        assert len(operators) == 1

    def test_graphs_do_not_grow_with_the_number_of_batch_sizes(self, monkeypatch):
        use(monkeypatch, replace(HOST, one_block=64, pairs=64 * 64))
        compiled = []

        def backend(graph, inputs):
            compiled.append(graph)
            return graph

        def loss(z, y, b):
            return losses.eps_supinfonce(z, y, epsilon=0.25) + losses.fairkl(
                z, y, b, negatives=True
            )

        torch._dynamo.reset()
        fast = torch.compile(loss, backend=backend)
        for n in (32, 40, 48, 64, 66, 80, 96, 128, 130, 200):
            x = batch(n)
            assert fast(x.z, x.y, x.b).item() == pytest.approx(loss(x.z, x.y, x.b).item(), rel=1e-5)
        # For 32 rows alone, for any number up to 64, for any number above.
        assert len(compiled) <= 4

    @pytest.mark.parametrize("name", ["biascon", "fairkl negatives"])
    @pytest.mark.parametrize("row", ["cpu", "cuda"])
    def test_operators_give_value_and_gradient(self, monkeypatch, name, row):
        """On "cuda" each chunk is compiled, inside of the operator."""
        x = batch(N)
        expected, expected_gradient = value_and_gradient(CASES[name], x)
        use(monkeypatch, replace(HOST, **SMALL) if row == "cpu" else ROWS["cuda, chunks"])
        monkeypatch.setattr(_streamed, "CHUNK_BACKEND", "aot_eager")
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(CASES[name], backend="aot_eager", fullgraph=True)
        value, gradient = value_and_gradient(compiled, x)
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)
        assert (gradient - expected_gradient).norm() < 1e-5 * expected_gradient.norm()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        assert graphs == 1 if row == "cpu" else 2 <= graphs <= 3
        with torch.no_grad():
            assert compiled(x).item() == pytest.approx(expected.item(), rel=1e-5)

    def test_operators_are_not_differentiated_twice(self):
        x = batch(N)
        torch._dynamo.reset()
        value = torch.compile(lambda z: losses.supcon(z, x.y, chunk=20), backend="eager")(x.z)
        with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
            torch.autograd.grad(value, x.z, create_graph=True)

    def test_fairkl_counts_its_pairs_in_an_operator(self):
        x = batch(N)
        torch._dynamo.reset()
        terms = lambda z: losses.fairkl_terms(z, x.y, x.b, negatives=True, chunk=20)
        compiled, expected = (
            torch.compile(terms, backend="aot_eager", fullgraph=True)(x.z),
            terms(x.z),
        )
        assert torch.equal(compiled.pairs, expected.pairs)
        assert not compiled.dropped
        assert torch.equal(compiled.value, expected.value)

    @pytest.mark.parametrize("name", ["eps_supinfonce", "fairkl negatives"])
    def test_autocast_inside(self, monkeypatch, name):
        use(monkeypatch, replace(HOST, **SMALL))
        x = batch(N)
        half = replace(x, z=x.z.detach().bfloat16().requires_grad_())
        torch._dynamo.reset()
        compiled = torch.compile(CASES[name], backend="aot_eager", fullgraph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value, expected = compiled(half), CASES[name](half)
        assert value.dtype == torch.float32
        assert torch.equal(value, expected)
        gradient, expected_gradient = (torch.autograd.grad(v, half.z)[0] for v in (value, expected))
        assert torch.allclose(gradient.float(), expected_gradient.float(), rtol=0.02, atol=1e-6)

    @pytest.mark.slow
    @pytest.mark.skipif(
        shutil.which("g++") is None and shutil.which("clang++") is None,
        reason="needs a C++ compiler",
    )
    def test_inductor(self, monkeypatch):
        """The real compiler, around the operator and for the chunks in it."""
        x = batch(N)
        expected, expected_gradient = value_and_gradient(CASES["eps_supinfonce"], x)
        use(monkeypatch, ROWS["cuda, chunks"])
        torch._dynamo.reset()
        value, gradient = value_and_gradient(
            torch.compile(CASES["eps_supinfonce"], fullgraph=True), x
        )
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)
        assert (gradient - expected_gradient).norm() < 1e-5 * expected_gradient.norm()
