"""Commands that write, each struck by a fault and given again: the end must be the same.

python -m tests.fault_cases                  # every command, every fault, every event
python -m tests.fault_cases tune kill        # every event of one of them
python -m tests.fault_cases tune kill 17     # one case
"""

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from fairmargin.cli.app import app
from tests.faults import KINDS, Faults, Killed, injected
from tests.small_runs import without_times

TINY = (
    "data.train=500",
    "data.test=100",
    "network.name=simple-conv-3",
    "network.stride=2",
    "network.widths=[2]",
    "train.batch_size=250",
    "train.epochs=1",
    "train.device=cpu",
    "train.log_steps=1",
    "train.checkpoint_seconds=0",
    "evaluate.resamples=5",
)
CHANGES = [word for change in TINY for word in ("--set", change)]
DATA = ["--dataset", "biased-mnist-mini"]
COMMANDS = {
    "train": ["train", *DATA, "--method", "eps-supinfonce+fairkl", "--out", "out", *CHANGES],
    "compare": ["compare", *DATA, "--methods", "ce,lff", "--seeds", "1", "--out", "out", *CHANGES],
    "tune": ["tune", *DATA, "--methods", "ce", "--trials", "2", "--out", "out", *CHANGES],
    "scores": ["scores", *DATA, "--capture", "simple-conv-1", "--out", "out", *CHANGES],
    "reproduce": [
        "reproduce", "fairkl", "--budget", "smoke", "--cell", "*group-balanced:cr*", "--out", "out",
    ],
}  # fmt: skip
# Written along the way, or with times in them; what they lead to is compared.
NOT_COMPARED = ("environment.json", "trials.log", ".ckpt", "report.html")
# As another process would have had another number.
OTHER_PROCESS = 4_194_305


def give(words: list[str], place: Path, faults: Faults) -> tuple[int | None, str]:
    """Give a command in a folder; return its exit code and output, (None, "") if it was killed."""
    before = Path.cwd()
    os.chdir(place)
    try:
        with injected(faults):
            done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    except Killed:
        return None, ""
    finally:
        os.chdir(before)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"a traceback: {done.exception!r}") from done.exception
    return done.exit_code, done.output


def strike(command: str, kind: str, at: int, wanted: dict[str, Any], place: Path) -> None:
    """Let a command meet a fault, give it again, and compare what it leaves.

    Args:
        command: of COMMANDS.
        kind: of fault.
        at: which event.
        wanted: what the command leaves without a fault.
        place: an empty folder.
    """
    faults = Faults(place, kind, at)
    code, said = give(COMMANDS[command], place, faults)
    assert len(faults.events) > at, "the command wrote less often than before"
    if kind == "kill":
        assert code is None, "something went on after the kill"
    elif code != 0:
        assert code == 2, said
        assert "out" in said, f"the message names no file: {said}"
        assert "Errno" not in said, said
    _as_of_another_process(place)
    code, said = give(COMMANDS[command], place, Faults(place))
    assert code == 0, f"after {faults.events[at]}: {said}"
    found = left(place)
    assert found.keys() == wanted.keys(), f"after {faults.events[at]}"
    for name, content in wanted.items():
        assert found[name] == content, f"{name} is another one after {faults.events[at]}"
    for run in place.rglob("result.json"):
        assert not list(run.parent.rglob(".*.part")), "half a file was left behind"


def whole(command: str, place: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Give a command without a fault; return what it leaves, and its events for each kind."""
    faults = Faults(place)
    code, said = give(COMMANDS[command], place, faults)
    assert code == 0, said
    writes = sum(event.startswith("write ") for event in faults.events)
    return left(place), {"kill": len(faults.events), "full": writes, "cut": writes}


def left(place: Path) -> dict[str, Any]:
    """What a command left, by name of the file, without times."""
    found = {}
    for file in sorted(place.rglob("*")):
        name = file.relative_to(place).as_posix()
        if file.is_file() and not file.name.startswith(".") and not name.endswith(NOT_COMPARED):
            found[name] = _content(file)
    return found


def _content(file: Path) -> Any:
    if file.suffix == ".npz":
        with np.load(file) as arrays:
            return {name: arrays[name].tolist() for name in arrays.files}
    if file.suffix == ".json":
        return without_times(json.loads(file.read_text()))
    if file.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in file.read_text().splitlines()]
    if file.suffix == ".md":
        # The last column of a comparison: seconds.
        return re.sub(r"\| [0-9]+ \|$", "|", file.read_text(), flags=re.MULTILINE)
    return file.read_bytes()


def _as_of_another_process(place: Path) -> None:
    """Give what was left half-written the number of a process that is gone."""
    for file in place.rglob(f".*.{os.getpid()}.part"):
        file.rename(file.with_name(file.name.replace(f".{os.getpid()}.", f".{OTHER_PROCESS}.")))
    # Optuna takes over the lock of a killed process after half a minute.
    for lock in place.rglob("*.log.lock*"):
        lock.unlink()


def main(words: list[str]) -> int:
    """Try every event of what is named, print what fails, and return how many did."""
    commands = words[:1] or list(COMMANDS)
    kinds = words[1:2] or list(KINDS)
    failed = tried = 0
    for command in commands:
        with tempfile.TemporaryDirectory() as folder:
            wanted, events = whole(command, Path(folder))
        for kind in kinds:
            started = time.monotonic()
            chosen = [int(words[2])] if len(words) > 2 else range(events[kind])
            wrong = 0
            for at in chosen:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        strike(command, kind, at, wanted, Path(folder))
                    except AssertionError as error:
                        wrong += 1
                        print(f"FAILED {command} {kind} {at}: {error}", flush=True)
            tried, failed = tried + len(chosen), failed + wrong
            seconds = time.monotonic() - started
            print(f"{command} {kind}: {len(chosen)} events, {wrong} failed, {seconds:.0f} s")
    print(f"{tried} faults, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
