"""`fairmargin export` and `fairmargin card`: a run as a file for others, and a page about it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import NetworkAgain, TrustCode

if TYPE_CHECKING:
    from fairmargin.export.checked import Difference
    from fairmargin.export.precision import Agreement

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
    precision: Annotated[
        str,
        typer.Option(help="fp32; or fp16 or int8 for a smaller ONNX file, checked on test data."),
    ] = "fp32",
    min_agreement: Annotated[
        float | None,
        typer.Option(
            help="Share of test pictures that must keep the model's answer in fp16 (default 0.99) "
            "or int8 (0.95)."
        ),
    ] = None,
    network: NetworkAgain = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a run's model as one file, with its preprocessing, and check it before it is kept."""
    from fairmargin.checks import check_choice
    from fairmargin.export import export_onnx, export_program
    from fairmargin.export.model import which_weights
    from fairmargin.export.precision import Precision

    with exit_on_user_error():
        check_choice(kind, "format", ("onnx", "torch"))
        check_choice(precision, "precision", get_args(Precision))
        small = "" if precision == "fp32" else f"-{precision}"
        if kind == "torch" and (small or min_agreement is not None):
            raise ValueError(
                "--precision and --min-agreement are for ONNX files; leave them out, or choose "
                "--format onnx"
            )
        target = out or run / (f"model{small}.onnx" if kind == "onnx" else "model.pt2")
        given: dict[str, Any] = {
            "weights": which_weights(weights),
            "embeddings": embeddings,
            "encoder": network,
            "trust_code": trust_code,
        }
        found: Difference | Agreement
        if kind == "onnx":
            given |= {"precision": precision, "min_agreement": min_agreement}
            found = export_onnx(run, target, **given)
        else:
            found = export_program(run, target, **given)
        typer.echo(_said(target, found))


def _said(file: Path, found: "Difference | Agreement") -> str:
    from fairmargin.export.checked import Difference

    size = _megabytes(file.stat().st_size)
    if isinstance(found, Difference):
        return (
            f"{file}: {size}; on {found.pictures} pictures "
            f"probabilities differ from the model's by at most {found.probabilities:.1e}"
        )
    return (
        f"{file}: {size}, in float32 {_megabytes(found.full_bytes)}; on {found.pictures:,} test "
        f"pictures {100 * found.share:.1f} % of its answers are the model's, accuracy "
        f"{100 * found.accuracy:.1f} % (model: {100 * found.model_accuracy:.1f} %), probabilities "
        f"differ by at most {found.probabilities:.1e}"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


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
    from fairmargin.runtime.whole import write_bytes

    with exit_on_user_error():
        write = model_card if (run / CONFIG).is_file() else comparison_card
        text = write(run, name=name, audit=audit or ())
        if out is None:
            typer.echo(text, nl=False)
            return
        write_bytes(out, text.encode("utf-8"))
        typer.echo(f"card: {out}")
