"""The `fairmargin` command."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fairmargin.audit.check import command as check
from fairmargin.audit.cli import audit
from fairmargin.data_commands import app as data
from fairmargin.messages import DIVERGED, said_plainly
from fairmargin.runtime import start
from fairmargin.runtime.files import load_weights
from fairmargin.version import __version__

if TYPE_CHECKING:
    from fairmargin.config import Config

app = typer.Typer(
    help="Train models that stay right when the shortcut in the training data disappears.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

app.add_typer(data, name="data")
app.command()(audit)
app.command("check")(check)

File = Annotated[Path | None, typer.Argument(help="A configuration (TOML); see docs/configuration.md.")]
Dataset = Annotated[
    str | None, typer.Option(help='From "fairmargin list datasets", or the path of a manifest or image folder.')
]
Network = Annotated[str | None, typer.Option(help='From "fairmargin list networks"; else the dataset\'s preset.')]
Bias = Annotated[
    str | None, typer.Option(help="What methods see of the bias: labels, none, scores or clusters (docs/scores.md).")
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, such as --set train.epochs=3.")]

EngineName = Annotated[
    str, typer.Option("--engine", help="Where runs run: local, or ray for a cluster (docs/many-runs.md).")
]
Jobs = Annotated[
    int | None, typer.Option(help="With --engine local: so many at a time, in processes of their own; 1 by default.")
]
Address = Annotated[
    str | None, typer.Option(help="With --engine ray: of the cluster; else one is started on this machine.")
]
Cpus = Annotated[int | None, typer.Option(help="With --engine ray: of each run; 1 by default.")]
Gpus = Annotated[float | None, typer.Option(help="With --engine ray: of each run; 0 by default, 0.5 to share one.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fairmargin {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    start.prepare()


def _command() -> list[str]:
    return ["fairmargin", *sys.argv[1:]]


@app.command()
def train(
    file: File = None,
    dataset: Dataset = None,
    method: Annotated[str | None, typer.Option(help='From "fairmargin list methods".')] = None,
    network: Network = None,
    bias: Bias = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/DATASET/METHOD/seed-SEED by default.")] = None,
    changes: Changes = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder as it was configured.")] = None,
) -> None:
    """Train one method on one dataset, evaluate it, and record everything in a folder.

    The same command again continues an interrupted run, and shows a finished one. Under torchrun it uses every process.
    """
    from fairmargin import config as configuration
    from fairmargin.run import run
    from fairmargin.runtime import distributed
    from fairmargin.sweep.compare import folder_of

    with said_plainly():
        if resume is not None:
            if file or dataset or method or network or bias or seed is not None or out or changes:
                raise ValueError("--resume takes the configuration of its folder; leave the other options out")
            config, folder = configuration.load_resolved(resume / "config.toml"), resume
        else:
            config = configuration.load(
                file, dataset=dataset, network=network, method=method, bias=bias, seed=seed, overrides=changes or ()
            )
            folder = out or folder_of(config, _runs_of(config))
        record = run(config, folder, command=_command())
        if record.result is not None and distributed.is_first():
            Console().print(_judged(record.result["test"], "test accuracy in percent, with 95 % intervals"))
            typer.echo(f"run folder: {folder}\nreport:     fairmargin report {shlex.quote(str(folder))}")


def _runs_of(config: "Config") -> Path:
    """Where runs on a dataset go; those that saw something else of the bias are beside the others."""
    name, bias = config.data.name, config.data.bias
    return Path("runs") / (name if bias == "labels" else f"{name}-bias-{bias}")


def _judged(sets: dict[str, dict[str, Any]], title: str) -> Table:
    """One column for each classifier."""
    shown = Table("", *map(_classifier, sets), title=title)
    for name in next(iter(sets.values()))["accuracy"]:
        shown.add_row(name, *(_interval(judged["accuracy"][name]) for judged in sets.values()))
    gaps = [judged["equalised_odds_gap"] for judged in sets.values()]
    errors = [judged["calibration"] and judged["calibration"]["ece"] for judged in sets.values()]
    for name, numbers in (("equalised-odds gap", gaps), ("calibration error", errors)):
        if any(number is not None for number in numbers):
            shown.add_row(name, *("–" if number is None else f"{100 * number:.1f}" for number in numbers))
    return shown


def _classifier(name: str) -> str:
    return {
        "own": "own classifier",
        "probe": "linear probe",
        "knn": "nearest neighbours",
        "linear": "linear evaluation",
    }[name]


def _stage(what: str, done: int, of: int) -> None:
    """A line at each tenth of what takes long."""
    from fairmargin.runs.progress import at_a_tenth

    if at_a_tenth(done, of):
        typer.echo(f"{what}: {done / of:.0%}", err=True)


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    weights: Annotated[str, typer.Option(help="last or best (on validation).")] = "last",
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Write everything measured to this JSON file.")] = None,
) -> None:
    """Evaluate a run's saved weights again, on its own data or on data changed with --set data.test_rho=0.5."""
    import json

    from fairmargin import config as configuration
    from fairmargin.checks import check_choice
    from fairmargin.evaluate import evaluate as measure
    from fairmargin.runs import build
    from fairmargin.runs.folder import RunRecord

    with said_plainly():
        check_choice(weights, "weights", ("last", "best"))
        before = configuration.load_resolved(folder / "config.toml")
        config = configuration.override(before, changes or ())
        _same_network(before, config)
        data = build.data(config)
        trained = RunRecord.read(folder).data
        _same_classes(folder, trained["class_names"], data.info.class_names)
        method = build.method(config, data, trained=trained)
        name = {"last": "weights.safetensors", "best": "best.safetensors"}[weights]
        method.load_state_dict(load_weights(folder / name)[0])
        device = build.device(config.train.device)
        found = measure(
            method.to(device),
            data,
            classifiers=config.evaluate.classifiers,
            device=device,
            batch_size=config.evaluate.batch_size,
            workers=config.train.workers,
            resamples=config.evaluate.resamples,
            linear=build.linear(config),
            progress=_stage,
        )
        for title, sets in {"test": found.test, **found.extra_tests}.items():
            Console().print(_judged(sets, f"{title}: accuracy in percent, with 95 % intervals"))
        for warning in dict.fromkeys(w for judged in found.test.values() for w in judged["warnings"]):
            typer.echo(f"warning: {warning}")
        if out is not None:
            everything = {
                "test": found.test,
                "extra_tests": found.extra_tests,
                "similarity": found.similarity,
                "ordering": found.ordering,
            }
            out.write_text(json.dumps(everything, indent=1), "utf-8")


