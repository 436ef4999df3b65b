"""`fairmargin train`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import Bias, Changes, Dataset, File, Network, TrustCode, command_line
from fairmargin.cli.tables import accuracy_table


def train(
    file: File = None,
    dataset: Dataset = None,
    method: Annotated[str | None, typer.Option(help='One of "fairmargin list methods".')] = None,
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
        Path | None, typer.Option(help="Continue the run in this folder as it was configured.")
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
    from fairmargin.runs.record import CONFIG
    from fairmargin.runtime import distributed
    from fairmargin.sweep.compare import default_out, folder_of

    with exit_on_user_error():
        if resume is not None:
            again = [name for name in (dataset, network) if name and not is_import_path(name)]
            if file or again or method or bias or seed is not None or out or changes:
                raise ValueError(
                    "--resume takes the configuration of its folder; leave the other options out"
                )
            config = named_again(
                configuration.load_resolved(resume / CONFIG),
                network=network,
                dataset=dataset,
                trust_code=trust_code,
            )
            folder = resume
        else:
            config = configuration.load(
                file,
                dataset=dataset,
                network=network,
                method=method,
                bias=bias,
                seed=seed,
                overrides=changes or (),
            )
            config = named_again(config, trust_code=trust_code)
            folder = out or folder_of(config, default_out(config))
        record = run(config, folder, command=command_line())
        if record.result is not None and distributed.is_first():
            title = "test accuracy in percent, with 95 % intervals"
            Console().print(accuracy_table(record.result["test"], title))
            typer.echo(f"run folder: {folder}")
            typer.echo(f"report:     fairmargin report {shlex.quote(str(folder))}")
