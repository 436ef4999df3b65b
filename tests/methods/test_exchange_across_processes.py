"""Two ranks keep and exchange the same for each sample as one process, step after step."""

import os
import socket
import sys
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fairmargin.loop import Training
from tests.methods import tiny
from tests.torchrun_methods import Whole

CASES = {
    "lff": ("lff", {}),
    "dfa": ("dfa", {"swap_start": 0, "lambda_dis": 2.0, "lambda_swap": 0.5}),
    "amplitude": ("sin-proxy", {"band": 0.3, "probability": 0.8}),
    "statistics": ("sin-proxy", {"kind": "statistics", "probability": 0.8}),
}
PARTS = {"unequal": [(0, 9), (9, 22)], "empty": [(0, 22), (22, 22)]}


def three_steps(case, bounds, seed=0):
    name, options = CASES[case]
    method = tiny.method(name, **options).double().train()
    training = Training(method, tiny.players(method, tiny.SGD), Whole(), seed=seed)
    whole = tiny.batch(tiny.split(22), dtype=torch.float64)
    for _ in range(3):
        training.advance(tiny.part(whole, *bounds), 0.0)
    return method.state_dict()


def worker(rank, port, messages):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2"
    )
    torch.set_num_threads(1)
    try:
        alone = {case: three_steps(case, (0, 22)) for case in CASES}
        dist.init_process_group("gloo")
        for case in CASES:
            for kind, parts in PARTS.items():
                state = three_steps(case, parts[rank])
                for key, value in alone[case].items():
                    if not torch.allclose(state[key], value, rtol=1e-8, atol=1e-10):
                        messages.put(f"{case}, {kind} parts, rank {rank}: {key} differs")
        messages.put("done")
    except Exception:
        messages.put(f"rank {rank}: {traceback.format_exc()}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def test_the_exchange_depends_on_the_seed_of_the_run():
    for case in ("dfa", "amplitude", "statistics"):
        a, b = (three_steps(case, (0, 22), seed) for seed in (0, 1))
        assert any(not torch.equal(a[key], b[key]) for key in a), case


@pytest.mark.slow
@pytest.mark.skipif(
    not dist.is_available() or sys.platform == "win32", reason="needs torch.distributed with gloo"
)
def test_two_ranks_equal_one_for_three_steps():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=worker, args=(rank, port, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    messages = []
    while messages.count("done") < 2:
        messages.append(queue.get(timeout=120))
        assert "Traceback" not in messages[-1], messages[-1]
    for process in processes:
        process.join(30)
    assert [m for m in messages if m != "done"] == []
