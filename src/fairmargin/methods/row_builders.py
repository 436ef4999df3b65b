"""Build the methods of ROWS, and their cards.

The builders carry all options of a method in their signature, where the configuration looks.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from fairmargin import losses
from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data import views as all_views
from fairmargin.data.views import Views
from fairmargin.losses.contrastive import warn_of_epsilon
from fairmargin.methods.base import (
    MakeEncoder,
    SecondStream,
    Unsuited,
    require_bias,
    require_bias_features,
)
from fairmargin.methods.card import MethodCard
from fairmargin.methods.objective import Objective
from fairmargin.methods.objectives import BARBANO, ROWS, Row
from fairmargin.methods.row_options import (
    FAIRKL,
    SECOND_SAMPLERS,
    LastActivation,
    Weighting,
    loss_options,
    option_defaults,
    row_options,
)
from fairmargin.networks import Encoder, HeadKind, SimpleConvNet
from fairmargin.networks.own import OwnEncoders

RELEASED_TEMPERATURE = 0.07  # the authors' code scales its contrastive losses by τ/0.07

# (the dataset's own views, side of the images) → views of the second stream
SECOND_VIEWS: dict[str, Callable[[Views, int], Views]] = {
    "rotate-jitter": lambda own, side: all_views.biascon_mnist(own.mean, own.std),  # Biased-MNIST
    "supcon": lambda own, side: all_views.supcon(side, own.mean, own.std),  # faces, ImageNet-9
    # Two equal views are no positives of each other and still stand in each other's denominator:
    # a floor under the loss.
    "own": lambda own, side: replace(own, number=2 if own.steps else 1),
}


def build_row(
    name: str, with_fairkl: bool, make_encoder: MakeEncoder, info: DataInfo, **options: Any
) -> Objective:
    """Build the method of the row `name`, with or without FairKL.

    Args:
        options: those of `row_options` that differ from their defaults.
    """
    row, chosen = ROWS[name], option_defaults(name, with_fairkl)
    for option in options:
        check_choice(option, f"option of {name}", chosen)
    chosen |= options
    _require(row.needs, _full_name(name, with_fairkl), info, chosen.get("variant"))
    settings = {option: chosen[option] for option in loss_options(row)}
    _warn_of_epsilon(row, settings, info)
    bounds = None
    if chosen.get("log_bounds"):
        bounds = partial(losses.information_bounds, temperature=settings["temperature"])
    fairkl = None
    if with_fairkl:
        settings_of_fairkl = {option: chosen[option] for option in FAIRKL}
        # The values arrive in units of their median distance (data/values.py).
        settings_of_fairkl["bandwidth"] = chosen["bandwidth"] or 1.0
        fairkl = losses.FairKL(**settings_of_fairkl)
    head = chosen.get("head", "identity")
    return Objective(
        name,
        row,
        _encoder(make_encoder, chosen["last_activation"], row, head, with_fairkl),
        info,
        partial(row.loss, **settings),
        head=head,
        alpha=_weight(chosen),
        beta=chosen.get("beta", 0.0),
        fairkl_weight=chosen.get("lambda_", 0.0),
        fairkl=fairkl,
        second=_second(chosen, info) if row.second else None,
        bounds=bounds,
    )


def _full_name(row: str, with_fairkl: bool) -> str:
    return f"{row}+fairkl" if with_fairkl else row


def _warn_of_epsilon(row: Row, settings: Mapping[str, Any], info: DataInfo) -> None:
    if not row.positives or "epsilon" not in settings:
        return
    by_label = row.positives == "labels"
    warn_of_epsilon(
        settings["epsilon"],
        settings["temperature"],
        # Without labels every image is a class of its own.
        classes=info.num_classes if by_label else info.train_size,
        classes_are="classes" if by_label else "images",
    )


def _weight(chosen: Mapping[str, Any]) -> float:
    """Return the weight of the row's loss."""
    alpha: float = chosen["alpha"]
    weighting = chosen.get("weighting", "paper")
    check_choice(weighting, "weighting", get_args(Weighting))
    if weighting == "paper":
        return alpha
    # Note: α twice if λ ≠ 0, and τ/0.07, as the authors' code (docs/fidelity.md).
    twice = alpha if chosen.get("lambda_") else 1
    return alpha * (twice * chosen.get("temperature", RELEASED_TEMPERATURE) / RELEASED_TEMPERATURE)


