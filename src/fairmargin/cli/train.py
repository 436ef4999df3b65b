"""`fairmargin train`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import Bias, Changes, Dataset, File, Network, TrustCode, command_line
from fairmargin.cli.tables import accuracy_table
from fairmargin.runtime.terminal import Console

if TYPE_CHECKING:
    from fairmargin.config import Config


def train(
    file: File = None,
    dataset: Dataset = None,
    method: Annotated[
        str | None,
        typer.Option(help='One of "fairmargin list methods"; fairmargin by default.'),
    ] = None,
    network: Network = None,
    bias: Bias = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed for data, weights and batches.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/DATASET/METHOD/seed-SEED by default.")
    ] = None,
    changes: Changes = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the run in this folder as it was configured; with --set "
            "train.epochs=40, go on for more epochs in a new folder."
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Train one method on one dataset, evaluate it, and record everything in a folder.

    Give the same command again to continue an interrupted run, or to see a finished one. Under
    torchrun all processes train together.
    """
    from fairmargin import config as configuration
    from fairmargin.config.code import is_import_path, named_again
    from fairmargin.run import run
    from fairmargin.runs.found_bias import with_found_bias
    from fairmargin.runtime import distributed
    from fairmargin.sweep.compare import default_out, folder_of

    with exit_on_user_error():
        if resume is not None:
            again = [name for name in (dataset, network) if name and not is_import_path(name)]
            if file or again or method or bias or seed is not None:
                raise ValueError(
                    "--resume takes the configuration of its folder; leave the other options out, "
                    "except --set, such as --set train.epochs=40, and --out"
                )
            config, folder = _resumed(resume, changes or [], out)
            config = named_again(config, network=network, dataset=dataset, trust_code=trust_code)
        else:

            def loaded(bias: str | None) -> "Config":
                config = configuration.load(
                    file,
                    dataset=dataset,
                    network=network,
                    method=method,
                    bias=bias,
                    seed=seed,
                    overrides=changes or (),
                )
                return named_again(config, trust_code=trust_code)

            config = with_found_bias(loaded(bias), loaded)
            folder = out or folder_of(config, default_out(config))
            if distributed.is_first():
                for note in config.notes:
                    typer.echo(note)
        record = run(config, folder, command=command_line())
        if record.result is not None and distributed.is_first():
            title = "test accuracy in percent, with 95 % intervals"
            Console().print(accuracy_table(record.outcome["test"], title))
            typer.echo(f"run folder: {folder}")
            typer.echo(f"report:     fairmargin report {shlex.quote(str(folder))}")


def _resumed(run: Path, changes: list[str], out: Path | None) -> "tuple[Config, Path]":
    """Configuration and folder with which a run goes on: its own, or new ones for more epochs."""
    from fairmargin import config as configuration
    from fairmargin.runs import extend
    from fairmargin.runs.record import CONFIG
    from fairmargin.runtime import distributed

    before = configuration.load_resolved(run / CONFIG)
    config = configuration.override(before, changes)
    if not extend.allowed(before, config):
        if out is not None:
            raise ValueError(
                "--resume with --out goes on in a new folder and needs more to do: "
                f"--set train.epochs={2 * before.train.epochs}"
            )
        return config, run
    folder = out or extend.default_folder(run, config)
    if distributed.is_first():
        typer.echo(f"going on from {run} in {folder}")
        typer.echo(extend.extend(run, config, folder))
    return config, folder
