"""Cases by kind and seed: each is made in a folder of its own and run there."""

import atexit
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz import archives, command_lines, configurations, sandbox, tables
from tests.fuzz.sandbox import Outcome

Trial = list[str] | Callable[[], None]
KINDS: dict[str, Callable[[random.Random, Path], Trial]] = {
    "configuration": configurations.make,
    "command line": command_lines.make,
    "table": tables.make,
    "archive": archives.unpacked,
    "npz": archives.npz,
    "idx": archives.idx,
    "webdataset": archives.webdataset,
    "safetensors": archives.safetensors,
    "images": archives.images,
}
# Kinds of which a case starts with a finished run and with a folder of images.
SIDES, SPLITS = ("cat", "dog"), ("train", "test")
WITH_RUN = {"command line", "table", "safetensors"}


def photos(place: Path) -> None:
    """Write small images, a table of twelve of them, and files that are none."""
    (place / "sub").mkdir(parents=True)
    stream = np.random.RandomState(0)
    for name in (*(f"{k}.png" for k in range(24)), "a.png", "sub/e.png"):
        Image.fromarray(stream.randint(0, 255, (8, 8, 3), np.uint8)).save(place / name)
    (place / "broken.png").write_bytes((place / "a.png").read_bytes()[:60])
    (place / "text.png").write_text("no picture")
    (place / "link.png").symlink_to("a.png")
    (place / "loop.png").symlink_to("loop.png")
    rows = [f"{k}.png,{SIDES[k % 2]},{k % 3},{SPLITS[k // 2 % 2]}" for k in range(12)]
    (place / "table.csv").write_text("\n".join(["path,label,bias,split", *rows]))


@contextmanager
def one_step() -> Iterator[None]:
    """Let every run train for one step, and then evaluate."""
    from fairmargin import run

    real = run.fit

    def fit(training: Any, epochs: int, *, steps: int | None = None, **hooks: Any) -> None:
        real(training, epochs, steps=1, **hooks)

    run.fit = fit
    try:
        yield
    finally:
        run.fit = real


@cache
def finished_run() -> Path:
    """A small finished run on a table of images, made once in a process."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-run-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    photos(place / "photos")
    small = ["--network", "simple-conv-3", "--set", "network.widths=[4]", "--method", "ce"]
    settings = ["--set", "data.image_size=8", "--set", "evaluate.resamples=10"]
    words = ["train", "--dataset", "photos/table.csv", "--out", "run", *small, *settings]
    with one_step():
        ended = sandbox.run(words, place)
    assert ended.code == 0, ended
    return place


def make(kind: str, seed: int, folder: Path) -> Trial:
    """Prepare the case's folder and return what is to be run in it.

    Args:
        kind: one of `KINDS`.
        seed: of the case.
        folder: an empty one.
    """
    if kind in WITH_RUN:
        shutil.copytree(finished_run(), folder, symlinks=True, dirs_exist_ok=True)
    draw = random.Random(f"{kind}:{seed}")
    return KINDS[kind](draw, folder)


def run(kind: str, seed: int, around: Path) -> tuple[Trial, Outcome]:
    """Run one case; return what was run, and how it ended.

    Args:
        kind: one of `KINDS`.
        seed: of the case.
        around: a folder to make the case's own in.
    """
    place = Path(tempfile.mkdtemp(prefix="case-", dir=around))
    folder = place / "work"
    folder.mkdir()
    try:
        trial = make(kind, seed, folder)
        with one_step():
            ended = sandbox.run(trial, folder)
        beside = sorted(path.name for path in place.iterdir() if path.name != "work")
        if beside and not ended.failure:
            failure = f"wrote outside of its folder: {beside[0]}"
            ended = Outcome(ended.code, ended.output, failure)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return trial, ended
