import json
import math
import pickle
import shutil
import threading
import time
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.networks import SimpleConvNet
from fairmargin.networks.batch_norm import BatchNorm2d
from fairmargin.networks.native import codelets, convolution, library, norms
from fairmargin.networks.spectral import spectral_conv2d
from fairmargin.runs.environment import environment

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to compile kernels with")


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setenv(library.VARIABLE, "1")


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def values(program, results, numbers):
    """What a program of codelets.py computes."""
    found = []
    for operation, factor, a, b in program.terms:
        match operation:
            case "read":
                found.append(numbers[a])
            case "+":
                found.append(found[a] + found[b])
            case "-":
                found.append(found[a] - found[b])
            case "*":
                found.append(factor * found[a])
    return [0.0 if term is None else term[0] * found[term[1]] for term in results]


@pytest.mark.parametrize(
    ("n", "length", "first"),
    [(28, 32, 0), (14, 18, 0), (7, 20, -3), (5, 6, 0), (9, 30, 4), (1, 2, 0)],
)
def test_codelets_are_the_dft_and_its_adjoint(n, length, first):
    torch.manual_seed(0)
    x, y = torch.randn(n, dtype=torch.double), torch.randn(length, dtype=torch.double)
    program, results = codelets._transform(n, length, first)
    ours = torch.tensor(values(program, results, x.tolist()), dtype=torch.double)
    placed = torch.zeros(length, dtype=torch.double)
    placed[(torch.arange(n) + first) % length] = x
    exact = torch.fft.rfft(placed)
    torch.testing.assert_close(ours, torch.cat([exact.real, exact.imag[1:-1]]))
    back, gradients = codelets._adjoint(program, results, n)
    adjoint = torch.tensor(values(back, gradients, y.tolist()), dtype=torch.double)
    torch.testing.assert_close(adjoint @ x, ours @ y)


def test_the_transform_of_28_of_32_numbers_takes_228_operations():
    program, results = codelets._transform(28, 32, 0)
    assert len(program.needed(results)) - 28 == 228


def gradients(function, inputs, seed):
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, seed.to(y.dtype))]


@needs_gcc
@pytest.mark.parametrize(("c", "o"), [(3, 16), (16, 48)])
@pytest.mark.parametrize(("side", "k"), [(28, 7), (9, 5)])
def test_convolutions_are_within_1e_4_of_float64(native, threads, c, o, side, k):
    torch.manual_seed(0)
    images, weight, bias = torch.randn(48, c, side, side), torch.randn(o, c, k, k), torch.randn(o)
    assert convolution.is_possible(images, weight)
    seed = torch.randn(48, o, side, side)
    exact = [t.double() for t in (images, weight, bias)]
    pairs = zip(
        gradients(spectral_conv2d, (images, weight, bias), seed),
        gradients(partial(F.conv2d, padding="same"), exact, seed),
        strict=True,
    )
    for ours, theirs in pairs:
        assert float((ours - theirs).abs().max()) <= 1e-4 * float(theirs.abs().max())


@needs_gcc
@pytest.mark.parametrize("first_by", [0, 1])
@pytest.mark.parametrize("in_order", [False, True])
def test_a_gradient_can_be_differentiated_again(native, first_by, in_order):
    torch.manual_seed(0)
    images = torch.randn(8, 8, 16, 16).permute(3, 2, 0, 1)
    images = (images if in_order else images.contiguous()).requires_grad_()
    inputs = [images, torch.randn(16, 16, 5, 5, requires_grad=True)]
    second = []
    for function in (spectral_conv2d, partial(F.conv2d, padding="same")):
        y = function(*inputs).square().sum()
        (first,) = torch.autograd.grad(y, inputs[first_by], create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), inputs))
    for ours, theirs in zip(*second, strict=True):
        assert float((ours - theirs).abs().max()) <= 1e-4 * float(theirs.abs().max())


