"""`fairmargin tune`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import (
    Bias,
    Changes,
    Dataset,
    File,
    Network,
    command_line,
    parse_seeds,
)
from fairmargin.cli.sweeps import Methods, RunOptions, with_engine
from fairmargin.runtime.terminal import Console
from fairmargin.runtime.whole import write_text

if TYPE_CHECKING:
    from fairmargin.config import Config
    from fairmargin.sweep.base import Engine


@with_engine
def tune(
    file: File = None,
    dataset: Dataset = None,
    methods: Methods = "fairmargin",
    network: Network = None,
    bias: Bias = None,
    trials: Annotated[int, typer.Option(help="Number of trials of each method.")] = 12,
    seeds: Annotated[
        str, typer.Option(help="Number of seeds of each trial, or which: 1 means 0; 0,5 names two.")
    ] = "1",
    search_seed: Annotated[int, typer.Option(help="Random seed for the suggested settings.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of all trials; runs/tune/DATASET by default.")
    ] = None,
    changes: Changes = None,
    *,
    engine: "Engine",
) -> None:
    """Choose methods' key settings on validation data, with the same number of trials for each.

    The same command again runs only the trials that are missing. Writes METHOD/best.toml, which
    "fairmargin train" takes, and a table. The test set chooses nothing.
    """
    from fairmargin.sweep.compare import default_out
    from fairmargin.sweep.tune import markdown, settings, table
    from fairmargin.sweep.tune import tune as search

    with exit_on_user_error():
        options = RunOptions(file, dataset, methods, network, bias, changes)
        configs = options.configs()
        folder = out or Path("runs") / "tune" / default_out(configs[0]).name
        found = search(
            configs,
            folder,
            trials=trials,
            seeds=parse_seeds(seeds),
            seed=search_seed,
            command=command_line(),
            say=typer.echo,
            go_on=options.all_methods,
            engine=engine,
        )
        Console().print(table(found))
        write_text(folder / "table.md", markdown(found))
        tuned = folder / "tuned.toml"
        command = _compare_command(tuned, options, configs[0])
        write_text(tuned, f"# {command}\n{settings(found, file)}")
        typer.echo(f"the best settings of each method, for fairmargin compare: {tuned}")


def _compare_command(tuned: Path, options: RunOptions, config: "Config") -> str:
    """The command that compares the methods with their best settings."""
    from fairmargin.data import OWN

    dataset = config.data.root if config.data.name in OWN else config.data.name
    given = {
        "--dataset": dataset,
        "--methods": ",".join(options.names),
        "--network": options.network,
        "--bias": options.bias,
    }
    words = ["fairmargin", "compare", str(tuned)]
    for option, value in given.items():
        if value is not None:
            words += [option, str(value)]
    for change in options.changes or ():
        words += ["--set", change]
    return shlex.join(words)
