"""Train with cross-entropy, then fit the last layer again to held-out samples without bias labels.

AFR, Automatic Feature Reweighting (Qiu, Potapczynski, Izmailov & Wilson, ICML 2023):

    minimise over W, c   Σ_i μ_i·CE(W h_i + c, y_i) + λ‖(W, c) − (W₀, c₀)‖²,   Σ μ_i = 1
    μ_i ∝ exp(−γ·p̂_i)/n_{y_i},   p̂_i = softmax(W₀ h_i + c₀)_{y_i}

SELF (LaBonte, Muthukumar & Kumar, NeurIPS 2023): the `number` held-out samples with the largest

    misclassification:  CE(f(x), y)
    early-stop:         KL(p_early ‖ p),    p_early of the same network some epochs after its start
    dropout:            KL(p_dropout ‖ p),  p_dropout with dropout on the features

are fitted, with classes balanced. Both start from W₀, c₀, the trained layer, and take as many steps
of gradient descent as their authors do.
Note: held-out samples are the validation split; AFR's authors cut them from the training set, and
SELF's take half of the validation set. `source="train"` takes training samples.
Note: SELF's steps here see all chosen samples; the released code draws batches of them.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.checks import check_choice
from fairmargin.methods.base import (
    FinalStage,
    MakeEncoder,
    Method,
    RunLength,
    Sweep,
    Unsuited,
    first_view,
)
from fairmargin.methods.card import (
    ABOVE_ZERO,
    FROM_ONE,
    FROM_ZERO,
    Between,
    MethodCard,
    OneOf,
    OptionCard,
    Range,
    ValidationFit,
)
from fairmargin.methods.last_layer import Fit, descend
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import from_first_rank, gather
from fairmargin.vectors import full_precision

Source = Literal["valid", "train"]
Selection = Literal["early-stop", "misclassification", "dropout"]

_SOURCE = OptionCard("samples that the last layer is fitted to")
_STEPS = OptionCard("steps of gradient descent on the last layer", FROM_ONE)
_RATE = OptionCard("rate of these steps", ABOVE_ZERO, Between(1e-3, 0.1))
_FIT = ValidationFit("source", "valid", 'choose method.source="train"')

AFR_CARD = MethodCard(
    "AFR",
    "Qiu et al., Simple and Fast Group Robustness by Automatic Feature Reweighting",
    "ICML 2023",
    file="held_out.py",
    options={
        "gamma": OptionCard("γ, how much samples count that the model doubts", FROM_ZERO),
        "lambda": OptionCard("λ, which holds the layer near the trained one", FROM_ZERO),
        "steps": _STEPS,
        "rate": _RATE,
        "source": _SOURCE,
    },
    search={"method.gamma": Between(1, 20)},
    validation_fit=_FIT,
)
SELF_CARD = MethodCard(
    "SELF",
    "LaBonte et al., Towards Last-layer Retraining for Group Robustness with Fewer Annotations",
    "NeurIPS 2023",
    file="held_out.py",
    options={
        "selection": OptionCard("by what samples are chosen", search=OneOf(get_args(Selection))),
        "number": OptionCard("samples that are chosen", FROM_ONE, OneOf((20, 100, 500))),
        "early_epochs": OptionCard("epochs of the early network", FROM_ONE),
        "dropout": OptionCard("share of features that dropout leaves out", Range(0, 1, below=True)),
        "steps": _STEPS,
        "rate": _RATE,
        "source": _SOURCE,
    },
    validation_fit=_FIT,
)


@dataclass(frozen=True)
class HeldOutSamples:
    """What the trained network says of the samples to fit, on the CPU, double.

    Args:
        h: features [N, D].
        y: labels [N].
        logits: [N, K].
        early: logits of the early network [N, K]; None if there is none.
        layer: W₀ and c₀, the trained layer.
    """

    h: Tensor
    y: Tensor
    logits: Tensor
    early: Tensor | None
    layer: Fit


Refit = Callable[[HeldOutSamples], Fit]


class HeldOut(Method):
    """The run's network with a linear classifier, which another replaces after the training.

    Args:
        name: of the method, for messages.
        refit: makes the new layer.
        source: samples that it is fitted to.
        early_epochs: epochs after which the network is remembered; None: never.
    """

    # The new layer, and whether it is in use.
    weight: Tensor
    intercept: Tensor
    retrained: Tensor

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        name: str,
        refit: Refit,
        source: Source,
        early_epochs: int | None = None,
    ) -> None:
        super().__init__()
        check_choice(source, "source", get_args(Source))
        self.name, self.refit, self.source = name, refit, source
        self.early_epochs = early_epochs
        self.class_names = info.class_names
        self.encoder = make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.early: nn.Sequential | None = None
        if early_epochs is not None:
            self.early = nn.Sequential(*copy.deepcopy([self.encoder, self.classifier]))
            self.early.requires_grad_(False)
        self.register_buffer("weight", torch.zeros(info.num_classes, self.encoder.dim))
        self.register_buffer("intercept", torch.zeros(info.num_classes))
        self.register_buffer("retrained", torch.tensor(False))

    def players(self) -> dict[str, list[nn.Parameter]]:
        return {"main": [*self.encoder.parameters(), *self.classifier.parameters()]}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train with cross-entropy."""
        # A new layer belongs to the features it was fitted to, which now change.
        self.retrained.fill_(False)
        h, y = gather(self.encoder(first_view(batch.images)), batch.labels)
        loss = F.cross_entropy(full_precision(self.classifier(h)), y)
        self.terms = {"cross-entropy": loss.detach()}
        yield "main", loss

    def plan(self, run: RunLength) -> FinalStage:
        if self.early_epochs is not None and run.epochs <= self.early_epochs:
            raise Unsuited(
                f"{self.name} compares the network with itself after "
                f"method.early_epochs={self.early_epochs} and this run has {run.epochs:g}; "
                "raise train.epochs, or set method.selection=misclassification"
            )
        return FinalStage(at_end=True)

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        """Check that there are samples to fit to; remember the early network."""
        if not epoch:
            seen = {y for batch in sweep(self.source) for y in batch.labels.tolist()}
            missing = [name for y, name in enumerate(self.class_names) if y not in seen]
            if missing:
                raise Unsuited(
                    f"{self.name} with source={self.source!r} fits its last layer to these samples "
                    f"and there are none of class {', '.join(missing)}; hold out more "
                    "(data.valid_fraction), or set method.source=train"
                )
        if self.early is not None and epoch == self.early_epochs:
            self.early[0].load_state_dict(self.encoder.state_dict())
            self.early[1].load_state_dict(self.classifier.state_dict())

    def finish(self, sweep: Sweep) -> None:
        """Refit the last layer."""
        weight, intercept = self.refit(self._see(sweep(self.source)))
        # One layer for all ranks, in case their devices round differently.
        weight, intercept = from_first_rank((weight, intercept))
        self.weight.copy_(weight)
        self.intercept.copy_(intercept)
        self.retrained.fill_(True)

    def _see(self, batches: Iterable[Batch]) -> HeldOutSamples:
        parts: list[list[Tensor]] = []
        self.eval()
        with torch.no_grad():
            for batch in batches:
                h = self.encoder(batch.images)
                logits = self.classifier(h)
                early = logits if self.early is None else self.early(batch.images)
                found = [h.double(), batch.labels, logits.double(), early.double()]
                parts.append([t.cpu() for t in found])
        h, y, logits, early = map(torch.cat, zip(*parts, strict=True))
        trained = self.classifier
        layer = tuple(p.detach().cpu().double() for p in (trained.weight, trained.bias))
        return HeldOutSamples(
            h, y, logits, None if self.early is None else early, (layer[0], layer[1])
        )

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the logits of the new layer, once there is one."""
        h = self.encoder(images)
        if self.retrained:
            return h, F.linear(h, self.weight, self.intercept)
        return h, self.classifier(h)


def afr_weights(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Return μ [N], whose sum is 1.

    Args:
        logits: of the trained network [N, K].
        labels: [N].
        gamma: γ.
    """
    p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    sizes = torch.bincount(labels)[labels]
    # Doubts relative to the largest, so that a large γ does not make all weights 0.
    raw = (-gamma * (p - p.min())).exp() / sizes
    return raw / raw.sum()


