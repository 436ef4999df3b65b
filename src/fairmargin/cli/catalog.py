"""What `fairmargin list` shows, read from the code: names for listing.json, and options.

`python -m fairmargin.cli.catalog` writes listing.json and methods/titles.json anew, for commands
that do without PyTorch.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rich import box
from rich.table import Table
from rich.text import Text

from fairmargin.bias.providers import PROVIDERS
from fairmargin.checks import check_choice
from fairmargin.cli.listing import FILE, plain_table
from fairmargin.config import DataConfig, MethodConfig, NetworkConfig, toml
from fairmargin.config.options import Option
from fairmargin.data import DATASETS
from fairmargin.evaluate import CLASSIFIER_MEANINGS, MEANINGS
from fairmargin.methods import METHODS
from fairmargin.methods.catalog import OptionCard, card_of, titles
from fairmargin.networks import BACKBONES, ENCODERS
from fairmargin.networks.pretrained import is_backbone, split_name

Row = list[str]


def methods() -> list[Row]:
    """Return the methods with what each needs and costs."""
    rows = []
    for name in METHODS:
        card = card_of(name)
        rows.append([name, card.source, card.needs, card.networks, card.cost_text])
    return rows


def datasets() -> list[Row]:
    """Return the datasets with the first line about each."""
    rows = []
    for name, builder in DATASETS.items():
        line = (inspect.getdoc(builder) or "").partition("\n")[0]
        # For readers of the code only.
        line = re.sub(r" (Other a|A)rguments as in `\w+`\.", "", line)
        rows.append([name, line])
    return rows


def networks() -> list[Row]:
    """Return the networks with their classes."""
    rows = [[name, getattr(b, "func", b).__name__] for name, b in ENCODERS.items()]
    foreign = "pretrained, of another library (docs/networks.md)"
    return rows + [[f"{library}:NAME", foreign] for library in BACKBONES]


def accuracies() -> list[Row]:
    """Return the accuracies with their meanings."""
    return [[name, meaning] for name, meaning in MEANINGS.items()]


def classifiers() -> list[Row]:
    """Return the classifiers that evaluation can judge."""
    return [[name, meaning] for name, meaning in CLASSIFIER_MEANINGS.items()]


def biases() -> list[Row]:
    """Return where methods may know the bias from."""
    rows = []
    for name, provider in PROVIDERS.items():
        shown = f"{name}:{provider.argument}" if provider.argument else name
        rows.append([shown, provider.gives, provider.needs])
    return rows


CATALOGUES: dict[str, Callable[[], list[Row]]] = {
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
    title = f"{name}: --set {section}.OPTION=VALUE"
    table = plain_table(title)
    # The title fits on one line.
    table.min_width = len(title)
    table.add_column("option", no_wrap=True)
    table.add_column("default")
    for key, option in known(name).items():
        table.add_row(key, Text(_default(option)))
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
    if isinstance(option.default, bool | list | tuple):
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


def generated() -> dict[str, str]:
    """Return the files of the package that are made from the code, by their paths in it."""
    listing = {what: rows() for what, rows in CATALOGUES.items()}
    return {
        f"cli/{FILE}": _json(listing),
        "methods/titles.json": _json(titles()),
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    for path, text in generated().items():
        (Path(__file__).parents[1] / path).write_text(text, "utf-8")
