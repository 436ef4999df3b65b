"""What there is to choose from, as tables for the terminal."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from fairmargin.checks import check_choice
from fairmargin.config import DataConfig, MethodConfig, NetworkConfig
from fairmargin.data import DATASETS
from fairmargin.evaluate import CLASSIFIER_MEANINGS, MEANINGS
from fairmargin.methods import METHODS
from fairmargin.methods.catalog import FACTS, UNKNOWN, cost
from fairmargin.networks import ENCODERS


def methods() -> Table:
    title = 'methods; cost: training time relative to cross-entropy; options: "fairmargin list methods NAME"'
    table = Table("method", "paper", "needs", "networks", "cost", title=title)
    for name in METHODS:
        facts = FACTS.get(name, UNKNOWN)
        paper = (
            facts.paper if facts.venue == "–" else f"{facts.paper.partition(',')[0]}, {facts.venue}"
        )
        table.add_row(name, paper, facts.needs, facts.networks, cost(name))
    return table


def datasets() -> Table:
    table = Table(
        "dataset", "what it is", title='datasets; options: "fairmargin list datasets NAME"'
    )
    for name, builder in DATASETS.items():
        table.add_row(name, (inspect.getdoc(builder) or "").partition("\n")[0])
    return table


def networks() -> Table:
    table = Table("network", "class", title='networks; options: "fairmargin list networks NAME"')
    for name, builder in ENCODERS.items():
        table.add_row(name, getattr(builder, "func", builder).__name__)
    return table


def accuracies() -> Table:
    title = 'accuracies, of each classifier in "fairmargin list classifiers"'
    table = Table("accuracy", "meaning", title=title)
    for name, meaning in MEANINGS.items():
        table.add_row(name, meaning)
    return table


def classifiers() -> Table:
    title = 'classifiers that evaluation judges: --set evaluate.classifiers=["own", "linear"]'
    table = Table("classifier", "what it is", title=title)
    for name, meaning in CLASSIFIER_MEANINGS.items():
        table.add_row(name, meaning)
    return table


CATALOGUES: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "datasets": datasets,
    "networks": networks,
    "accuracies": accuracies,
    "classifiers": classifiers,
}
OPTIONS: dict[str, tuple[str, Mapping[str, Any], Callable[[str], Mapping[str, Any]]]] = {
    "methods": ("method", METHODS, MethodConfig.known),
    "datasets": ("data", DATASETS, DataConfig.known),
    "networks": ("network", ENCODERS, NetworkConfig.known),
}


def options(what: str, name: str) -> Table:
    """What can be set for one method, dataset or network."""
    check_choice(what, "list with options", OPTIONS)
    section, there, known = OPTIONS[what]
    check_choice(name, what.removesuffix("s"), there)
    table = Table("option", "default", title=f"{name}: --set {section}.OPTION=VALUE")
    for key, option in known(name).items():
        default = "" if option.default in (None, inspect.Parameter.empty) else str(option.default)
        table.add_row(key, default)
    return table
