"""JTT, Just Train Twice (Liu et al., ICML 2021): train again, with the first network's mistakes up.

    epochs 1 … T:    identifier:  mean CE(f_id(x), y)
    at the end:      E = {i : argmax f_id(x_i) ≠ y_i} over the training set
    from T + 1 on:   main:  mean w·CE(f(x), y) · n/Σ_j w_j,   w_i = λ_up for i in E, else 1

The bias of training samples need not be known; the paper chooses T and λ_up by the worst group of
the validation set. Both stages lie inside one run: of its epochs, main has those after the first T,
and from there it follows the run's schedule. Compare runs of equal length, or lengthen this one by
T to give main the full budget.

Note: the paper repeats the samples of E. Drawing from the repeated set has the expected loss
Σ_j w_j ℓ_j / Σ_j w_j, which the loss weights above have too, with larger variance. The public code
adds λ_up copies to the original, so that its E counts λ_up + 1 times.

Note: an epoch of its repeated set has n + λ_up·|E| samples, and one of ours n. So main takes
1 + λ_up·|E|/n times fewer steps here in as many epochs; |E|/n is in the log as "share in the error
set". For as many steps as the original takes in N epochs, train for T + N·(1 + λ_up·|E|/n).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import FinalStage, MakeEncoder, Method, RunLength, Sweep, first_view
from fairmargin.methods.card import (
    ABOVE_ZERO,
    FROM_ONE,
    Between,
    MethodCard,
    OneOf,
    OptionCard,
)
from fairmargin.networks import Encoder, linear_classifier
from fairmargin.runtime.distributed import from_first_rank, gather
from fairmargin.vectors import full_precision

CARD = MethodCard(
    "JTT",
    "Liu et al., Just Train Twice",
    "ICML 2021",
    networks="two, one after the other",
    file="jtt.py",
    options={
        "first_epochs": OptionCard(
            "T, the epochs of the first network", FROM_ONE, OneOf((1, 2, 4), epochs=True)
        ),
        "up_weight": OptionCard(
            "λ_up, the weight of the first network's mistakes", ABOVE_ZERO, Between(2, 100)
        ),
    },
)


class JTT(Method):
    """Two networks of the run's kind. The one that is learning gives features and predictions.

    The defaults are those of the authors' command for CelebA.
    Note: their code counts epochs from 0, so its --final_epoch T is after T + 1 epochs.

    Args:
        first_epochs: T.
        up_weight: λ_up.
    """

    wrong: Tensor  # [train_size], whether a sample is in E
    second_stage: Tensor

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        first_epochs: int = 1,
        up_weight: float = 50.0,
    ) -> None:
        super().__init__()
        if first_epochs < 1 or up_weight <= 0:
            raise ValueError(
                f"first_epochs must be at least 1 and up_weight above 0; got {first_epochs} and "
                f"{up_weight}. The authors' commands have 60 and 100 for Waterbirds, 1 and 50 for "
                "CelebA"
            )
        if info.train_size < 1:
            raise ValueError(
                "jtt remembers which training samples were wrong and DataInfo.train_size of "
                f"{info.name} is {info.train_size}; give it their number: "
                "replace(info, train_size=len(data.train))"
            )
        self.first_epochs, self.up_weight = first_epochs, up_weight
        self.identifier, self.encoder = make_encoder(), make_encoder()
        self.identifier_classifier = linear_classifier(self.identifier.dim, info.num_classes)
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.register_buffer("wrong", torch.zeros(info.train_size, dtype=torch.bool))
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
        """Find the error set E when the first stage has ended."""
        if epoch < self.first_epochs or self.second_stage:
            return
        # Note: by one pass without augmentation; the public code keeps the predictions made while
        # epoch T was training.
        self.eval()
        wrong = self.wrong.clone()
        with torch.no_grad():
            for batch in sweep("train"):
                wrong[batch.index] = self.predict(batch.images).argmax(1) != batch.labels
        # One set for all ranks, in case their devices round differently.
        self.wrong.copy_(from_first_rank(wrong.cpu()))
        self.second_stage.fill_(True)

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train the network of the current stage."""
        logits, y, index = gather(self.predict(first_view(batch.images)), batch.labels, batch.index)
        each = F.cross_entropy(full_precision(logits), y, reduction="none")
        if not self.second_stage:
            loss = each.mean()
            self.terms = {"identifier": loss.detach()}
            yield "identifier", loss
            return
        w = torch.where(self.wrong, self.up_weight, 1.0).to(each)  # [train_size]
        loss = (w[index] * each).mean() / w.mean()
        self.terms = {"main": loss.detach(), "share in the error set": self.wrong.float().mean()}
        yield "main", loss

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and logits of the network that is learning."""
        encoder, classifier = self._learning()
        h = encoder(images)
        return h, classifier(h)

    def _learning(self) -> tuple[Encoder, nn.Linear]:
        """Return the network of the current stage."""
        if self.second_stage:
            return self.encoder, self.classifier
        return self.identifier, self.identifier_classifier
