"""`fairmargin tune`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import (
    Address,
    Bias,
    Changes,
    Cpus,
    Dataset,
    EngineName,
    File,
    Gpus,
    Jobs,
    Network,
    command_line,
    parse_methods,
    parse_seeds,
    runs_of,
)


def tune(
    file: File = None,
    dataset: Dataset = None,
    methods: Annotated[
        str, typer.Option(help="Comma-separated, or all.")
    ] = "eps-supinfonce+fairkl",
    network: Network = None,
    bias: Bias = None,
    trials: Annotated[int, typer.Option(help="Of each method, the same for all.")] = 12,
    seeds: Annotated[str, typer.Option(help="Of each trial: how many, or which: 0,5.")] = "1",
    search_seed: Annotated[int, typer.Option(help="Of the suggestions.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of all trials; runs/tune/DATASET by default.")
    ] = None,
    changes: Changes = None,
    engine: EngineName = "local",
    jobs: Jobs = None,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> None:
    """Choose methods' key settings on validation, with as many trials for each. Again: only the trials that are missing.

    Writes METHOD/best.toml, which "fairmargin train" takes, and a table. The test set chooses nothing.
    """
    from fairmargin import config as configuration
    from fairmargin.sweep.engines import engine as chosen
    from fairmargin.sweep.tune import markdown, settings, table
    from fairmargin.sweep.tune import tune as search

    with exit_on_user_error():
        where_to_run = chosen(engine, jobs=jobs, address=address, cpus=cpus, gpus=gpus)
        names = parse_methods(methods)
        configs = [
            configuration.load(
                file,
                dataset=dataset,
                network=network,
                method=name,
                bias=bias,
                overrides=changes or (),
            )
            for name in names
        ]
        where = out or Path("runs") / "tune" / runs_of(configs[0]).name
        found = search(
            configs,
            where,
            trials=trials,
            seeds=parse_seeds(seeds),
            seed=search_seed,
            command=command_line(),
            say=typer.echo,
            go_on=methods == "all",
            engine=where_to_run,
        )
        Console().print(table(found))
        (where / "table.md").write_text(markdown(found), "utf-8")
        tuned = where / "tuned.toml"
        of = configs[0].data.root if configs[0].data.name == "folder" else configs[0].data.name
        given = {
            "--dataset": of,
            "--methods": ",".join(names),
            "--network": network,
            "--bias": bias,
        }
        words = [
            word
            for option, value in given.items()
            if value is not None
            for word in (option, str(value))
        ]
        words += [word for change in changes or () for word in ("--set", change)]
        head = f"# {shlex.join(['fairmargin', 'compare', str(tuned), *words])}\n"
        tuned.write_text(head + settings(found, file), "utf-8")
        typer.echo(f"the best settings of each, for fairmargin compare: {tuned}")
