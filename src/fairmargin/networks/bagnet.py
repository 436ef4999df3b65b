"""BagNet-18 (Brendel & Bethge, ICLR 2019, in the 18-layer form of Bahng et al., ICML 2020).

Its features see patches of 5×5 pixels and forget where they were: texture, no shape.
"""

from torch import Tensor, nn

from fairmargin.networks.encoder import ActivationName, Encoder, activation


class BagBlock(nn.Module):
    """k×k and 1×1 convolutions without padding, around a shortcut.

    The shortcut is cropped to what the k×k convolution leaves.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        kernel_size: int,
        stride: int,
        act: ActivationName = "relu",
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size, stride=stride, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act = activation(act)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != width:
            projection = nn.Conv2d(in_channels, width, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Maps of the next layer [N, width, H′, W′]; the shortcut is cropped to fit."""
        y = self.act(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        height, width = y.shape[2:]
        shortcut = self.downsample(x)[:, :, :height, :width]  # loses its last rows and columns
        return self.act(y + shortcut)


class BagNet18(Encoder):
    """Four stages of two blocks, with 3×3 convolutions only in the stem and in the first block.

    Args:
        in_channels: channels of the images.
        last_activation: of the whole last block.
        places: also give the middle of each map: what is where, and no shape.
    """

    def __init__(
        self,
        in_channels: int = 3,
        *,
        last_activation: ActivationName = "relu",
        places: bool = False,
    ) -> None:
        super().__init__(dim=512, places=places)
        self.conv1 = nn.Conv2d(in_channels, 64, 1, bias=False)
        self.conv2 = nn.Conv2d(64, 64, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, momentum=0.001)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BagBlock(64, 64, 3, stride=2), BagBlock(64, 64, 1, stride=1))
        self.layer2 = nn.Sequential(BagBlock(64, 128, 1, stride=2), BagBlock(128, 128, 1, stride=1))
        self.layer3 = nn.Sequential(
            BagBlock(128, 256, 1, stride=2), BagBlock(256, 256, 1, stride=1)
        )
        self.layer4 = nn.Sequential(
            BagBlock(256, 512, 1, stride=1), BagBlock(512, 512, 1, stride=1, act=last_activation)
        )
        self.init_convolutions()  # fan-out is k²·out: the variance 2/(k²·out) of the original

    def maps(self, images: Tensor) -> Tensor:  # at 224:
        """Maps [N, 512, H′, W′] whose positions each see a small patch."""
        x = self.relu(self.bn1(self.conv2(self.conv1(images))))  # 222 × 222
        x = self.layer1(x)  # 110 × 110
        x = self.layer2(x)  # 55 × 55
        x = self.layer3(x)  # 28 × 28
        return self.layer4(x)
