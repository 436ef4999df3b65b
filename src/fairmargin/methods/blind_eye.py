"""BlindEye (Alvi, Zisserman & Nellåker, ECCV Workshops 2018): confuse a classifier of the bias.

    bias:  CE(G(sg h), b)                     h = f(x), G linear
    main:  CE(C(h), y) + α·L_conf             with the G that has just moved
           L_conf = mean_i −(1/K_b) Σ_k log softmax(G(h))_k

L_conf is the cross-entropy from the uniform distribution, log K_b + KL(uniform ‖ p). Unlike LNL's
entropy, it grows without bound where a probability goes to 0.
"""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import MakeEncoder, Method, first_view, require_bias
from fairmargin.methods.card import FROM_ZERO, Between, MethodCard, OneOf, OptionCard, Range
from fairmargin.methods.lnl import bias_cross_entropy, mean_where_known
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

CARD = MethodCard(
    "BlindEye",
    "Alvi et al., Turning a Blind Eye",
    "ECCV Workshops 2018",
    "bias labels",
    networks="one, and a bias classifier",
    file="blind_eye.py",
    options={
        "alpha": OptionCard("weight α of the confusion", FROM_ZERO, Between(0.01, 1)),
        "bias_steps": OptionCard(
            "steps of the bias classifier for each step of the network",
            Range(1, 1000),
            OneOf((1, 3, 8)),
        ),
    },
)


def confusion(logits: Tensor) -> Tensor:
    """Return −(1/K) Σ_k log p_k [N]; it is least, log K, where p is uniform."""
    return -F.log_softmax(full_precision(logits), 1).mean(1)


class BlindEye(Method):
    """The run's network with two linear classifiers on its features: of the label and of the bias.

    Note: the paper removes several attributes at once, one classifier each; a dataset here has one.

    Args:
        alpha: weight α of the confusion.
        bias_steps: steps of the bias classifier for each step of the network. Pressure from an
            untrained one means nothing.
    """

    def __init__(
        self, make_encoder: MakeEncoder, info: DataInfo, *, alpha: float = 0.1, bias_steps: int = 1
    ) -> None:
        super().__init__()
        require_bias("blind-eye", info, instead="lff")
        if bias_steps < 1:
            raise ValueError(
                "bias_steps must be at least 1, or the bias classifier never learns; "
                f"got {bias_steps}"
            )
        self.alpha, self.bias_steps = alpha, bias_steps
        self.encoder = make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.bias_classifier = linear_classifier(self.encoder.dim, info.num_biases)

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "bias", the bias classifier, and "main", everything else."""
        return {
            "bias": list(self.bias_classifier.parameters()),
            "main": [*self.encoder.parameters(), *self.classifier.parameters()],
        }

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train the bias classifier, then the network against it."""
        assert batch.bias is not None
        h, y, b = gather(self.encoder(first_view(batch.images)), batch.labels, batch.bias)
        for _ in range(self.bias_steps):
            bias = bias_cross_entropy(self.bias_classifier(h.detach()), b)
            self.terms = {"bias": bias.detach()}
            yield "bias", bias
        cross_entropy = F.cross_entropy(full_precision(self.classifier(h)), y)
        confused = mean_where_known(confusion(self.bias_classifier(h)), b)
        self.terms |= {"cross-entropy": cross_entropy.detach(), "confusion": confused.detach()}
        yield "main", cross_entropy + self.alpha * confused
