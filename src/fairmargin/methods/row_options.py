"""The options of the methods of ROWS: keywords of the row's loss, and options that rows share."""

import inspect
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_type_hints

from fairmargin.losses.choices import (
    Biases,
    Divergence,
    Kernel,
    Normalize,
    Scope,
    UsedViews,
    Variant,
)
from fairmargin.methods.card import FROM_ZERO, Between, OptionCard, Range
from fairmargin.methods.objectives import ROWS, Row
from fairmargin.networks import HeadKind

Weighting = Literal["paper", "released"]
LastActivation = Literal["auto", "relu", "tanh"]
SecondSampler = Literal[
    "none", "weighted", "shuffled", "class-balanced", "group-balanced", "bias-aware"
]
SecondViews = Literal["rotate-jitter", "supcon", "own"]


@dataclass(frozen=True)
class RowOption:
    """An option of a row: its type, its default and what its card says."""

    kind: Any
    default: Any
    card: OptionCard


ALPHA = RowOption(float, 1.0, OptionCard("weight α of the row's loss", FROM_ZERO))
EMBEDDING = {
    "head": RowOption(
        HeadKind, "identity", OptionCard("projection head on which the loss is computed")
    ),
    "beta": RowOption(
        float,
        0.0,
        OptionCard(
            "weight β of cross-entropy besides the loss; 0: the classifier is a probe", FROM_ZERO
        ),
    ),
}
WEIGHTING = RowOption(
    Weighting, "paper", OptionCard("α as in the paper, or scaled as in the released code")
)
LAST_ACTIVATION = RowOption(
    LastActivation,
    "auto",
    OptionCard("the encoder's last activation; auto: the authors' choice, often tanh"),
)
LOG_BOUNDS = RowOption(
    bool, False, OptionCard("log bounds of the mutual information; training does not change")
)

# Hong & Yang draw the second stream with "weighted" (1/p̂(b|y), or with bias features their mean
# distance to the class, up to ten times the smallest weight) and augment it.
# Note: not by default, as in the single-loader script of their code and the starred rows of
# Barbano et al.: their augmentation is one for each dataset, and their comparison is with methods
# that have neither.
SECOND = {
    "second": RowOption(
        SecondSampler,
        "none",
        OptionCard("sampler of a second stream of batches for the pairs; none: a single stream"),
    ),
    "second_batch": RowOption(int, 64, OptionCard("its batch size", Range(2, 65_536))),
    "second_views": RowOption(SecondViews, "rotate-jitter", OptionCard("its augmentation")),
}

FAIRKL = {
    "divergence": RowOption(
        Divergence, "kl", OptionCard("how the two distributions of distances are compared")
    ),
    "scope": RowOption(
        Scope, "batch", OptionCard("pool the pairs of the batch, or average over anchors")
    ),
    "negatives": RowOption(bool, False, OptionCard("also compare pairs of different classes")),
    "variant": RowOption(
        Variant, "paper", OptionCard("the paper's formula or that of the authors' code")
    ),
    "variance_floor": RowOption(
        float, 0.1, OptionCard("added to both variances in kl, jeffreys and lognormal", FROM_ZERO)
    ),
    "normalize": RowOption(
        Normalize,
        "weights",
        OptionCard("with bias features, divide by the sum of the weights or by the batch size"),
    ),
    "views": RowOption(
        UsedViews,
        "all",
        OptionCard("views of an image that FairKL sees; the row's loss sees all"),
    ),
    "kernel": RowOption(
        Kernel, "gaussian", OptionCard("how near two values of a continuous bias are")
    ),
    "bandwidth": RowOption(
        float,
        0.0,
        OptionCard("of the kernel, in median distances of the training values; 0: one", FROM_ZERO),
    ),
    "biases": RowOption(
        Biases,
        "joint",
        OptionCard("several bias columns: one bias of all together, or the sum of a term each"),
    ),
}
LAMBDA = RowOption(float, 1.0, OptionCard("weight λ of FairKL", FROM_ZERO, Between(0.1, 10)))

SECOND_SAMPLERS = get_args(SecondSampler)


def row_options(name: str, with_fairkl: bool) -> dict[str, RowOption]:
    """Return what can be set for the row `name`, with or without FairKL, by parameter."""
    row = ROWS[name]
    options = dict(loss_options(row))
    options["alpha"] = _searched(ALPHA, Between(0.01, 1)) if with_fairkl else ALPHA
    if row.learns != "classifier":
        beta = replace(EMBEDDING["beta"], default=row.beta)
        if row.learns == "both":
            beta = _searched(beta, Between(1e-3, 1))
        options |= EMBEDDING | {"beta": beta}
    if row.learns == "embedding" and not row.needs:
        options["weighting"] = WEIGHTING
    options["last_activation"] = LAST_ACTIVATION
    if row.positives:
        options["log_bounds"] = LOG_BOUNDS
    if row.second:
        options |= SECOND
    if with_fairkl:
        options["lambda_"] = LAMBDA
        options |= FAIRKL
    return options


def option_defaults(name: str, with_fairkl: bool) -> dict[str, Any]:
    """Return the default of everything that can be set for the row `name`, by parameter."""
    return {key: option.default for key, option in row_options(name, with_fairkl).items()}


def _searched(option: RowOption, search: Between) -> RowOption:
    return replace(option, card=replace(option.card, search=search))


def loss_options(row: Row) -> dict[str, RowOption]:
    """Return the keywords of the row's own loss, by parameter."""
    hints = get_type_hints(row.loss)
    options = {}
    for p in inspect.signature(row.loss).parameters.values():
        if p.kind is inspect.Parameter.KEYWORD_ONLY:
            # A missing meaning stays empty here; `catalog.mismatches` names it.
            card = row.card.options.get(p.name, OptionCard(""))
            options[p.name] = RowOption(hints[p.name], p.default, card)
    return options
