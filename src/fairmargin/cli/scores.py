"""`fairmargin scores`: train a model that captures the bias, and keep its features."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import Changes, Dataset, File, command_line
from fairmargin.runtime.terminal import Console


def scores(
    file: File = None,
    dataset: Dataset = None,
    capture: Annotated[
        str | None,
        typer.Option(
            help="colours-and-places, simple-conv-1, bagnet18, early-stopped or gce; by default "
            "chosen by image size."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed, also of the runs that use the scores.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; runs/scores/DATASET/seed-SEED by default.")
    ] = None,
    changes: Changes = None,
) -> None:
    """Train a model that sees little but the shortcut, and keep its features.

    --bias scores and --bias clusters use them. The model sees no bias labels;
    if the dataset has some, they only measure it. Running the command again
    does only what is missing. See docs/scores.md.
    """
    from fairmargin.bias import capture as bias_scores
    from fairmargin.bias.score_file import FILE
    from fairmargin.bias.usefulness import verdict
    from fairmargin.runtime import distributed

    with exit_on_user_error():
        config = bias_scores.configuration(
            file, dataset=dataset, capture=capture, seed=seed, overrides=changes or ()
        )
        folder = out or bias_scores.folder_of(config)
        found = bias_scores.make(config, folder, command=command_line())
        if distributed.is_first():
            for table in bias_scores.tables(found):
                Console().print(table)
            for doubt in bias_scores.doubts(found):
                typer.echo(f"warning: {doubt}", err=True)
            if said := verdict(found.facts):
                typer.echo(said)
            where = "" if out is None else f" --set data.scores={shlex.quote(str(out))}"
            typer.echo(f"scores: {folder / FILE}\nuse:    fairmargin train … --bias scores{where}")
