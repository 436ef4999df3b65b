"""SimpleConvNet of Biased-MNIST (Bahng et al., ICML 2020).

7×7 kernels see digits, 1×1 kernels only colours.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from fairmargin.networks.batch_norm import BatchNorm2d, normalize
from fairmargin.networks.convolution import Conv2d
from fairmargin.networks.encoder import ActivationName, Encoder, activation, last_width


class Block(nn.Sequential):
    """Convolution, batch norm and activation; the last two in one go where the batch norm can."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, normalize and activate."""
        if len(self) != 3:  # a slice of a block
            return super().forward(x)
        convolution, norm, act = self
        return normalize(convolution(x), norm, act)


class SimpleConvNet(Encoder):
    """Blocks of convolution (with bias), batch norm and activation, without pooling in between.

    Args:
        kernel_size: of every convolution.
        last_activation: "tanh" lets cosines of h reach [−1, 1]; after ReLU they stay in [0, 1].
        in_channels: channels of the images.
        stride: of the first convolution; 2 makes everything after it four times cheaper.
        widths: channels after each block.
        places: also give the middle of each map: what is where, and no shape.
        norm_parts: into how many parts batch norm splits a batch while training, as `DataParallel`
            does on as many GPUs.
    """

    def __init__(
        self,
        kernel_size: int = 7,
        last_activation: ActivationName = "relu",
        in_channels: int = 3,
        *,
        stride: int = 1,
        widths: Sequence[int] = (16, 32, 64, 128),
        places: bool = False,
        norm_parts: int = 1,
    ) -> None:
        super().__init__(dim=last_width(widths), places=places)
        self.stride = stride
        self.widths = tuple(widths)
        inputs = (in_channels, *widths[:-1])
        strides = (stride, *[1] * (len(widths) - 1))
        relus: list[ActivationName] = ["relu"] * (len(widths) - 1)
        activations = (*relus, last_activation)
        blocks = []
        for before, width, step, name in zip(inputs, widths, strides, activations, strict=True):
            same = kernel_size // 2
            convolution = Conv2d(before, width, kernel_size, stride=step, padding=same)
            norm = BatchNorm2d(width, parts=norm_parts)
            blocks.append(Block(convolution, norm, activation(name)))
        self.blocks = nn.Sequential(*blocks)
        self.init_convolutions()

    def maps(self, images: Tensor) -> Tensor:
        """Maps [N, dim, H′, W′] after the last layer."""
        return self.blocks(images)
