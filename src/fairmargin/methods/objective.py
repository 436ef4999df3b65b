"""Every method that is one network and one sum of losses: an encoder, a head, a linear classifier, and a row of ROWS.

    L = α·(the row's loss) + λ·FairKL + β·cross-entropy

A row that learns an embedding leaves the classifier to a second player, "probe", which sees features without gradient,
unless β is above 0.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.batch import Batch, DataInfo
from fairmargin.checks import check_choice
from fairmargin.data import views as all_views
from fairmargin.data.views import Views
from fairmargin.losses.contrastive import warn_of_epsilon
from fairmargin.methods.base import (
    FinalStage,
    MakeEncoder,
    Method,
    RunLength,
    SecondStream,
    Sweep,
    Unsuited,
    require_bias,
    require_bias_features,
)
from fairmargin.methods.objectives import ROWS, LossInputs, Row
from fairmargin.networks import Encoder, HeadKind, SimpleConvNet, projection_head
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import unit

RELEASED_TEMPERATURE = 0.07  # the authors' code scales its contrastive losses by τ/0.07


class Objective(Method):
    """One row, with FairKL if `fairkl` holds its settings; `bounds(z, labels or None)` is logged if given."""

    # As in the authors' code: the probe does not follow the encoder's schedule.
    optimizers = {  # noqa: RUF012
        "probe": {
            "name": "adam",
            "lr": 1e-3,
            "weight_decay": 0.0,
            "schedule": "constant",
            "warmup_epochs": 0.0,
        }
    }
    prior: Tensor | None

    def __init__(
        self,
        name: str,
        row: Row,
        encoder: Encoder,
        info: DataInfo,
        loss: Callable[[LossInputs], Tensor],
        *,
        head: HeadKind = "identity",
        alpha: float = 1.0,
        beta: float = 0.0,
        fairkl_weight: float = 0.0,
        fairkl: losses.FairKL | None = None,
        second: SecondStream | None = None,
        bounds: Callable[..., losses.InformationBounds] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.row, self.loss, self.second = name, row, loss, second
        self.bounds = bounds
        self.views, self.needs, self.sampler = row.views, row.needs, row.sampler
        self.alpha, self.beta, self.fairkl_weight = alpha, beta, fairkl_weight
        compares = row.learns != "classifier" or row.regularised or fairkl is not None
        self.least_batch = 2 if compares else 1
        self.encoder = encoder
        self.head = projection_head(head, encoder.dim)
        self.fairkl = fairkl
        self.probed = row.learns != "classifier" and beta == 0
        # The classifier reads what the losses shape: unit vectors, unless a head or no term asks for length 1.
        self.on_unit_features = head == "identity" and compares and row.learns != "both"
        self.classifier = nn.Linear(encoder.dim, info.num_classes, bias=row.intercept)
        self.register_buffer("prior", None if row.prior is None else row.prior(info.counts.float()))
        # Samples of unknown bias are not in the counts, but they have a class.
        self.steps: int | None = None  # of the run
        self.must_count = (
            row.prior is not None
            and not row.needs
            and int(info.counts.sum()) < max(info.train_size, 1)
        )

    def players(self) -> dict[str, list[nn.Parameter]]:
        main = [*self.encoder.parameters(), *self.head.parameters()]
        classifier = list(self.classifier.parameters())
        return {"main": main, "probe": classifier} if self.probed else {"main": main + classifier}

    def plan(self, run: RunLength) -> FinalStage:
        self.steps = run.steps
        return FinalStage()

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        if epoch == 0 and self.must_count and self.row.prior is not None and self.prior is not None:
            labels = torch.cat([batch.labels for batch in sweep("train")])
            counts = torch.bincount(labels, minlength=self.classifier.out_features)[:, None]
            self.prior = self.row.prior(counts.to(self.prior))

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        x = self._see(batch, step)
        loss = self.loss(x if self.second is None else self._see(self._second_of(batch), step))
        self.terms = {self.name: loss.detach()}
        total = self.alpha * loss
        if self.fairkl is not None:
            bias = x.bias if x.bias_features is None else None
            fairkl = self.fairkl(x.h, x.labels, bias, bias_features=x.bias_features)
            self.terms["fairkl"], self.pairs = fairkl.detach(), self.fairkl.pairs
            total = total + self.fairkl_weight * fairkl
        if self.beta:
            classification = self.row.classification(x)
            self.terms["cross-entropy"] = classification.detach()
            total = total + self.beta * classification
        if (
            self.on_unit_features
        ):  # near 1: every image has the same embedding, the collapse FairKL alone invites
            self.terms["mean similarity"] = x.inputs.detach().flatten(0, -2).mean(0).square().sum()
        if self.bounds is not None:
            found = self.bounds(x.z.detach(), x.labels if self.row.positives == "labels" else None)
            self.terms |= {"InfoNCE bound": found.lower, "InfoL1O bound": found.upper}
        yield "main", total
        if self.probed:
            logits = self.classifier(
                x.inputs.detach().flatten(0, -2)
            )  # no second pass through the encoder
            probe = F.cross_entropy(logits, x.label_of_each_row)
            self.terms["probe"] = probe.detach()
            yield "probe", probe

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encoder(images)
        return h, self.classifier(self._classified(h))

    def _see(self, batch: Batch, step: int) -> LossInputs:
        several = batch.images.ndim == 5
        if not several and self.views > 1:
            raise Unsuited(
                f"{self.name} compares views of one image and this dataset gives one view of each; "
                'choose views where the dataset offers them (--set data.views="supcon"), or a method that uses labels'
            )
        h = self.encoder(batch.images.flatten(0, 1) if several else batch.images)
        z = self.head(h)
        if several:
            h, z = (t.unflatten(0, batch.images.shape[:2]) for t in (h, z))  # [N, V, D]
        optional = [t for t in (batch.bias, batch.bias_features) if t is not None]
        h, z, labels, *rest = gather(h, z, batch.labels, *optional)
        bias = rest.pop(0) if batch.bias is not None else None
        bias_features = rest.pop(0) if batch.bias_features is not None else None
        prior = self.prior if self.prior is not None else h.new_empty(0)
        return LossInputs(
            h,
            z,
            self._classified(h),
            labels,
            bias,
            bias_features,
            self.classifier,
            prior,
            step,
            self.steps,
        )

    def _second_of(self, batch: Batch) -> Batch:
        if batch.second is None:
            raise ValueError(
                f"{self.name} takes its pairs from a second stream of batches and this batch brings none; "
                'give the training a second loader, or set the method\'s second="none"'
            )
        return batch.second

    def _classified(self, h: Tensor) -> Tensor:
        return (
            unit(h.float() if h.dtype in (torch.float16, torch.bfloat16) else h)
            if self.on_unit_features
            else h
        )


FAIRKL_DEFAULTS: dict[str, Any] = {
    "divergence": "kl",
    "scope": "batch",
    "negatives": False,
    "variant": "paper",
    "variance_floor": 0.1,
    "normalize": "weights",
    "views": "all",
}

# Of rows whose pairs may come from a second stream. Hong & Yang draw it with "weighted" (1/p̂(b|y), or with bias features
# their mean distance to the class, up to ten times the smallest weight) and augment it. Note: not by default, as in the
# single-loader script of their code and the starred rows of Barbano et al.: their augmentation is one for each dataset,
# and their comparison is with methods that have neither.
SECOND_DEFAULTS: dict[str, Any] = {
    "second": "none",
    "second_batch": 64,
    "second_views": "rotate-jitter",
}
SECOND_SAMPLERS = ("none", "weighted", "shuffled", "class-balanced", "group-balanced", "bias-aware")
SECOND_VIEWS: dict[
    str, Callable[[Views, int], Views]
] = {  # (the dataset's own, side of the images)
    "rotate-jitter": lambda own, side: all_views.biascon_mnist(own.mean, own.std),  # Biased-MNIST
    "supcon": lambda own, side: all_views.supcon(side, own.mean, own.std),  # faces, ImageNet-9
    # Two equal views are no positives of each other and still stand in each other's denominator: a floor under the loss.
    "own": lambda own, side: replace(own, number=2 if own.steps else 1),
}


def build(
    row: str, with_fairkl: bool, make_encoder: MakeEncoder, info: DataInfo, **options: Any
) -> Objective:
    """The method `row` (`+fairkl`) with `options` out of `option_defaults`."""
    facts, chosen = ROWS[row], option_defaults(row, with_fairkl)
    for name in options:
        check_choice(name, f"option of {row}", chosen)
    chosen |= options
    _require(facts.needs, f"{row}{'+fairkl' if with_fairkl else ''}", info, chosen.get("variant"))
    settings = {name: chosen[name] for name in _settings(row)}
    if facts.positives and "epsilon" in settings:
        by_label = facts.positives == "labels"
        warn_of_epsilon(
            settings["epsilon"],
            settings["temperature"],
            # Without labels every image is a class of its own.
            classes=info.num_classes if by_label else info.train_size,
            classes_are="classes" if by_label else "images",
        )
    bounds = None
    if chosen.get("log_bounds"):
        bounds = partial(losses.information_bounds, temperature=settings["temperature"])
    head = chosen.get("head", "identity")
    alpha = chosen["alpha"]
    check_choice(chosen.get("weighting", "paper"), "weighting", ("paper", "released"))
    # Note: α twice if λ ≠ 0, and τ/0.07, as the authors' code (docs/fidelity.md)
    if chosen.get("weighting") == "released":
        twice = alpha if chosen.get("lambda_") else 1
        alpha *= twice * settings.get("temperature", RELEASED_TEMPERATURE) / RELEASED_TEMPERATURE
    return Objective(
        row,
        facts,
        _encoder(make_encoder, chosen["last_activation"], facts, head, with_fairkl),
        info,
        partial(facts.loss, **settings),
        head=head,
        alpha=alpha,
        beta=chosen.get("beta", 0.0),
        fairkl_weight=chosen.get("lambda_", 0.0),
        fairkl=losses.FairKL(**{name: chosen[name] for name in FAIRKL_DEFAULTS})
        if with_fairkl
        else None,
        second=_second(chosen, info) if facts.second else None,
        bounds=bounds,
    )


def _require(needs: str, name: str, info: DataInfo, variant: str | None) -> None:
    """What the method must know of the bias; FairKL (which has a variant) takes labels or features."""
    if needs == "bias":
        require_bias(name, info, instead="ce")
    if needs == "bias features":
        require_bias_features(name, info, instead='"biascon+ce" if there are bias labels')
    if variant is None or info.bias_names:
        return
    if not info.bias_features:
        raise Unsuited(
            f"{name} needs to know the bias and {info.name} has no bias labels that it may use; give the manifest a "
            f'"bias" column, or run "fairmargin scores" and train with --bias scores, or train '
            f"{name.removesuffix('+fairkl')} without FairKL"
        )
    if variant == "authors":
        raise Unsuited(
            'variant="authors" is defined for bias labels and there are only scores; '
            "choose method.variant=paper, or make labels of the scores with --bias clusters"
        )


def option_defaults(row: str, with_fairkl: bool) -> dict[str, Any]:
    """What can be set for this method, with the defaults."""
    facts = ROWS[row]
    embedding = {"head": "identity", "beta": facts.beta} if facts.learns != "classifier" else {}
    weighting = {"weighting": "paper"} if facts.learns == "embedding" and not facts.needs else {}
    bounds = {"log_bounds": False} if facts.positives else {}
    second = SECOND_DEFAULTS if facts.second else {}
    fairkl = {"lambda_": 1.0, **FAIRKL_DEFAULTS} if with_fairkl else {}
    return {
        **_settings(row),
        "alpha": 1.0,
        **embedding,
        **weighting,
        "last_activation": "auto",
        **bounds,
        **second,
        **fairkl,
    }


def _settings(row: str) -> dict[str, Any]:
    """Of the row's own loss."""
    parameters = inspect.signature(ROWS[row].loss).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _encoder(
    make_encoder: MakeEncoder, last_activation: str, row: Row, head: str, with_fairkl: bool
) -> Encoder:
    """ "auto" is the authors' choice: tanh, whose cosines can be negative, in SimpleConvNet when its own features are the
    embedding or regularised, and wherever cross-entropy meets FairKL; else the network's own."""
    check_choice(last_activation, "last_activation", ("auto", "relu", "tanh"))
    if last_activation != "auto":
        return make_encoder(last_activation=last_activation)
    if row.learns == "classifier" and with_fairkl:
        return make_encoder(last_activation="tanh")
    encoder = make_encoder()
    compared = row.regularised or (row.learns == "embedding" and head == "identity")
    return (
        make_encoder(last_activation="tanh")
        if compared and isinstance(encoder, SimpleConvNet)
        else encoder
    )


