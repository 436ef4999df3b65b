"""Outputs that cannot be written: one sentence that names the file, and no half of it."""

import errno
import os

import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.cli.errors import exit_on_user_error
from fairmargin.runtime.whole import WriteError, write_atomically, write_bytes
from tests.fault_cases import DATA, whole
from tests.faults import Faults, injected

# Each with the file that it writes, which stands where HERE does.
COMMANDS = {
    "evaluate": ["evaluate", "run", "--out", "HERE.json"],
    "report": ["report", "run", "--out", "HERE.html"],
    "audit": ["audit", "run", "--out", "HERE.html"],
    "predict": ["predict", "run", "picture.png", "--out", "HERE.csv"],
    "card": ["card", "run", "--out", "HERE.md"],
    "export": ["export", "run", "--format", "torch", "--out", "HERE.pt2"],
    "data show": ["data", "show", *DATA[1:], "--out", "HERE.png"],
}
COMMON = ("evaluate", "report", "predict", "card")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("unwritable")
    whole("train", place)
    (place / "out").rename(place / "run")
    Image.new("RGB", (28, 28)).save(place / "picture.png")
    return place


def give(name, target, place, monkeypatch):
    monkeypatch.chdir(place)
    words = [word.replace("HERE", target) for word in COMMANDS[name]]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert isinstance(done.exception, SystemExit | None), repr(done.exception)
    return done.exit_code, done.output, place / words[-1]


slow = [pytest.param(n, marks=pytest.mark.slow) for n in COMMANDS if n not in COMMON]


@pytest.mark.parametrize("name", [*COMMON, *slow])
@pytest.mark.parametrize("kind", ["full", "folder in its place", "file instead of a folder"])
def test_an_output_that_cannot_be_written_is_named(name, kind, place, monkeypatch):
    target = f"{name.replace(' ', '-')}-{kind.split()[0]}/written"
    folder = place / target.partition("/")[0]
    if kind == "full":
        with injected(Faults(folder, "full", 0)):
            code, said, file = give(name, target, place, monkeypatch)
        assert [path.name for path in folder.rglob("*") if path.is_file()] == []
    elif kind.startswith("folder"):
        ending = COMMANDS[name][-1].removeprefix("HERE")
        (place / f"{target}{ending}" / "inside").mkdir(parents=True)
        code, said, file = give(name, target, place, monkeypatch)
        if name == "audit":  # a folder stands for audit.html in it
            assert code == 0
            return
    else:
        folder.write_text("")
        code, said, file = give(name, target, place, monkeypatch)
    assert code == 2, said
    assert file.stem in said, said
    assert "cannot write" in said or "is a folder; give the file to write" in said, said
    assert "Errno" not in said, said


def test_a_file_in_place_of_a_folder_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"x\.csv: .*file is a file, not a folder"):
        write_bytes(tmp_path / "file" / "x.csv", b"")


def test_the_old_file_stays(tmp_path):
    file = tmp_path / "a.txt"
    write_bytes(file, b"old")
    for kind in ("full", "cut"):
        with injected(Faults(tmp_path, kind, 0)), pytest.raises(WriteError, match=r"a\.txt"):
            write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EACCES, "Permission denied", "x.csv"), "x.csv: Permission denied"),
        (OSError(errno.EXDEV, "Cross-device link", "a", None, "b"), "b: Cross-device link"),
        (OSError(errno.EIO, "Input/output error", b"x\xff"), "x\\xff: Input/output error"),
        (OSError("a sentence of ours"), "a sentence of ours"),
    ],
)
def test_errors_of_the_system_are_said_without_their_number(error, said, capsys):
    import typer

    with pytest.raises(typer.Exit), exit_on_user_error():
        raise error
    assert capsys.readouterr().err == f"{said}\n"
