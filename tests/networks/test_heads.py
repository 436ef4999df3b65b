import pytest
import torch
from torch import nn

from fairmargin.networks import linear_classifier, projection_head


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("kind", "dim", "parameters"),
    [
        ("mlp", 2048, 4_458_624),
        ("mlp", 512, 328_320),
        ("mlp", 128, 33_024),
        ("linear", 512, 512 * 128 + 128),
        ("identity", 512, 0),
    ],
)
def test_parameter_count_and_output(kind, dim, parameters):
    head = projection_head(kind, dim)
    assert count(head) == parameters
    assert head.out == (dim if kind == "identity" else 128)
    z = head(torch.randn(3, dim))
    assert z.shape == (3, head.out)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(3))


def test_identity_normalizes_and_leaves_zero_alone():
    h = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert projection_head("identity", 2)(h).tolist() == [
        [pytest.approx(0.6), pytest.approx(0.8)],
        [0, 0],
    ]


def test_mlp_by_hand():
    head = projection_head("mlp", 6, out=4)
    first, second = head.layers[0], head.layers[2]
    h = torch.randn(5, 6)
    g = (h @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(head(h), g / g.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_give_unit_float32(dtype):
    h = torch.cat([200 * torch.randn(3, 64), torch.zeros(1, 64)]).to(
        dtype
    )  # squares overflow float16
    z = projection_head("identity", 64)(h)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.norm(dim=1), torch.tensor([1.0, 1.0, 1.0, 0.0]))


def test_unknown_kind():
    with pytest.raises(ValueError, match=r"unknown projection head 'mpl': did you mean 'mlp'\?"):
        projection_head("mpl", 128)


def test_classifier_starts_uniform():
    torch.manual_seed(0)
    classifier = linear_classifier(100, 50)
    assert classifier(torch.zeros(2, 100)).shape == (2, 50)
    for p in (classifier.weight, classifier.bias):
        assert 0.08 < p.abs().max() <= 0.1
        assert abs(float(p.detach().square().mean()) - 0.1**2 / 3) < 1e-3
