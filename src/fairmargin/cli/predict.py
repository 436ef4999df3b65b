"""`fairmargin predict`: labels and probabilities of pictures, from a run folder."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import NetworkAgain, TrustCode

if TYPE_CHECKING:
    from torch import Tensor

    from fairmargin.export.model import Model

# Exit codes: some pictures could not be read; none could.
SOME_SKIPPED, NOTHING = 1, 2
BATCH = 64
NAMED = 5  # of the pictures that were skipped


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    images: Annotated[
        list[str],
        typer.Argument(
            help="Image files, folders, patterns such as 'new/*.jpg', tables with a path column, "
            "or WebDataset tars; .npz files for a model of embeddings."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; the terminal by default.")
    ] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="Write the encoder's features to this .npz file as well.")
    ] = None,
    weights: Annotated[str, typer.Option(help="last or best (on validation).")] = "last",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")] = "auto",
    path_column: Annotated[
        str, typer.Option(help="Column of a table that names the files.")
    ] = "path",
    network: NetworkAgain = None,
    trust_code: TrustCode = False,
) -> None:
    """Classify pictures with a trained model: path, class, probability of each class.

    Pictures that cannot be read are named and left out. Exit code 0 if all were classified,
    1 if some were left out, 2 if none could be.
    """
    from fairmargin.data.members import shown
    from fairmargin.export.model import load, which_weights
    from fairmargin.runs import build

    with exit_on_user_error():
        model = load(
            run,
            weights=which_weights(weights),
            device=build.device(device),
            encoder=network,
            trust_code=trust_code,
        )
        if model.preprocessing.takes_vectors:
            _predict_vectors(model, images, out, embeddings)
            return
        files = find_pictures(images, path_column)
        rows, features, skipped = _classify(model, files)
        for file, why in skipped[:NAMED]:
            typer.echo(f"skipped {shown(file)}: {why}", err=True)
        if len(skipped) > NAMED:
            typer.echo(f"… and {len(skipped) - NAMED} more", err=True)
        if not rows:
            raise ValueError(f"none of {len(files)} files could be read as a picture")
        _write(model, rows, out)
        if embeddings is not None:
            _save_features(embeddings, [path for path, _ in rows], features)
        if out is not None:
            typer.echo(f"{len(rows)} of {len(files)} pictures classified: {out}")
        if skipped:
            raise typer.Exit(SOME_SKIPPED)


def _predict_vectors(
    model: "Model", words: list[str], out: Path | None, embeddings: Path | None
) -> None:
    """Classify the rows of .npz files; a row is called FILE:NUMBER."""
    import torch

    from fairmargin.data.arrays import read_vectors

    rows: list[tuple[Path, Tensor]] = []
    features: list[Tensor] = []
    for word in words:
        if Path(word).suffix.lower() != ".npz":
            raise ValueError(
                f"this model was trained on embeddings and {word} is no .npz file; "
                'give one with an array "embeddings" [N, D]'
            )
        vectors = read_vectors(Path(word))
        probabilities = model.predict(vectors).probabilities
        rows += [(Path(f"{word}:{i}"), row) for i, row in enumerate(probabilities)]
        if embeddings is not None:
            features.append(model.embed(vectors))
    _write(model, rows, out)
    if embeddings is not None:
        _save_features(embeddings, [path for path, _ in rows], torch.cat(features))
    if out is not None:
        typer.echo(f"{len(rows)} vectors classified: {out}")


def find_pictures(words: list[str], path_column: str = "path") -> list[Path]:
    """Files that the words of a command line name, each once, in order.

    Args:
        words: files, folders (searched below), patterns, tables (.csv, .tsv, .parquet), or tars.
        path_column: of a table.
    """
    found: dict[Path, None] = {}
    for word in words:
        if "://" in word:
            raise ValueError(f"{word} is a URL and pictures are read from files; download it first")
        matches = list(_matches(word, path_column))
        if not matches:
            raise ValueError(f"{word} names no picture; give image files, folders or tables")
        found.update(dict.fromkeys(matches))
    return list(found)


def _matches(word: str, path_column: str) -> Iterator[Path]:
    from fairmargin.data.decode import EXTENSIONS
    from fairmargin.data.table import find_column, read_table
    from fairmargin.data.webdataset import shard_images, shards

    path = Path(word)
    if path.is_dir():
        files = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS and file.is_file()
        )
        yield from files or shard_images(path)
    elif shards(path):
        yield from shard_images(path)
    elif path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        header, rows = read_table(path)
        column = find_column(path, header, path_column, "path_column")
        for _, cells in rows:
            if column < len(cells):
                yield path.parent / cells[column]
    elif any(sign in word for sign in "*?[") and not path.is_file():
        base = Path(path.anchor) if path.is_absolute() else Path()
        pattern = str(path.relative_to(path.anchor)) if path.is_absolute() else word
        yield from sorted(file for file in base.glob(pattern) if file.is_file())
    else:
        yield path


def _classify(
    model: "Model", files: list[Path]
) -> tuple[list[tuple[Path, "Tensor"]], "Tensor", list[tuple[Path, str]]]:
    """(file, probabilities) of those that could be read, their features, and the other files."""
    import torch

    from fairmargin.data.decode import UnreadableImage
    from fairmargin.runtime.terminal import Console, progress_bars

    rows: list[tuple[Path, Tensor]] = []
    features: list[Tensor] = []
    skipped: list[tuple[Path, str]] = []
    starts = range(0, len(files), BATCH)
    console = Console(stderr=True)
    with progress_bars(console) as bar:
        for start in bar.track(starts, description="classifying"):
            read = []
            for file in files[start : start + BATCH]:
                try:
                    read.append((file, model.preprocessing.pixels(file)))
                except UnreadableImage as error:
                    skipped.append((file, str(error.args[-1])))
            if not read:
                continue
            with torch.inference_mode():
                pixels = torch.stack([pixels for _, pixels in read])
                embedded, logits = model.inspect(pixels.to(model.device))
            probabilities = logits.float().softmax(1).cpu()
            rows += [(file, row) for (file, _), row in zip(read, probabilities, strict=True)]
            features.append(embedded.float().cpu())
    return rows, torch.cat(features) if features else torch.zeros(0, 0), skipped


def _write(model: "Model", rows: list[tuple[Path, "Tensor"]], out: Path | None) -> None:
    from fairmargin.data.members import shown
    from fairmargin.runtime.whole import write_bytes

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["path", "class", "probability", *(f"p({name})" for name in model.class_names)])
    for path, probabilities in rows:
        best = int(probabilities.argmax())
        each = [f"{value:.6f}" for value in probabilities.tolist()]
        writer.writerow([shown(path), model.class_names[best], each[best], *each])
    if out is None:
        typer.echo(text.getvalue(), nl=False)
        return
    write_bytes(out, text.getvalue().encode("utf-8"))


def _save_features(file: Path, paths: list[Path], features: "Tensor") -> None:
    import numpy as np

    from fairmargin.data.members import shown
    from fairmargin.runtime.whole import write_bytes

    buffer = io.BytesIO()
    np.savez(
        buffer, features=features.numpy(), paths=np.array([str(shown(path)) for path in paths])
    )
    write_bytes(file, buffer.getvalue())
