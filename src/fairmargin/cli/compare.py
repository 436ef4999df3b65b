"""`fairmargin compare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fairmargin.cli.errors import DIVERGED, exit_on_user_error
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
from fairmargin.cli.tables import classifier_title, shown_classifier


def compare(
    file: File = None,
    dataset: Dataset = None,
    methods: Annotated[
        str, typer.Option(help="Comma-separated, or all.")
    ] = "ce,eps-supinfonce,eps-supinfonce+fairkl",
    network: Network = None,
    bias: Bias = None,
    seeds: Annotated[str, typer.Option(help="How many (3 means 0,1,2), or which: 0,5.")] = "3",
    out: Annotated[
        Path | None, typer.Option(help="Folder of all runs; runs/DATASET by default.")
    ] = None,
    changes: Changes = None,
    engine: EngineName = "local",
    jobs: Jobs = None,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> None:
    """Run several methods × seeds on one dataset and print the table with mean ± std. Again: only what is missing."""
    from fairmargin import config as configuration
    from fairmargin.report.page import write_report
    from fairmargin.runs.folder import find_runs
    from fairmargin.sweep.compare import compare as run_all
    from fairmargin.sweep.compare import markdown, summaries, table
    from fairmargin.sweep.engines import engine as chosen

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
                seed=seed,
                overrides=changes or (),
            )
            for name in names
            for seed in parse_seeds(seeds)
        ]
        where = out or runs_of(configs[0])
        outcomes = run_all(
            configs,
            where,
            command=command_line(),
            say=typer.echo,
            go_on=methods == "all",
            engine=where_to_run,
        )
        classifier = shown_classifier(configs[0].evaluate.classifiers)
        rows = summaries(outcomes, classifier)
        what = f"{configs[0].data.name}: test accuracy in percent, {classifier_title(classifier)}, mean ± std"
        Console().print(table(rows, what, Console().width))
        (where / "table.md").write_text(markdown(rows, outcomes), "utf-8")
        for failed in (o for o in outcomes if o.failure):
            kind = (
                f"not run: {failed.method}"
                if failed.refused
                else f"failed: {failed.method}, seed {failed.seed}"
            )
            typer.echo(f"{kind}: {failed.failure}", err=True)
        typer.echo(f"report: {write_report(find_runs([where]), where / 'report.html')}")
        if any(o.failure and not o.refused for o in outcomes):
            raise typer.Exit(DIVERGED)
