"""Encoders by name, and the heads on them.

encoder = build_encoder("resnet18", last_activation="tanh")
head = projection_head("mlp", encoder.dim)
z = head(encoder(images))  # [N, 128], unit length
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fairmargin.checks import Range, check_choice
from fairmargin.networks.bagnet import BagNet18
from fairmargin.networks.encoder import Encoder
from fairmargin.networks.heads import Head, HeadKind, linear_classifier, projection_head
from fairmargin.networks.mlp import MLP
from fairmargin.networks.pretrained import BACKBONES, build_backbone, is_backbone
from fairmargin.networks.resnet import BasicBlock, Bottleneck, ResNet, load_published
from fairmargin.networks.simple_conv import SimpleConvNet

narrow_resnet = partial(
    ResNet, BasicBlock, widths=(16, 32, 64), stem="cifar", shortcut="padding", fan="fan_in"
)

ENCODERS: dict[str, Callable[..., Encoder]] = {
    "simple-conv-7": partial(SimpleConvNet, kernel_size=7),
    "simple-conv-3": partial(SimpleConvNet, kernel_size=3),
    "simple-conv-1": partial(SimpleConvNet, kernel_size=1),
    "resnet18": partial(ResNet, BasicBlock, (2, 2, 2, 2)),
    "resnet34": partial(ResNet, BasicBlock, (3, 4, 6, 3)),
    "resnet50": partial(ResNet, Bottleneck, (3, 4, 6, 3)),
    "resnet101": partial(ResNet, Bottleneck, (3, 4, 23, 3)),
    "resnet18-cifar": partial(ResNet, BasicBlock, (2, 2, 2, 2), stem="cifar"),
    "resnet34-cifar": partial(ResNet, BasicBlock, (3, 4, 6, 3), stem="cifar"),
    "resnet50-cifar": partial(ResNet, Bottleneck, (3, 4, 6, 3), stem="cifar"),
    "resnet101-cifar": partial(ResNet, Bottleneck, (3, 4, 23, 3), stem="cifar"),
    "resnet20": partial(narrow_resnet, (3, 3, 3)),
    "resnet32": partial(narrow_resnet, (5, 5, 5)),
    "bagnet18": BagNet18,
    "mlp": MLP,
}
# Ranges of the options above that are numbers; of lists, of each number in them.
RANGES: dict[str, Range] = {
    "in_channels": Range(1, 4096),
    "in_features": Range(1, 100_000_000),
    "kernel_size": Range(1, 63),
    "norm_parts": Range(1, 64),
    "stride": Range(1, 64),
    "widths": Range(1, 65_536),
}


def build_encoder(name: str, **options: Any) -> Encoder:
    """Return the encoder called `name`.

    Args:
        name: one of `ENCODERS`, or of another library: "hf:NAME", "timm:NAME", "torchvision:NAME".
        options: keyword arguments of its class.

    Example:
        >>> build_encoder("mlp", in_features=784)
    """
    if is_backbone(name):
        return build_backbone(name, **options)
    check_choice(name, "encoder", ENCODERS)
    return ENCODERS[name](**options)


def build_bias_encoder(name: str, main: Encoder) -> Encoder:
    """Return the encoder called `name` for a bias-capturing model beside `main`.

    It is as wide as `main` and has the same stride if both are SimpleConvNets.

    Args:
        name: one of `ENCODERS`, except "mlp".
        main: the encoder of the method itself.
    """
    if isinstance(main, SimpleConvNet) and name.startswith("simple-conv"):
        return build_encoder(name, stride=main.stride, widths=main.widths)
    # An MLP sees the whole image.
    allowed = [other for other in ENCODERS if other != "mlp"]
    check_choice(name, "bias_network", allowed)
    return build_encoder(name)


__all__ = [
    "BACKBONES",
    "ENCODERS",
    "MLP",
    "RANGES",
    "BagNet18",
    "BasicBlock",
    "Bottleneck",
    "Encoder",
    "Head",
    "HeadKind",
    "ResNet",
    "SimpleConvNet",
    "build_backbone",
    "build_bias_encoder",
    "build_encoder",
    "linear_classifier",
    "load_published",
    "projection_head",
]
