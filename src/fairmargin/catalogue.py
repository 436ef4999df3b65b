"""What there is to choose from, as tables for the terminal."""

import inspect
from collections.abc import Callable

from rich.table import Table

from fairmargin.data import DATASETS
from fairmargin.data.options import keywords
from fairmargin.evaluate import MEANINGS
from fairmargin.methods import METHODS
from fairmargin.networks import ENCODERS


def methods() -> Table:
    table = Table("method", "options (--set method.NAME=VALUE)", title="methods")
    for name, builder in METHODS.items():
        parameters = inspect.signature(builder).parameters.values()
        options = [f"{p.name.rstrip('_')}={p.default}" for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        table.add_row(name, ", ".join(options))
    return table


def datasets() -> Table:
    table = Table("dataset", "what it is", "options (--set data.NAME=VALUE)", title="datasets")
    for name, builder in DATASETS.items():
        first = (inspect.getdoc(builder) or "").partition("\n")[0]
        table.add_row(name, first, ", ".join(keywords(builder)))
    return table


def networks() -> Table:
    table = Table("network", "options (--set network.NAME=VALUE)", title="networks")
    for name, builder in ENCODERS.items():
        parameters = inspect.signature(builder).parameters.values()
        options = [f"{p.name}={p.default}" for p in parameters if isinstance(p.default, int | float | str | tuple)]
        table.add_row(name, ", ".join(options))
    return table


def accuracies() -> Table:
    table = Table("accuracy", "meaning", title="accuracies")
    for name, meaning in MEANINGS.items():
        table.add_row(name, meaning)
    return table


CATALOGUES: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "datasets": datasets,
    "networks": networks,
    "accuracies": accuracies,
}
