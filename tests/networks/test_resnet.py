import pytest
import torch

from fairmargin.networks import BasicBlock, Bottleneck, ResNet, build_encoder, load_published
from fairmargin.networks.resnet import PaddedShortcut

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def norm(name: str) -> list[str]:
    return [f"{name}.{part}" for part in NORM]


# torchvision's names without the classifier, written out block by block
PLAIN = ["conv1.weight", *norm("bn1"), "conv2.weight", *norm("bn2")]
PROJECTED = [*PLAIN, "downsample.0.weight", *norm("downsample.1")]
RESNET18_NAMES = [
    "conv1.weight",
    *norm("bn1"),
    *(f"layer1.0.{name}" for name in PLAIN),
    *(f"layer1.1.{name}" for name in PLAIN),
    *(f"layer2.0.{name}" for name in PROJECTED),
    *(f"layer2.1.{name}" for name in PLAIN),
    *(f"layer3.0.{name}" for name in PROJECTED),
    *(f"layer3.1.{name}" for name in PLAIN),
    *(f"layer4.0.{name}" for name in PROJECTED),
    *(f"layer4.1.{name}" for name in PLAIN),
]


def small(block=BasicBlock, **options) -> ResNet:
    torch.manual_seed(0)
    return ResNet(block, (1, 1, 1, 2), widths=(8, 8, 16, 16), **options)


def sizes(encoder: ResNet, side: int) -> list[int]:
    """Heights after the first convolution, the pooling and each stage."""
    seen: list[int] = []
    for name in ("conv1", "maxpool", *encoder.stages):
        getattr(encoder, name).register_forward_hook(lambda _, __, out: seen.append(out.shape[2]))
    with torch.no_grad():
        encoder.eval()(torch.randn(1, 3, side, side))
    return seen


class TestNames:
    def test_resnet18(self):
        assert list(build_encoder("resnet18").state_dict()) == RESNET18_NAMES

    def test_resnet50(self):
        with torch.device("meta"):
            shapes = {
                name: tuple(value.shape)
                for name, value in build_encoder("resnet50").state_dict().items()
            }
        assert len(shapes) == 318  # 53 convolutions, 53 batch norms of 5
        assert shapes["conv1.weight"] == (64, 3, 7, 7)
        assert shapes["layer1.0.conv1.weight"] == (64, 64, 1, 1)
        assert shapes["layer1.0.conv2.weight"] == (64, 64, 3, 3)
        assert shapes["layer1.0.conv3.weight"] == (256, 64, 1, 1)
        assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
        assert shapes["layer1.0.downsample.1.running_var"] == (256,)
        assert shapes["layer3.5.conv2.weight"] == (256, 256, 3, 3)
        assert shapes["layer4.0.downsample.0.weight"] == (2048, 1024, 1, 1)
        assert shapes["layer4.2.bn3.bias"] == (2048,)
        assert "layer1.1.downsample.0.weight" not in shapes


class TestSpatialSizes:
    def test_imagenet_stem_on_cifar_images(self):
        assert sizes(build_encoder("resnet18"), 32) == [16, 8, 8, 4, 2, 1]

    def test_imagenet_stem_on_imagenet_images(self):
        assert sizes(small(), 224) == [112, 56, 56, 28, 14, 7]

    def test_cifar_stem(self):
        assert sizes(small(stem="cifar"), 32) == [32, 32, 32, 16, 8, 4]

    def test_narrow(self):
        assert sizes(build_encoder("resnet20"), 32) == [32, 32, 32, 16, 8]

    def test_dimensions(self):
        with torch.device("meta"):
            assert [build_encoder(f"resnet{d}").dim for d in (18, 34, 50, 101, 20, 32)] == [
                512,
                512,
                2048,
                2048,
                64,
                64,
            ]

    def test_stride_of_a_bottleneck_sits_on_its_3x3(self):
        block = small(Bottleneck).layer2[0]
        assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == (
            (1, 1),
            (2, 2),
            (1, 1),
        )