def disagreement(samples: HeldOutSamples, selection: Selection, dropout: float) -> Tensor:
    """Return how much SELF wants each sample, [N].

    Args:
        samples: what the network says.
        selection: by what.
        dropout: share of features that are left out, drawn anew in each sample.
    """
    if selection == "misclassification":
        return F.cross_entropy(samples.logits, samples.y, reduction="none")
    other = samples.early
    if selection == "dropout":
        weight, intercept = samples.layer
        drawn = torch.rand(samples.h.shape, generator=torch.Generator().manual_seed(0))
        kept = (drawn >= dropout).double() / (1 - dropout)
        other = F.linear(samples.h * kept, weight, intercept)
    assert other is not None
    log_p, log_q = samples.logits.log_softmax(1), other.log_softmax(1)
    return (log_q.exp() * (log_q - log_p)).sum(1)


def build_afr(
    make_encoder: MakeEncoder,
    info: DataInfo,
    *,
    gamma: float = 10.0,
    lambda_: float = 0.0,
    steps: int = 500,
    rate: float = 0.01,
    source: Source = "valid",
) -> HeldOut:
    """Build AFR; the defaults are those of the authors' command for Waterbirds.

    Args:
        gamma: γ.
        lambda_: λ.
        steps: of gradient descent, with gradients of a norm of at most 1.
        rate: of these steps.
        source: samples that the last layer is fitted to.
    """
    if gamma < 0 or lambda_ < 0 or steps < 1 or rate <= 0:
        raise ValueError(
            "gamma and lambda must be from 0 up, steps at least 1 and rate above 0; got "
            f"{gamma}, {lambda_}, {steps} and {rate}"
        )

    def refit(samples: HeldOutSamples) -> Fit:
        weights = afr_weights(samples.logits, samples.y, gamma)
        return descend(
            samples.h, samples.y, weights, samples.layer, steps=steps, rate=rate, pull=lambda_
        )

    return HeldOut(make_encoder, info, name="afr", refit=refit, source=source)


