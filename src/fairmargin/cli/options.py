"""Options that several commands share, and how their values are parsed."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fairmargin.runtime.terminal import guarded

File = Annotated[
    Path | None, typer.Argument(help="A configuration (TOML); see docs/configuration.md.")
]
Dataset = Annotated[
    str | None,
    typer.Option(
        help='One of "fairmargin list datasets", the path of a manifest or image folder, or '
        "module:function of your own."
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        help='One of "fairmargin list networks", hf:NAME, timm:NAME, torchvision:NAME '
        "(docs/networks.md), or module:class of your own; the dataset's preset by default."
    ),
]
NetworkAgain = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="Import path of the run's own encoder, to allow importing it: module:name.",
    ),
]
DatasetAgain = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        help="Import path of the run's own dataset, to allow importing it: module:name.",
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Import whatever code the run folder names (docs/use.md)."),
]
Bias = Annotated[
    str | None,
    typer.Option(
        help="What methods may know of the bias: labels, none, scores, clusters, "
        'audit:"ATTRIBUTE", jtt, eiil, george, spare, xrm or auto (docs/scores.md).'
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, such as train.epochs=3; repeatable."
    ),
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
        help="With --engine local: runs at a time, each in its own process; 1 by default."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="With --engine ray: address of the cluster; started here by default."),
]
Cpus = Annotated[
    int | None, typer.Option(help="With --engine ray: CPUs of each run; 1 by default.")
]
Gpus = Annotated[
    float | None,
    typer.Option(help="With --engine ray: GPUs of each run; 0 by default, 0.5 to share one."),
]


def flowing(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose help flows, and which sends no control characters to the terminal.

    Typer keeps the line breaks of all but the first paragraph of its help.

    Args:
        command: whose docstring is its help.
    """
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return guarded()(command)


def command_line() -> list[str]:
    """Return the words of the command that is running, for environment.json."""
    return ["fairmargin", *sys.argv[1:]]


def parse_methods(text: str) -> list[str]:
    """Return the methods named in "ce,supcon", each once; "all" stands for every method.

    Args:
        text: what follows --methods.
    """
    from fairmargin.methods import METHODS

    names = list(METHODS)
    if text != "all":
        names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(
            '--methods is empty; give names, such as ce,supcon, or all ("fairmargin list methods")'
        )
    return list(dict.fromkeys(names))


def parse_seeds(text: str) -> list[int]:
    """Return seeds: "3" stands for 0, 1 and 2; "7," for seed 7 alone; "0,5" for these two.

    Args:
        text: what follows --seeds.
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(
            "--seeds takes a number of seeds, or which ones: 3, or 0,1,2, or 7, (with a comma) "
            f"for one; got {text!r}"
        ) from None
    if "," not in text and numbers:
        if numbers[0] < 1:
            raise ValueError(f"--seeds takes at least 1; got {numbers[0]}")
        return list(range(numbers[0]))
    if not numbers:
        raise ValueError("--seeds is empty; give a number of seeds, or which: 3 or 0,1,2")
    return list(dict.fromkeys(numbers))
