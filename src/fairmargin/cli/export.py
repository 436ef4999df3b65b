"""`fairmargin export` and `fairmargin card`: a run as a file for others, and a page about it."""

from pathlib import Path
from typing import Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import NetworkAgain, TrustCode

Run = Annotated[Path, typer.Argument(help="Folder of a finished run.")]


def export(
    run: Run,
    kind: Annotated[
        str, typer.Option("--format", help="onnx, or torch for a torch.export program.")
    ] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="File to write; RUN/model.onnx or RUN/model.pt2 by default.")
    ] = None,
    weights: Annotated[str, typer.Option(help="last or best (on validation).")] = "last",
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Give the encoder's features as well.")
    ] = False,
    network: NetworkAgain = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a run's model as one file, with its preprocessing, and check it before it is kept."""
    from fairmargin.checks import check_choice
    from fairmargin.export import export_onnx, export_program
    from fairmargin.export.model import which_weights

    with exit_on_user_error():
        check_choice(kind, "format", ("onnx", "torch"))
        chosen = which_weights(weights)
        write = export_onnx if kind == "onnx" else export_program
        target = out or run / ("model.onnx" if kind == "onnx" else "model.pt2")
        found = write(
            run,
            target,
            weights=chosen,
            embeddings=embeddings,
            encoder=network,
            trust_code=trust_code,
        )
        typer.echo(
            f"{target}: {target.stat().st_size / 1e6:.1f} MB; on {found.pictures} pictures "
            f"probabilities differ from the model's by at most {found.probabilities:.1e}"
        )


def card(
    run: Annotated[
        Path, typer.Argument(help="Folder of a finished run, or of several, to compare them.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write; the terminal by default.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model.")] = None,
    audit: Annotated[
        list[Path] | None,
        typer.Option(
            help="audit.json of the run or its data, whose findings go into the card; may be "
            "repeated. By default those that `fairmargin audit` wrote into audit/."
        ),
    ] = None,
) -> None:
    """Write a model card: use, training data, accuracy by group, audit findings, how to load it.

    Of a folder of runs: one card that compares their methods. The best is chosen on validation
    samples.
    """
    from fairmargin.export.card import model_card
    from fairmargin.export.comparison_card import comparison_card
    from fairmargin.runs.record import CONFIG
    from fairmargin.runtime.files import write_atomically

    with exit_on_user_error():
        write = model_card if (run / CONFIG).is_file() else comparison_card
        text = write(run, name=name, audit=audit or ())
        if out is None:
            typer.echo(text, nl=False)
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode("utf-8"))
        typer.echo(f"card: {out}")