def build_self(
    make_encoder: MakeEncoder,
    info: DataInfo,
    *,
    selection: Selection = "early-stop",
    number: int = 100,
    early_epochs: int = 1,
    dropout: float = 0.5,
    steps: int = 250,
    rate: float = 0.01,
    source: Source = "valid",
) -> HeldOut:
    """Build SELF; the defaults are among the values that the authors search on Waterbirds.

    Args:
        selection: by what samples are chosen.
        number: how many.
        early_epochs: of the early network.
        dropout: share of features that are left out.
        steps: of gradient descent.
        rate: of these steps.
        source: samples that are chosen from.
    """
    check_choice(selection, "selection", get_args(Selection))
    if number < 1 or early_epochs < 1 or steps < 1 or rate <= 0 or not 0 <= dropout < 1:
        raise ValueError(
            "number, early_epochs and steps must be at least 1, rate above 0 and dropout from 0 "
            f"to below 1; got {number}, {early_epochs}, {steps}, {rate} and {dropout}"
        )

    def refit(samples: HeldOutSamples) -> Fit:
        wanted = disagreement(samples, selection, dropout)
        chosen = wanted.topk(min(number, len(wanted))).indices
        h, y = samples.h[chosen], samples.y[chosen]
        weights = 1 / torch.bincount(y)[y].double()
        return descend(h, y, weights / weights.sum(), samples.layer, steps=steps, rate=rate)

    early = early_epochs if selection == "early-stop" else None
    return HeldOut(make_encoder, info, name="self", refit=refit, source=source, early_epochs=early)
