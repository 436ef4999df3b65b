"""Residual networks (He et al., CVPR 2016) without a classifier.

Parameters are named as in torchvision (`conv1`, `layer1.0.downsample.0`, …), so that published
weights load.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.networks.batch_norm import BatchNorm2d, normalize
from fairmargin.networks.convolution import Conv2d
from fairmargin.networks.encoder import ActivationName, Encoder, Fan, activation, last_width
from fairmargin.networks.samples_last import is_samples_last, max_pool_3_2

Stem = Literal["imagenet", "cifar"]
Shortcut = Literal["projection", "padding"]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut; `act` is used in both places."""

    expansion = 1

    def __init__(
        self, in_channels: int, width: int, stride: int, downsample: nn.Module, act: nn.Module
    ) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = BatchNorm2d(width)
        self.conv2 = Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(width)
        self.downsample = downsample
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """Maps of the next layer [N, width, H′, W′]."""
        y = normalize(self.conv1(x), self.bn1, self.act)
        return normalize(self.conv2(y), self.bn2, self.act, self.downsample(x))


class Bottleneck(nn.Module):
    """1×1, 3×3 (which has the stride) and 1×1 convolutions around a shortcut.

    `act` is used in all three places.
    """

    expansion = 4

    def __init__(
        self, in_channels: int, width: int, stride: int, downsample: nn.Module, act: nn.Module
    ) -> None:
        super().__init__()
        out = width * self.expansion
        self.conv1 = Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = BatchNorm2d(width)
        self.conv2 = Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = BatchNorm2d(width)
        self.conv3 = Conv2d(width, out, 1, bias=False)
        self.bn3 = BatchNorm2d(out)
        self.downsample = downsample
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """Maps of the next layer [N, 4 · width, H′, W′]."""
        y = normalize(self.conv1(x), self.bn1, self.act)
        y = normalize(self.conv2(y), self.bn2, self.act)
        return normalize(self.conv3(y), self.bn3, self.act, self.downsample(x))


class MaxPool(nn.MaxPool2d):
    """Max-pool of 3×3 pixels with stride 2, which keeps the memory order of the maps."""

    def __init__(self) -> None:
        super().__init__(3, stride=2, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [N, C, H, W] of half the side, in the memory order of the input."""
        if maps.device.type == "cpu" and is_samples_last(maps):
            return max_pool_3_2(maps)
        return super().forward(maps)


class PaddedShortcut(nn.Module):
    """Option A of He et al.: every stride-th pixel, and zeros as new channels.

    Half of the new channels stand before the old ones.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def projected_shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return option B of He et al.: a 1×1 convolution and a batch norm."""
    return nn.Sequential(
        Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), BatchNorm2d(out_channels)
    )


# Where a block changes the shape.
SHORTCUTS: dict[Shortcut, Callable[[int, int, int], nn.Module]] = {
    "projection": projected_shortcut,
    "padding": PaddedShortcut,
}


class ResNet(Encoder):
    """A stem, then stages `layer1`, `layer2`, …, each after the first at half the resolution.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: number of blocks of each stage.
        widths: of the stages.
        stem: "imagenet" is a 7×7 convolution with stride 2 and a max-pool with stride 2; "cifar" is
            a 3×3 convolution without pooling.
        shortcut: where a block changes the shape, "projection" (option B of He et al.) or "padding"
            (option A).
        fan: of the initial weights; see `Encoder.init_convolutions`.
        last_activation: of the whole last block.
        in_channels: channels of the images.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        widths: Sequence[int] = (64, 128, 256, 512),
        stem: Stem = "imagenet",
        shortcut: Shortcut = "projection",
        fan: Fan = "fan_out",
        last_activation: ActivationName = "relu",
        in_channels: int = 3,
    ) -> None:
        super().__init__(dim=last_width(widths) * block.expansion)
        if len(widths) != len(depths):
            raise ValueError(
                f"widths must hold {len(depths)} numbers, one for each stage; got {list(widths)}"
            )
        check_choice(stem, "ResNet stem", get_args(Stem))
        check_choice(shortcut, "ResNet shortcut", get_args(Shortcut))
        channels = widths[0]
        if stem == "imagenet":
            self.conv1 = Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn1 = BatchNorm2d(channels)
        self.relu = activation("relu")
        self.maxpool = MaxPool() if stem == "imagenet" else nn.Identity()
        self.stages = [f"layer{i + 1}" for i in range(len(depths))]
        for name, depth, width in zip(self.stages, depths, widths, strict=True):
            blocks: list[nn.Module] = []
            for i in range(depth):
                stride = 2 if i == 0 and name != "layer1" else 1
                out = width * block.expansion
                same = stride == 1 and channels == out
                downsample = nn.Identity() if same else SHORTCUTS[shortcut](channels, out, stride)
                is_last = name == self.stages[-1] and i == depth - 1
                act = activation(last_activation if is_last else "relu")
                blocks.append(block(channels, width, stride, downsample, act))
                channels = out
            self.add_module(name, nn.Sequential(*blocks))
        self.init_convolutions(fan)

    def maps(self, images: Tensor) -> Tensor:
        """Maps [N, dim, H′, W′] after the last stage."""
        x = self.maxpool(normalize(self.conv1(images), self.bn1, self.relu))
        for name in self.stages:
            x = getattr(self, name)(x)
        return x


def load_published(encoder: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load published weights of the same architecture.

    Their classifier (`fc.*`) is ignored. Nothing is loaded unless everything fits.

    Args:
        encoder: a network with torchvision's names, as `ResNet` has.
        state_dict: weights by name.
    """
    given = {name: value for name, value in state_dict.items() if not name.startswith("fc.")}
    own = encoder.state_dict()
    # Old weights have no counters.
    counters = {name for name in own if name.endswith(".num_batches_tracked")}
    other_shape = [
        f"{name} {list(given[name].shape)}, not {list(value.shape)}"
        for name, value in own.items()
        if name in given and given[name].shape != value.shape
    ]
    problems = {
        "missing": sorted(own.keys() - given.keys() - counters),
        "unexpected": sorted(given.keys() - own.keys()),
        "of another shape": other_shape,
    }
    said = [f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names]
    if said:
        found = "; ".join(said)
        raise ValueError(
            f"these weights do not fit {type(encoder).__name__}. {found}. "
            "Build the depth and stem they were trained "
            "with, and remove prefixes such as 'module.' from their names"
        )
    encoder.load_state_dict(own | given)
