import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairmargin.networks import SimpleConvNet, build_encoder
from fairmargin.networks.batch_norm import BatchNorm2d, mean_over_positions
from fairmargin.networks.convolution import Conv2d
from fairmargin.networks.spectral import spectral_conv2d, spectral_saving
from fairmargin.networks.unrolled import unrolled_conv2d

LAYERS = [(3, 16), (16, 32), (32, 64), (64, 128)]  # of SimpleConvNet


def both(images, weight, bias):
    """Outputs and gradients of the spectral and of the direct way, the latter in float64."""
    found = []
    for function, dtype in (
        (spectral_conv2d, images.dtype),
        (partial(F.conv2d, padding="same"), torch.double),
    ):
        inputs = [t.detach().to(dtype).requires_grad_() for t in (images, weight, bias)]
        y = function(*inputs)
        seed = torch.linspace(-1, 1, y.numel(), dtype=torch.double).sin().mul(7).cos().view_as(y)
        found.append([y.detach(), *torch.autograd.grad(y, inputs, seed.to(dtype))])
    return zip(*found, strict=True)


def drawn(n, c, o, h, w, k, dtype=torch.float32):
    torch.manual_seed(0)
    return (
        torch.randn(n, c, h, w, dtype=dtype),
        torch.randn(o, c, k, k, dtype=dtype),
        torch.randn(o, dtype=dtype),
    )


@pytest.mark.parametrize(("c", "o"), LAYERS)
@pytest.mark.parametrize("k", [3, 5, 7])
@pytest.mark.parametrize("side", [28, 14])
def test_every_layer_is_within_1e_4_of_float64(c, o, k, side):
    for ours, exact in both(*drawn(3, c, o, side, side, k)):
        assert float((ours - exact).abs().max()) <= 1e-4 * float(exact.abs().max())


@pytest.mark.parametrize(("h", "w"), [(1, 1), (1, 9), (2, 3), (3, 3), (5, 8), (13, 28), (31, 7)])
@pytest.mark.parametrize("k", [1, 3, 7, 9])
def test_odd_sizes_and_kernels_larger_than_the_image(h, w, k):
    for ours, exact in both(*drawn(2, 3, 4, h, w, k, torch.double)):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-11)


def test_one_image_by_hand():
    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.double).view(1, 1, 2, 2)
    kernel = torch.arange(9, dtype=torch.double).view(1, 1, 3, 3)
    # Top left: 4·1 + 5·2 + 7·3 + 8·4, and the bias.
    expected = torch.tensor([[67.5, 57.5], [37.5, 27.5]], dtype=torch.double)
    expected[0, 1] = 3 * 1 + 4 * 2 + 6 * 3 + 7 * 4 + 0.5
    expected[1, 0] = 1 * 1 + 2 * 2 + 4 * 3 + 5 * 4 + 0.5
    expected[1, 1] = 0 * 1 + 1 * 2 + 3 * 3 + 4 * 4 + 0.5
    y = spectral_conv2d(image, kernel, torch.tensor([0.5], dtype=torch.double))
    torch.testing.assert_close(y[0, 0], expected)


def test_gradients_and_their_gradients():
    inputs = [t.requires_grad_() for t in drawn(2, 2, 3, 4, 5, 3, torch.double)]
    assert torch.autograd.gradcheck(spectral_conv2d, inputs)
    assert torch.autograd.gradgradcheck(spectral_conv2d, inputs)


