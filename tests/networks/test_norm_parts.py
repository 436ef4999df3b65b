"""Batch norm over parts of a batch, as `DataParallel` has it on several GPUs."""

import pytest
import torch

from fairmargin import config as configuration
from fairmargin.networks import SimpleConvNet
from fairmargin.networks.batch_norm import BatchNorm2d
from fairmargin.networks.native import library
from fairmargin.runtime import distributed


def maps(n, *, samples_last):
    x = torch.randn(n, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    x = x * torch.linspace(1, 2, n)[:, None, None, None]  # so that parts differ
    return x.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1) if samples_last else x


@pytest.fixture(params=[False, True], ids=["in one order", "samples last"])
def samples_last(request):
    return request.param


@pytest.fixture(params=["0", "1"], ids=["PyTorch", "compiled"])
def _kernels(request, monkeypatch):
    if request.param == "1" and not library.can_compile():
        pytest.skip("needs gcc on x86")
    monkeypatch.setenv(library.VARIABLE, request.param)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(("n", "sizes"), [(64, 16), (12, 3), (9, 3), (7, 7)])
def test_each_part_has_its_own_statistics_and_the_first_is_remembered(n, sizes, samples_last):
    norm, first = BatchNorm2d(3, parts=4), torch.nn.BatchNorm2d(3)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    first.load_state_dict(norm.state_dict())
    x = maps(n, samples_last=samples_last).requires_grad_()
    shortcut = maps(n, samples_last=samples_last) / 2
    alone = torch.nn.BatchNorm2d(3)
    alone.load_state_dict(norm.state_dict())
    plain = x.detach().contiguous().requires_grad_()
    parts = [alone(part) for part in plain.split(sizes)]
    for more in (None, shortcut):
        added = 0 if more is None else more.contiguous()
        wanted = (torch.cat(parts) + added).relu()
        torch.testing.assert_close(norm(x, activation="relu", shortcut=more), wanted)
    (norm(x) ** 3).sum().backward()
    (torch.cat(parts) ** 3).sum().backward()
    torch.testing.assert_close(x.grad, plain.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.weight.grad, alone.weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(norm.bias.grad, alone.bias.grad, rtol=1e-4, atol=1e-3)
    for _ in range(3):
        first(plain[:sizes])
    torch.testing.assert_close(norm.running_mean, first.running_mean)
    torch.testing.assert_close(norm.running_var, first.running_var)
    assert norm.num_batches_tracked == 3
    torch.testing.assert_close(norm.eval()(x), first.eval()(plain))


def test_a_network_takes_the_number_from_its_configuration():
    chosen = configuration.load(dataset="biased-mnist", overrides=["network.norm_parts=4"])
    assert chosen.network.options["norm_parts"] == 4
    with pytest.raises(configuration.ConfigError, match=r"network\.norm_parts"):
        configuration.load(dataset="biased-mnist", overrides=["network.norm_parts=0"])
    norms = [m for m in SimpleConvNet(norm_parts=4).modules() if isinstance(m, BatchNorm2d)]
    assert [norm.parts for norm in norms] == [4] * 4


def test_several_processes_cannot_split(monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(ValueError, match=r"network\.norm_parts splits the batches of one process"):
        distributed.synchronize_batch_norm(SimpleConvNet(norm_parts=2))
