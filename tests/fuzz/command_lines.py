"""Random command lines: every command, with its own options and words that no one should give."""

import random
from pathlib import Path
from typing import Any

import click
import typer

from fairmargin.cli.app import app
from fairmargin.data import DATASETS
from fairmargin.methods import METHODS
from fairmargin.networks import ENCODERS

TEXTS = [
    "", " ", "x", "none", "-1", "0", "1", "3", "1e400", "nan", "inf", "/dev/null", ".",
    "run", "run/config.toml", "photos", "photos/table.csv", "a\nb",
    "\x1b[31m", "é☃", "a=b", "=", "%s",
    "{x}", "~", "~nobody/x", "*", "a,b", ",", ",,",
    "1,2", "all", "labels", "best", "last", "onnx", "auto",
    "audit:", "audit:colour", "clusters", "colour:0.9", "colour:2", "colour:", "jpeg:nan", ":1",
    "no.module:thing", "os:system", "hf:no/such", "timm:",
    "torchvision:x", "own", "x" * 5000, "\udcff",
    "9" * 5000, "[" * 3000, "train.epochs=3", "data.train=48", "a.b.c=1", "network.widths=[]",
    "run/result.json", "s-{000..002}.tar", "s-{0..99999999}.tar", "cpu",
    "cuda:99", "mps", "meta", "0x10",
]  # fmt: skip
# Long by their nature, or start servers and processes.
LEFT_OUT = {"demo", "compare", "tune", "suite", "reproduce"}
# These only where words end the command before any work.
DRY = {"reproduce": ["--dry-run"]}


def _leaf_commands() -> dict[tuple[str, ...], click.Command]:
    found: dict[tuple[str, ...], Any] = {}

    def walk(command: Any, path: tuple[str, ...]) -> None:
        inner = getattr(command, "commands", None)
        if inner:
            for name, child in inner.items():
                walk(child, (*path, name))
        else:
            found[path] = command

    walk(typer.main.get_command(app), ())
    return found


COMMANDS = _leaf_commands()


def _text(draw: random.Random) -> str:
    if draw.random() < 0.15:
        return draw.choice([*DATASETS, *METHODS, *ENCODERS])
    return draw.choice(TEXTS)


def _argument(draw: random.Random, name: str) -> str:
    """A word for a positional argument: often the run or the table that is there."""
    if draw.random() < 0.5:
        there = {"target": ["run", "photos", "photos/table.csv", "planted"], "name": ["planted"]}
        return draw.choice(there.get(name, ["run"]))
    return _text(draw)


def make(draw: random.Random, folder: Path) -> list[str]:
    """Return a command line; the folder holds a run and a table of images.

    Args:
        draw: the stream of the case.
        folder: of the case, prepared by `cases`.
    """
    path = draw.choice([p for p in COMMANDS if p[0] not in LEFT_OUT])
    if draw.random() < 0.12:
        path = draw.choice([p for p in COMMANDS if p[0] in LEFT_OUT])
    words = [*path]
    if path[0] == "reproduce":
        words.append("--dry-run")
    elif path[0] in LEFT_OUT:
        # Ends before anything is trained.
        words += ["--set", "train.epochs=0"] if path[0] != "demo" else ["--seed", "x"]
    if path[0] in ("train", "scores"):
        words += ["--dataset", "planted", "--set", "data.train=48", "--set", "data.test=16"]
    if path[0] == "audit":
        words += ["--permutations", "20"]
    options: list[list[str]] = []
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Argument) or parameter.param_type_name == "argument":
            if parameter.required or draw.random() < 0.6:
                words.append(_argument(draw, str(parameter.name)))
        elif draw.random() < 0.2 and parameter.name != "help":
            option = draw.choice(parameter.opts)
            flag = getattr(parameter, "is_flag", False)
            options.append([option] if flag else [option, _text(draw)])
    draw.shuffle(options)
    words += [word for option in options for word in option]
    if draw.random() < 0.15:
        words.insert(draw.randrange(len(words) + 1), _text(draw))
    if draw.random() < 0.05:
        words = words[: draw.randrange(len(words) + 1)]
    return words
