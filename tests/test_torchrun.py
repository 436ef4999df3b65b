"""Two processes under `torchrun` take the same first step as one with the whole batch."""

import json
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


@pytest.fixture(scope="module")
def disagreements(tmp_path_factory):
    """{what differs: what the first and what the second process said}."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun(2, str(HERE / "torchrun_ranks.py"), str(folder))
    both = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return {name: (both[0][name], both[1][name]) for name in both[0]}


def test_processes_that_agree_train(disagreements):
    assert disagreements["nothing"] == ("trained", "trained")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("seed", "rank 1 has seed = 1, rank 0 has 0"),
        ("learning rate", "rank 1 has players.main.lr = 0.5, rank 0 has "),
        ("images", "rank 1 has data.rho = 0.5"),
        ("test images", "rank 1 has data.test = 120, rank 0 has 100"),
        ("batch size", "rank 1 has train.batch_size = 40, rank 0 has 50"),
        ("option of the method", "rank 1 has method.lambda = 0.5"),
        ("network", "rank 1 has network.widths = (4, 16)"),
        ("weights", "at step 2: rank 1 has another method.encoder"),
        ("statistics", "running_mean"),
        ("momentum", "rank 1 has another players.main.state"),
        ("position", "rank 1 has loader.epoch = 1, rank 0 has 0"),
    ],
)
def test_processes_that_differ_stop_and_say_in_what(disagreements, what, said):
    """Before, each of these trained on and ended with exit code 0."""
    first, second = disagreements[what]
    assert said in first
    assert first == second
    assert "Start all ranks with the same command" in first