@pytest.mark.parametrize(("c", "o"), [(2, 3), (40, 33)])
def test_the_same_graph_gives_its_gradients_twice(c, o):
    """What is kept for the backward pass is overwritten by it; a second one finds it again."""
    inputs = [t.requires_grad_() for t in drawn(2, c, o, 6, 7, 5, torch.double)]
    loss = spectral_conv2d(*inputs).sin().sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_one_gradient_alone_is_the_one_of_all(wanted):
    inputs = [t.requires_grad_() for t in drawn(2, 3, 4, 6, 7, 5, torch.double)]
    (alone,) = torch.autograd.grad(spectral_conv2d(*inputs).sin().sum(), [inputs[wanted]])
    assert torch.allclose(
        alone, torch.autograd.grad(spectral_conv2d(*inputs).sin().sum(), inputs)[wanted]
    )
    frozen = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(inputs)]
    spectral_conv2d(*frozen).sin().sum().backward()
    assert torch.allclose(frozen[wanted].grad, alone)


def test_without_bias_and_without_gradients_for_some():
    images, weight, _ = drawn(2, 3, 4, 6, 6, 5, torch.double)
    torch.testing.assert_close(spectral_conv2d(images, weight), F.conv2d(images, weight, padding=2))
    y = spectral_conv2d(images, weight.requires_grad_())
    (dw,) = torch.autograd.grad(y.square().sum(), [weight])
    (expected,) = torch.autograd.grad(F.conv2d(images, weight, padding=2).square().sum(), [weight])
    torch.testing.assert_close(dw, expected)


def test_memory_order_of_the_input_does_not_matter():
    images, weight, bias = drawn(3, 4, 5, 6, 7, 3, torch.double)
    expected = spectral_conv2d(images, weight, bias)
    assert expected.permute(2, 3, 1, 0).is_contiguous()
    for other in (
        images.to(memory_format=torch.channels_last),
        images.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1),
    ):
        torch.testing.assert_close(spectral_conv2d(other, weight, bias), expected)


def test_empty_batch():
    images, weight, bias = drawn(2, 4, 5, 6, 7, 3)
    y = spectral_conv2d(images[:0].requires_grad_(), weight.requires_grad_(), bias)
    assert y.shape == (0, 5, 6, 7)
    y.sum().backward()
    assert float(weight.grad.abs().sum()) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 2, "padding": 3}, "stride 1; got stride 2"),
        ({"padding": 0}, "padding 3 here; got padding 0"),
    ],
)
def test_what_has_no_spectral_form_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Conv2d(3, 4, 7, algorithm="spectral", **options)


def test_even_kernels_wrong_channels_and_unknown_algorithms_are_refused():
    with pytest.raises(ValueError, match="odd size; got 4×4"):
        Conv2d(3, 4, 4, algorithm="spectral", padding=2)
    with pytest.raises(ValueError, match="k odd"):
        spectral_conv2d(torch.zeros(1, 3, 8, 8), torch.zeros(4, 3, 4, 4))
    with pytest.raises(ValueError, match=r"images must be \[N, 3, H, W\]"):
        spectral_conv2d(torch.zeros(1, 2, 8, 8), torch.zeros(4, 3, 3, 3))
    with pytest.raises(ValueError, match="spectral"):
        Conv2d(3, 4, 3, algorithm="spectal")


def test_auto_takes_the_spectral_way_where_it_saves_and_only_there():
    """The layers of SimpleConvNet(7); no stride; no small kernels; no half precision."""
    images = {c: torch.zeros(64, c, 28, 28) for c in (3, 16, 32, 64)}
    chosen = [Conv2d(c, o, 7, padding=3).choice(images[c]) for c, o in LAYERS]
    assert chosen == ["spectral"] * 4
    # One channel in, one out: the transforms would cost more than they save.
    assert Conv2d(1, 1, 7, padding=3).choice(torch.zeros(64, 1, 28, 28)) == "direct"
    assert Conv2d(16, 32, 7, padding=3, stride=2).choice(images[16]) == "direct"
    assert Conv2d(16, 32, 7, padding=0).choice(images[16]) == "direct"
    assert Conv2d(16, 32, 1).choice(images[16]) == "direct"
    assert Conv2d(64, 128, 3, padding=1).choice(images[64]) == "direct"
    layer = Conv2d(16, 32, 7, padding=3)
    assert layer.choice(images[16].bfloat16()) == "direct"
    assert layer.choice(images[16].to("meta")) == "direct"
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.choice(images[16]) == "direct"


