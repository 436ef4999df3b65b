"""`fairmargin compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmargin.cli.errors import DIVERGED, exit_on_user_error
from fairmargin.cli.options import (
    Bias,
    Changes,
    Dataset,
    File,
    Network,
    command_line,
    parse_seeds,
)
from fairmargin.cli.sweeps import RunOptions, with_engine
from fairmargin.cli.tables import classifier_title, shown_classifier
from fairmargin.runtime.terminal import Console
from fairmargin.runtime.whole import write_text

if TYPE_CHECKING:
    from fairmargin.sweep.base import Engine
    from fairmargin.sweep.compare import Outcome


@with_engine
def compare(
    file: File = None,
    dataset: Dataset = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help='Names from "fairmargin list methods", comma-separated, or all. By default ce, '
            "eps-supinfonce+fairkl and fairmargin; for your own images ce and what "
            '"fairmargin train" would choose.'
        ),
    ] = None,
    network: Network = None,
    bias: Bias = None,
    seeds: Annotated[
        str, typer.Option(help="Number of seeds, or which: 3 means 0,1,2; 0,5 names two.")
    ] = "3",
    out: Annotated[
        Path | None, typer.Option(help="Folder of all runs; runs/DATASET by default.")
    ] = None,
    changes: Changes = None,
    *,
    engine: "Engine",
) -> None:
    """Train several methods × seeds on one dataset and print their accuracies, mean ± std.

    The same command again runs only what is missing.
    """
    from fairmargin.config import dataset_name
    from fairmargin.report.page import write_report
    from fairmargin.runs.folder import find_runs
    from fairmargin.sweep.compare import compare as run_all
    from fairmargin.sweep.compare import default_out, markdown, summaries, table

    with exit_on_user_error():
        options = RunOptions(file, dataset, methods or "", network, bias, changes)
        if methods is None:
            options = options.with_usual_methods(say=typer.echo)
        configs = options.configs(parse_seeds(seeds))
        folder = out or default_out(configs[0])
        outcomes = run_all(
            configs,
            folder,
            command=command_line(),
            say=typer.echo,
            go_on=options.all_methods,
            engine=engine,
        )
        classifier = shown_classifier(configs[0].evaluate.classifiers)
        if any(config.evaluate.report_classifier != "online" for config in configs):
            classifier = "reported"
        rows = summaries(outcomes, classifier)
        judged_by = classifier_title(classifier)
        title = f"{dataset_name(configs[0])}: test accuracy in percent, {judged_by}, mean ± std"
        Console().print(table(rows, title, Console().width))
        write_text(folder / "table.md", markdown(rows, outcomes))
        failed = [outcome for outcome in outcomes if outcome.failure]
        for outcome in failed:
            typer.echo(_failure(outcome), err=True)
        typer.echo(f"report: {write_report(find_runs([folder]), folder / 'report.html')}")
        if any(not outcome.refused for outcome in failed):
            raise typer.Exit(DIVERGED)


def _failure(outcome: "Outcome") -> str:
    if outcome.refused:
        return f"not run: {outcome.method}: {outcome.failure}"
    return f"failed: {outcome.method}, seed {outcome.seed}: {outcome.failure}"
