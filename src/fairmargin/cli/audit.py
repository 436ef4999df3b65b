"""`fairmargin audit`: find what gives the label away, in a dataset or in a trained model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fairmargin.cli.audit_runs import audit_each, runs_below
from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import DatasetAgain, TrustCode
from fairmargin.runtime.terminal import Console, progress_bars

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
            help="A dataset, a manifest or image folder, a finished run, a folder of runs, or an "
            ".npz of embeddings and labels."
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
        typer.Option("--cure", help="Also train ce and fairmargin on the planted shortcut."),
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
    fail_on_leak: Annotated[
        bool,
        typer.Option(
            "--fail-on-leak",
            help=f"Exit with {SHORTCUT_FOUND} if a picture is a copy of one in another split.",
        ),
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(help='Do not look for "copies", or for "problems" of single pictures.'),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration (TOML) of the dataset and of --cure.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, such as data.rho=0.9; with --cure, any setting; repeatable.",
        ),
    ] = None,
    dataset: DatasetAgain = None,
    trust_code: TrustCode = False,
) -> None:
    """Find what gives the label away, in a dataset before training or in a model after it.

    Of a dataset: which simple attributes tell the label suspiciously well. Of a run or embeddings:
    whom the model fails, what the embedding is organised by, and slices where it fails. Of a
    folder of runs: of each, and a table. Writes audit.html and audit.json.
    """
    from fairmargin.audit._dataset import audit_data
    from fairmargin.audit.page import write
    from fairmargin.audit.places import FOLDER, folder_of_dataset, folder_of_path
    from fairmargin.audit.public import columns_of, configuration_of
    from fairmargin.runs import build
    from fairmargin.runs.record import is_run

    with exit_on_user_error():
        path = Path(target)
        several = runs_below(path)
        of_model = path.suffix == ".npz" or bool(several) or (path.is_dir() and is_run(path))
        of_data = inject or cure or fail_on_shortcut or fail_on_leak or leave_out
        if of_model and (of_data or config or changes):
            raise ValueError(
                f"{target} is a run or embeddings; --inject, --cure, --fail-on-shortcut, "
                "--fail-on-leak, --leave-out, --config and --set are for datasets. "
                'To fail on a weak group, see "fairmargin check --help"'
            )
        if not of_model and dataset is not None:
            raise ValueError(
                f"--dataset names the code of a run, and {target} is none; name the dataset alone: "
                f"fairmargin audit {dataset}"
            )
        if fail_on_leak and "copies" in (leave_out or ()):
            raise ValueError(
                "--fail-on-leak looks for copies and --leave-out copies does not; give one of them"
            )
        if cure and inject is None:
            raise ValueError(
                "--cure trains on a planted shortcut; plant one with --inject colour:0.95"
            )
        if several:

            def of_one(folder: Path) -> "Found":
                with _shown_progress() as progress:
                    return _of_model(folder, alpha, seed, progress, dataset, trust_code)

            def place(folder: Path) -> Path:
                return (out or FOLDER) / folder_of_path(folder).name

            raise typer.Exit(audit_each(several, path, of_one, place))
        with _shown_progress() as progress:
            if of_model:
                found = _of_model(path, alpha, seed, progress, dataset, trust_code)
                folder = folder_of_path(path)
            else:
                config_of = partial(
                    configuration_of, target, config, seed, inject, cure, changes or []
                )
                chosen = config_of(None)
                data = build.data(chosen)
                root = chosen.data.root if chosen.data.name == "folder" else None
                folder = folder_of_dataset(data.info.name, root, inject)
                found = audit_data(
                    data,
                    columns=columns_of(chosen, data),
                    permutations=permutations,
                    alpha=DATA_ALPHA if alpha is None else alpha,
                    strong=strength,
                    samples=samples,
                    seed=seed,
                    leave_out=leave_out or (),
                    progress=progress,
                )
                if cure:
                    found = _cured(found, config_of, data, samples, seed, progress)
        page, numbers = write(found, out or folder)
        _say(found)
        typer.echo(f"page:    {page}\nnumbers: {numbers}")
        if found.columns is not None:
            typer.echo(f"images:  {page.with_suffix('.csv')}")
        if (fail_on_shortcut and found.json["shortcuts"]) or (fail_on_leak and found.leaks):
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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,}"),
        TimeElapsedColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with progress_bars(console, *columns, transient=True) as bars:

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
    _say_images(console, found)
    for method, accuracy in found.json.get("cure", {}).items():
        said = ", ".join(f"{name} {100 * value:.1f} %" for name, value in accuracy.items())
        typer.echo(f"{method}: {said}")


def _say_images(console: Console, found: "Found") -> None:
    """Say how many copies there are inside a split, and how many pictures to look at."""
    remark = (found.json.get("copies") or {}).get("remark")
    if remark is not None:
        console.print(f"remark: {remark}", highlight=False, markup=False)
    counts = found.json.get("problems") or {}
    some = [f"{one['n']:,} × {name}" for name, one in counts.items() if one["n"]]
    if some:
        said = f"to look at: {', '.join(some)}"
        console.print(said, highlight=False, markup=False)


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
            one["name"],
            f"{100 * one['balanced_accuracy']:.1f}",
            f"{one['strength']:.2f}",
            f"{one['p_corrected']:.3g}",
            Text(one["verdict"], style=STYLES[one["verdict"]]),
            rank_of.get(one["echo_of"], ""),
        )
    return shown