def _require(needs: str, name: str, info: DataInfo, variant: str | None) -> None:
    """Check that the dataset tells what the method must know of the bias.

    Args:
        variant: of FairKL, which takes labels or features; None without FairKL.
    """
    if needs == "bias labels":
        require_bias(name, info, instead="ce")
    if needs == "bias features":
        require_bias_features(name, info, instead='"biascon+ce" if there are bias labels')
    if variant is None or info.bias_names:
        return
    if not info.bias_features:
        raise Unsuited(
            f"{name} needs to know the bias and {info.name} has no bias labels that it may use; "
            'give the manifest a "bias" column, or run "fairmargin scores" and train with '
            f"--bias scores, or train {name.removesuffix('+fairkl')} without FairKL"
        )
    if variant == "authors":
        raise Unsuited(
            'variant="authors" is defined for bias labels and there are only scores; '
            "choose method.variant=paper, or make labels of the scores with --bias clusters"
        )


def _encoder(
    make_encoder: MakeEncoder,
    last_activation: LastActivation,
    row: Row,
    head: HeadKind,
    with_fairkl: bool,
) -> Encoder:
    """Make the encoder with the last activation that was chosen.

    "auto" is the authors' choice. It is tanh, whose cosines can be negative, wherever
    cross-entropy meets FairKL, and in SimpleConvNet when its own features are the embedding or
    regularised. Else it is the network's own, as for encoders of the user's that cannot change it.
    """
    check_choice(last_activation, "last_activation", get_args(LastActivation))
    if last_activation != "auto":
        return make_encoder(last_activation=last_activation)
    if isinstance(make_encoder, OwnEncoders) and not make_encoder.has_last_activation:
        return make_encoder()
    if row.learns == "classifier" and with_fairkl:
        return make_encoder(last_activation="tanh")
    encoder = make_encoder()
    compared = row.regularised or (row.learns == "embedding" and head == "identity")
    if compared and isinstance(encoder, SimpleConvNet):
        return make_encoder(last_activation="tanh")
    return encoder


def _second(chosen: Mapping[str, Any], info: DataInfo) -> SecondStream | None:
    sampler, size = chosen["second"], chosen["second_batch"]
    check_choice(sampler, "second", SECOND_SAMPLERS)
    check_choice(chosen["second_views"], "second_views", SECOND_VIEWS)
    if size < 2:
        raise ValueError(f"second_batch must be at least 2, to hold a pair; got {size}")
    if sampler == "none":
        return None
    make_views = SECOND_VIEWS[chosen["second_views"]]
    return SecondStream(sampler, size, lambda own: make_views(own, info.image_shape[1]))


def _builder(row: str, with_fairkl: bool) -> Callable[..., Objective]:
    """Return `build_row` for one method, with its options in the signature."""

    def builder(make_encoder: MakeEncoder, info: DataInfo, **options: Any) -> Objective:
        return build_row(row, with_fairkl, make_encoder, info, **options)

    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, positional) for name in ("make_encoder", "info")]
    kinds = {}
    for name, option in row_options(row, with_fairkl).items():
        kinds[name] = option.kind
        parameters.append(
            inspect.Parameter(name, keyword, default=option.default, annotation=option.kind)
        )
    builder.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    builder.__annotations__ = kinds
    builder.__doc__ = _full_name(row, with_fairkl)
    return builder


def _card(name: str, with_fairkl: bool) -> MethodCard:
    """Return the row's card with the options that rows share."""
    card = ROWS[name].card
    shared = {
        # `lambda` is a word of Python, and only the configuration may use it as a name.
        option.removesuffix("_"): what.card
        for option, what in row_options(name, with_fairkl).items()
        if option not in card.options
    }
    card = replace(card, options={**card.options, **shared})
    if not with_fairkl:
        return card
    return replace(
        card,
        title=f"{card.title} + FairKL",
        paper=BARBANO,
        venue="ICLR 2023",
        needs="bias labels or features",
    )


# Rows that correct for the bias already have no need of FairKL.
NAMES = {
    _full_name(name, with_fairkl): (name, with_fairkl)
    for name, row in ROWS.items()
    for with_fairkl in (False, True)
    if not (with_fairkl and row.needs)
}
OBJECTIVES = {full: _builder(*row) for full, row in NAMES.items()}
OBJECTIVE_CARDS = {full: _card(*row) for full, row in NAMES.items()}
