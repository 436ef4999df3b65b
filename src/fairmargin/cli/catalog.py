"""Tables of `fairmargin list`: methods, datasets, networks, accuracies, classifiers and biases."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

from rich import box
from rich.table import Table
from rich.text import Text

from fairmargin.bias.providers import PROVIDERS
from fairmargin.checks import check_choice
from fairmargin.config import DataConfig, MethodConfig, NetworkConfig, toml
from fairmargin.config.options import Option
from fairmargin.data import DATASETS
from fairmargin.evaluate import CLASSIFIER_MEANINGS, MEANINGS
from fairmargin.methods import METHODS
from fairmargin.methods.catalog import OptionCard, card_of
from fairmargin.networks import BACKBONES, ENCODERS
from fairmargin.networks.pretrained import is_backbone, split_name


def methods() -> Table:
    """Return the methods with what each needs and costs."""
    table = Table(
        title='methods; options: "fairmargin list methods NAME"',
        caption="cost: training time relative to cross-entropy",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    # On a narrow terminal the other columns wrap: a name can be copied in one piece.
    table.add_column("method", no_wrap=True)
    table.add_column("paper")
    table.add_column("needs")
    table.add_column("networks")
    table.add_column("cost", no_wrap=True, justify="right")
    for name in METHODS:
        card = card_of(name)
        table.add_row(name, card.source, card.needs, card.networks, card.cost_text)
    return table


def datasets() -> Table:
    """Return the datasets with the first line about each."""
    table = Table(
        "dataset", "what it is", title='datasets; options: "fairmargin list datasets NAME"'
    )
    for name, builder in DATASETS.items():
        table.add_row(name, (inspect.getdoc(builder) or "").partition("\n")[0])
    return table


def networks() -> Table:
    """Return the networks with their classes."""
    table = Table("network", "class", title='networks; options: "fairmargin list networks NAME"')
    for name, builder in ENCODERS.items():
        table.add_row(name, getattr(builder, "func", builder).__name__)
    for library in BACKBONES:
        table.add_row(f"{library}:NAME", "pretrained, of another library (docs/networks.md)")
    return table


def accuracies() -> Table:
    """Return the accuracies with their meanings."""
    title = 'accuracies, of each classifier in "fairmargin list classifiers"'
    table = Table("accuracy", "meaning", title=title)
    for name, meaning in MEANINGS.items():
        table.add_row(name, meaning)
    return table


def classifiers() -> Table:
    """Return the classifiers that evaluation can judge."""
    title = 'classifiers that evaluation judges: --set evaluate.classifiers=["own", "linear"]'
    table = Table("classifier", "what it is", title=title)
    for name, meaning in CLASSIFIER_MEANINGS.items():
        table.add_row(name, meaning)
    return table


def biases() -> Table:
    """Return where methods may know the bias from."""
    table = Table(
        title="what methods may know of the bias: --bias NAME (docs/scores.md)",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("bias", no_wrap=True)
    table.add_column("what a method sees")
    table.add_column("needs")
    for name, provider in PROVIDERS.items():
        shown = f"{name}:{provider.argument}" if provider.argument else name
        table.add_row(shown, provider.gives, provider.needs)
    return table


CATALOGUES: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "datasets": datasets,
    "networks": networks,
    "accuracies": accuracies,
    "classifiers": classifiers,
    "biases": biases,
}
# Catalogue → (section of the configuration, its registry, the options of one entry)
OPTIONS: dict[str, tuple[str, Mapping[str, Any], Callable[[str], Mapping[str, Any]]]] = {
    "methods": ("method", METHODS, MethodConfig.known),
    "datasets": ("data", DATASETS, DataConfig.known),
    "networks": ("network", ENCODERS, NetworkConfig.known),
}


def options(what: str, name: str) -> Table:
    """Return what can be set for one method, dataset or network.

    Args:
        what: the catalogue, such as "methods".
        name: the entry of it.
    """
    check_choice(what, "list with options", OPTIONS)
    section, there, known = OPTIONS[what]
    if what == "networks" and is_backbone(name):
        split_name(name)
    else:
        check_choice(name, what.removesuffix("s"), there)
    if what == "methods":
        return _method_options(name)
    # Not markup: ":x:" in a name is no emoji.
    title = Text(f"{name}: --set {section}.OPTION=VALUE")
    table = Table("option", "default", title=title)
    for key, option in known(name).items():
        table.add_row(key, _default(option))
    return table


def _method_options(name: str) -> Table:
    """Return a method's facts and what each of its options means."""
    card = card_of(name)
    published = "" if card.venue == "–" else f", {card.venue}"
    title = Text(
        f"{card.title} ({card.paper}{published})\n"
        f"needs: {card.needs}; networks: {card.networks}; cost: {card.cost_text}\n"
        "--set method.OPTION=VALUE"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), min_width=72)
    table.add_column("option", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("choices or range")
    table.add_column("meaning")
    for key, option in MethodConfig.known(name).items():
        explained = card.options.get(key, OptionCard(""))
        values = allowed_values(option.kind, explained)
        table.add_row(key, _default(option), values, explained.meaning)
    return table


def _default(option: Option) -> str:
    """Return an option's default as a configuration would write it; empty if it has none."""
    if option.default in (None, inspect.Parameter.empty):
        return ""
    if isinstance(option.default, bool):
        return toml.value(option.default)
    return str(option.default)


def allowed_values(kind: Any, explained: OptionCard) -> str:
    """Return an option's choices or range in words.

    Args:
        kind: the type of the option. Its choices are those of a `Literal`.
        explained: the option's card, which has its range.

    Example:
        `float | Literal["median"]` with the range `ABOVE_ZERO` is "> 0, median".
    """
    parts = [str(explained.range)] if explained.range else []
    for member in (kind, *get_args(kind)):
        if get_origin(member) is Literal:
            parts += map(str, get_args(member))
        elif member is bool:
            parts += ["true", "false"]
        elif member is type(None):
            parts.append("none")
    return ", ".join(parts)
