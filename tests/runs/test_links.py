"""A run folder from somebody else: its links never lead anywhere, whatever command looks at it."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.runs.folder import Metrics, RunError, RunFolder, RunRecord
from fairmargin.runtime.whole import LinkError, open_plain, refuse_links, write_atomically
from tests.report.fake_runs import write_run

FILES = (
    ".lock",
    "config.toml",
    "environment.json",
    "metrics.jsonl",
    "result.json",
    "test.npz",
    "weights.safetensors",
)
COMMANDS = {
    "train": ["train", "--resume"],
    "evaluate": ["evaluate"],
    "report": ["report"],
    "audit": ["audit"],
    "check": ["check", "--min-worst-group", "0.1"],
    "export": ["export"],
    "card": ["card"],
}


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", "ce", n=100)


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "precious.txt"
    file.write_text("mine\n")
    return file


def put_link(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_linked_file(command, name, run, victim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put_link(run / name, victim)
    before = sorted(path.name for path in tmp_path.iterdir())
    done = CliRunner().invoke(app, [*COMMANDS[command], str(run)])
    assert done.exit_code == 2
    assert "symbolic link" in " ".join(done.output.split())
    assert victim.read_text() == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_predict_refuses_a_linked_file(run, victim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put_link(run / "weights.safetensors", victim)
    (tmp_path / "a.png").write_bytes(b"")
    done = CliRunner().invoke(app, ["predict", str(run), "a.png"])
    assert done.exit_code == 2
    assert "symbolic link" in " ".join(done.output.split())
    assert victim.read_text() == "mine\n"


def test_a_linked_folder_is_refused(run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (run / "checkpoints").symlink_to(other, target_is_directory=True)
    with pytest.raises(RunError, match="checkpoints is a symbolic link"):
        RunRecord.read(run)
    with pytest.raises(RunError, match="checkpoints is a symbolic link"):
        RunFolder(run).create()
    assert not list(other.iterdir())


def test_a_run_folder_may_be_reached_through_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to(run, target_is_directory=True)
    assert RunRecord.read(tmp_path / "link").method == "ce"


def test_links_that_appear_after_the_look_are_not_followed(run, victim):
    folder = RunFolder(run)
    put_link(run / ".lock", victim)
    put_link(run / "metrics.jsonl", victim)
    with pytest.raises(LinkError), folder.lock():
        pass
    metrics = Metrics(run / "metrics.jsonl")
    for write in (lambda: metrics.append({"event": "x"}), lambda: metrics.truncate(0)):
        with pytest.raises(OSError, match="symbolic link"):
            write()
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_a_hard_link_is_not_written_through(name, run, victim, tmp_path, monkeypatch):
    """Both files are changed in place; a copy made with "cp -al" has them in common."""
    monkeypatch.chdir(tmp_path)
    (run / name).unlink(missing_ok=True)
    os.link(victim, run / name)
    with pytest.raises(OSError, match="hard link"), RunFolder(run).create().lock():
        pass
    with pytest.raises(LinkError, match="hard link"):
        Metrics(victim).truncate(0)
    assert victim.read_text() == "mine\n"
    # Reading changes nothing.
    with open_plain(run / name, "rb") as file:
        assert file.read() == b"mine\n"


def test_writing_replaces_a_link_and_follows_none(tmp_path, victim):
    target = tmp_path / "out.txt"
    target.symlink_to(victim)
    (tmp_path / f".out.txt.{os.getpid()}.part").symlink_to(victim)
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    assert not target.is_symlink()
    assert victim.read_text() == "mine\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LinkError, match="neither a file nor a folder"):
        refuse_links(tmp_path)
    for mode in ("rb", "ab"):
        with pytest.raises(LinkError, match="neither a file nor a folder"):
            open_plain(tmp_path / "pipe", mode)


def test_the_next_run_removes_what_killed_processes_left(run):
    (run / "checkpoints").mkdir(exist_ok=True)
    left = [run / ".result.json.77.part", run / "checkpoints" / ".step-00000001.ckpt.77.part"]
    for file in left:
        file.write_bytes(b"half")
    with RunFolder(run).create().lock():
        assert not any(file.exists() for file in left)
