"""Batches spread over the processes of `torch.distributed`, with gradients.

Both operations are exact adjoints: the gradient that reaches a rank is that of the *sum* of all ranks' losses. When
every rank computes the same loss of the whole batch and parameter gradients are averaged over ranks, as
`DistributedDataParallel` does, k ranks give exactly the gradient of one process with the whole batch.
Without an initialised process group they return their input, so one script serves one process and many.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each tensor [n, …] with the rows of all ranks, in rank order: [Σn, …]. Ranks may hold different numbers of rows.

    z, y, b = fairmargin.distributed.gather(z, y, b)
    loss = losses.eps_supinfonce(z, y) + losses.fairkl(z, y, b)
    """
    return tuple(gather_with_place(tensor)[0] for tensor in tensors)


def gather_with_place(tensor: Tensor) -> tuple[Tensor, slice]:
    """The rows of all ranks, and which of them are this rank's."""
    if world_size() == 1:
        return tensor, slice(0, len(tensor))
    mine = torch.tensor([len(tensor)], device=tensor.device)
    sizes_each = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(sizes_each, mine)
    sizes = [int(size) for size in sizes_each]
    start = sum(sizes[: dist.get_rank()])
    rows: Tensor = _Gather.apply(tensor, sizes)
    return rows, slice(start, start + len(tensor))


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum over ranks; the gradient is summed over ranks too."""
    if world_size() == 1:
        return tensor
    total: Tensor = _AllReduceSum.apply(tensor)
    return total


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        # Collectives want equal shapes: pad to the longest, cut afterwards.
        padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        start = sum(ctx.sizes[: dist.get_rank()])
        return total[start : start + ctx.sizes[dist.get_rank()]], None


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