def test_auto_unrolls_maps_smaller_than_the_kernel():
    layer = Conv2d(16, 32, 3, padding=1, stride=2)
    sides = (1, 2, 3, 8)
    assert [layer.choice(torch.zeros(4, 16, n, n)) for n in sides] == [
        "unrolled",
        "unrolled",
        "direct",
        "direct",
    ]
    assert Conv2d(16, 32, 1).choice(torch.zeros(4, 16, 1, 1)) == "direct"


def test_an_algorithm_that_is_named_is_taken():
    x = torch.randn(2, 4, 6, 6)
    layers = {
        name: Conv2d(4, 5, 3, padding=1, algorithm=name)
        for name in ("direct", "spectral", "unrolled")
    }
    for layer in layers.values():
        layer.load_state_dict(layers["direct"].state_dict())
    outputs = {name: layer(x) for name, layer in layers.items()}
    assert outputs["spectral"].permute(2, 3, 1, 0).is_contiguous()
    for y in outputs.values():
        torch.testing.assert_close(y, outputs["direct"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("h", "w"), [(1, 1), (2, 2), (3, 1), (4, 5)])
@pytest.mark.parametrize(
    ("k", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (3, 2, 1), (5, 2, 2), (2, 1, 1), (7, 3, 3)]
)
@pytest.mark.parametrize("biased", [True, False])
def test_unrolled_equals_direct(h, w, k, stride, padding, biased):
    images, weight, bias = (t.requires_grad_() for t in drawn(3, 2, 4, h, w, k, torch.double))
    bias = bias if biased else None
    ours = unrolled_conv2d(images, weight, bias, stride=stride, padding=padding)
    direct = F.conv2d(images, weight, bias, stride=stride, padding=padding)
    torch.testing.assert_close(ours, direct)
    inputs = [t for t in (images, weight, bias) if t is not None]
    for a, b in zip(
        *(torch.autograd.grad(y.square().sum(), inputs) for y in (ours, direct)), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_unrolled_refuses_a_kernel_that_does_not_fit():
    with pytest.raises(ValueError, match="does not fit into 2×2 pixels"):
        unrolled_conv2d(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 5, 5))


def test_saving_counts_multiplications():
    """For many channels and samples the transforms vanish: 28²·49 against 4·16·31."""
    assert spectral_saving(torch.Size((10**6, 10**6, 28, 28)), 10**6, 7) == pytest.approx(
        28 * 28 * 49 / (4 * 16 * 31), rel=1e-3
    )
    assert spectral_saving(torch.Size((1, 1, 28, 28)), 1, 7) < 1


def test_training_after_an_evaluation_that_came_first():
    """A run resumed at the end of an epoch evaluates before it trains.

    What is kept must not be an inference tensor.
    """
    net = build_encoder("resnet18")
    images = torch.randn(4, 3, 36, 36)  # a size that no other test has
    net.eval()
    with torch.inference_mode():
        net(images)
    net.train()
    net(images).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())

    images, weight = torch.randn(2, 3, 29, 27), torch.randn(4, 3, 7, 7, requires_grad=True)
    with torch.inference_mode():
        spectral_conv2d(images, weight)
    (gradient,) = torch.autograd.grad(
        spectral_conv2d(images, weight).square().sum(), weight, create_graph=True
    )
    gradient.square().sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(
    "options", [{"momentum": None}, {"track_running_stats": False}, {"affine": False}]
)
def test_batch_norm_with_options_equals_pytorch_s(options):
    mine, stock = BatchNorm2d(3, **options), nn.BatchNorm2d(3, **options)
    for _ in range(2):
        x = torch.randn(5, 6, 3, 4).permute(3, 2, 0, 1)  # the memory order of spectral convolutions
        assert torch.allclose(mine(x), stock(x.contiguous()), atol=1e-6)
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip(mine.buffers(), stock.buffers(), strict=True)
    )