@needs_gcc
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_one_gradient_alone(native, wanted):
    torch.manual_seed(0)
    inputs = [torch.randn(16, 16, 8, 8), torch.randn(16, 16, 5, 5), torch.randn(16)]
    inputs[wanted].requires_grad_()
    found = [
        torch.autograd.grad(function(*inputs).cos().sum(), inputs[wanted])[0]
        for function in (spectral_conv2d, partial(F.conv2d, padding="same"))
    ]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3 * float(found[1].abs().max()))


@pytest.mark.parametrize(
    ("n", "side", "k", "dtype"),
    [
        (17, 28, 7, torch.float32),
        (16, 29, 7, torch.float32),
        (16, 4, 5, torch.float32),
        (16, 28, 7, torch.float64),
    ],
)
def test_other_sizes_take_the_other_way(native, n, side, k, dtype):
    images, weight = (
        torch.randn(n, 3, side, side, dtype=dtype),
        torch.randn(16, 3, k, k, dtype=dtype),
    )
    assert not convolution.is_possible(images, weight)
    exact = F.conv2d(images.double(), weight.double(), padding="same").to(dtype)
    torch.testing.assert_close(spectral_conv2d(images, weight), exact, rtol=1e-3, atol=1e-3)


def test_nothing_is_compiled_unasked(monkeypatch):
    monkeypatch.delenv(library.VARIABLE, raising=False)
    monkeypatch.setattr(library, "_load", lambda *_: pytest.fail("a compiler was started"))
    images, weight = torch.randn(16, 16, 28, 28), torch.randn(16, 16, 7, 7)
    assert spectral_conv2d(images, weight).isfinite().all()
    assert not norms.is_possible(torch.zeros(4, 4, 16, 1))


def test_kernels_are_given_nothing_but_what_they_can_read(native):
    maps = torch.zeros(4, 4, 16, 1)
    assert norms.is_possible(maps, torch.ones(4))
    assert not norms.is_possible(maps, torch.ones(4, dtype=torch.double))
    assert not norms.is_possible(maps, torch.ones(4, device="meta"))
    images, weight = torch.zeros(16, 16, 8, 8), torch.zeros(16, 16, 5, 5)
    assert convolution.is_possible(images, weight)
    assert not convolution.is_possible(images, weight.to("meta"))
    for wrong in (maps.double(), maps.transpose(0, 1)[:, 1:], maps.to("meta")):
        with pytest.raises(ValueError, match="contiguous float32 on the CPU"):
            library.pointer(wrong)


@needs_gcc
@pytest.mark.parametrize("activation", ["none", "relu", "tanh"])
@pytest.mark.parametrize("shared", [False, True])
def test_batch_norm_is_pytorchs(native, threads, activation, shared):
    torch.manual_seed(0)
    maps = 3 * torch.randn(5, 5, 6, 32) + 40
    ours, theirs = BatchNorm2d(6), torch.nn.BatchNorm2d(6).double()
    seed = torch.randn(32, 6, 1, 1).expand(32, 6, 5, 5) if shared else torch.randn(32, 6, 5, 5)
    act = {"none": lambda x: x, "relu": torch.relu, "tanh": torch.tanh}[activation]
    found = []
    for norm, dtype in ((ours, torch.float32), (theirs, torch.double)):
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(-1, 2, 6))
            norm.bias.copy_(torch.linspace(-1, 1, 6))
        x = maps.to(dtype).requires_grad_()
        images = x.permute(3, 2, 0, 1)
        y = norm(images, activation) if norm is ours else act(norm(images))
        grads = torch.autograd.grad(y, [x, norm.weight, norm.bias], seed.to(dtype))
        with torch.no_grad():
            norm.eval()
            judged = norm(images, activation) if norm is ours else act(norm(images))
        found.append([y.detach(), *grads, norm.running_mean, norm.running_var, judged])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@needs_gcc
def test_a_variance_that_one_position_makes(native):
    maps = torch.zeros(784, 2, 16, 1)
    maps[392, 0] = 1.1
    maps[:, 1] = 1e4
    maps[5, 1, 3] += 1
    mean, variance = norms._statistics(maps)
    exact = maps.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), exact.var(1, correction=0), rtol=1e-3, atol=0)


