"""BAdd, bias addition (Sarridis et al., 2024): hand the bias to the classifier while it trains.

    training:   CE( C(h + m·W c), y ),   h = f(x)
    test time:  C(h)

c is what is known of the bias: features of a bias-capturing model, or the bias label as a unit
vector. A classifier that is given the bias has no reason to make f find it again.

Note: the paper adds the features of a capturing network of the same shape, W = 1. Scores as wide as
h are added so here. Others, and bias labels, which the paper turns into features by a network
trained to tell them, pass through a linear map W without intercept, which learns with f.

Note: C is linear, so C(h + m·W c) = C(h) + m·C'W c: a shift of the logits by the bias. With labels
it is the shift of BiasBal, learnt instead of counted.

Note: a last stage that fits C once more to h alone is not here, nor in the public code; with
`evaluate.report_classifier=fitted` a run reports such a classifier.
"""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import MakeEncoder, Method, Unsuited, first_view
from fairmargin.methods.card import FROM_ZERO, Between, MethodCard, OptionCard
from fairmargin.methods.known_bias import bias_code, require_known_bias
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

CARD = MethodCard(
    "BAdd",
    "Sarridis et al., BAdd: Bias Mitigation through Bias Addition",
    "arXiv 2024",
    needs="bias labels or features",
    file="badd.py",
    options={
        "weight": OptionCard("m, the weight of the added bias", FROM_ZERO, Between(0.1, 10)),
    },
)


class BAdd(Method):
    """The run's network, with the bias added to its features while it trains.

    Args:
        weight: m.
    """

    def __init__(self, make_encoder: MakeEncoder, info: DataInfo, *, weight: float = 1.0) -> None:
        super().__init__()
        if weight < 0:
            raise ValueError(
                f"weight must be 0 or more; got {weight}. The public code has 0.1 to 10, mostly 1"
            )
        require_known_bias("badd", info, instead="jtt")
        self.weight, self.biases = weight, info.num_biases
        self.needs = "" if info.num_biases else "bias features"
        self.encoder = make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        width = info.num_biases or info.bias_features
        self.map: nn.Module = nn.Linear(width, self.encoder.dim, bias=False)  # W
        if not info.num_biases and width == self.encoder.dim:
            self.map = nn.Identity()

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "main": f, C and W."""
        modules = (self.encoder, self.classifier, self.map)
        return {"main": [p for module in modules for p in module.parameters()]}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield cross-entropy with the bias added to the features."""
        code = bias_code(batch, self.biases)
        if code is None:
            raise Unsuited(
                "badd adds the bias to the features and this batch has none; give the manifest a "
                '"bias" column or train with --bias scores'
            )
        h, code, y = gather(self.encoder(first_view(batch.images)), code, batch.labels)
        logits = self.classifier(h + self.weight * self.map(code.to(h.dtype)))
        loss = F.cross_entropy(full_precision(logits), y)
        self.terms = {"main": loss.detach()}
        yield "main", loss