class TestLastActivation:
    @pytest.mark.parametrize(("block", "calls"), [(BasicBlock, 2), (Bottleneck, 3)])
    def test_tanh_takes_every_activation_of_the_last_block(self, block, calls):
        net = small(block, last_activation="tanh")
        tanhs = {name for name, module in net.named_modules() if isinstance(module, torch.nn.Tanh)}
        assert tanhs == {"layer4.1.act"}
        outputs = []
        net.layer4[1].act.register_forward_hook(lambda _, __, out: outputs.append(out))
        h = net(torch.randn(4, 3, 40, 40))
        assert len(outputs) == calls
        assert all((out < 0).any() and out.abs().max() <= 1 for out in outputs)
        assert (h < 0).any()

    @pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
    def test_nothing_before_the_last_block_changes(self, block):
        relu, tanh = small(block).eval(), small(block, last_activation="tanh").eval()
        assert all(
            torch.equal(a, b)
            for a, b in zip(relu.state_dict().values(), tanh.state_dict().values(), strict=True)
        )
        seen = []
        for net in (relu, tanh):
            net.layer4[0].register_forward_hook(lambda _, __, out: seen.append(out.clone()))
        x = torch.randn(2, 3, 40, 40)
        with torch.no_grad():
            assert (relu(x) >= 0).all()
            assert not torch.equal(relu(x), tanh(x))
        assert torch.equal(seen[0], seen[2])


class TestPaddedShortcut:
    def test_keeps_every_second_pixel_between_zero_channels(self):
        x = torch.arange(2 * 5 * 5.0).view(1, 2, 5, 5)
        y = PaddedShortcut(2, 4, stride=2)(x)
        assert y.shape == (1, 4, 3, 3)
        assert y[0, 1].tolist() == [[0, 2, 4], [10, 12, 14], [20, 22, 24]]
        assert y[0, 2].tolist() == [[25, 27, 29], [35, 37, 39], [45, 47, 49]]
        assert y[0, [0, 3]].eq(0).all()

    def test_has_no_parameters(self):
        assert not any("downsample" in name for name in build_encoder("resnet20").state_dict())


class TestLoadPublished:
    def test_classifier_is_ignored_and_old_files_lack_counters(self):
        published, net = small(), small(last_activation="tanh")
        with torch.no_grad():
            for value in published.state_dict().values():
                value.add_(1)
        weights = {
            k: v for k, v in published.state_dict().items() if not k.endswith("num_batches_tracked")
        }
        load_published(
            net, weights | {"fc.weight": torch.zeros(10, 16), "fc.bias": torch.zeros(10)}
        )
        assert all(torch.equal(net.state_dict()[name], value) for name, value in weights.items())

    def test_every_name_that_does_not_fit_is_listed(self):
        net = small()
        before = {name: value.clone() for name, value in net.state_dict().items()}
        weights = {name: value + 1 for name, value in before.items()}
        weights["module.bn1.bias"] = weights.pop("bn1.bias")
        with pytest.raises(
            ValueError, match=r"do not fit ResNet. missing: bn1.bias; unexpected: module.bn1.bias\."
        ):
            load_published(net, weights)
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())

    def test_other_stem(self):
        with pytest.raises(
            ValueError, match=r"of another shape: conv1.weight \[8, 3, 7, 7\], not \[8, 3, 3, 3\]"
        ):
            load_published(small(stem="cifar"), small().state_dict())


def test_unknown_stem_and_shortcut():
    with pytest.raises(ValueError, match=r"unknown ResNet stem 'cifar10': did you mean 'cifar'\?"):
        small(stem="cifar10")
    with pytest.raises(
        ValueError, match=r"unknown ResNet shortcut 'pad': did you mean 'padding'\?"
    ):
        small(shortcut="pad")
