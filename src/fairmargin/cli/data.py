"""`fairmargin data`: list, download, check and draw data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.table import Table
from rich.text import Text

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import flowing
from fairmargin.runtime.terminal import Console

if TYPE_CHECKING:
    from fairmargin.data.split import Data

app = typer.Typer(help="List, get, check and draw data.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help='A name from "fairmargin data list".')]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root", help="Folder of all data; by default $FAIRMARGIN_DATA, or the user's cache."
    ),
]


@app.command("list")
@flowing
def list_sources(root: Root = None) -> None:
    """List every source of raw data, and whether it is there."""
    from fairmargin.data import sources

    with exit_on_user_error():
        folder = sources.data_root(root)
        title = f"raw data under {folder}"
        table = Table("name", "what it is", "there?", "how obtained", title=title)
        for name, source in sources.SOURCES.items():
            try:
                sources.locate(name, folder)
                there = Text("present", style="green")
            except sources.MissingData:
                there = Text("missing")
            table.add_row(name, source.what, there, source.how)
    Console().print(table)


@app.command()
@flowing
def get(name: Name, root: Root = None) -> None:
    """Download what is missing of a source and check it.

    An interrupted download continues where it stopped.
    """
    from fairmargin.data import sources

    with exit_on_user_error():
        files = sources.get(name, sources.data_root(root))
    typer.echo(f"{name}: {len(files)} files, complete, in {next(iter(files.values())).parent}")


@app.command()
@flowing
def verify(name: Name, root: Root = None) -> None:
    """Compare the checksums of a source's files with the published ones."""
    from fairmargin.data import sources

    with exit_on_user_error():
        files = sources.locate(name, sources.data_root(root))
        rows = sources.verify(name, sources.data_root(root))
        for file, right, why in rows:
            mark = "ok " if right else "BAD"
            typer.echo(f"{mark} {files[file]}: {why}")
        wrong = [str(files[file]) for file, right, _ in rows if not right]
        if wrong:
            raise ValueError(
                f"not the published content: {', '.join(wrong)}. "
                f"Move it away and run: fairmargin data get {name}"
            )


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@flowing
def show(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="A dataset, a manifest (.csv, .tsv, .parquet), an image folder, tars or an .npz "
            "file."
        ),
    ],
    root: Root = None,
    out: Annotated[Path | None, typer.Option(help="Picture to write; NAME.png by default.")] = None,
    split: Annotated[str, typer.Option(help="Split to draw: train, valid or test.")] = "train",
    augmented: Annotated[
        bool,
        typer.Option("--augmented", help="Draw training images as their augmentation shows them."),
    ] = False,
) -> None:
    """Draw examples and the (label × bias) counts of a dataset.

    Other options are the dataset's own, such as --rho 0.9, or of a table --label-column kind
    --bias-columns place --split-column fold --test-fraction 0.2: "fairmargin list datasets folder".
    """
    from fairmargin.checks import check_choice
    from fairmargin.config.own_images import HELD_OUT, test_held_out
    from fairmargin.data import DATASETS, build, is_own, options, own_kind, own_path
    from fairmargin.data.problems import RowProblem, brief, cut
    from fairmargin.data.show import SplitName, draw
    from fairmargin.data.webdataset import plain_name

    with exit_on_user_error():
        check_choice(split, "split", get_args(SplitName))
        own = is_own(name)
        if own and root is not None:
            raise ValueError(
                "--root is the folder of all data; "
                f"the folder that the paths in {name} start from is --base"
            )
        title = plain_name(own_path(name)) if own else name
        if own:
            name, root = own_kind(name), own_path(name)
        check_choice(name, "dataset", DATASETS)
        given = options.parse(DATASETS[name], name, context.args)
        if own and (held_out := test_held_out(name, {"root": root, **given})):
            given["test_fraction"] = HELD_OUT
            typer.echo(held_out)
        data = build(name, root, **given)
        typer.echo(f"{len(data.train):,} train, {len(data.valid):,} valid, {len(data.test):,} test")
        for key, value in data.info.notes.items():
            lines = value.splitlines()
            if key == "skipped":
                lines = [f"{len(lines):,}", *brief([RowProblem.from_line(line) for line in lines])]
            typer.echo(f"{key}: " + "\n  ".join(cut(lines)))
        if data.info.has_vectors:
            for line in _counts(data):
                typer.echo(line)
            return
        if augmented:
            from fairmargin.data.show_views import draw_augmented

            picture = draw_augmented(data, out or Path(f"{title}-augmented.png"))
            typer.echo(f"picture: {picture}")
            return
        picture = draw(data, out or Path(f"{title}.png"), split=cast(SplitName, split))
        typer.echo(f"picture: {picture}")


def _counts(data: "Data") -> list[str]:
    """Return lines about vectors, of which there is nothing to draw."""
    info = data.info
    lines = [f"vectors of {info.image_shape[0]} numbers, standardized: nothing to draw"]
    for k, name in enumerate(info.class_names):
        line = f"{name}: {int((data.train.labels == k).sum()):,} train"
        groups = zip(info.bias_names, info.counts[k].tolist(), strict=True)
        said = ", ".join(f"{bias} {number:,}" for bias, number in groups)
        lines.append(f"{line} ({said})" if said else line)
    return lines
