"""One of two processes is stopped or hangs: the other says so and ends; the run can be resumed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from fairmargin.runtime.waiting import LOST
from tests.small_runs import assert_same_run

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not dist.is_available() or sys.platform == "win32",
        reason="needs torch.distributed with gloo, and SIGSTOP",
    ),
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """The folder of the runs, and {what happened: exit codes and words of both processes}."""
    folder = tmp_path_factory.mktemp("pairs")
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, str(HERE / "stopped_ranks.py"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize(("way", "victim"), [("stopped", 0), ("stopped", 1), ("hangs", 1)])
def test_the_other_process_names_it_and_ends(pairs, way, victim):
    """Before, it waited half an hour and said nothing."""
    waits = pairs[1][f"{way}-{victim}"][1 - victim]
    assert waits["code"] == LOST, waits["said"]
    # On a busy machine this process may not have begun step 6 itself when the second has passed.
    assert re.search(rf"rank {victim} has not arrived at step [56]; waited", waits["said"])
    assert re.search(rf"rank {victim} did not arrive at step [56] within 1 s; it is", waits["said"])
    assert "start all ranks with the same command" in waits["said"]
    assert "Traceback" not in waits["said"]


@pytest.mark.parametrize("victim", [0, 1])
def test_resumed_the_run_ends_like_one_that_was_not_disturbed(pairs, victim):
    folder, found = pairs
    for process in (*found["whole"], *found[f"stopped-{victim}-resumed"]):
        assert process["code"] == 0, process["said"]
    assert_same_run(folder / "whole", folder / f"stopped-{victim}")