def _same_network(before: "Config", config: "Config") -> None:
    """Other data may be looked at; the trained network is what it is."""
    from fairmargin.config import difference

    free = ("data.", "evaluate.", "train.device", "train.workers", "seed ")
    if other := [change for change in difference(before, config) if not change.startswith(free)]:
        raise ValueError(f"the weights were trained without it: {other[0]}; evaluate takes data.… and evaluate.…")


def _same_classes(folder: Path, trained: Sequence[str], class_names: Sequence[str]) -> None:
    if list(trained) != list(class_names):
        raise ValueError(
            f"{folder} was trained to tell {', '.join(trained)}, and these data have the classes {', '.join(class_names)}"
        )


def _interval(x: dict[str, float]) -> str:
    return f"{100 * x['value']:.1f} ({100 * x['low']:.1f}–{100 * x['high']:.1f})"


@app.command()
def compare(
    file: File = None,
    dataset: Dataset = None,
    methods: Annotated[str, typer.Option(help="Comma-separated, or all.")] = "ce,eps-supinfonce,eps-supinfonce+fairkl",
    network: Network = None,
    bias: Bias = None,
    seeds: Annotated[str, typer.Option(help="How many (3 means 0,1,2), or which: 0,5.")] = "3",
    out: Annotated[Path | None, typer.Option(help="Folder of all runs; runs/DATASET by default.")] = None,
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

    with said_plainly():
        where_to_run = chosen(engine, jobs=jobs, address=address, cpus=cpus, gpus=gpus)
        names = _methods(methods)
        configs = [
            configuration.load(
                file, dataset=dataset, network=network, method=name, bias=bias, seed=seed, overrides=changes or ()
            )
            for name in names
            for seed in _seeds(seeds)
        ]
        where = out or _runs_of(configs[0])
        outcomes = run_all(
            configs, where, command=_command(), say=typer.echo, go_on=methods == "all", engine=where_to_run
        )
        classifier = _shown(configs[0].evaluate.classifiers)
        rows = summaries(outcomes, classifier)
        what = f"{configs[0].data.name}: test accuracy in percent, {_classifier(classifier)}, mean ± std"
        Console().print(table(rows, what, Console().width))
        (where / "table.md").write_text(markdown(rows, outcomes), "utf-8")
        for failed in (o for o in outcomes if o.failure):
            kind = f"not run: {failed.method}" if failed.refused else f"failed: {failed.method}, seed {failed.seed}"
            typer.echo(f"{kind}: {failed.failure}", err=True)
        typer.echo(f"report: {write_report(find_runs([where]), where / 'report.html')}")
        if any(o.failure and not o.refused for o in outcomes):
            raise typer.Exit(DIVERGED)


def _shown(classifiers: Sequence[str]) -> str:
    """The method's own, if it is judged."""
    return "own" if "own" in classifiers else classifiers[0]


def _methods(text: str) -> list[str]:
    """By their names, each once."""
    from fairmargin.methods import METHODS

    names = list(METHODS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError('--methods is empty; give names, such as ce,supcon, or all ("fairmargin list methods")')
    return list(dict.fromkeys(names))


def _seeds(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(
            f"--seeds takes a number of seeds, or which: 3, or 0,1,2, or 7, for one; got {text!r}"
        ) from None
    if "," not in text and numbers:
        if numbers[0] < 1:
            raise ValueError(f"--seeds takes at least 1; got {numbers[0]}")
        return list(range(numbers[0]))
    if not numbers:
        raise ValueError("--seeds is empty; give a number of seeds, or which: 3 or 0,1,2")
    return list(dict.fromkeys(numbers))


@app.command()
def scores(
    file: File = None,
    dataset: Dataset = None,
    capture: Annotated[
        str | None,
        typer.Option(help="simple-conv-1, bagnet18, early-stopped or gce; by default by the size of the images."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random, and of the runs that use the scores.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/scores/DATASET/seed-SEED by default.")] = None,
    changes: Changes = None,
) -> None:
    """Train a model that sees little but the shortcut and keep its features, for --bias scores and --bias clusters.

    It sees no bias labels; where there are some they only judge it. Again: only what is missing. See docs/scores.md.
    """
    from fairmargin.bias import capture as bias_scores
    from fairmargin.bias.score_file import FILE
    from fairmargin.runtime import distributed

    with said_plainly():
        config = bias_scores.configuration(file, dataset=dataset, capture=capture, seed=seed, overrides=changes or ())
        folder = out or bias_scores.folder_of(config)
        found = bias_scores.make(config, folder, command=_command())
        if distributed.is_first():
            for table in bias_scores.tables(found):
                Console().print(table)
            for doubt in bias_scores.doubts(found):
                typer.echo(f"warning: {doubt}", err=True)
            where = "" if out is None else f" --set data.scores={shlex.quote(str(out))}"
            typer.echo(f"scores: {folder / FILE}\nuse:    fairmargin train … --bias scores{where}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
) -> None:
    """Write one self-contained HTML page about some runs."""
    from fairmargin.report.page import write_report
    from fairmargin.runs.folder import find_runs

    with said_plainly():
        typer.echo(f"report: {write_report(find_runs(runs), out, title=title)}")


@app.command("list")
def list_names(
    what: Annotated[str, typer.Argument(help="methods, datasets, networks, accuracies or classifiers.")] = "methods",
    name: Annotated[str | None, typer.Argument(help="One of them, to see its options.")] = None,
) -> None:
    """Show what there is: methods, datasets, networks, accuracies, classifiers; or the options of one of them."""
    from fairmargin.catalogue import CATALOGUES, options
    from fairmargin.checks import check_choice

    with said_plainly():
        check_choice(what, "list", CATALOGUES)
        Console().print(CATALOGUES[what]() if name is None else options(what, name))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs and report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Of data, networks and order.")] = 0,
) -> None:
    """Train cross-entropy and ε-SupInfoNCE+FairKL on digits whose colour gives the label away; then shuffle the colours."""
    from fairmargin import demo as demonstration

    with said_plainly():
        demonstration.show(out, seed, say=typer.echo, command=_command())


@app.command()
def tune(
    file: File = None,
    dataset: Dataset = None,
    methods: Annotated[str, typer.Option(help="Comma-separated, or all.")] = "eps-supinfonce+fairkl",
    network: Network = None,
    bias: Bias = None,
    trials: Annotated[int, typer.Option(help="Of each method, the same for all.")] = 12,
    seeds: Annotated[str, typer.Option(help="Of each trial: how many, or which: 0,5.")] = "1",
    search_seed: Annotated[int, typer.Option(help="Of the suggestions.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of all trials; runs/tune/DATASET by default.")] = None,
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

    with said_plainly():
        where_to_run = chosen(engine, jobs=jobs, address=address, cpus=cpus, gpus=gpus)
        names = _methods(methods)
        configs = [
            configuration.load(file, dataset=dataset, network=network, method=name, bias=bias, overrides=changes or ())
            for name in names
        ]
        where = out or Path("runs") / "tune" / _runs_of(configs[0]).name
        found = search(
            configs,
            where,
            trials=trials,
            seeds=_seeds(seeds),
            seed=search_seed,
            command=_command(),
            say=typer.echo,
            go_on=methods == "all",
            engine=where_to_run,
        )
        Console().print(table(found))
        (where / "table.md").write_text(markdown(found), "utf-8")
        tuned = where / "tuned.toml"
        of = configs[0].data.root if configs[0].data.name == "folder" else configs[0].data.name
        given = {"--dataset": of, "--methods": ",".join(names), "--network": network, "--bias": bias}
        words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
        words += [word for change in changes or () for word in ("--set", change)]
        head = f"# {shlex.join(['fairmargin', 'compare', str(tuned), *words])}\n"
        tuned.write_text(head + settings(found, file), "utf-8")
        typer.echo(f"the best settings of each, for fairmargin compare: {tuned}")


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="A table (1–5, 8–12, text), figure1 … figure5, fairkl, all; or ledger, which runs nothing."
        ),
    ],
    budget: Annotated[
        str, typer.Option(help="paper: as published. laptop: reduced, minutes. smoke: a few steps.")
    ] = "laptop",
    seeds: Annotated[str | None, typer.Option(help="How many, or which: 0,5. By default 3 (paper) or 1.")] = None,
    cell: Annotated[str | None, typer.Option(help='Only those whose name matches: "*fairkl:rho=0.99@authors".')] = None,
    reading: Annotated[
        str | None,
        typer.Option(
            help="Of FairKL, comma-separated: paper, authors, recommended (these three by default), released."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would run, with the time a probe suggests.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs/reproduce"),
    ledger: Annotated[Path | None, typer.Option(help="Folder of ledger.md and ledger.csv; OUT by default.")] = None,
    readme: Annotated[
        Path | None, typer.Option(help="A README whose results table is renewed from the ledger.")
    ] = None,
    changes: Changes = None,
    engine: EngineName = "local",
    jobs: Jobs = None,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> None:
    """Run the paper's tables and figures cell by cell, and keep a ledger of its numbers beside ours. See docs/reproduce.md.

    Again: only what is missing; a run that was killed goes on from its checkpoint.
    """
    from fairmargin.reproduce import command
    from fairmargin.sweep.engines import engine as chosen

    with said_plainly():
        where_to_run = chosen(engine, jobs=jobs, address=address, cpus=cpus, gpus=gpus)
        failed = []
        if what != "ledger":
            failed = command.reproduce(
                what,
                budget=budget,
                seeds=_seeds(seeds or str(command.SEEDS.get(budget, 1))),
                pattern=cell,
                reading=reading,
                dry_run=dry_run,
                out=out,
                extra=changes or (),
                command=_command(),
                say=typer.echo,
                engine=where_to_run,
            )
        if not dry_run and (what == "ledger" or budget != "smoke"):
            command.keep_ledger(out, ledger or out, readme, typer.echo)
        for what_and_why in failed:
            typer.echo(f"not run: {what_and_why}", err=True)
        if failed:
            raise typer.Exit(DIVERGED)
