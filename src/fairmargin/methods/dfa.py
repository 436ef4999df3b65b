"""DFA, disentangled feature augmentation (Lee et al., NeurIPS 2021): LfF with swapped features.

    z_l = E_i(x), z_b = E_b(x);  z̃_b = z_b[π], ỹ = y[π] with a random permutation π of the batch
    u = [z_l; sg z_b],  v = [sg z_l; z_b],  ũ = [z_l; sg z̃_b],  ṽ = [sg z_l; z̃_b]
    W as in LfF, from the losses of C_b(v) and C_i(u)                                    (Eq. 1)
    L_dis  = mean W·CE(C_i(u), y) + λ_dis·mean GCE(C_b(v), y)                            (Eq. 2)
    L_swap = mean W·CE(C_i(ũ), y) + λ_swap_b·mean GCE(C_b(ṽ), ỹ)                         (Eq. 3)
    L = L_dis + λ_swap·L_swap, the second term once the halves have come apart           (Eq. 4)

The stop-gradients make L a sum of a loss of (E_i, C_i) and a loss of (E_b, C_b): two players. The
bias need not be known. Predictions are C_i([z_l; z_b]).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import FinalStage, MakeEncoder, Method, RunLength, first_view
from fairmargin.methods.card import FROM_ZERO, Between, MethodCard, OptionCard, Range
from fairmargin.methods.lff import BIASED_OPTIONS, RelativeDifficulty
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import from_first_rank, gather
from fairmargin.vectors import full_precision

CARD = MethodCard(
    "DFA",
    "Lee et al., Learning Debiased Representation via Disentangled Feature Augmentation",
    "NeurIPS 2021",
    networks="two",
    file="dfa.py",
    options={
        "lambda_dis": OptionCard(
            "weight of the biased network's loss in L_dis", FROM_ZERO, Between(0.5, 20)
        ),
        "lambda_swap": OptionCard("weight of L_swap", FROM_ZERO, Between(0.1, 2)),
        "lambda_swap_b": OptionCard(
            "weight of the biased network's loss in L_swap", FROM_ZERO, Between(0.5, 20)
        ),
        "swap_start": OptionCard(
            "the last step without L_swap",
            Range(0, words="a share of the run below 1.0, or a number of steps"),
        ),
        **BIASED_OPTIONS,
    },
)


class DFA(Method):
    """Two encoders of the run's kind; each classifier reads the features of both.

    Note: the published runs swap from step 10,000 of 50,000 on and multiply the rate by γ every
    10,000 steps after that. Both scale with the run: swap_start=0.2, and schedule.name="step" with
    per="step", milestones=[0.4, 0.6, 0.8] and factor=γ. Move the milestones with the start.

    Args:
        lambda_dis: weight of the biased network's loss in L_dis.
        lambda_swap: weight of L_swap.
        lambda_swap_b: weight of the biased network's loss in L_swap.
        swap_start: the last step without L_swap, counted from 0. Below 1.0 it is a share of the
            run's steps; `plan` says how many they are.
        q: of GCE.
        ema_decay: m, the decay of the smoothed losses behind W.
        surrogate: use the public code's GCE, as in LfF.
    """

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        lambda_dis: float = 1.0,
        lambda_swap: float = 1.0,
        lambda_swap_b: float = 1.0,
        swap_start: int | float = 0.2,
        q: float = 0.7,
        ema_decay: float = 0.7,
        surrogate: bool = False,
    ) -> None:
        super().__init__()
        if swap_start < 0 or (isinstance(swap_start, float) and swap_start >= 1):
            raise ValueError(
                "swap_start must be a share of the run, from 0.0 to below 1.0, or a whole number "
                f"of steps; got {swap_start}. Published is 0.2: step 10000 of 50000"
            )
        self.lambda_dis = lambda_dis
        self.lambda_swap, self.lambda_swap_b = lambda_swap, lambda_swap_b
        self.swap_start, self.q, self.surrogate = swap_start, q, surrogate
        # None: a share of a run whose length is not yet known.
        self.last_unswapped = swap_start if isinstance(swap_start, int) else None
        self.encoder, self.bias_encoder = make_encoder(), make_encoder()
        both = self.encoder.dim + self.bias_encoder.dim
        self.classifier = linear_classifier(both, info.num_classes)
        self.bias_classifier = linear_classifier(both, info.num_classes)
        self.difficulty = RelativeDifficulty(info, ema_decay)

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "bias", (E_b, C_b), and "main", (E_i, C_i)."""
        return {
            "bias": [*self.bias_encoder.parameters(), *self.bias_classifier.parameters()],
            "main": [*self.encoder.parameters(), *self.classifier.parameters()],
        }

    def plan(self, run: RunLength) -> FinalStage:
        """Begin the final stage with the first swap."""
        if isinstance(self.swap_start, float):
            self.last_unswapped = round(self.swap_start * run.steps)
        assert self.last_unswapped is not None
        hint = "a share of the run such as 0.2 fits any length"
        return FinalStage(
            steps=self.last_unswapped + 1, option=f"swap_start={self.swap_start}", hint=hint
        )

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield L split into its two players, with L_swap once the swap has begun."""
        x = first_view(batch.images)
        z_l, z_b, y, index = gather(
            self.encoder(x), self.bias_encoder(x), batch.labels, batch.index
        )
        logits_i, logits_b = self._classify(z_l, z_b)
        ce_i = F.cross_entropy(full_precision(logits_i), y, reduction="none")
        ce_b = F.cross_entropy(full_precision(logits_b), y, reduction="none")
        W = self.difficulty(index, y, ce_b, ce_i)
        main = (W * ce_i).mean()
        bias = self._gce(logits_b, y)
        self.terms = {"bias": bias.detach(), "main": main.detach(), "weight": W.mean()}
        bias = self.lambda_dis * bias
        if self._swaps(step):
            # Of the whole batch, so one permutation for all ranks.
            permutation = from_first_rank(torch.randperm(len(y))).to(y.device)
            swap, swap_b = self._swapped(z_l, z_b[permutation], y, y[permutation], W)
            self.terms |= {"bias, swapped": swap_b.detach(), "main, swapped": swap.detach()}
            main = main + self.lambda_swap * swap
            bias = bias + self.lambda_swap * self.lambda_swap_b * swap_b
        yield "bias", bias
        yield "main", main

    def _swaps(self, step: int) -> bool:
        if self.last_unswapped is None:
            raise ValueError(
                f"dfa swaps after swap_start={self.swap_start} of the run and was not told how "
                "long that is; call method.plan(RunLength(epochs, steps)) before the first step, "
                "or give swap_start as a whole number of steps"
            )
        return step > self.last_unswapped

    def _swapped(
        self, z_l: Tensor, z_b: Tensor, y: Tensor, y_of_bias: Tensor, W: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the two terms of L_swap; the weights are those of the samples of z_l."""
        logits_i, logits_b = self._classify(z_l, z_b)
        ce = F.cross_entropy(full_precision(logits_i), y, reduction="none")
        return (W * ce).mean(), self._gce(logits_b, y_of_bias)

    def _classify(self, z_l: Tensor, z_b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of C_i and of C_b, each of which teaches its own encoder only."""
        logits_i = self.classifier(torch.cat([z_l, z_b.detach()], 1))
        logits_b = self.bias_classifier(torch.cat([z_l.detach(), z_b], 1))
        return logits_i, logits_b

    def _gce(self, logits: Tensor, labels: Tensor) -> Tensor:
        return losses.generalized_cross_entropy(logits, labels, q=self.q, surrogate=self.surrogate)

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return z_l, the half that should be free of the bias, and the logits of C_i."""
        z_l = self.encoder(images)
        return z_l, self.classifier(torch.cat([z_l, self.bias_encoder(images)], 1))
