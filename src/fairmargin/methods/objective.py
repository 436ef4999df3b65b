"""Every method that is one network and one sum of losses: an encoder, a head, a linear classifier, and a row of ROWS.

    L = α·(the row's loss) + λ·FairKL [+ β·cross-entropy]

A row that learns an embedding leaves the classifier to a second player, "probe", which sees features without gradient.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.batch import Batch, DataInfo
from fairmargin.distributed import gather
from fairmargin.losses.inputs import check_choice, unit
from fairmargin.methods.base import MakeEncoder, Method
from fairmargin.networks import Encoder, SimpleConvNet, projection_head

RELEASED_TEMPERATURE = 0.07  # the authors' code scales its contrastive losses by τ/0.07


@dataclass(frozen=True)
class Seen:
    """What a loss may look at; the samples of all processes."""

    h: Tensor  # [N, D] or [N, V, D], the encoder's output
    z: Tensor  # the head's, of unit length
    inputs: Tensor  # of the classifier
    labels: Tensor
    bias: Tensor | None
    bias_features: Tensor | None
    classifier: nn.Linear
    step: int

    @property
    def logits(self) -> Tensor:
        """[N·V, K]"""
        return self.classifier(self.inputs.flatten(0, -2))

    @property
    def label_of_each_row(self) -> Tensor:
        return self.labels.repeat_interleave(self.h.shape[1]) if self.h.ndim == 3 else self.labels


@dataclass(frozen=True)
class Row:
    loss: Callable[..., Tensor]  # (Seen, *, settings…)
    learns: str  # "classifier", or "embedding" with the probe as a second player
    views: int = 1  # of each image that the loss needs


def _cross_entropy(x: Seen) -> Tensor:
    return F.cross_entropy(x.logits, x.label_of_each_row)


def _max_margin(x: Seen, *, margin: int = 4, least_anneal: float = 0.0) -> Tensor:
    anneal = losses.l_softmax_anneal(x.step, least=least_anneal)
    return losses.l_softmax(
        x.inputs.flatten(0, -2), x.classifier.weight, x.label_of_each_row, margin=margin, anneal=anneal
    )


def _large_margin(x: Seen, *, gamma: float = 1.0, slope: float = 2.0, norm: str = "l2", top_k: int = 1) -> Tensor:
    layer = x.inputs.flatten(0, -2)  # after every batch norm
    logits = x.classifier(layer)
    return losses.large_margin(logits, [layer], x.label_of_each_row, gamma=gamma, alpha=slope, norm=norm, top_k=top_k)


def _supcon(x: Seen, *, temperature: float = 0.1) -> Tensor:
    return losses.supcon(x.z, x.labels, temperature=temperature)


def _supcon_in(x: Seen, *, temperature: float = 0.1) -> Tensor:
    return losses.supcon_in(x.z, x.labels, temperature=temperature)


def _simclr(x: Seen, *, temperature: float = 0.1) -> Tensor:
    return losses.simclr(x.z, temperature=temperature)


def _eps_infonce(x: Seen, *, epsilon: float = 0.25, temperature: float = 0.1) -> Tensor:
    return losses.eps_infonce(x.z, epsilon=epsilon, temperature=temperature)


def _infol1o(x: Seen, *, temperature: float = 0.1) -> Tensor:
    return losses.eps_infonce(x.z, epsilon=torch.inf, temperature=temperature)


def _eps_supinfonce(
    x: Seen, *, epsilon: float = 0.25, temperature: float = 0.1, form: str = "c", positives: str = "mean"
) -> Tensor:
    return losses.eps_supinfonce(
        x.z, x.labels, epsilon=epsilon, temperature=temperature, form=form, positives=positives
    )


def _eps_supcon(x: Seen, *, epsilon: float = 0.25, temperature: float = 0.1) -> Tensor:
    return losses.eps_supcon(x.z, x.labels, epsilon=epsilon, temperature=temperature)


ROWS = {
    "ce": Row(_cross_entropy, "classifier"),
    "max-margin": Row(_max_margin, "classifier"),
    "large-margin": Row(_large_margin, "classifier"),
    "supcon": Row(_supcon, "embedding"),
    "supcon-in": Row(_supcon_in, "embedding"),
    "simclr": Row(_simclr, "embedding", views=2),
    "eps-infonce": Row(_eps_infonce, "embedding", views=2),
    "infol1o": Row(_infol1o, "embedding", views=2),
    "eps-supcon": Row(_eps_supcon, "embedding"),
    "eps-supinfonce": Row(_eps_supinfonce, "embedding"),
}


class Objective(Method):
    """One row, with FairKL if `fairkl` holds its settings."""

    # As in the authors' code: the probe does not follow the encoder's schedule.
    optimisers = {"probe": {"name": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "constant"}}  # noqa: RUF012

    def __init__(
        self,
        name: str,
        encoder: Encoder,
        classes: int,
        loss: Callable[[Seen], Tensor],
        *,
        learns: str,
        views: int = 1,
        head: str = "identity",
        alpha: float = 1.0,
        beta: float = 0.0,
        fairkl_weight: float = 0.0,
        fairkl: losses.FairKL | None = None,
    ) -> None:
        super().__init__()
        self.name, self.loss, self.views = name, loss, views
        self.alpha, self.beta, self.fairkl_weight = alpha, beta, fairkl_weight
        self.least_batch = 1 if learns == "classifier" and fairkl is None else 2
        self.encoder = encoder
        self.head = projection_head(head, encoder.dim)
        self.fairkl = fairkl
        self.probed = learns == "embedding" and beta == 0
        # The classifier reads what the losses shape: unit vectors, unless a head or no term asks for length 1.
        self.on_unit_features = head == "identity" and (learns == "embedding" or fairkl is not None)
        self.classifier = nn.Linear(encoder.dim, classes, bias=name != "max-margin")

    def players(self) -> dict[str, list[nn.Parameter]]:
        main = [*self.encoder.parameters(), *self.head.parameters()]
        classifier = list(self.classifier.parameters())
        return {"main": main, "probe": classifier} if self.probed else {"main": main + classifier}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        x = self._see(batch, step)
        loss = self.loss(x)
        self.terms = {self.name: loss.detach()}
        total = self.alpha * loss
        if self.fairkl is not None:
            bias = x.bias if x.bias_features is None else None
            fairkl = self.fairkl(x.h, x.labels, bias, bias_features=x.bias_features)
            self.terms["fairkl"], self.pairs = fairkl.detach(), self.fairkl.pairs
            total = total + self.fairkl_weight * fairkl
        if self.beta:
            cross_entropy = _cross_entropy(x)
            self.terms["cross-entropy"] = cross_entropy.detach()
            total = total + self.beta * cross_entropy
        if self.on_unit_features:  # near 1: every image has the same embedding, the collapse FairKL alone invites
            self.terms["mean similarity"] = x.inputs.detach().flatten(0, -2).mean(0).square().sum()
        yield "main", total
        if self.probed:
            logits = self.classifier(x.inputs.detach().flatten(0, -2))  # no second pass through the encoder
            probe = F.cross_entropy(logits, x.label_of_each_row)
            self.terms["probe"] = probe.detach()
            yield "probe", probe

    def features(self, images: Tensor) -> Tensor:
        return self.encoder(images)

    def predict(self, images: Tensor) -> Tensor:
        return self.inspect(images)[1]

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encoder(images)
        return h, self.classifier(self._classified(h))

    def _see(self, batch: Batch, step: int) -> Seen:
        several = batch.images.ndim == 5
        if not several and self.views > 1:
            raise ValueError(
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
        return Seen(h, z, self._classified(h), labels, bias, bias_features, self.classifier, step)

    def _classified(self, h: Tensor) -> Tensor:
        return unit(h.float() if h.dtype in (torch.float16, torch.bfloat16) else h) if self.on_unit_features else h


FAIRKL_DEFAULTS: dict[str, Any] = {
    "divergence": "kl",
    "scope": "batch",
    "negatives": False,
    "variant": "paper",
    "variance_floor": 0.1,
    "normalise": "weights",
}


def build(row: str, with_fairkl: bool, make_encoder: MakeEncoder, info: DataInfo, **options: Any) -> Objective:
    """The method `row` (`+fairkl`) with `options` out of `option_defaults`."""
    chosen = option_defaults(row, with_fairkl)
    for name in options:
        check_choice(name, f"option of {row}", chosen)
    chosen |= options
    if with_fairkl and not info.bias_names:
        raise ValueError(
            f"{row}+fairkl needs to know the bias and {info.name} has no bias labels that it may use; "
            f'give the manifest a "bias" column, or train {row} without FairKL'
        )
    settings = {name: chosen[name] for name in _settings(row)}
    alpha = chosen["alpha"]
    if (
        chosen.get("weighting", "paper") == "released"
    ):  # Note: α twice and τ/0.07, as the authors' code (docs/fidelity.md)
        alpha *= (
            (alpha if with_fairkl else 1) * settings.get("temperature", RELEASED_TEMPERATURE) / RELEASED_TEMPERATURE
        )
    return Objective(
        row,
        _encoder(
            make_encoder, chosen["last_activation"], ROWS[row].learns, chosen.get("head", "identity"), with_fairkl
        ),
        info.num_classes,
        partial(ROWS[row].loss, **settings),
        learns=ROWS[row].learns,
        views=ROWS[row].views,
        head=chosen.get("head", "identity"),
        alpha=alpha,
        beta=chosen.get("beta", 0.0),
        fairkl_weight=chosen.get("lambda_", 0.0),
        fairkl=losses.FairKL(**{name: chosen[name] for name in FAIRKL_DEFAULTS}) if with_fairkl else None,
    )


def option_defaults(row: str, with_fairkl: bool) -> dict[str, Any]:
    """What can be set for this method, with the defaults."""
    embedding = {"head": "identity", "beta": 0.0, "weighting": "paper"} if ROWS[row].learns == "embedding" else {}
    fairkl = {"lambda_": 1.0, **FAIRKL_DEFAULTS} if with_fairkl else {}
    return {**_settings(row), "alpha": 1.0, **embedding, "last_activation": "auto", **fairkl}


def _settings(row: str) -> dict[str, Any]:
    """Of the row's own loss."""
    parameters = inspect.signature(ROWS[row].loss).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _encoder(make_encoder: MakeEncoder, last_activation: str, learns: str, head: str, with_fairkl: bool) -> Encoder:
    """ "auto" is the authors' choice: tanh, whose cosines can be negative, in SimpleConvNet when its own features are the
    embedding, and wherever cross-entropy meets FairKL; else the network's own."""
    check_choice(last_activation, "last_activation", ("auto", "relu", "tanh"))
    if last_activation != "auto":
        return make_encoder(last_activation=last_activation)
    if learns == "classifier":
        return make_encoder(last_activation="tanh") if with_fairkl else make_encoder()
    encoder = make_encoder()
    if head == "identity" and isinstance(encoder, SimpleConvNet):
        return make_encoder(last_activation="tanh")
    return encoder


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


OBJECTIVES = {f"{row}{suffix}": _builder(row, with_fairkl=bool(suffix)) for row in ROWS for suffix in ("", "+fairkl")}
