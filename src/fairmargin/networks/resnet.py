"""Residual networks (He et al., CVPR 2016) without a classifier: wide ones with either stem; narrow ones for CIFAR.

Parameters are named as in torchvision (`conv1`, `layer1.0.downsample.0`, …), so that published weights load.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.networks.convolution import BatchNorm2d, Conv2d, normalize
from fairmargin.networks.encoder import Encoder, activation, last_width
from fairmargin.networks.small_maps import is_samples_last, max_pool_3_2


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut. `act` is one object in two places, so tanh replaces both ReLUs."""

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
        y = normalize(self.conv1(x), self.bn1, self.act)
        return normalize(self.conv2(y), self.bn2, self.act, self.downsample(x))


class Bottleneck(nn.Module):
    """1×1, 3×3 (which has the stride) and 1×1 convolutions around a shortcut; `act` serves in three places."""

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
        y = normalize(self.conv1(x), self.bn1, self.act)
        y = normalize(self.conv2(y), self.bn2, self.act)
        return normalize(self.conv3(y), self.bn3, self.act, self.downsample(x))


class MaxPool(nn.MaxPool2d):
    """Of 3×3 pixels with stride 2, which keeps the memory order of the maps."""

    def __init__(self) -> None:
        super().__init__(3, stride=2, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        if maps.device.type == "cpu" and is_samples_last(maps):
            return max_pool_3_2(maps)
        return super().forward(maps)


class PaddedShortcut(nn.Module):
    """Option A of He et al.: every stride-th pixel, and zeros as new channels, half of them before the old."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def projected_shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Option B of He et al."""
    return nn.Sequential(
        Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), BatchNorm2d(out_channels)
    )


SHORTCUTS = {
    "projection": projected_shortcut,
    "padding": PaddedShortcut,
}  # where a block changes the shape


class ResNet(Encoder):
    """Stem, stages `layer1`, `layer2`, … of `depths` blocks, each stage after the first at half the resolution.

    stem="imagenet": 7×7 convolution with stride 2, max-pool with stride 2; "cifar": 3×3 convolution, no pooling.
    `last_activation` is that of the whole last block.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        widths: Sequence[int] = (64, 128, 256, 512),
        stem: str = "imagenet",
        shortcut: str = "projection",
        fan: Literal["fan_in", "fan_out"] = "fan_out",
        last_activation: str = "relu",
        in_channels: int = 3,
    ) -> None:
        super().__init__(dim=last_width(widths) * block.expansion)
        if len(widths) != len(depths):
            raise ValueError(
                f"widths must hold {len(depths)} numbers, one for each stage; got {list(widths)}"
            )
        check_choice(stem, "ResNet stem", ("imagenet", "cifar"))
        check_choice(shortcut, "ResNet shortcut", SHORTCUTS)
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
        x = self.maxpool(normalize(self.conv1(images), self.bn1, self.relu))
        for name in self.stages:
            x = getattr(self, name)(x)
        return x


def load_published(encoder: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load published weights of the same architecture; their classifier (`fc.*`) is ignored.

    Nothing is loaded unless everything fits.
    """
    given = {name: value for name, value in state_dict.items() if not name.startswith("fc.")}
    own = encoder.state_dict()
    counters = {
        name for name in own if name.endswith(".num_batches_tracked")
    }  # old weights have none
    problems = {
        "missing": sorted(own.keys() - given.keys() - counters),
        "unexpected": sorted(given.keys() - own.keys()),
        "of another shape": [
            f"{name} {list(given[name].shape)}, not {list(value.shape)}"
            for name, value in own.items()
            if name in given and given[name].shape != value.shape
        ],
    }
    if any(problems.values()):
        found = "; ".join(
            f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names
        )
        raise ValueError(
            f"these weights do not fit {type(encoder).__name__}. {found}. Build the depth and stem they were trained "
            "with, and remove prefixes such as 'module.' from their names"
        )
    encoder.load_state_dict(own | given)
