"""Two processes under `torchrun` take the same first step as one with the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fairmargin.methods import METHODS

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not dist.is_available() or sys.platform == "win32",
        reason="needs torch.distributed with gloo",
    ),
]


def torchrun(processes, *words, cwd=HERE.parent):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
        *words,
    ]
    # What is imported here is what the processes import.
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    for processes in (1, 2):
        torchrun(processes, str(HERE / "torchrun_methods.py"), str(folder))
    return {name: torch.load(folder / f"{name}.pt") for name in ("1-0", "2-0", "2-1")}


def cases():
    pairs = [
        (name, network) for name in sorted(METHODS) for network in ("no batch norm", "batch norm")
    ]
    return [*pairs, ("eps-supinfonce+fairkl", "empty part")]


@pytest.mark.parametrize(("name", "network"), cases())
def test_two_processes_take_the_step_of_one(steps, name, network):
    one = steps["1-0"][name, network]
    for rank in ("2-0", "2-1"):
        two = steps[rank][name, network]
        for kind in ("losses", "gradients", "state"):
            assert two[kind].keys() == one[kind].keys()
            for key, value in one[kind].items():
                assert torch.allclose(two[kind][key], value, rtol=1e-8, atol=1e-10), (
                    rank,
                    kind,
                    key,
                )
    assert any(g.abs().max() > 1e-6 for g in one["gradients"].values())


LEAVING = """
import os, sys, torch
from pathlib import Path
from fairmargin.runtime.distributed import processes, world_size

def gloo():
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if "gloo" in name]

with processes(torch.device("cpu")):
    import torch._dynamo  # as the first compilation of a run does
    inside = world_size(), len(gloo()) > 0
Path(sys.argv[1], os.environ["RANK"]).write_text(repr([inside, (world_size(), len(gloo()) > 0)]))
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads the names of threads from /proc"
)
def test_the_group_and_its_threads_end_with_the_run(tmp_path):
    """A thread that is left would abort the process now and then when the interpreter ends."""
    script = tmp_path / "leaving.py"
    script.write_text(LEAVING)
    torchrun(2, str(script), str(tmp_path))
    for rank in "01":
        assert (tmp_path / rank).read_text() == "[(2, True), (1, False)]"
