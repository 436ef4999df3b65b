import pytest
import torch

from fairmargin.networks import MLP


def test_images_and_flat_rows_are_the_same_input():
    net = MLP(3 * 4 * 5)
    x = torch.randn(6, 3, 4, 5)
    assert net.dim == 16
    assert net(x).shape == (6, 16)
    assert torch.equal(net(x), net(x.flatten(1)))


def test_layers_by_hand():
    net = MLP(5, widths=(7, 3), last_activation="tanh")
    first, second = net.layers[0], net.layers[2]
    x = torch.randn(4, 5)
    hidden = (x @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(net(x), torch.tanh(hidden @ second.weight.T + second.bias))


def test_wrong_size_says_the_right_one():
    with pytest.raises(
        ValueError, match=r"takes 784 numbers per sample; got \[2, 3, 28, 28\].*in_features=2352"
    ):
        MLP(784)(torch.zeros(2, 3, 28, 28))
