"""tools/split_norm.py: parts of a batch are normalized as if each were a batch of its own."""

import importlib.util
from pathlib import Path

import pytest
import torch

from fairmargin.networks.batch_norm import BatchNorm2d

TOOL = Path(__file__).parents[1] / "tools" / "split_norm.py"


@pytest.fixture
def by_fours(monkeypatch):
    monkeypatch.setattr(BatchNorm2d, "forward", BatchNorm2d.forward)  # put back afterwards
    spec = importlib.util.spec_from_file_location("split_norm", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.split(4)


def test_each_part_has_its_own_statistics_and_the_first_is_remembered(by_fours):
    x = torch.randn(10, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    x = x.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
    norm, usual = BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    y = norm(x, activation="relu")
    assert y.permute(2, 3, 1, 0).is_contiguous()
    for part, found in zip(x.split(4), y.split(4), strict=True):
        alone = torch.nn.BatchNorm2d(3)
        torch.testing.assert_close(found, alone(part.contiguous()).relu())
    usual(x[:4].contiguous())
    torch.testing.assert_close(norm.running_mean, usual.running_mean)
    torch.testing.assert_close(norm.running_var, usual.running_var)
    assert norm.num_batches_tracked == 1
    norm.eval()
    torch.testing.assert_close(norm(x), usual.eval()(x.contiguous()))


def test_gradients_stay_within_a_part(by_fours):
    x = torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (BatchNorm2d(2)(x)[:4] ** 3).sum().backward()
    assert x.grad[:4].abs().min() > 0
    assert x.grad[4:].abs().max() == 0
