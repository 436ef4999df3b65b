"""What every encoder promises, whatever is inside."""

import copy

import pytest
import torch
from torch import nn

from fairmargin.networks import ENCODERS, BagNet18, Encoder, build_encoder, linear_classifier

HEIGHT, WIDTH = 21, 18  # neither square nor a power of two
LIGHT = ("simple-conv-7", "simple-conv-1", "resnet18", "resnet20", "bagnet18", "mlp")

PARAMETERS = {
    "simple-conv-7": 529_920,
    "simple-conv-3": 97_920,
    "simple-conv-1": 11_520,
    "resnet18": 11_176_512,
    "resnet34": 21_284_672,
    "resnet50": 23_508_032,
    "resnet101": 42_500_160,
    "resnet18-cifar": 11_168_832,
    "resnet34-cifar": 21_276_992,
    "resnet50-cifar": 23_500_352,
    "resnet101-cifar": 42_492_480,
    "resnet20": 269_072,
    "resnet32": 463_504,
    "bagnet18": 1_476_288,
    "mlp": 3 * 28 * 28 * 100 + 100 + 100 * 100 + 100 + 100 * 16 + 16,
}


def build(name: str, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Encoder:
    torch.manual_seed(seed)
    return (
        build_encoder(name, in_features=3 * size[0] * size[1])
        if name == "mlp"
        else build_encoder(name)
    )


def images(n: int) -> torch.Tensor:
    return torch.randn(n, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1))


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("name", ENCODERS)
def test_parameter_count(name):
    with torch.device("meta"):  # shapes only: the large ones take seconds to fill
        assert count(build(name, size=(28, 28))) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "classes", "total"),
    [
        ("simple-conv-7", 10, 531_210),
        ("simple-conv-1", 10, 12_810),
        ("bagnet18", 9, 1_476_288 + 4_617),
    ],
)
def test_parameter_count_with_classifier(name, classes, total):
    encoder = build(name)
    assert count(encoder) + count(linear_classifier(encoder.dim, classes)) == total


@pytest.mark.parametrize("name", ENCODERS)
def test_features_have_the_announced_dimension_for_a_batch_of_one(name):
    encoder = build(name).eval()
    with torch.no_grad():
        h = encoder(images(1))
    assert h.shape == (1, encoder.dim)
    assert h.isfinite().all()


@pytest.mark.parametrize("name", LIGHT)
def test_in_eval_mode_samples_do_not_see_each_other(name):
    encoder = build(name).eval()
    x = images(4)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x)[2:3], encoder(x[2:3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ENCODERS)
def test_gradients_reach_every_parameter(name):
    encoder = build(
        name
    ).eval()  # in training mode batch norm cancels the gradient of a bias before it
    encoder(images(2)).square().sum().backward()
    without = [key for key, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("name", LIGHT)
def test_seed_decides_the_weights(name):
    first, again, other = (
        build(name).state_dict(),
        build(name).state_dict(),
        build(name, seed=1).state_dict(),
    )
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", LIGHT)
def test_saved_weights_and_statistics_restore_the_function(name, tmp_path):
    encoder, x = build(name), images(4)
    encoder(x)  # moves the running statistics
    torch.save(encoder.state_dict(), tmp_path / "encoder.pt")
    restored = build(name, seed=1)
    restored.load_state_dict(torch.load(tmp_path / "encoder.pt"))
    with torch.no_grad():
        assert torch.equal(encoder.eval()(x), restored.eval()(x))


@pytest.mark.parametrize("name", LIGHT)
def test_a_copy_is_independent(name):
    encoder, x = build(name).eval(), images(1)
    clone = copy.deepcopy(encoder)
    with torch.no_grad():
        before = encoder(x)
        for p in clone.parameters():
            p.zero_()
        assert torch.equal(encoder(x), before)
        assert not torch.equal(clone(x), before)


@pytest.mark.parametrize("name", [name for name in LIGHT if name != "mlp"])
def test_channels_last_changes_the_layout_only(name):
    encoder, x = build(name).eval(), images(2)
    with torch.no_grad():
        expected = encoder(x)
        encoder = encoder.to(memory_format=torch.channels_last)
        maps = encoder.maps(x.to(memory_format=torch.channels_last))
        h = encoder(x.to(memory_format=torch.channels_last))
    if name != "simple-conv-7":  # whose fast convolutions have a memory order of their own
        assert maps.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(h, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "bagnet18"])
def test_compiles_as_one_graph(name):
    encoder, x = build(name), images(2)
    eager = copy.deepcopy(encoder)
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    expected, h = eager(x), compiled(x)
    torch.testing.assert_close(h, expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    h.square().sum().backward()
    torch.testing.assert_close(
        encoder.conv1.weight.grad, eager.conv1.weight.grad, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", [name for name in LIGHT if name != "mlp"])
def test_one_channel_images(name):
    encoder = build_encoder(name, in_channels=1).eval()
    with torch.no_grad():
        assert encoder(images(2)[:, :1]).shape == (2, encoder.dim)


def test_batch_norm_settings():
    for name in LIGHT:
        for key, module in build(name).named_modules():
            if isinstance(module, nn.BatchNorm2d):
                stem_of_bagnet = name == "bagnet18" and key == "bn1"
                assert (module.momentum, module.eps) == (0.001 if stem_of_bagnet else 0.1, 1e-5)
                assert module.weight.eq(1).all()  # also the last one of a residual block
                assert module.bias.eq(0).all()


@pytest.mark.parametrize(
    ("name", "fan_in"), [("simple-conv-7", 0), ("resnet18", 0), ("bagnet18", 0), ("resnet32", 1)]
)
def test_convolutions_start_he_normal(name, fan_in):
    for key, module in build(name).named_modules():
        if isinstance(module, nn.Conv2d):
            w = module.weight.detach()
            fan = (w.shape[1] if fan_in else w.shape[0]) * w.shape[2] * w.shape[3]
            z = w.flatten() * (fan / 2) ** 0.5  # N(0, 1)
            n = z.numel()
            assert abs(float(z.mean())) < 5 / n**0.5, key
            assert abs(float(z.square().mean()) - 1) < 5 * (2 / n) ** 0.5, key
            assert abs(float(z.pow(4).mean()) - 3) < 5 * (96 / n) ** 0.5, (
                key
            )  # a uniform would give 1.8


def test_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match=r"unknown encoder 'resnet-18': did you mean 'resnet18'\?"):
        build_encoder("resnet-18")


def test_unknown_option_is_named():
    with pytest.raises(TypeError, match="kernel_size"):
        build_encoder("resnet18", kernel_size=3)


def test_views_must_be_flattened():
    x = torch.zeros(2, 2, 3, 16, 16)
    with pytest.raises(ValueError, match=r"got \[2, 2, 3, 16, 16\].*images\.flatten\(0, 1\)"):
        BagNet18()(x)


@pytest.mark.parametrize("name", ["simple-conv-7", "mlp", "resnet18"])
@pytest.mark.parametrize("widths", [[], [4, 0]])
def test_widths_that_make_no_network_are_refused(name, widths):
    with pytest.raises(ValueError, match="widths must hold"):
        build_encoder(name, widths=widths, **({"in_features": 4} if name == "mlp" else {}))
