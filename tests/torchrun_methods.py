"""Write every method's first step on this rank's part of a batch; run by test_torchrun.py.

With one process it does the whole batch; the test compares the two.
"""

import sys
from pathlib import Path

import torch

from fairmargin.loop import Training
from fairmargin.methods import METHODS
from fairmargin.runtime import distributed
from tests.methods import tiny


class Whole:
    """What Training asks of a loader."""

    device, epoch, next_batch = torch.device("cpu"), 0, 1


def first_step(name, make_encoder, bounds):
    method = tiny.tamed(name, make_encoder).double().train()
    whole = tiny.batch_for(method, tiny.split(22), torch.float64)
    losses = {}
    # Adam would blow up the rounding of gradients that are 0, as of a bias before a batch norm.
    training = Training(method, tiny.players(method, tiny.SGD), Whole(), seed=0, sweep=tiny.sweep)
    updates = method.updates

    def recorded(batch, step):
        for player, loss in updates(batch, step):
            losses[player] = loss.detach()
            yield player, loss

    method.updates = recorded
    method.float().start_epoch(0, tiny.sweep)
    method.double().train()
    training.second = None  # the batch brings its own
    training.advance(tiny.part(whole, *bounds), 0.0)
    gradients = {n: p.grad for n, p in method.named_parameters() if p.grad is not None}
    return {"losses": losses, "gradients": gradients, "state": method.state_dict()}


def main(target):
    torch.set_num_threads(1)
    with distributed.processes(torch.device("cpu")):
        rank, size = distributed.rank(), distributed.world_size()
        bounds = {1: [(0, 22)], 2: [(0, 9), (9, 22)]}[size][rank]  # unequal parts
        results = {}
        for name in sorted(METHODS):
            results[name, "batch norm"] = first_step(name, tiny.convolutional(), bounds)
            results[name, "no batch norm"] = first_step(name, tiny.without_batch_norm(), bounds)
        empty = {1: [(0, 22)], 2: [(0, 22), (22, 22)]}[size][rank]  # a rank without samples
        results["eps-supinfonce+fairkl", "empty part"] = first_step(
            "eps-supinfonce+fairkl", tiny.convolutional(), empty
        )
        torch.save(results, target / f"{size}-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
