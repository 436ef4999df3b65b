"""A convolution layer that gives PyTorch's numbers, on a CPU from several times fewer operations.

| way | for | file |
|---|---|---|
| spectral | 5×5 kernels and larger | spectral.py |
| winograd | 3×3 kernels on small maps, in large batches | winograd.py |
| windows | other kernels on small maps, in large batches | windows.py |
| unrolled | maps smaller than the kernel, in small batches | unrolled.py |
| samples-last | PyTorch's own, in the memory order of the ways above | samples_last.py |
| direct | everything else | PyTorch |

All but "direct" and "unrolled" return maps in the memory order [H, W, C, N] behind the usual shape
[N, C, H, W]; `BatchNorm2d` reads it as it is, and applies the activation in the same pass
(batch_norm.py).
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.networks.samples_last import is_samples_last, samples_last_conv2d
from fairmargin.networks.spectral import MANY_CHANNELS, spectral_conv2d, spectral_saving
from fairmargin.networks.unrolled import unrolled_conv2d
from fairmargin.networks.windows import windows_conv2d
from fairmargin.networks.winograd import winograd_conv2d, winograd_saving

Algorithm = Literal["auto", "direct", "spectral", "unrolled", "winograd", "windows", "samples-last"]

# Kernel size from which spectra pay: 3×3 kernels save little, and their networks rearrange memory
# between layers.
LARGE_KERNEL = 5
# Samples of a batch from which products of matrices [C, N] are fast.
LARGE_BATCH = 64
# Pixels of a map that 3×3 kernels take in tiles.
SMALL_MAP = 8 * 8
# Channels of an image, at most.
COLOURS = 4
# Pixels of an image whose maps will be small.
SMALL_IMAGE = 32 * 32
# How many times fewer multiplications pay: small products and transforms reach half the rate of
# direct convolutions.
WORTH = 1.6


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` that takes the fastest of several exact ways, by shape; on a GPU PyTorch's own.

    Args:
        in_channels: C of the images.
        out_channels: C of the result.
        kernel_size: k of a k×k kernel.
        stride: pixels between outputs.
        padding: zeros on each side.
        bias: add a learnt number to each channel.
        algorithm: "auto" chooses; "direct" is PyTorch's; the others insist on one way. "spectral"
            and "winograd" refuse what they cannot do. "unrolled" can do everything but needs memory
            for (pixels of a map)² weights. "windows" and "samples-last" can do everything.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        algorithm: Algorithm = "auto",
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=bias
        )
        check_choice(algorithm, "algorithm", get_args(Algorithm))
        self.algorithm = algorithm
        if algorithm == "winograd" and self._not_winograd():
            raise ValueError(
                f"a Winograd convolution {self._not_winograd()}; choose algorithm=auto"
            )
        if algorithm == "spectral" and self._not_spectral():
            raise ValueError(
                f"a spectral convolution {self._not_spectral()}; choose algorithm=auto"
            )

    def forward(self, images: Tensor) -> Tensor:
        """Convolve, by the fastest way for these shapes and this device."""
        chosen = self.choice(images) if self.algorithm == "auto" else self.algorithm
        options = {"stride": self.stride[0], "padding": int(self.padding[0])}
        if chosen == "spectral":
            return spectral_conv2d(images, self.weight, self.bias)
        if chosen == "unrolled":
            return unrolled_conv2d(images, self.weight, self.bias, **options)
        if chosen == "winograd":
            y = winograd_conv2d(images, self.weight)
        elif chosen == "windows":
            y = windows_conv2d(images, self.weight, **options)
        elif chosen == "samples-last":
            y = samples_last_conv2d(images, self.weight, **options)
        else:
            return super().forward(images)
        return y if self.bias is None else y + self.bias[:, None, None]

    def choice(self, images: Tensor) -> Algorithm:
        """Return the way that "auto" takes for these images."""
        exact = images.dtype in (torch.float32, torch.float64)
        if images.device.type != "cpu" or images.ndim != 4 or not exact:
            return "direct"
        if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
            return "direct"
        k, (n, c, h, w) = self.kernel_size[0], images.shape
        is_smaller_than_kernel = k * k >= WORTH * h * w
        by_spectra = (
            k >= LARGE_KERNEL
            and not self._not_spectral()
            and spectral_saving(images.shape, self.out_channels, k) >= WORTH
        )
        if n >= LARGE_BATCH and min(c, self.out_channels) >= MANY_CHANNELS:
            if not self._not_winograd() and h * w <= SMALL_MAP and winograd_saving(h, w) >= WORTH:
                return "winograd"
            in_order = is_samples_last(images) and not by_spectra
            if int(self.padding[0]) < k and (is_smaller_than_kernel or in_order):
                return "windows"
        if is_smaller_than_kernel:
            return "unrolled"
        if by_spectra:
            return "spectral"
        # The stem of a network whose maps will be small.
        small_images = n >= LARGE_BATCH and c <= COLOURS and h * w <= SMALL_IMAGE
        if small_images and k >= LARGE_KERNEL and self.stride[0] > 1:
            return "samples-last"
        return "direct"

    def _not_winograd(self) -> str:
        """Why this layer has no Winograd form, if it has none."""
        k, stride, padding = self.kernel_size[0], self.stride[0], self.padding
        if (k, stride, padding) != (3, 1, (1, 1)):
            return (
                f"has a 3×3 kernel, stride 1 and padding 1; got {k}×{k}, {stride} and {padding[0]}"
            )
        return ""

    def _not_spectral(self) -> str:
        """Why this layer has no spectral form, if it has none."""
        k = self.kernel_size[0]
        if self.stride != (1, 1):
            return f"has stride 1; got stride {self.stride[0]}"
        if k % 2 == 0:
            return f"has a kernel of odd size; got {k}×{k}"
        if self.padding != (k // 2, k // 2):
            return (
                f"keeps the size of the image, with padding {k // 2} here; "
                f"got padding {self.padding[0]}"
            )
        return ""