@needs_gcc
def test_a_batch_norm_may_be_changed_in_place_behind(native):
    norm = BatchNorm2d(4)
    x = torch.randn(3, 3, 4, 16).permute(3, 2, 0, 1).requires_grad_()
    torch.relu_(norm(x)).sum().backward()
    assert x.grad.isfinite().all()


@needs_gcc
@pytest.mark.parametrize("activation", ["none", "relu", "tanh"])
def test_a_batch_norms_gradient_can_be_differentiated_again(monkeypatch, activation):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 4, 16).permute(3, 2, 0, 1).requires_grad_()
    second = []
    for asked in ("1", "0"):
        monkeypatch.setenv(library.VARIABLE, asked)
        y = BatchNorm2d(4)(x, activation)
        (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(*second, rtol=1e-3, atol=1e-3 * float(second[1].abs().max()))


@needs_gcc
def test_tanh_is_within_2e_7_and_keeps_nan(native):
    x = torch.cat([torch.linspace(-20, 20, 4096 - 2), torch.tensor([math.nan, math.inf])])
    maps = x.view(1, 1, -1, 1)
    one = torch.ones(1)
    ours = norms._apply(maps, one, torch.zeros(1), "tanh").view(-1)
    assert ours[-2].isnan()
    assert ours[-1] == 1
    assert float((ours[:-2].double() - x[:-2].double().tanh()).abs().max()) < 2e-7
    assert norms._apply(maps, one, torch.zeros(1), "relu").view(-1)[-2].isnan()


@needs_gcc
def test_a_network_learns_the_same_with_and_without(monkeypatch):
    images = torch.rand(32, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    weights = []
    for asked in ("0", "1"):
        monkeypatch.setenv(library.VARIABLE, asked)
        torch.manual_seed(0)
        network = SimpleConvNet(7, "tanh", widths=(8, 16))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            network(images).square().sum(1).mean().backward()
            optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert not torch.equal(*weights)
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


def test_without_a_compiler_it_says_what_to_do(native, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(library.KernelError, match="no gcc to compile with; unset it"):
        library._load("norms.c", "")


@needs_gcc
def test_what_does_not_compile_is_one_sentence(native):
    with pytest.raises(library.KernelError, match=r"spectra.c does not compile: .*unset it"):
        library._load("spectra.c", "this is not C")


def test_the_sentence_is_the_same_in_another_process():
    error = library.KernelError("there is no gcc to compile with")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_command_says_it_without_a_traceback(native, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_load", _no_compiler)
    for kernels in (library.norms, library.multiply, library.spectra):
        kernels.cache_clear()
    words = ["train", "--dataset", "planted", "--network", "simple-conv-7", "--method", "ce"]
    words += ["--set", "train.steps=1", "--set", "train.batch_size=16", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "there is no gcc to compile with; unset it" in done.output


def _no_compiler(*_):
    raise library.KernelError("there is no gcc to compile with")


def test_work_is_shared_without_gaps(threads):
    parts = []
    library.share(lambda begin, end: parts.append((begin, end)), 37, unit=8)
    assert sorted(parts) == {1: [(0, 37)], 2: [(0, 24), (24, 37)]}[threads]
    with pytest.raises(MemoryError):
        library.share(lambda *_: 1, 4)
    library.share(lambda *_: pytest.fail("nothing to do"), 0)


def test_an_interrupted_share_waits_for_the_others():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    finished = threading.Event()

    def work(begin, end):
        if begin == 0:
            raise KeyboardInterrupt
        time.sleep(0.2)
        finished.set()

    try:
        with pytest.raises(KeyboardInterrupt):
            library.share(work, 2)
        assert finished.is_set()
    finally:
        torch.set_num_threads(before)


def test_a_run_says_whether_they_were_asked_for(monkeypatch):
    for asked, expected in (("1", True), ("0", False)):
        monkeypatch.setenv(library.VARIABLE, asked)
        assert environment("cpu", 1, 1, ["fairmargin"], {})["native"] is expected
    json.dumps(environment("cpu", 1, 1, ["fairmargin"], {}))
