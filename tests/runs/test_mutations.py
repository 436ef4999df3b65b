"""A run folder with one file damaged in any way: every command says a sentence or succeeds.

Never a traceback, never a change outside the folder. Some damages stand for all;
`python -m tests.runs.test_mutations 1000` tries so many, each from the seed that it prints.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from tests.fault_cases import whole

# Left out of the inner loop.
pytestmark = pytest.mark.slow

COMMANDS = {
    "train": ["train", "--resume", "run"],
    "evaluate": ["evaluate", "run", "--out", "outputs/found.json"],
    "report": ["report", "run", "--out", "outputs/report.html"],
    "check": ["check", "run", "--min-worst-group", "0.0"],
    "predict": ["predict", "run", "picture.png", "--out", "outputs/said.csv"],
    "verify": ["verify", "run"],
    "card": ["card", "run", "--out", "outputs/card.md"],
    "compare": ["card", ".", "--out", "outputs/compared.md"],
    "audit": ["audit", "run", "--out", "outputs/audit.html"],
    "export": ["export", "run", "--format", "torch", "--out", "outputs/model.pt2"],
}
# A program takes seconds to make, an audit a second.
DEAR = ("audit", "export")


def truncate(file: Path, draw: random.Random) -> None:
    os.truncate(file, draw.randrange(max(file.stat().st_size, 1)))


def flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(draw.choice((1, 8)) if content else 0):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def remove(file: Path, draw: random.Random) -> None:
    file.unlink()


def folder(file: Path, draw: random.Random) -> None:
    file.unlink()
    file.mkdir()
    if draw.random() < 0.5:
        (file / "inside").write_text("text")


def link(file: Path, draw: random.Random) -> None:
    file.unlink()
    file.symlink_to(draw.choice(("../precious.txt", "../precious", "/dev/zero", "nowhere", file)))


def pipe(file: Path, draw: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def other_json(file: Path, draw: random.Random) -> None:
    values = ("null", "[]", "{}", "3", '"x"', "[[[]]]", "NaN", '{"a": 1, "a": 2}', "1e999", "tru")
    file.write_text(draw.choice(values))


def other_values(file: Path, draw: random.Random) -> None:
    """Swap the types of what the file holds, where it is JSON; else its lines."""
    text = file.read_text(errors="replace")
    old, new = draw.choice((("0", "null"), (":", ": -"), ("{", "["), ('"', "'"), ("1", "1e400")))
    places = [i for i in range(len(text)) if text.startswith(old, i)]
    if places:
        at = draw.choice(places)
        text = text[:at] + new + text[at + len(old) :]
    file.write_text(text)


def deep(file: Path, draw: random.Random) -> None:
    file.write_text(draw.choice("[{") * 100_000)


def huge(file: Path, draw: random.Random) -> None:
    file.write_bytes(draw.choice((b"\0", b"9", b" ", b"[1],\n")) * 5_000_000)


def empty(file: Path, draw: random.Random) -> None:
    file.write_bytes(b"")


def forbidden(file: Path, draw: random.Random) -> None:
    file.chmod(draw.choice((0o000, 0o400, 0o200)))


def another(file: Path, draw: random.Random) -> None:
    """Put another file of the run in its place."""
    others = [one for one in file.parent.iterdir() if one.is_file() and one != file]
    shutil.copyfile(draw.choice(others), file)


HARMS = (
    truncate, flip, remove, folder, link, pipe, other_json, other_values, deep, huge, empty,
    forbidden, another,
)  # fmt: skip


def surroundings(place: Path) -> dict[str, object]:
    """Everything beside the run folder and the folder of outputs."""
    found: dict[str, object] = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if not name.startswith(("run/", "outputs")):
            found[name] = path.read_bytes() if path.is_file() else "folder"
    return found


def prepare(place: Path, trained: Path) -> None:
    """A copy of the run, and things beside it that are nobody's business."""
    shutil.copytree(trained, place / "run")
    (place / "outputs").mkdir()
    (place / "precious.txt").write_text("mine\n")
    (place / "precious").mkdir()
    Image.new("RGB", (28, 28), (200, 10, 10)).save(place / "picture.png")


def damage(seed: int, place: Path, trained: Path, dear: bool = False) -> str:
    """Damage one file of a run, let a command look at it, and return what was done."""
    draw = random.Random(seed)
    prepare(place, trained)
    files = sorted(path for path in (place / "run").rglob("*") if path.is_file())
    file, harm = draw.choice(files), draw.choice(HARMS)
    if draw.random() < 0.4 and (place / "run/result.json").is_file():
        # As if it had been interrupted.
        (place / "run/result.json").unlink()
        files.remove(place / "run/result.json")
        file = draw.choice(files)
    command = draw.choice([name for name in COMMANDS if dear or name not in DEAR])
    harm(file, draw)
    before = surroundings(place)
    here = Path.cwd()
    os.chdir(place)
    try:
        done = CliRunner().invoke(app, COMMANDS[command], env={"COLUMNS": "200"})
    finally:
        os.chdir(here)
    what = f"seed {seed}: {command} after {harm.__name__} of {file.relative_to(place)}"
    error = done.exception
    if error is not None and not isinstance(error, SystemExit):
        raise AssertionError(f"{what}: a traceback, {type(error).__name__}: {error}") from error
    assert done.exit_code in (0, 1, 2), f"{what}: exit code {done.exit_code}"
    assert done.exit_code != 2 or done.output.strip(), f"{what}: no word about it"
    assert "Errno" not in done.output, f"{what}: {done.output}"
    assert surroundings(place) == before, f"{what}: something beside the folder has changed"
    return what


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    whole("train", place)
    return place / "out"


@pytest.mark.skipif(os.name != "posix", reason="links, pipes and permissions are those of POSIX")
@pytest.mark.parametrize("part", range(6))
def test_any_damage_of_one_file_is_a_sentence_or_does_no_harm(part, trained, tmp_path):
    for seed in range(20 * part, 20 * part + 20):
        damage(seed, tmp_path / str(seed), trained)


# What once ended in a traceback; None removes the file.
FOUND = [
    ("train", "result.json", "{}"),
    ("card", "result.json", "{}"),
    ("card", "data.json", None),
    ("evaluate", "data.json", None),
    ("evaluate", "config.toml", " "),
]


@pytest.mark.parametrize(("command", "name", "content"), FOUND)
def test_what_once_was_a_traceback(command, name, content, trained, tmp_path, monkeypatch):
    prepare(tmp_path, trained)
    file = tmp_path / "run" / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, COMMANDS[command], env={"COLUMNS": "200"})
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 2
    assert "run" in done.output


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="links, pipes and permissions are those of POSIX")
def test_audits_and_exports_too(trained, tmp_path):
    for seed in range(1000, 1012):
        damage(seed, tmp_path / str(seed), trained, dear=True)


def main(number: int, first: int) -> int:
    """Try so many damages, print those that fail, and return how many did."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        whole("train", Path(folder))
        for seed in range(first, first + number):
            with tempfile.TemporaryDirectory() as place:
                try:
                    damage(seed, Path(place) / "here", Path(folder) / "out", dear=seed % 10 == 0)
                except AssertionError as error:
                    failed += 1
                    print(f"FAILED {error}"[:600], flush=True)
    print(json.dumps({"damages": number, "failed": failed}))
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int((*sys.argv, "0")[2])) else 0)
