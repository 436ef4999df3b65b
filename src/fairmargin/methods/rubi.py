"""RUBi (Cadene et al., NeurIPS 2019): a bias branch masks the main logits while they learn.

    g minimises         CE(g, y)
    f, A, A₂ minimise   CE(f(x) ⊙ sigmoid(c), y) + w·CE(A₂(c), y),   c = A(sg[h_g])

Where the bias gives the answer away, the mask leaves f little to learn. At test time f answers
alone. No bias labels are needed.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import MakeEncoder, Method, first_view
from fairmargin.methods.card import (
    BIAS_NETWORK,
    FROM_ZERO,
    ONE_AND_BIAS_NETWORK,
    Between,
    MethodCard,
    OptionCard,
)
from fairmargin.networks import build_bias_encoder, linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

CARD = MethodCard(
    "RUBi",
    "Cadene et al., RUBi: Reducing Unimodal Biases",
    "NeurIPS 2019",
    networks=ONE_AND_BIAS_NETWORK,
    file="rubi.py",
    options={
        "bias_network": BIAS_NETWORK,
        "weight": OptionCard("w, the weight of the mask's own loss", FROM_ZERO, Between(0.1, 10)),
        "second_layer": OptionCard("A₂ is a linear layer as in the original, not the identity"),
    },
)


class RUBi(Method):
    """f is the run's network, g `bias_network` with a classifier of its own; A and A₂ learn with f.

    Note: the vision port in clovaai/rebias never hands A to an optimizer, so its mask stays random.
    Here A is trained.

    Args:
        bias_network: name of g's encoder.
        weight: w.
        second_layer: A₂ is a linear layer, as in the original for questions; else the identity, as
            in the port.
    """

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        bias_network: str = "simple-conv-1",
        weight: float = 1.0,
        second_layer: bool = False,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.encoder = make_encoder()
        self.bias_encoder = build_bias_encoder(bias_network, self.encoder)
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.bias_classifier = linear_classifier(self.bias_encoder.dim, info.num_classes)
        self.mask = linear_classifier(self.bias_encoder.dim, info.num_classes)  # A
        self.after_mask: nn.Module = nn.Identity()  # A₂
        if second_layer:
            self.after_mask = linear_classifier(info.num_classes, info.num_classes)

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "bias", which is g, and "main": f, A and A₂."""
        main = (self.encoder, self.classifier, self.mask, self.after_mask)
        return {
            "bias": [*self.bias_encoder.parameters(), *self.bias_classifier.parameters()],
            "main": [p for module in main for p in module.parameters()],
        }

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train g, then f under the mask."""
        x = first_view(batch.images)
        logits_g, y = gather(self.bias_classifier(self.bias_encoder(x)), batch.labels)
        bias = F.cross_entropy(full_precision(logits_g), y)
        yield "bias", bias

        with torch.no_grad():
            h_g = self.bias_encoder(x)  # of the g that has moved
        f, h_g = gather(self.predict(x), h_g)
        c = self.mask(h_g)
        main, mask = masked_losses(f, c, self.after_mask(c), y)
        self.terms = {"bias": bias.detach(), "main": main.detach(), "mask": mask.detach()}
        yield "main", main + self.weight * mask


def masked_losses(
    logits: Tensor, mask: Tensor, after_mask: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return CE(f ⊙ sigmoid(c), y) and CE(A₂(c), y).

    The first reaches f and A, the second A and A₂.

    Args:
        logits: f [N, K].
        mask: c [N, K].
        after_mask: A₂(c) [N, K].
        labels: y [N].
    """
    f, c = full_precision(logits), full_precision(mask)
    main = F.cross_entropy(f * c.sigmoid(), labels)
    return main, F.cross_entropy(full_precision(after_mask), labels)
