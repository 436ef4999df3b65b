import torch
from torch import nn

from fairmargin.networks import BagNet18
from fairmargin.networks.bagnet import BagBlock


def test_spatial_sizes():
    net, sizes = BagNet18().eval(), []
    for part in (net.bn1, net.layer1, net.layer2, net.layer3, net.layer4):
        part.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    with torch.no_grad():
        net(torch.randn(1, 3, 224, 224))
    assert sizes == [(64, 222, 222), (64, 110, 110), (128, 55, 55), (256, 28, 28), (512, 28, 28)]


def test_receptive_field_is_five_by_five_pixels():
    torch.manual_seed(0)
    net = BagNet18().eval()
    x = torch.randn(1, 3, 61, 64, requires_grad=True)
    maps = net.maps(x)
    for i, j in ((0, 0), (2, 3), (maps.shape[2] - 1, maps.shape[3] - 1)):
        (g,) = torch.autograd.grad(maps[0, :, i, j].sum(), x, retain_graph=True)
        seen = g.abs().sum(1)[0].nonzero()  # [pixels, 2]; positions lie 8 pixels apart
        assert len(seen) == 25
        assert seen.amin(0).tolist() == [8 * i, 8 * j]
        assert seen.amax(0).tolist() == [8 * i + 4, 8 * j + 4]


def test_three_by_three_kernels():
    convolutions = {
        name: m.kernel_size for name, m in BagNet18().named_modules() if isinstance(m, nn.Conv2d)
    }
    assert {name for name, size in convolutions.items() if size == (3, 3)} == {
        "conv2",
        "layer1.0.conv1",
    }
    assert set(convolutions.values()) == {(1, 1), (3, 3)}


def test_shortcut_is_cropped_at_the_bottom_and_right():
    block = BagBlock(2, 2, 3, stride=1).eval()  # the shortcut is the input itself
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 2, 6, 7)
    with torch.no_grad():
        assert torch.equal(block(x), x[:, :, :4, :5])


def test_the_last_activation_is_that_of_the_last_block_alone():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 40, 40)
    plain, net = BagNet18().eval(), BagNet18(last_activation="tanh").eval()
    net.load_state_dict(plain.state_dict())
    assert torch.equal(net.layer3(torch.ones(1, 128, 8, 8)), plain.layer3(torch.ones(1, 128, 8, 8)))
    assert net.maps(x).min() < 0 <= plain.maps(x).min()
    assert net.maps(x).abs().max() <= 1
