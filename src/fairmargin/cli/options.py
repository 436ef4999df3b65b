"""Options that several commands share, and how their words are read."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairmargin.config import Config

File = Annotated[
    Path | None, typer.Argument(help="A configuration (TOML); see docs/configuration.md.")
]
Dataset = Annotated[
    str | None,
    typer.Option(
        help='From "fairmargin list datasets", or the path of a manifest or image folder.'
    ),
]
Network = Annotated[
    str | None, typer.Option(help='From "fairmargin list networks"; else the dataset\'s preset.')
]
Bias = Annotated[
    str | None,
    typer.Option(
        help="What methods see of the bias: labels, none, scores or clusters (docs/scores.md)."
    ),
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE, such as --set train.epochs=3.")
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", help="Where runs run: local, or ray for a cluster (docs/many-runs.md)."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="With --engine local: so many at a time, in processes of their own; 1 by default."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="With --engine ray: of the cluster; else one is started on this machine."),
]
Cpus = Annotated[int | None, typer.Option(help="With --engine ray: of each run; 1 by default.")]
Gpus = Annotated[
    float | None,
    typer.Option(help="With --engine ray: of each run; 0 by default, 0.5 to share one."),
]


def command_line() -> list[str]:
    return ["fairmargin", *sys.argv[1:]]


def runs_of(config: "Config") -> Path:
    """Where runs on a dataset go; those that saw something else of the bias are beside the others."""
    name, bias = config.data.name, config.data.bias
    return Path("runs") / (name if bias == "labels" else f"{name}-bias-{bias}")


def parse_methods(text: str) -> list[str]:
    """By their names, each once."""
    from fairmargin.methods import METHODS

    names = (
        list(METHODS)
        if text == "all"
        else [name.strip() for name in text.split(",") if name.strip()]
    )
    if not names:
        raise ValueError(
            '--methods is empty; give names, such as ce,supcon, or all ("fairmargin list methods")'
        )
    return list(dict.fromkeys(names))


def parse_seeds(text: str) -> list[int]:
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
