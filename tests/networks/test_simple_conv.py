import pytest
import torch
from torch import nn

from fairmargin.networks import SimpleConvNet, build_bias_encoder, build_encoder
from fairmargin.networks.convolution import Conv2d


@pytest.mark.parametrize(("kernel_size", "reach"), [(1, 0), (7, 12)])
def test_receptive_field(kernel_size, reach):
    """Four k×k convolutions reach 4·(k div 2) pixels to each side; 1×1 kernels see one pixel."""
    torch.manual_seed(0)
    net = SimpleConvNet(kernel_size).eval()
    x = torch.randn(1, 3, 28, 28, requires_grad=True)
    net.maps(x)[0, :, 14, 14].sum().backward()
    pull = x.grad.abs().sum(1)[0]
    moved = (pull > 1e-5 * pull.max()).nonzero()  # [pixels, 2]; less is rounding
    assert moved.amin(0).tolist() == [14 - reach] * 2
    assert moved.amax(0).tolist() == [14 + reach] * 2


def test_every_layer_of_the_paper_s_network_is_spectral_in_place():
    """On what the layers really get, whose memory order is not that of fresh images."""
    chosen = []
    net = SimpleConvNet(7)
    for layer in (module for module in net.modules() if isinstance(module, Conv2d)):
        layer.register_forward_pre_hook(
            lambda layer, images: chosen.append(layer.choice(images[0]))
        )
    net(torch.randn(64, 3, 28, 28))
    assert chosen == ["spectral"] * 4


def test_one_pixel_network_ignores_where_pixels_are():
    torch.manual_seed(0)
    net = SimpleConvNet(1).eval()
    x = torch.randn(2, 3, 28, 28)
    shuffled = x.flatten(2)[..., torch.randperm(28 * 28)].view_as(x)
    with torch.no_grad():
        torch.testing.assert_close(net(shuffled), net(x))


@pytest.mark.parametrize("kernel_size", [1, 7])
def test_resolution_is_kept(kernel_size):
    sizes = []
    net = SimpleConvNet(kernel_size).eval()
    for block in net.blocks:
        block.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    net(torch.randn(1, 3, 28, 28))
    assert sizes == [(width, 28, 28) for width in (16, 32, 64, 128)]


def test_features_are_the_mean_of_the_maps():
    net = SimpleConvNet(3).eval()
    x = torch.randn(2, 3, 9, 11)
    with torch.no_grad():
        torch.testing.assert_close(net(x), net.maps(x).flatten(2).sum(2) / 99)


def test_tanh_replaces_the_last_activation_only():
    nets = []
    for last_activation in ("relu", "tanh"):
        torch.manual_seed(0)
        nets.append(SimpleConvNet(3, last_activation).eval())
    relu, tanh = nets
    assert relu.state_dict().keys() == tanh.state_dict().keys()
    x = torch.randn(4, 3, 12, 12)
    with torch.no_grad():
        before = relu.blocks[:3](x)
        assert torch.equal(tanh.blocks[:3](x), before)
        linear = relu.blocks[3][:2](before)
        assert torch.equal(relu.maps(x), linear.relu())
        assert torch.equal(tanh.maps(x), linear.tanh())
        assert (relu(x) >= 0).all()
        assert (tanh(x) < 0).any()


def test_convolution_biases_start_uniform():
    torch.manual_seed(0)
    for conv in (module for module in SimpleConvNet(7).modules() if isinstance(module, nn.Conv2d)):
        limit = (conv.in_channels * 49) ** -0.5
        assert conv.bias.abs().max() <= limit
        assert conv.bias.abs().max() > 0.7 * limit
        assert (conv.bias < 0).any()
        assert (conv.bias > 0).any()


def test_stride_and_widths():
    net = SimpleConvNet(7, stride=2, widths=(8, 24))
    assert net.dim == 24
    assert net.maps(torch.randn(2, 3, 28, 28)).shape == (2, 24, 14, 14)


def test_unknown_activation():
    with pytest.raises(ValueError, match=r"unknown activation 'tahn': did you mean 'tanh'\?"):
        SimpleConvNet(7, "tahn")


def test_a_bias_network_is_as_wide_as_the_one_beside_it_and_no_larger():
    main = build_encoder("simple-conv-7", stride=2, widths=(8, 16, 32, 64))
    beside = build_bias_encoder("simple-conv-1", main)
    assert (beside.dim, beside.stride) == (64, 2)
    assert build_bias_encoder("simple-conv-1", build_encoder("simple-conv-7")).dim == 128
    assert build_bias_encoder("simple-conv-1", build_encoder("resnet18")).dim == 128
    assert build_bias_encoder("bagnet18", main).dim == 512
