"""`fairmargin list`."""

from typing import Annotated

import typer
from rich.console import Console

from fairmargin.cli.errors import exit_on_user_error


def list_names(
    what: Annotated[
        str,
        typer.Argument(
            help="What to list: methods, datasets, networks, accuracies, classifiers or biases."
        ),
    ] = "methods",
    name: Annotated[
        str | None, typer.Argument(help="Show the options of this method, dataset or network.")
    ] = None,
) -> None:
    """List methods, datasets, networks, accuracies, classifiers, biases, or the options of one.

    Example: fairmargin list methods jtt
    """
    from fairmargin.checks import check_choice
    from fairmargin.cli.catalog import CATALOGUES, options

    with exit_on_user_error():
        check_choice(what, "list", CATALOGUES)
        table = CATALOGUES[what]() if name is None else options(what, name)
        Console().print(table)