def test_state_of_the_layer_is_that_of_pytorch():
    ours, theirs = Conv2d(16, 32, 7, padding=3), nn.Conv2d(16, 32, 7, padding=3)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(64, 16, 28, 28)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_either_memory_order(training):
    torch.manual_seed(0)
    ours, theirs = (
        BatchNorm2d(4).double().train(training),
        nn.BatchNorm2d(4).double().train(training),
    )
    with torch.no_grad():
        (
            ours.weight.copy_(torch.randn(4)),
            ours.bias.copy_(torch.randn(4)),
            ours.running_mean.copy_(torch.randn(4)),
        )
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 4, 5, 6, dtype=torch.double)
    pixels = x.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1).requires_grad_()
    x.requires_grad_()
    mine, expected = ours(pixels), theirs(x)
    torch.testing.assert_close(mine, expected)
    assert mine.stride() == pixels.stride()
    seed = torch.randn_like(x)
    found = torch.autograd.grad(mine, [pixels, ours.weight, ours.bias], seed)
    stock = torch.autograd.grad(expected, [x, theirs.weight, theirs.bias], seed)
    for a, b in zip(found, stock, strict=True):
        torch.testing.assert_close(a, b)
    assert ours.num_batches_tracked == theirs.num_batches_tracked
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_batch_norm_far_from_zero_and_its_second_derivative():
    """Sums of squares about the mean, not about zero, which would cancel here."""
    torch.manual_seed(0)
    x = 1000 + torch.randn(64, 3, 5, 5).double()
    pixels = x.float().permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
    torch.testing.assert_close(
        BatchNorm2d(3)(pixels).double(), nn.BatchNorm2d(3).double()(x), rtol=1e-3, atol=1e-3
    )
    small = (
        torch.randn(3, 2, 2, 2)
        .double()
        .permute(2, 3, 1, 0)
        .contiguous()
        .permute(3, 2, 0, 1)
        .requires_grad_()
    )
    norm = BatchNorm2d(2).double()
    assert torch.autograd.gradcheck(norm, [small])
    assert torch.autograd.gradgradcheck(norm, [small])


@pytest.mark.parametrize("activation", ["none", "relu", "tanh"])
@pytest.mark.parametrize("shape", [(5, 6, 4, 3), (28, 28, 64, 8)])
def test_batch_norm_with_its_activation_equals_the_two_layers(activation, shape):
    torch.manual_seed(0)
    ours, stock = BatchNorm2d(shape[2]), nn.BatchNorm2d(shape[2]).double()
    with torch.no_grad():
        ours.weight.normal_(), ours.bias.normal_()
    stock.load_state_dict(ours.state_dict())
    function = {"none": nn.Identity(), "relu": nn.ReLU(), "tanh": nn.Tanh()}[activation]
    pixels = (3 + torch.randn(shape)).permute(3, 2, 0, 1).requires_grad_()
    exact = pixels.detach().double().contiguous().requires_grad_()
    z, expected = ours(pixels, activation=activation), function(stock(exact))
    torch.testing.assert_close(z.double(), expected, rtol=0, atol=2e-5)
    seed = torch.randn_like(z)
    found = torch.autograd.grad(z, [pixels, ours.weight, ours.bias], seed)
    wanted = torch.autograd.grad(expected, [exact, stock.weight, stock.bias], seed.double())
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) <= 1e-4 * float(b.abs().max())
    torch.testing.assert_close(ours.running_var.double(), stock.running_var, rtol=1e-5, atol=0)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_second_derivative_of_batch_norm_with_its_activation(activation):
    torch.manual_seed(0)
    small = torch.randn(2, 2, 2, 3).double().permute(3, 2, 0, 1).requires_grad_()
    norm = BatchNorm2d(2).double()
    function = partial(norm, activation=activation)
    assert torch.autograd.gradcheck(function, [small])
    assert torch.autograd.gradgradcheck(function, [small])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_with_its_activation_in_the_usual_memory_order(training):
    x = torch.randn(4, 3, 5, 5)
    norm = BatchNorm2d(3).train(training)
    torch.testing.assert_close(norm(x, activation="tanh"), torch.tanh(copy.deepcopy(norm)(x)))


