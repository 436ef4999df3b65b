"""LearnedMixin (Clark, Yatskar & Zettlemoyer, EMNLP 2019): a product with a frozen bias model.

    first   g minimises  CE(g, y), for some epochs, and is frozen
    then    f, u, c minimise  CE(log p_f + t·log p_g, y) + w·H(softmax(t·log p_g)),
            t = softplus(uᵀh + c)

t is how far g is trusted on this image; what g explains, f need not learn. Nothing but
cross-entropy keeps t from 0, where f would be on its own. "+h" adds the entropy H, w > 0, which
asks for a g that decides. At test time f answers alone.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import FinalStage, MakeEncoder, Method, RunLength, Sweep, first_view
from fairmargin.methods.card import (
    BIAS_NETWORK,
    FROM_ZERO,
    ONE_AND_BIAS_NETWORK,
    Between,
    MethodCard,
    OneOf,
    OptionCard,
)
from fairmargin.networks import build_bias_encoder, linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

ENTROPY_WEIGHT = OptionCard("w, the weight of the entropy H", FROM_ZERO)
CARD = MethodCard(
    "Learned-Mixin",
    "Clark et al., Don't Take the Easy Way Out",
    "EMNLP 2019",
    networks=ONE_AND_BIAS_NETWORK,
    file="learned_mixin.py",
    options={
        "bias_network": BIAS_NETWORK,
        "pretrain_epochs": OptionCard(
            "first epochs, in which g learns and f waits; 0: g learns along with f",
            FROM_ZERO,
            OneOf((5, 3, 1), epochs=True),
        ),
        "entropy_weight": ENTROPY_WEIGHT,
    },
)
CARD_WITH_ENTROPY = replace(
    CARD,
    title="Learned-Mixin + H",
    options={
        **CARD.options,
        "entropy_weight": replace(ENTROPY_WEIGHT, search=Between(0.005, 2)),
    },
)


class LearnedMixin(Method):
    """f is the run's network, which waits while g, `bias_network`, learns in the first epochs.

    Note: the vision port in clovaai/rebias never trains u and c. That it takes logits of g for
    log p_g changes nothing: they differ by a constant for each sample, which both softmaxes ignore.

    Args:
        bias_network: name of g's encoder.
        entropy_weight: w.
        pretrain_epochs: first epochs of the run, in which only g learns. With 0 there is no trained
            g to freeze, so g learns along with f.
    """

    optimizers = {"bias": {"schedule": "constant", "warmup_epochs": 0.0}}  # noqa: RUF012
    pretraining: Tensor

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        bias_network: str = "simple-conv-1",
        entropy_weight: float = 0.0,
        pretrain_epochs: int = 5,
    ) -> None:
        super().__init__()
        self.entropy_weight, self.pretrain_epochs = entropy_weight, pretrain_epochs
        self.encoder = make_encoder()
        self.bias_encoder = build_bias_encoder(bias_network, self.encoder)
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.bias_classifier = linear_classifier(self.bias_encoder.dim, info.num_classes)
        self.trust = nn.Linear(self.encoder.dim, 1)  # u and c
        self.register_buffer("pretraining", torch.tensor(pretrain_epochs > 0))

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "bias", which is g, and "main": f, u and c."""
        return {
            "bias": [*self.bias_encoder.parameters(), *self.bias_classifier.parameters()],
            "main": [
                *self.encoder.parameters(),
                *self.classifier.parameters(),
                *self.trust.parameters(),
            ],
        }

    def plan(self, run: RunLength) -> FinalStage:
        """Begin the final stage when f starts to learn."""
        return FinalStage(
            epochs=self.pretrain_epochs, option=f"pretrain_epochs={self.pretrain_epochs}"
        )

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        self.pretraining.fill_(epoch < self.pretrain_epochs)

    def finish(self, sweep: Sweep) -> None:
        """Refuse a run in which f never learned."""
        if self.pretraining:
            raise ValueError(
                "all epochs went into the bias network, which is trained for "
                f"method.pretrain_epochs={self.pretrain_epochs} epochs before the main network "
                "starts; raise train.epochs above it, or lower it"
            )

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train g in the first epochs, then f."""
        x = first_view(batch.images)
        self.terms = {}
        if self.pretraining or self.pretrain_epochs == 0:
            g, y = gather(self._biased(x), batch.labels)
            bias = F.cross_entropy(g, y)
            self.terms["bias"] = bias.detach()
            yield "bias", bias
        if self.pretraining:
            return
        h, f = self.inspect(x)
        with torch.no_grad():
            # Its weights are frozen; its batch norms see the batch, as they did when it learned.
            g = self._biased(x)
        h, f, g, y = gather(h, f, g, batch.labels)
        t = F.softplus(full_precision(self.trust(h)))  # [N, 1]
        main, entropy = mixed_losses(full_precision(f), t, F.log_softmax(g, 1), y)
        self.terms |= {
            "main": main.detach(),
            "bias entropy": entropy.detach(),
            "trust": t.detach().mean(),
        }
        yield "main", main + self.entropy_weight * entropy

    def _biased(self, images: Tensor) -> Tensor:
        return full_precision(self.bias_classifier(self.bias_encoder(images)))


def mixed_losses(
    logits: Tensor, trust: Tensor, log_bias: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return CE(log p_f + t·log p_g, y) and H(softmax(t·log p_g)).

    Args:
        logits: of f [N, K].
        trust: t [N, 1].
        log_bias: log p_g [N, K].
        labels: y [N].
    """
    trusted = trust * log_bias
    log_q = F.log_softmax(trusted, 1)
    entropy = -(log_q.exp() * log_q).sum(1).mean()
    return F.cross_entropy(F.log_softmax(logits, 1) + trusted, labels), entropy
