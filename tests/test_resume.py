"""Runs that are killed, stopped, damaged or out of space end like one that was not."""

import random
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.run import run
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.record import RunRecord
from tests.small_runs import (
    assert_same_run,
    checkpoint_steps,
    config,
    interrupted,
    silently,
    start,
    train_in_process,
    words,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run from beginning to end, in a process of its own like those it is compared with."""
    return train_in_process(tmp_path_factory.mktemp("whole") / "run")


def wait_for(condition, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_three_times_a_run_ends_like_one_that_was_not(finished, tmp_path):
    out, chance = tmp_path / "run", random.Random(4)
    command = words("train.checkpoint_seconds=0", out=out)
    killed = []
    for _ in range(3):
        process = start(*command)
        before = checkpoint_steps(out)[-1] if checkpoint_steps(out) else 0
        wait_for(
            lambda before=before: (
                (checkpoint_steps(out) or [0])[-1] >= before + chance.randint(1, 4)
            ),
            process,
        )
        time.sleep(chance.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed.append(checkpoint_steps(out)[-1])
    assert not (out / "result.json").exists()
    assert killed == sorted(killed)
    said, _ = (last := start(*command)).communicate(timeout=200)
    assert last.returncode == 0, said
    assert "continuing after step" in said
    assert_same_run(finished, out)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_run_goes_on_later(finished, tmp_path, number):
    out = tmp_path / "run"
    process = start(*words(out=out))
    wait_for(
        lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 0,
        process,
    )
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert "continue with: fairmargin train --resume" in said
    assert len(checkpoint_steps(out)) == 1  # the minute between checkpoints had not passed
    said, _ = (again := start("train", "--resume", str(out))).communicate(timeout=200)
    assert again.returncode == 0, said
    assert_same_run(finished, out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run in this process, for those that are continued in it."""
    out = tmp_path_factory.mktemp("whole-here") / "run"
    silently(out=out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["truncate", "flip", "empty"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(whole, tmp_path, harm):
    out = tmp_path / "run"
    interrupted(out)
    newest = out / "checkpoints" / "step-00000020.ckpt"
    content = bytearray(newest.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
    newest.write_bytes(
        {"truncate": content[: len(content) // 3], "flip": content, "empty": b""}[harm]
    )
    console = Console(record=True, quiet=False, file=(tmp_path / "said.txt").open("w"))
    run(config(), out, console=console)
    said = console.export_text()
    assert "step-00000020.ckpt cannot be used" in said
    assert "continuing after step 7" in said
    assert_same_run(whole, out)


@pytest.mark.slow
def test_when_every_checkpoint_is_damaged_nothing_is_overwritten(tmp_path):
    out = tmp_path / "run"
    interrupted(out)
    for path in (out / "checkpoints").iterdir():
        path.write_bytes(b"damaged")
    result = CliRunner().invoke(app, ["train", "--resume", str(out)])
    assert result.exit_code == 2
    assert "no checkpoint in" in result.output
    assert len(checkpoint_steps(out)) == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small tmpfs")
def test_a_full_disk_while_checkpointing_loses_nothing(whole, tmp_path):
    """Without space checkpoints fail, the run goes on, and it ends once there is room."""
    out = tmp_path / "run"
    mount = out / "checkpoints"
    mount.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    try:
        (mount / "ballast").write_bytes(bytes(60_000))
        with pytest.raises(OSError, match=r"No space left on device.*needs.*free"):
            silently("train.checkpoint_seconds=0", out=out)
        assert checkpoint_steps(out) == []
        assert len(RunRecord.read(out).metrics) > 3  # it trained to the end and could not save that
        subprocess.run(["mount", "-o", "remount,size=10m", str(mount)], check=True)
        silently(out=out)
        assert_same_run(whole, out)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a read-only tmpfs")
def test_a_read_only_run_folder_is_said_before_anything_is_done(tmp_path):
    mount = tmp_path / "read-only"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    try:
        result = CliRunner().invoke(app, words(out=mount / "run"))
        assert result.exit_code == 2
        assert "cannot write into" in result.output
        assert "Read-only file system" in result.output
        assert "--out" in result.output
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.slow
def test_two_processes_cannot_write_one_folder(tmp_path):
    out = tmp_path / "run"
    folder = RunFolder(out).create()
    with folder.lock():
        process = start(*words(out=out))
        said, _ = process.communicate(timeout=100)
    assert process.returncode == 2, said
    assert "another process" in said
