"""What every encoder does: images to features h, the average over positions of its last maps."""

from collections.abc import Callable, Sequence
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.networks.batch_norm import mean_over_positions

ActivationName = Literal["relu", "tanh"]
Fan = Literal["fan_in", "fan_out"]
ACTIVATIONS: dict[ActivationName, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def activation(name: ActivationName) -> nn.Module:
    """Return a new layer of this activation."""
    check_choice(name, "activation", get_args(ActivationName))
    return ACTIVATIONS[name]()


def last_width(widths: Sequence[int]) -> int:
    """Return the last of some layers' widths; an error if one of them is no width."""
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must hold at least one number, each above 0; got {list(widths)}")
    return widths[-1]


# Added to a map's mean before dividing by it: the middle of an empty map is that of the image.
EMPTY = 1e-3


def mean_and_middle(maps: Tensor) -> Tensor:
    """Return how much there is on each map, and where its middle lies, [N, C, H, W] → [N, 3·C].

    The middle is (down, right), from −1 to 1. So it says where a spot is, and little of a shape.

    Args:
        maps: of any sign; pixels weigh by their size.
    """
    weight = maps.abs()
    height, width = maps.shape[2:]
    down = torch.linspace(-1, 1, height, device=maps.device, dtype=maps.dtype)
    right = torch.linspace(-1, 1, width, device=maps.device, dtype=maps.dtype)
    total = weight.mean((2, 3)) + EMPTY
    middles = (weight.mean(3) @ down / height, weight.mean(2) @ right / width)
    return torch.cat([maps.mean((2, 3)), *(middle / total for middle in middles)], 1)


class Encoder(nn.Module):
    """Turns images [N, C, H, W] into features h [N, dim], the average over positions of its maps.

    A network defines `maps`, from images to [N, width, H', W'].

    Args:
        dim: number of maps.
        places: also give the middle of each map, so that there are three times as many features.
    """

    maps: Callable[[Tensor], Tensor]
    frozen = False

    def __init__(self, dim: int, *, places: bool = False) -> None:
        super().__init__()
        self.places = places
        self.dim = 3 * dim if places else dim

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, dim] of images [N, C, H, W]."""
        if images.ndim != 4:
            raise ValueError(
                f"{type(self).__name__} takes images [N, C, H, W]; got {list(images.shape)}. "
                "Put several views in one batch with images.flatten(0, 1), one image with "
                "image[None]"
            )
        maps = self.maps(images)
        return mean_and_middle(maps) if self.places else mean_over_positions(maps)  # [N, dim]

    def freeze(self) -> None:
        """Keep every weight as it is from now on: no gradients, batch norms in evaluation mode."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Set training mode, unless the encoder is frozen.

        Args:
            mode: False for evaluation mode.
        """
        return super().train(mode and not self.frozen)

    def init_convolutions(self, fan: Fan = "fan_out") -> None:
        """Draw the weights from N(0, 2/fan) (He et al., ICCV 2015).

        Biases and batch norms keep PyTorch's defaults.

        Args:
            fan: "fan_in" is k²·in channels, "fan_out" k²·out channels.
        """
        for module in self.modules():
            # On the meta device there is nothing to draw, and PyTorch would import its compiler.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
