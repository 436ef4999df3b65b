"""CnC, Correct-n-Contrast (Zhang et al., ICML 2022): contrast what a first network confuses.

    epochs 1 … T:    identifier:  mean CE(f_id(x), y)
    at the end:      ŷ_i = argmax f_id(x_i) over the training set
    from T + 1 on:   main:  λ·L_con + (1 − λ)·mean CE(f(x), y)

    L_con = mean over anchors i of  mean_{p∈P} −log( e^{s_ip} / (Σ_{P} e^{s_ip'} + Σ_{N} e^{s_in}) )
            s = cos(h, h')/τ,  P: same class, other ŷ;  N: other class, same ŷ

A first network that follows the shortcut gives samples of one bias one prediction, so P has the
class and not the bias in common, and N the bias and not the class. The bias need not be known. Both
stages lie inside one run, as in JTT.

Note: the paper draws, for each anchor, M positives and N negatives from the whole training set.
Here anchors, positives and negatives are those of the batch, and the mean is over the anchors with
one of each. Where mistakes of the first network are rare, use large batches.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.losses.pairs import masked_logsumexp
from fairmargin.methods.base import FinalStage, MakeEncoder, Method, RunLength, Sweep, first_view
from fairmargin.methods.card import (
    ABOVE_ZERO,
    FROM_ONE,
    SHARE,
    Between,
    MethodCard,
    OneOf,
    OptionCard,
)
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import from_first_rank, gather
from fairmargin.vectors import full_precision, unit

CARD = MethodCard(
    "CnC",
    "Zhang et al., Correct-N-Contrast",
    "ICML 2022",
    networks="two, one after the other",
    file="cnc.py",
    options={
        "first_epochs": OptionCard(
            "T, the epochs of the first network", FROM_ONE, OneOf((1, 2, 4), epochs=True)
        ),
        "contrast": OptionCard(
            "λ, the share of the contrastive loss", SHARE, Between(0.25, 0.9, log=False)
        ),
        "temperature": OptionCard(
            "τ, which divides the similarities", ABOVE_ZERO, Between(0.05, 0.5)
        ),
    },
)


class CnC(Method):
    """Two networks of the run's kind. The one that is learning gives features and predictions.

    Args:
        first_epochs: T.
        contrast: λ; the authors' commands have 0.75 for every dataset.
        temperature: τ; they have 0.1 for Waterbirds, 0.05 for CelebA and Colored-MNIST.
    """

    predicted: Tensor  # [train_size], ŷ; −1 before the second stage
    second_stage: Tensor
    least_batch = 2

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        first_epochs: int = 1,
        contrast: float = 0.75,
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        if first_epochs < 1 or not 0 <= contrast <= 1 or temperature <= 0:
            raise ValueError(
                "first_epochs must be at least 1, contrast from 0 to 1 and temperature above 0; "
                f"got {first_epochs}, {contrast} and {temperature}"
            )
        if info.train_size < 1:
            raise ValueError(
                "cnc remembers the first network's predictions and DataInfo.train_size of "
                f"{info.name} is {info.train_size}; give it the number of training samples: "
                "replace(info, train_size=len(data.train))"
            )
        self.first_epochs, self.contrast, self.temperature = first_epochs, contrast, temperature
        self.identifier, self.encoder = make_encoder(), make_encoder()
        self.identifier_classifier = linear_classifier(self.identifier.dim, info.num_classes)
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.register_buffer("predicted", torch.full((info.train_size,), -1))
        self.register_buffer("second_stage", torch.tensor(False))

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "identifier", the first network, and "main", the second."""
        return {
            "identifier": [*self.identifier.parameters(), *self.identifier_classifier.parameters()],
            "main": [*self.encoder.parameters(), *self.classifier.parameters()],
        }

    def plan(self, run: RunLength) -> FinalStage:
        return FinalStage(epochs=self.first_epochs, option=f"first_epochs={self.first_epochs}")

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        """Keep the first network's predictions when its stage has ended."""
        if epoch < self.first_epochs or self.second_stage:
            return
        self.eval()
        predicted = self.predicted.clone()
        with torch.no_grad():
            for batch in sweep("train"):
                predicted[batch.index] = self.predict(batch.images).argmax(1)
        # One set for all ranks, in case their devices round differently.
        self.predicted.copy_(from_first_rank(predicted.cpu()))
        self.second_stage.fill_(True)

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train the network of the current stage."""
        h, logits = self.inspect(first_view(batch.images))
        h, logits, y, index = gather(h, logits, batch.labels, batch.index)
        classification = F.cross_entropy(full_precision(logits), y)
        if not self.second_stage:
            self.terms = {"identifier": classification.detach()}
            yield "identifier", classification
            return
        contrastive, anchors = cnc_loss(h, y, self.predicted[index], temperature=self.temperature)
        self.terms = {"cross-entropy": classification.detach(), "contrast": contrastive.detach()}
        self.counts = {"anchors": anchors[None]}
        yield "main", self.contrast * contrastive + (1 - self.contrast) * classification

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and logits of the network that is learning."""
        if self.second_stage:
            h = self.encoder(images)
            return h, self.classifier(h)
        h = self.identifier(images)
        return h, self.identifier_classifier(h)


def cnc_loss(
    features: Tensor, labels: Tensor, predicted: Tensor, *, temperature: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Return L_con, and the number of anchors with positives and negatives.

    Without such anchors it is a 0 attached to the graph.

    Args:
        features: h [N, D].
        labels: y [N].
        predicted: ŷ [N], of the first network.
        temperature: τ.
    """
    z = unit(full_precision(features))
    with torch.autocast(z.device.type, enabled=False):
        s = z @ z.T / temperature
        same_class = labels[:, None] == labels
        same_guess = predicted[:, None] == predicted
        positive = (same_class & ~same_guess).to(z.dtype)
        negative = (~same_class & same_guess).to(z.dtype)
        valid = positive.any(1) & negative.any(1)
        log_total = masked_logsumexp(s, positive + negative)
        log_total = torch.where(valid, log_total, 0)
        mean_positive = (positive * s).sum(1) / positive.sum(1).clamp_min(1)
        each = torch.where(valid, log_total - mean_positive, 0)
        anchors = valid.sum()
        return each.sum() / anchors.clamp_min(1), anchors
