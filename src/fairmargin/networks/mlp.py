"""A multilayer perceptron on flattened images (coloured MNIST in Lee et al., NeurIPS 2021)."""

from collections.abc import Sequence

from torch import Tensor, nn

from fairmargin.networks.encoder import ActivationName, Encoder, activation, last_width


class MLP(Encoder):
    """Linear layers, each followed by its activation.

    Args:
        in_features: numbers of a sample; images are flattened.
        widths: of the layers.
        last_activation: behind the last layer; the others have ReLU.
    """

    def __init__(
        self,
        in_features: int,
        widths: Sequence[int] = (100, 100, 16),
        *,
        last_activation: ActivationName = "relu",
    ) -> None:
        super().__init__(dim=last_width(widths))
        self.in_features = in_features
        layers: list[nn.Module] = []
        for before, width in zip((in_features, *widths[:-1]), widths, strict=True):
            layers += [nn.Linear(before, width), activation("relu")]
        layers[-1] = activation(last_activation)
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, dim] of images or vectors, flattened."""
        x = images.flatten(1)  # [N, in_features]
        if x.shape[1] != self.in_features:
            raise ValueError(
                f"this MLP takes {self.in_features} numbers per sample; got {list(images.shape)}, "
                f"which is {x.shape[1]} per sample. Build it with in_features={x.shape[1]}"
            )
        return self.layers(x)
