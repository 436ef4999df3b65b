import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairmargin.networks import build_encoder
from fairmargin.networks.batch_norm import BatchNorm2d, normalize
from fairmargin.networks.convolution import Conv2d
from fairmargin.networks.resnet import MaxPool
from fairmargin.networks.samples_last import is_samples_last, max_pool_3_2, samples_last_conv2d
from fairmargin.networks.windows import windows_conv2d
from fairmargin.networks.winograd import winograd_conv2d, winograd_saving

WAYS = {"windows": windows_conv2d, "samples-last": samples_last_conv2d}


def samples_last(x):
    """The same maps in the memory order [H, W, C, N]."""
    return x.detach().permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)


def drawn(n, c, o, h, w, k, dtype=torch.double):
    torch.manual_seed(0)
    return torch.randn(n, c, h, w, dtype=dtype), torch.randn(o, c, k, k, dtype=dtype)


def gradients(function, *inputs):
    """The result and its gradients, back from a fixed direction."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    direction = torch.linspace(-1, 1, y.numel(), dtype=torch.double).sin().mul(7).cos().view_as(y)
    return [y.detach(), *torch.autograd.grad(y, inputs, direction.to(y.dtype))]


@pytest.mark.parametrize(("c", "o", "side"), [(64, 64, 8), (128, 128, 4), (64, 64, 2), (32, 48, 7)])
def test_winograd_in_float32_is_within_1e_5_of_float64(c, o, side):
    x, w = drawn(40, c, o, side, side, 3, torch.float)
    exact = gradients(partial(F.conv2d, padding=1), x.double(), w.double())
    for a, b in zip(gradients(winograd_conv2d, x, w), exact, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


@pytest.mark.parametrize(
    ("h", "w"), [(1, 1), (2, 2), (2, 3), (4, 2), (4, 4), (5, 4), (6, 9), (8, 8), (3, 13)]
)
def test_winograd_of_any_size_equals_direct(h, w):
    inputs = drawn(3, 2, 4, h, w, 3)
    expected = gradients(partial(F.conv2d, padding=1), *inputs)
    for a, b in zip(gradients(winograd_conv2d, *inputs), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("h", "w"), [(1, 1), (2, 2), (3, 1), (4, 5), (8, 7)])
@pytest.mark.parametrize(
    ("k", "stride", "padding"),
    [(1, 1, 0), (1, 2, 0), (3, 1, 1), (3, 2, 1), (5, 2, 2), (2, 1, 1), (7, 3, 3), (3, 1, 2)],
)
@pytest.mark.parametrize("way", WAYS)
def test_windows_and_samples_last_equal_direct(h, w, k, stride, padding, way):
    inputs = drawn(3, 2, 4, h, w, k)
    options = {"stride": stride, "padding": padding}
    expected = gradients(partial(F.conv2d, **options), *inputs)
    for a, b in zip(gradients(partial(WAYS[way], **options), *inputs), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_windows_refuse_a_kernel_that_does_not_fit():
    with pytest.raises(ValueError, match="does not fit into 2×2 pixels"):
        windows_conv2d(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 5, 5))
    with pytest.raises(ValueError, match="padding must be below 3 for a 3×3 kernel; got 3"):
        windows_conv2d(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 3, 3), padding=3)


def test_winograd_refuses_other_kernels():
    with pytest.raises(ValueError, match=r"weight must be \[O, C, 3, 3\]; got \[1, 1, 5, 5\]"):
        winograd_conv2d(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 5, 5))
    with pytest.raises(
        ValueError, match="has a 3×3 kernel, stride 1 and padding 1; got 3×3, 2 and 1"
    ):
        Conv2d(4, 4, 3, stride=2, padding=1, algorithm="winograd")


FUNCTIONS = {
    "winograd": winograd_conv2d,
    "windows": partial(windows_conv2d, stride=2, padding=1),
    "samples-last": partial(samples_last_conv2d, stride=2, padding=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_and_their_gradients(name):
    inputs = [t.requires_grad_() for t in drawn(2, 2, 3, 5, 4, 3)]
    assert torch.autograd.gradcheck(FUNCTIONS[name], inputs)
    assert torch.autograd.gradgradcheck(FUNCTIONS[name], inputs)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wanted", [0, 1])
def test_one_gradient_alone_is_the_one_of_both(name, wanted):
    inputs = drawn(2, 3, 4, 6, 7, 3)
    both = gradients(FUNCTIONS[name], *inputs)[1 + wanted]
    frozen = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(inputs)]
    y = FUNCTIONS[name](*frozen)
    direction = torch.linspace(-1, 1, y.numel(), dtype=torch.double).sin().mul(7).cos().view_as(y)
    y.backward(direction)
    torch.testing.assert_close(frozen[wanted].grad, both)
    assert frozen[1 - wanted].grad is None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_memory_order_of_the_input_does_not_matter(name):
    images, weight = drawn(3, 4, 5, 6, 7, 3)
    expected = FUNCTIONS[name](images, weight)
    assert is_samples_last(expected)
    for other in (images.to(memory_format=torch.channels_last), samples_last(images)):
        torch.testing.assert_close(FUNCTIONS[name](other, weight), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_empty_batch(name):
    images, weight = drawn(2, 4, 5, 6, 7, 3)
    y = FUNCTIONS[name](images[:0].requires_grad_(), weight.requires_grad_())
    assert y.shape[:2] == (0, 5)
    y.sum().backward()
    assert float(weight.grad.abs().sum()) == 0


@pytest.mark.parametrize(("h", "w"), [(1, 1), (2, 2), (3, 5), (7, 4), (16, 16)])
@pytest.mark.parametrize("ties", [False, True])
def test_max_pool_equals_pytorch_s_also_where_pixels_are_equal(h, w, ties):
    torch.manual_seed(0)
    x = torch.randn(3, 4, h, w, dtype=torch.double)
    x = x.round() if ties else x
    expected = gradients(partial(F.max_pool2d, kernel_size=3, stride=2, padding=1), x)
    found = gradients(max_pool_3_2, samples_last(x))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert is_samples_last(max_pool_3_2(samples_last(x)))


def test_max_pool_hands_on_nan_and_has_second_derivatives():
    x = torch.randn(3, 2, 5, 6, dtype=torch.double)
    x[0, 0, 2, 2] = torch.nan
    pooled = F.max_pool2d(x, 3, 2, 1)
    assert torch.equal(max_pool_3_2(samples_last(x)).isnan(), pooled.isnan())
    small = samples_last(torch.randn(2, 2, 4, 3, dtype=torch.double)).requires_grad_()
    assert torch.autograd.gradcheck(max_pool_3_2, [small])
    assert torch.autograd.gradgradcheck(max_pool_3_2, [small])


def test_pooling_layer_in_either_memory_order():
    x = torch.randn(3, 4, 8, 8)
    layer = MaxPool()
    assert torch.equal(layer(x), F.max_pool2d(x, 3, 2, 1))
    assert torch.equal(layer(samples_last(x)), layer(x))


def test_saving_counts_products():
    # 4×4 pixels: along an axis 3 + 3 + 3 + 3 weights meet pixels, but for the two at the ends.
    assert winograd_saving(4, 4) == pytest.approx(10 * 10 / 36)
    assert winograd_saving(8, 8) == pytest.approx(22 * 22 / (4 * 36))
    assert winograd_saving(2, 2) == pytest.approx(16 / 9)
    assert winograd_saving(1, 1) < 1


def test_auto_takes_the_way_of_each_layer_of_a_resnet_on_small_images():
    def choice(n, side, *layer, in_order=True, **options):
        x = torch.zeros(n, layer[0], side, side)
        return Conv2d(*layer, bias=False, **options).choice(samples_last(x) if in_order else x)

    same, halved = {"padding": 1}, {"padding": 1, "stride": 2}
    assert choice(64, 32, 3, 64, 7, stride=2, padding=3, in_order=False) == "samples-last"
    assert choice(64, 8, 64, 64, 3, **same) == "winograd"
    assert choice(64, 8, 64, 64, 3, **same, in_order=False) == "winograd"
    assert choice(64, 8, 64, 128, 3, **halved) == "windows"
    assert choice(64, 8, 64, 128, 1, stride=2) == "windows"
    assert choice(64, 8, 64, 128, 3, **halved, in_order=False) == "direct"
    assert choice(64, 4, 128, 128, 3, **same) == "winograd"
    assert choice(64, 2, 256, 256, 3, **same) == "winograd"
    assert choice(64, 2, 256, 512, 3, **halved) == "windows"
    assert choice(64, 1, 512, 512, 3, **same, in_order=False) == "windows"
    # Few samples, few channels, large images.
    assert choice(63, 8, 64, 64, 3, **same) == "direct"
    assert choice(64, 8, 16, 16, 3, **same) == "direct"
    assert choice(64, 56, 64, 64, 3, **same, in_order=False) == "direct"
    assert choice(64, 224, 3, 64, 7, stride=2, padding=3, in_order=False) == "direct"


@pytest.mark.parametrize("algorithm", ["winograd", "windows", "samples-last"])
def test_a_layer_with_bias_equals_the_direct_one(algorithm):
    torch.manual_seed(0)
    direct, ours = (
        Conv2d(4, 5, 3, padding=1, algorithm=name).double() for name in ("direct", algorithm)
    )
    ours.load_state_dict(direct.state_dict())
    x = torch.randn(3, 4, 6, 6, dtype=torch.double)
    torch.testing.assert_close(ours(x), direct(x))
    for layer in (ours, direct):
        layer(x).sin().sum().backward()
    torch.testing.assert_close(ours.bias.grad, direct.bias.grad)
    torch.testing.assert_close(ours.weight.grad, direct.weight.grad)


@pytest.mark.parametrize("activation", ["none", "relu", "tanh"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("in_order", [True, False])
def test_batch_norm_with_a_shortcut_equals_the_layers(activation, training, in_order):
    torch.manual_seed(0)
    norm = BatchNorm2d(4).double().train(training)
    with torch.no_grad():
        norm.weight.normal_(), norm.bias.normal_()
    stock = nn.BatchNorm2d(4).double().train(training)
    stock.load_state_dict(norm.state_dict())
    function = {"none": nn.Identity(), "relu": nn.ReLU(), "tanh": nn.Tanh()}[activation]
    x, shortcut = torch.randn(2, 6, 4, 5, 3, dtype=torch.double)
    expected = gradients(lambda x, s: function(stock(x) + s), x, shortcut)
    order = samples_last if in_order else torch.clone
    found = gradients(
        lambda x, s: norm(x, activation=activation, shortcut=s), order(x), order(shortcut)
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_second_derivative_of_batch_norm_with_a_shortcut(activation):
    torch.manual_seed(0)
    inputs = [
        torch.randn(2, 2, 2, 3).double().permute(3, 2, 0, 1).requires_grad_() for _ in range(2)
    ]
    norm = BatchNorm2d(2).double()
    function = lambda x, shortcut: norm(x, activation=activation, shortcut=shortcut)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_a_shortcut_in_another_memory_order_and_without_gradient():
    torch.manual_seed(0)
    x, shortcut = torch.randn(2, 6, 4, 5, 3, dtype=torch.double)
    norm, act = BatchNorm2d(4).double(), nn.ReLU()
    expected = act(copy.deepcopy(norm)(x) + shortcut)
    pixels = samples_last(x).requires_grad_()
    y = normalize(pixels, norm, act, shortcut)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    assert pixels.grad is not None


def as_stock(net):
    """The same network, weights included, with PyTorch's own convolutions."""
    stock = copy.deepcopy(net)
    for layer in stock.modules():
        if isinstance(layer, Conv2d):
            layer.algorithm = "direct"
    return stock


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet18-cifar"])
@pytest.mark.parametrize("training", [True, False])
def test_the_network_equals_the_stock_one(name, training):
    """Features, gradients and running statistics in float64, from batches for every way."""
    torch.manual_seed(0)
    options = {"widths": (32, 32, 64, 64), "last_activation": "tanh"}
    ours = build_encoder(name, **options).double().train(training)
    stock, x = as_stock(ours), torch.randn(64, 3, 32, 32, dtype=torch.double)
    h, expected = ours(x), stock(x)
    torch.testing.assert_close(h, expected, rtol=1e-8, atol=1e-10)
    for y in (h, expected):
        y.sin().sum().backward()
    for (key, p), q in zip(ours.named_parameters(), stock.parameters(), strict=True):
        assert float((p.grad - q.grad).abs().max()) <= 1e-8 * float(q.grad.abs().max()) + 1e-10, key
    for (key, a), b in zip(ours.named_buffers(), stock.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=key)


def test_hooks_see_what_their_layers_return():
    torch.manual_seed(0)
    net = build_encoder("resnet18", widths=(32, 32, 32, 32))
    x, seen = torch.randn(64, 3, 32, 32), []
    expected = net(x)
    block = net.layer1[0]
    for layer in (block.bn1, block.bn2, block.act):
        layer.register_forward_hook(lambda _, __, y: seen.append(y.detach()))
    torch.testing.assert_close(net(x), expected, rtol=1e-3, atol=1e-4)
    assert [bool((y < 0).any()) for y in seen] == [True, False, True, False]


def test_training_after_an_evaluation_that_came_first():
    """What is kept from an evaluation must not be an inference tensor."""
    net = build_encoder("resnet18", widths=(32, 32, 32, 32))
    images = torch.randn(64, 3, 29, 31)  # a size that no other test has
    net.eval()
    with torch.inference_mode():
        net(images)
    net.train()
    net(images).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
