"""DFR, Deep Feature Reweighting (Kirichenko, Izmailov & Wilson, ICLR 2023): refit the last layer.

    while training:   mean CE(C(f(x)), y)
    at the end, on held-out samples with as many of every (class, bias) group as the smallest has:
        W, c = argmin  mean CE(W h + c, y) + ‖W‖₁/(n·C)
        h = f(x), each feature with mean 0 and deviation 1
    averaged over several such draws; C is the one of CHOICES with the best worst group on samples
    not fitted to

balance="class" takes the class for the group, and needs no bias labels: class-balanced last-layer
retraining (LaBonte, Muthukumar & Kumar, NeurIPS 2023), here with DFR's own fit.
source="valid" is the paper's DFR^Val, whose validation set needs bias labels; "train" is DFR^Tr.
Note: with "valid", the run's own numbers on the validation set, after the end, are those of samples
that were fitted to.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.checks import check_choice
from fairmargin.evaluate.probe import fit_probe
from fairmargin.methods.base import (
    FinalStage,
    MakeEncoder,
    Method,
    RunLength,
    Sweep,
    Unsuited,
    first_view,
    require_bias,
)
from fairmargin.methods.card import (
    ABOVE_ZERO,
    MethodCard,
    OneOf,
    OptionCard,
    Range,
    ValidationFit,
)
from fairmargin.methods.last_layer import Fit, balanced, fit_l1
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import from_first_rank, gather
from fairmargin.vectors import full_precision

# Values of C, in the released code's order: the first of equals is taken.
CHOICES = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)

Source = Literal["valid", "train"]
Penalty = Literal["l1", "l2"]
Balance = Literal["group", "class"]


CARD = MethodCard(
    "DFR",
    "Kirichenko et al., Last Layer Re-Training Is Sufficient",
    "ICLR 2023",
    "validation bias labels",
    file="dfr.py",
    options={
        "source": OptionCard("samples that the last layer is fitted to"),
        "balance": OptionCard("what every draw has equally many of: (class, bias) or class"),
        "penalty": OptionCard("‖W‖₁/(n·C), or ‖W‖²/(2n·C)", search=OneOf(get_args(Penalty))),
        "inverse_strength": OptionCard("C; none: chosen on validation samples", ABOVE_ZERO),
        "draws": OptionCard(
            "group-balanced draws that are averaged; the released code takes 10 for source train",
            Range(1, 1000),
        ),
    },
    validation_fit=ValidationFit("source", "valid", 'choose method.source="train"'),
)
CLASS_CARD = replace(
    CARD,
    title="Class-balanced refit",
    paper=(
        "LaBonte et al., Towards Last-layer Retraining for Group Robustness with Fewer Annotations"
    ),
    venue="NeurIPS 2023",
    needs="nothing",
)


class DFR(Method):
    """The run's network with a linear classifier, which another replaces after the training.

    Args:
        source: samples that the last layer is fitted to.
        balance: what every draw has equally many of.
        penalty: "l1", or "l2" for ‖W‖²/(2n·C).
        inverse_strength: C, chosen by validation if None.
        draws: as in the released code, which takes 10 with source="train".
    """

    # The retrained layer, and whether it is in use.
    weight: Tensor
    intercept: Tensor
    retrained: Tensor

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        source: Source = "valid",
        balance: Balance = "group",
        penalty: Penalty = "l1",
        inverse_strength: float | None = None,
        draws: int = 20,
    ) -> None:
        super().__init__()
        check_choice(balance, "balance", get_args(Balance))
        if balance == "group":
            require_bias("dfr", info, instead="class-refit")
        check_choice(source, "source", get_args(Source))
        check_choice(penalty, "penalty", get_args(Penalty))
        if draws < 1 or (inverse_strength is not None and inverse_strength <= 0):
            raise ValueError(
                f"draws must be at least 1 and inverse_strength above 0; got {draws} and "
                f"{inverse_strength}"
            )
        self.source, self.penalty, self.balance = source, penalty, balance
        self.inverse_strength, self.draws = inverse_strength, draws
        self.class_names, self.biases = info.class_names, info.num_biases
        self.encoder = make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.register_buffer("weight", torch.zeros(info.num_classes, self.encoder.dim))
        self.register_buffer("intercept", torch.zeros(info.num_classes))
        self.register_buffer("retrained", torch.tensor(False))

    def players(self) -> dict[str, list[nn.Parameter]]:
        return {"main": [*self.encoder.parameters(), *self.classifier.parameters()]}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train with cross-entropy."""
        # A retrained layer belongs to the features it was fitted to, which now change.
        self.retrained.fill_(False)
        h, y = gather(self.encoder(first_view(batch.images)), batch.labels)
        loss = F.cross_entropy(full_precision(self.classifier(h)), y)
        self.terms = {"cross-entropy": loss.detach()}
        yield "main", loss

    def plan(self, run: RunLength) -> FinalStage:
        return FinalStage(at_end=True)

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        """Check before the training that the validation samples suffice."""
        if epoch or (self.source == "train" and self.inverse_strength is not None):
            return
        # Refuse now rather than after the training.
        seen: set[int] = set()
        for batch in sweep("valid"):
            seen.update(batch.labels[self._known(batch)].tolist())
        missing = [name for y, name in enumerate(self.class_names) if y not in seen]
        of_known_bias = " of known bias" if self.balance == "group" else ""
        if missing:
            raise Unsuited(
                f"dfr with source={self.source!r} looks at validation samples{of_known_bias} and "
                f"there are none of class {', '.join(missing)}; hold out more "
                "(data.valid_fraction), or set method.source=train and method.inverse_strength"
            )

    def finish(self, sweep: Sweep) -> None:
        """Refit the last layer."""
        x, y, group = self._see(sweep(self.source))
        # Note: the released code takes these two from the training set also when it fits to
        # validation samples.
        mean, deviation = x.mean(0), x.std(0, correction=0)
        # Constant features are left out.
        scale = torch.where(deviation > 1e-6 * mean.abs(), 1 / deviation, 0)
        x = (x - mean) * scale
        strength = self.inverse_strength
        if strength is None and self.source == "train":
            held, *rest = self._see(sweep("valid"))
            strength = self._chosen((x, y, group), ((held - mean) * scale, *rest))
        elif strength is None:
            generator = torch.Generator().manual_seed(self.draws)
            one, other = torch.randperm(len(x), generator=generator).tensor_split(2)
            fitted = (x[one], y[one], group[one])
            strength = self._chosen(fitted, (x[other], y[other], group[other]))
        fits = [self._fit(x, y, group, strength, draw) for draw in range(self.draws)]
        weight = torch.stack([w for w, _ in fits]).mean(0) * scale
        intercept = torch.stack([c for _, c in fits]).mean(0) - weight @ mean
        # One layer for all ranks, in case their devices round differently.
        weight, intercept = from_first_rank((weight, intercept))
        self.weight.copy_(weight)
        self.intercept.copy_(intercept)
        self.retrained.fill_(True)

    def _see(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        """Return (h, y, group) of the samples of known group, on the CPU."""
        parts = []
        self.eval()
        with torch.no_grad():
            for batch in batches:
                known = self._known(batch)
                if not known.any():
                    continue
                y = group = batch.labels[known]
                if self.balance == "group" and batch.bias is not None:
                    group = y * self.biases + batch.bias[known]
                h = self.encoder(batch.images[known])
                parts.append([t.cpu() for t in (h, y, group)])
        h, y, group = map(torch.cat, zip(*parts, strict=True))
        return h.double(), y, group

    def _known(self, batch: Batch) -> Tensor:
        """Return which samples have a group, [N]."""
        if self.balance == "class":
            return torch.ones_like(batch.labels, dtype=torch.bool)
        if batch.bias is None:
            return torch.zeros_like(batch.labels, dtype=torch.bool)
        return batch.bias >= 0

    def _fit(self, x: Tensor, y: Tensor, group: Tensor, inverse_strength: float, draw: int) -> Fit:
        chosen = balanced(group, torch.Generator().manual_seed(draw))
        x, y = x[chosen], y[chosen]
        strength = 1 / (len(chosen) * inverse_strength)
        if self.penalty == "l1":
            return fit_l1(x, y, len(self.class_names), strength)
        probe = fit_probe(x, y, len(self.class_names), l2=strength, standardise=False)
        return probe.weight, probe.intercept

    def _chosen(self, fitted: tuple[Tensor, Tensor, Tensor], judged: tuple[Tensor, ...]) -> float:
        """Return the C whose layer, fitted to `fitted`, has the best worst group on `judged`."""
        x, y, group = judged

        def worst_group(inverse_strength: float) -> float:
            weight, intercept = self._fit(*fitted, inverse_strength, draw=0)
            right = (x @ weight.T + intercept).argmax(1) == y
            return min(float(right[group == g].double().mean()) for g in group.unique())

        return max(CHOICES, key=worst_group)

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the logits of the refitted layer, once there is one."""
        h = self.encoder(images)
        if self.retrained:
            return h, F.linear(h, self.weight, self.intercept)
        return h, self.classifier(h)


__all__ = ["CARD", "CHOICES", "CLASS_CARD", "DFR", "balanced", "fit_l1"]
