"""Train with several processes and losses over the whole batch. Takes seconds on a CPU.

    python examples/ddp.py                              # one process
    torchrun --nproc-per-node 2 examples/ddp.py         # two processes, the same numbers

A contrastive loss compares samples with each other, so each process must see the features of all.
`gather` brings them together and sends exact gradients back. Every process then computes the loss
of the whole batch, and `DistributedDataParallel` averages the gradients: two processes with 128
samples each take the step of one process with 256.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from fairmargin import losses
from fairmargin.runtime.distributed import gather, rank, world_size

CLASSES, BATCH, STEPS = 4, 256, 200


def sample(n: int, agreement: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw (inputs, labels, bias labels): a weak core feature beside a strong shortcut."""
    labels = torch.randint(CLASSES, (n,), generator=generator)
    other = torch.randint(CLASSES, (n,), generator=generator)
    bias = torch.where(torch.rand(n, generator=generator) < agreement, labels, other)
    core = F.one_hot(labels, CLASSES) + 0.4 * torch.randn(n, CLASSES, generator=generator)
    shortcut = 3 * F.one_hot(bias, CLASSES) + 0.1 * torch.randn(n, CLASSES, generator=generator)
    return torch.cat([core, shortcut], dim=1), labels, bias


def nearest_mean_accuracy(encoder: nn.Module, train: tuple, test: tuple) -> float:
    """Classify test samples by the nearest class mean of the training features."""
    with torch.no_grad():
        z = F.normalize(encoder(train[0]), dim=1)
        means = torch.stack([z[train[1] == label].mean(0) for label in range(CLASSES)])
        predicted = torch.cdist(F.normalize(encoder(test[0]), dim=1), means).argmin(1)
    return (predicted == test[1]).float().mean().item()


def main() -> None:
    """Train on this process's part of every batch; the first process prints the result."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(2 * CLASSES, 64), nn.ReLU(), nn.Linear(64, 16))
    model = DistributedDataParallel(encoder) if world_size() > 1 else encoder
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    train, test = sample(8000, 0.975, generator), sample(4000, 0.0, generator)
    before = nearest_mean_accuracy(encoder, train, test)

    for _ in range(STEPS):
        # All processes draw the same batch, and each takes its part of it.
        batch = torch.randint(len(train[0]), (BATCH,), generator=generator)
        mine = batch.chunk(world_size())[rank()]
        x, labels, bias = (tensor[mine] for tensor in train)
        z, labels, bias = gather(model(x), labels, bias)  # [256, 16], [256], [256] everywhere
        contrastive = losses.eps_supinfonce(z, labels, epsilon=0.25)
        fairkl = losses.fairkl(z, labels, bias, divergence="moments", negatives=True)
        loss = 0.3 * contrastive + fairkl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    after = nearest_mean_accuracy(encoder, train, test)
    if rank() == 0:
        print(f"processes: {world_size()}")
        print(f"last loss: {loss.item():.4f}")
        print(f"accuracy without the shortcut, before training: {before:.1%}")
        print(f"accuracy without the shortcut, after training:  {after:.1%}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
