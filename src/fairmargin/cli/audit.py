"""`fairmargin audit`: find what gives the label away, in a dataset or in a trained model."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import DatasetAgain, TrustCode

if TYPE_CHECKING:
    from fairmargin.audit.section import Found
    from fairmargin.audit.section import Progress as Report
    from fairmargin.config import Config
    from fairmargin.data.split import Data

# Exit code.
SHORTCUT_FOUND = 1
# Default levels of the corrected p-values.
DATA_ALPHA = 0.01
MODEL_ALPHA = 0.05
STYLES = {"shortcut": "bold red", "correlate": "yellow", "nothing": "dim"}


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="A dataset, a manifest or image folder, a finished run, or an .npz of embeddings "
            "and labels."
        ),
    ],
    inject: Annotated[
        str | None,
        typer.Option(
            help="Plant a shortcut first, as a control: KIND:RHO, such as colour:0.95. KIND is "
            "colour, patch, brightness, corner, frame, tint, caption, watermark, sensor, blur, "
            "resolution or jpeg."
        ),
    ] = None,
    cure: Annotated[
        bool,
        typer.Option(
            "--cure", help="Also train ce and eps-supinfonce+fairkl on the planted shortcut."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the page; audit/NAME by default, where NAME is the dataset's name or "
            "the path in one word."
        ),
    ] = None,
    permutations: Annotated[
        int, typer.Option(help="Permutations of the labels, for p-values.")
    ] = 999,
    alpha: Annotated[
        float | None,
        typer.Option(help="Level of the corrected p-values; 0.01 for data, 0.05 for a model."),
    ] = None,
    strength: Annotated[
        float, typer.Option(help="How much of the gap from chance to perfect a shortcut closes.")
    ] = 0.5,
    samples: Annotated[int, typer.Option(help="Most training images to look at.")] = 60_000,
    seed: Annotated[int, typer.Option(help="Random seed for everything that is drawn.")] = 0,
    fail_on_shortcut: Annotated[
        bool,
        typer.Option(
            "--fail-on-shortcut", help=f"Exit with {SHORTCUT_FOUND} if a shortcut is found."
        ),
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Configuration (TOML) of the dataset and of --cure.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: data.rho=0.9; with --cure, any setting."),
    ] = None,
    dataset: DatasetAgain = None,
    trust_code: TrustCode = False,
) -> None:
    """Find what gives the label away, in a dataset before training or in a model after it.

    Of a dataset: which simple attributes tell the label suspiciously well. Of a run or embeddings:
    whom the model fails, what the embedding is organised by, and slices where it fails. Writes
    audit.html and audit.json.
    """
    from fairmargin.audit._dataset import audit_data
    from fairmargin.audit.page import write
    from fairmargin.audit.public import columns_of, configuration_of
    from fairmargin.runs import build
    from fairmargin.runs.record import is_run

    with exit_on_user_error():
        path = Path(target)
        of_model = path.suffix == ".npz" or (path.is_dir() and is_run(path))
        if of_model and (inject or cure or fail_on_shortcut or config or changes):
            raise ValueError(
                f"{target} is a run or embeddings; --inject, --cure, --fail-on-shortcut, --config "
                "and --set are for datasets. "
                'To fail on a weak group, see "fairmargin check --help"'
            )
        if not of_model and dataset is not None:
            raise ValueError(
                f"--dataset names the code of a run, and {target} is none; name the dataset alone: "
                f"fairmargin audit {dataset}"
            )
        if cure and inject is None:
            raise ValueError(
                "--cure trains on a planted shortcut; plant one with --inject colour:0.95"
            )
        with _shown_progress() as progress:
            if of_model:
                found = _of_model(path, alpha, seed, progress, dataset, trust_code)
                name = _in_one_word(path)
            else:
                config_of = partial(
                    configuration_of, target, config, seed, inject, cure, changes or []
                )
                chosen = config_of(None)
                data = build.data(chosen)
                root = chosen.data.root if chosen.data.name == "folder" else None
                name = data.info.name.replace(":", "-") if root is None else _in_one_word(root)
                if inject:
                    name += f"-{inject.replace(':', '-')}"
                found = audit_data(
                    data,
                    columns=columns_of(chosen, data),
                    permutations=permutations,
                    alpha=DATA_ALPHA if alpha is None else alpha,
                    strong=strength,
                    samples=samples,
                    seed=seed,
                    progress=progress,
                )
                if cure:
                    found = _cured(found, config_of, data, samples, seed, progress)
        page, numbers = write(found, out or Path("audit") / name)
        _say(found)
        typer.echo(f"page:    {page}\nnumbers: {numbers}")
        if fail_on_shortcut and found.json["shortcuts"]:
            raise typer.Exit(SHORTCUT_FOUND)


def _of_model(
    path: Path,
    alpha: float | None,
    seed: int,
    progress: "Report",
    dataset: str | None,
    trust_code: bool,
) -> "Found":
    from fairmargin.audit._embeddings import audit_arrays, audit_run

    level = MODEL_ALPHA if alpha is None else alpha
    if path.suffix == ".npz":
        return audit_arrays(path, alpha=level, seed=seed, progress=progress)
    return audit_run(
        path, alpha=level, seed=seed, progress=progress, dataset=dataset, trust_code=trust_code
    )


def _in_one_word(path: Path) -> str:
    """Return the whole path in one word, so that runs of one name keep their pages apart.

    A path inside the working folder starts there.
    """
    path, here = Path(os.path.abspath(path)), Path.cwd()
    if path.is_file():
        path = path.with_suffix("")
    inside = path.relative_to(here if path.is_relative_to(here) else path.anchor)
    return "-".join(inside.parts) or path.name


def _cured(
    found: "Found",
    config_of: Callable[[str], "Config"],
    data: "Data",
    samples: int,
    seed: int,
    progress: "Report",
) -> "Found":
    from fairmargin.audit.retrain import retrain, with_retraining

    accuracy = retrain(config_of, data, samples=samples, seed=seed, progress=progress)
    return with_retraining(found, accuracy)


@contextmanager
def _shown_progress() -> Iterator["Report"]:
    """Show a bar for each thing done on a terminal; elsewhere print a line when it is done."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,}"),
        TimeElapsedColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:

        def report(doing: str, done: int, total: int) -> None:
            if console.is_terminal:
                if doing not in tasks:
                    tasks[doing] = bars.add_task(doing, total=total)
                bars.update(tasks[doing], completed=done)
            elif done == total:
                typer.echo(f"{doing}: {done:,}", err=True)

        yield report


