"""Two gloo processes, each with its part of a batch, equal one process with the whole.

This holds for values and gradients.
"""

import math
import os
import socket
import sys
import traceback
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairmargin import losses
from fairmargin.losses import _limits
from fairmargin.runtime import distributed
from tests.losses import reference as ref

gather = distributed.gather
SPLIT = 17  # of 40 samples: the two ranks hold different numbers of rows


def features_of_bias(b):
    return torch.nn.functional.one_hot(b.clamp_min(0), 3).double() + 0.3


GATHERED = {
    **{
        f"supinfonce-{f}": lambda z, y, b, f=f: losses.eps_supinfonce(z, y, epsilon=0.25, form=f)
        for f in "abcd"
    },
    "supinfonce-inf": lambda z, y, b: losses.eps_supinfonce(z, y, epsilon=math.inf),
    "supinfonce-streamed": lambda z, y, b: losses.eps_supinfonce(z, y, chunk=7),
    "eps-infonce": lambda z, y, b: losses.eps_infonce(z, epsilon=0.25),
    "supcon-eps": lambda z, y, b: losses.eps_supcon(z, y, epsilon=0.25),
    "supcon": lambda z, y, b: losses.supcon(z, y),
    "supcon-in": lambda z, y, b: losses.supcon_in(z, y),
    "simclr": lambda z, y, b: losses.simclr(z),
    "end": lambda z, y, b: losses.end(z, y, b),
    "biascon": lambda z, y, b: losses.biascon(z, y, b),
    "softcon": lambda z, y, b: losses.softcon(z, y, features_of_bias(b)),
    "hsic": lambda z, y, b: losses.hsic(z[:, 0], z[:, 1]),
    "fairkl": lambda z, y, b: losses.fairkl(z, y, b, negatives=True),
    "fairkl-authors": lambda z, y, b: losses.fairkl(z, y, b, variant="authors"),
    "fairkl-features": lambda z, y, b: losses.fairkl(z, y, bias_features=features_of_bias(b)),
}
# FairKL that sends moments (or, where it must, features) instead of being given gathered features.
REDUCED = {
    **{
        f"reduced-{divergence}-{scope}": {
            "divergence": divergence,
            "scope": scope,
            "negatives": True,
        }
        for divergence in ("kl", "jeffreys", "moments", "mean", "lognormal", "absolute-mean")
        for scope in ("batch", "anchor")
    },
    "reduced-count": {"normalize": "count"},
    "reduced-authors": {"variant": "authors"},
    "reduced-first-view": {"views": "first", "negatives": True},
    "reduced-values": {"negatives": True},
    "reduced-values-anchor": {"scope": "anchor", "bandwidth": 2.0},
    "reduced-columns": {"negatives": True},
    "reduced-columns-sum": {"biases": "sum"},
}


def bias_of(name, b):
    """The bias as a case takes it: integers, values, or two columns."""
    if "values" in name:
        return torch.where(b >= 0, b + 0.3 * (b - 1) ** 2, torch.nan).double()
    return torch.stack([b, b.clamp_min(0) % 2], 1) if "columns" in name else b


def whole_batch():
    z, y, b = ref.random_batch(50, n=40, d=6, views=2)
    b[::9] = -1
    return z, y, b


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()


def one_process(name):
    z, y, b = whole_batch()
    net = network()
    loss = (
        GATHERED[name](net(z), y, b)
        if name in GATHERED
        else losses.fairkl(net(z), y, bias_of(name, b), **REDUCED[name])
    )
    loss.backward()
    return loss.item(), [p.grad for p in net.parameters()]


def two_processes(rank, name):
    z, y, b = (x[:SPLIT] if rank == 0 else x[SPLIT:] for x in whole_batch())
    net = DistributedDataParallel(network())
    if name in GATHERED:
        loss = GATHERED[name](*gather(net(z), y, b))
    else:
        loss = losses.fairkl(net(z), y, bias_of(name, b), across_ranks=True, **REDUCED[name])
    loss.backward()
    return loss.item(), [p.grad for p in net.parameters()]


def worker(rank, port, failures):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2"
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # 80 rows would take the pairs: make the cells' all-reduce run. Then as on an accelerator, which
    # gathers features.
    cells, accelerator = replace(_limits.LIMITS["cpu"], matrix=0), _limits.LIMITS["cuda"]
    cases = [(name, cells) for name in [*GATHERED, *REDUCED]] + [
        (name, accelerator) for name in REDUCED
    ]
    try:
        for name, row in cases:
            _limits.LIMITS["cpu"] = cells
            expected, expected_gradients = one_process(name)
            _limits.LIMITS["cpu"] = row
            value, gradients = two_processes(rank, name)
            if abs(value - expected) > 1e-9 * max(1, abs(expected)):
                failures.put(f"{name}: rank {rank} has the value {value}, one process {expected}")
            worst = max(
                (a - c).abs().max().item()
                for a, c in zip(gradients, expected_gradients, strict=True)
            )
            scale = max(c.abs().max().item() for c in expected_gradients)
            if worst > 1e-9 * max(1, scale) or scale == 0:
                failures.put(f"{name}: rank {rank} has gradients off by {worst} of {scale}")
        failures.put(f"done {rank}")
    except Exception:
        failures.put(f"rank {rank}: {traceback.format_exc()}")
    finally:
        dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.slow
@pytest.mark.skipif(
    not dist.is_available() or sys.platform == "win32", reason="needs torch.distributed with gloo"
)
def test_two_ranks_equal_one():
    context = mp.get_context("spawn")
    failures, port = context.Queue(), free_port()
    processes = [context.Process(target=worker, args=(rank, port, failures)) for rank in range(2)]
    for process in processes:
        process.start()
    messages = []
    while sum(m.startswith("done") for m in messages) < 2:
        messages.append(failures.get(timeout=120))
        assert not any("Traceback" in m for m in messages), "\n".join(messages)
    for process in processes:
        process.join(30)
    assert [m for m in messages if not m.startswith("done")] == []


def test_one_process_needs_no_group():
    z, y, b = whole_batch()
    gathered = gather(z, y, b)
    assert all(a is c for a, c in zip(gathered, (z, y, b), strict=True))
    assert torch.equal(
        losses.fairkl(z, y, b, across_ranks=True, chunk=7), losses.fairkl(z, y, b, chunk=7)
    )
    assert torch.allclose(losses.fairkl(z, y, b, across_ranks=True), losses.fairkl(z, y, b))