def _second(chosen: dict[str, Any], info: DataInfo) -> SecondStream | None:
    sampler, size, views = (chosen[name] for name in SECOND_DEFAULTS)
    check_choice(sampler, "second", SECOND_SAMPLERS)
    check_choice(views, "second_views", SECOND_VIEWS)
    if size < 2:
        raise ValueError(
            f"second_batch must be at least 2, there are pairs to be found in it; got {size}"
        )
    if sampler == "none":
        return None
    return SecondStream(sampler, size, lambda own: SECOND_VIEWS[views](own, info.image_shape[1]))


def _builder(row: str, with_fairkl: bool) -> Callable[..., Objective]:
    """`build` for one method, with its options in the signature, where the configuration looks for them."""

    def builder(make_encoder: MakeEncoder, info: DataInfo, **options: Any) -> Objective:
        return build(row, with_fairkl, make_encoder, info, **options)

    keyword, positional = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    options = [
        inspect.Parameter(name, keyword, default=default, annotation=type(default))
        for name, default in option_defaults(row, with_fairkl).items()
    ]
    first = [inspect.Parameter(name, positional) for name in ("make_encoder", "info")]
    builder.__signature__ = inspect.Signature([*first, *options])  # type: ignore[attr-defined]
    builder.__annotations__ = {option.name: option.annotation for option in options}
    builder.__doc__ = f"{row}{'+fairkl' if with_fairkl else ''}"
    return builder


OBJECTIVES = {
    f"{row}{suffix}": _builder(row, with_fairkl=bool(suffix))
    for row, facts in ROWS.items()
    for suffix in ("", "+fairkl")
    if not (suffix and facts.needs)  # what corrects for the bias already has no need of FairKL
}

__all__ = ["OBJECTIVES", "ROWS", "LossInputs", "Objective", "Row", "build", "option_defaults"]