def _say(found: "Found") -> None:
    console = Console()
    console.print(found.verdict, highlight=False, markup=False)
    for warning in found.warnings:
        console.print(f"warning: {warning}", highlight=False, markup=False)
    if "attributes" in found.json:
        console.print(_table(found.json))
    planted = found.json.get("planted")
    if planted is not None:
        typer.echo(_planted(planted))
    for method, accuracy in found.json.get("cure", {}).items():
        said = ", ".join(f"{name} {100 * value:.1f} %" for name, value in accuracy.items())
        typer.echo(f"{method}: {said}")


def _planted(planted: dict[str, Any]) -> str:
    if not planted["found"]:
        return f"planted {planted['shortcut']}: not reported"
    return (
        f"planted {planted['shortcut']}: found, by {planted['by']}, rank {planted['rank']}, "
        f"corrected p = {planted['p_corrected']:.3g}"
    )


def _table(json: dict[str, Any]) -> Table:
    chance = 100 / len(json["classes"])
    title = f"{json['dataset']}: what tells the label (chance {chance:.0f} %; p is corrected)"
    shown = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("", justify="right", no_wrap=True)
    shown.add_column("attribute")
    shown.add_column("right %", justify="right", no_wrap=True)
    shown.add_column("strength", justify="right", no_wrap=True)
    for name in ("p", "verdict", "echo of"):
        shown.add_column(name, no_wrap=True)
    rank_of = {one["name"]: str(one["rank"]) for one in json["attributes"]}
    for one in json["attributes"]:
        shown.add_row(
            str(one["rank"]),
            escape(one["name"]),
            f"{100 * one['balanced_accuracy']:.1f}",
            f"{one['strength']:.2f}",
            f"{one['p_corrected']:.3g}",
            f"[{STYLES[one['verdict']]}]{one['verdict']}[/]",
            rank_of.get(one["echo_of"], ""),
        )
    return shown
