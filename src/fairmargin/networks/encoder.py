"""What every encoder is: images to features h by an average over the positions of its last maps."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.networks.convolution import mean_over_positions

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def activation(name: str) -> nn.Module:
    check_choice(name, "activation", ACTIVATIONS)
    return ACTIVATIONS[name]()


def last_width(widths: Sequence[int]) -> int:
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must hold at least one number, each above 0; got {list(widths)}")
    return widths[-1]


class Encoder(nn.Module):
    """From images [N, C, H, W] to features h [N, dim]: the average over positions of `maps`, each network's own."""

    maps: Callable[[Tensor], Tensor]  # [N, C, H, W] → [N, dim, H', W']

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4:
            raise ValueError(
                f"{type(self).__name__} takes images [N, C, H, W]; got {list(images.shape)}. "
                "Put several views in one batch with images.flatten(0, 1), one image with image[None]"
            )
        return mean_over_positions(self.maps(images))  # [N, dim]

    def init_convolutions(self, fan: Literal["fan_in", "fan_out"] = "fan_out") -> None:
        """Weights from N(0, 2/fan) (He et al., ICCV 2015). Biases and batch norms keep PyTorch's defaults."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