def test_a_hook_on_a_layer_of_a_block_sees_what_that_layer_returns():
    torch.manual_seed(0)
    net = SimpleConvNet(7, widths=(4, 4))
    x, seen = torch.randn(8, 3, 28, 28), []
    expected = net(x)
    net.blocks[0][1].register_forward_hook(lambda _, __, y: seen.append(y.detach()))
    torch.testing.assert_close(net(x), expected)
    assert seen[0].min() < 0  # before the ReLU


def test_means_over_positions_of_either_memory_order():
    maps = torch.randn(5, 6, 3, 2, dtype=torch.double).permute(3, 2, 0, 1).requires_grad_()
    means = mean_over_positions(maps)
    torch.testing.assert_close(means, maps.mean((2, 3)))
    assert torch.autograd.gradcheck(mean_over_positions, [maps])


def as_stock(net):
    """The same network, weights included, with PyTorch's own convolutions."""
    stock = copy.deepcopy(net)
    for layer in stock.modules():
        if isinstance(layer, Conv2d):
            layer.algorithm = "direct"
    return stock


def test_the_network_equals_the_stock_one():
    torch.manual_seed(0)
    ours = SimpleConvNet(7).double()
    stock, x = as_stock(ours), torch.randn(8, 3, 28, 28, dtype=torch.double)
    h, expected = ours(x), stock(x)
    torch.testing.assert_close(h, expected, rtol=1e-9, atol=1e-12)
    for y in (h, expected):
        y.square().sum().backward()
    for (name, p), q in zip(ours.named_parameters(), stock.parameters(), strict=True):
        assert float((p.grad - q.grad).abs().max()) < 1e-9, name


def test_maps_in_both_orders_go_back_through_one_norm():
    """As with two streams of batches, whose sizes decide the order."""
    norm = BatchNorm2d(3)
    x = torch.randn(4, 3, 2, 2, requires_grad=True)
    last = torch.randn(2, 2, 3, 8).permute(3, 2, 0, 1).requires_grad_()
    (norm(x).square().sum() + norm(last).pow(3).sum()).backward()
    assert x.grad is not None
    assert last.grad is not None
    assert int(norm.num_batches_tracked) == 2


@pytest.mark.slow
def test_a_hundred_steps_of_training_follow_the_stock_ones():
    """In float32 the losses of both runs stay together until rounding has grown.

    They end at the same level.
    """
    torch.manual_seed(0)
    # Smooth activations: at a kink of ReLU rounding alone decides which way a unit goes.
    ours = nn.Sequential(
        SimpleConvNet(7, last_activation="tanh", widths=(8, 16, 16, 32)), nn.Linear(32, 4)
    )
    nets = {"ours": ours, "stock": nn.Sequential(as_stock(ours[0]), copy.deepcopy(ours[1]))}
    colours = torch.randn(4, 3, 1, 1)
    losses = {}
    for name, net in nets.items():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
        numbers = torch.Generator().manual_seed(1)
        losses[name] = []
        for _ in range(100):
            y = torch.randint(4, (16,), generator=numbers)
            x = 0.3 * colours[y] + torch.randn(16, 3, 28, 28, generator=numbers)
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    a, b = (torch.tensor(curve) for curve in losses.values())
    assert float((a[:20] - b[:20]).abs().max()) < 1e-3
    assert float((a - b).abs().mean()) < 0.02
    assert a[0] > 1
    assert a[-20:].mean() < 0.4
    assert b[-20:].mean() < 0.4
