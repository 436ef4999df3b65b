"""Run by tests/test_stopped_ranks.py: pairs of processes train, and one of a pair is disturbed.

Processes are forked from this one, which has imported everything already.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

# The first optimizer of a process imports it, which takes seconds.
import torch._dynamo
import torch.distributed as dist
from rich.console import Console

from fairmargin.run import run
from fairmargin.runs import build, recorder
from fairmargin.runtime import waiting
from fairmargin.runtime.distributed import processes
from tests.small_runs import config

SETTINGS = (
    "data.train=500",
    "data.test=100",
    "train.epochs=2",
    "train.batch_size=150",
    "train.checkpoint_seconds=0",
    "train.timeout_seconds=600",
    "evaluate.resamples=20",
    'evaluate.classifiers=["own"]',
)
# The step after which one process is stopped, or hangs.
AT = 5


def train(out):
    run(config(*SETTINGS), out, console=Console(quiet=True))


def disturbed(out, way, victim):
    """Train, and let the victim be stopped or hang after a step.

    The timeout is lowered only then, so that it cannot end a run that is merely slow.
    """
    pids = [0, 0]
    dist.all_gather_object(pids, os.getpid())
    waits = dist.get_rank() != victim
    original = recorder.Recorder.after_step

    def after_step(self, batch):
        original(self, batch)
        if self.training.step != AT:
            return
        if not waits and way == "hangs":
            time.sleep(3600)
        if waits and way == "stopped":
            os.kill(pids[victim], signal.SIGSTOP)
        if waits:
            waiting.current().lookout.timeout = 1.0

    recorder.Recorder.after_step = after_step
    train(out)


def child(rank, port, said, out, way, victim):
    """Be one process of a pair, as torchrun would start it."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    with said.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with processes(torch.device("cpu")):
        disturbed(out, way, victim) if way in ("stopped", "hangs") else train(out)


def pair(out, way, victim=None):
    """Train in two processes, and return what each said and its exit code.

    The victim is killed as soon as the other one has ended.
    """
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    files = [out.parent / f"{out.name}-{way}-{rank}.txt" for rank in (0, 1)]
    pids = []
    for rank in (0, 1):
        pid = os.fork()
        if pid == 0:
            try:
                child(rank, store.port, files[rank], out, way, victim)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        pids.append(pid)
    codes = {}
    for rank in (0, 1) if victim != 0 else (1, 0):
        if rank == victim:
            os.kill(pids[rank], signal.SIGKILL)
        codes[rank] = os.waitstatus_to_exitcode(os.waitpid(pids[rank], 0)[1])
    return [{"code": codes[rank], "said": files[rank].read_text()} for rank in (0, 1)]


def main(folder):
    # Once for all processes: the digits are parsed from text.
    build.data(config(*SETTINGS))
    found = {"whole": pair(folder / "whole", "whole")}
    for way, victim in (("stopped", 0), ("stopped", 1), ("hangs", 1)):
        name = f"{way}-{victim}"
        found[name] = pair(folder / name, way, victim)
        if way == "stopped":
            found[f"{name}-resumed"] = pair(folder / name, "resumed")
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
