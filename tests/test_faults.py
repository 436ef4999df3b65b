"""A kill, a full disk or a cut write in the middle of a command: given again, it ends the same.

Some events stand for all; `python -m tests.fault_cases` tries every one.
"""

import pytest

from tests.fault_cases import COMMANDS, strike, whole
from tests.faults import KINDS, Faults, Killed, injected

# Left out of the inner loop.
pytestmark = pytest.mark.slow

# How many events of each kind are tried, spread over the whole command.
TRIED = {"train": 4, "compare": 2, "tune": 3, "scores": 1, "reproduce": 1}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """What each command leaves without a fault, made when it is first asked for."""
    known = {}

    def of(command):
        if command not in known:
            known[command] = whole(command, tmp_path_factory.mktemp(command))
        return known[command]

    return of


def spread(total, number):
    """`number` events of `total`: the middle of each of so many equal parts."""
    return [(2 * i + 1) * total // (2 * number) for i in range(number)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_meets_a_fault_ends_the_same_when_given_again(
    command, kind, wholes, tmp_path
):
    if command == "tune":
        pytest.importorskip("optuna")
    wanted, events = wholes(command)
    for at in spread(events[kind], TRIED[command]):
        place = tmp_path / str(at)
        place.mkdir()
        strike(command, kind, at, wanted, place)


@pytest.mark.parametrize("at", [6, 12, 13])
def test_a_search_survives_half_a_line_of_its_journal(at, wholes, tmp_path):
    pytest.importorskip("optuna")
    wanted, _ = wholes("tune")
    strike("tune", "kill", at, wanted, tmp_path)


@pytest.mark.parametrize("kind", ["full", "cut"])
def test_a_lock_that_cannot_be_written_is_named(kind, wholes, tmp_path):
    wanted, _ = wholes("train")
    strike("train", kind, 1, wanted, tmp_path)


def test_a_kill_lets_nothing_go_on(tmp_path):
    """The tool itself: half of a write is there, and cleaning up is not done."""
    file = tmp_path / "a.txt"

    def written_and_removed():
        try:
            file.write_text("second")
        finally:
            file.unlink()

    with injected(Faults(tmp_path, "kill", 1)) as faults:
        file.write_text("first")
        with pytest.raises(Killed):
            written_and_removed()
    assert file.read_text() == "sec"
    assert faults.events == ["write a.txt", "write a.txt"]
    file.write_text("third")  # and afterwards all is as before
    assert file.read_text() == "third"


def test_a_full_disk_stays_full(tmp_path):
    with injected(Faults(tmp_path, "full", 0)):
        for name in "ab":
            with pytest.raises(OSError, match="No space left on device"):
                (tmp_path / name).write_text("text")
    assert (tmp_path / "a").read_text() == "te"
