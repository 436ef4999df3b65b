"""Batches spread over the processes of `torch.distributed`, with gradients.

Both operations are exact adjoints: the gradient that reaches a rank is that of the *sum* of all
ranks' losses. When every rank computes the same loss of the whole batch and parameter gradients are
averaged over ranks, as `DistributedDataParallel` does, k ranks give exactly the gradient of one
process with the whole batch. Without an initialised process group they return their input, so one
script serves one process and many.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    """Return the number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return each tensor [n, …] with the rows of all ranks, in rank order: [Σn, …].

    Ranks may hold different numbers of rows. Gradients flow back to the rank of each row.

    Example:
        >>> z, y, b = gather(z, y, b)
        >>> loss = losses.eps_supinfonce(z, y) + losses.fairkl(z, y, b)
    """
    return tuple(gather_with_place(tensor)[0] for tensor in tensors)


def gather_with_place(tensor: Tensor) -> tuple[Tensor, slice]:
    """Return the rows of all ranks, and which of them are this rank's."""
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
    """Return the sum over ranks; the gradient is summed over ranks too."""
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


def rank() -> int:
    """Return the number of this process; 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


def is_first() -> bool:
    """Return whether this process prints and writes for all of them.

    This is known before the process group exists, and after.
    """
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def processes(device: torch.device) -> Iterator[None]:
    """Join the process group that `torchrun` describes in the environment; leave it at the end.

    Nothing happens without `torchrun`, or if the process is in a group already.

    Args:
        device: of this process; a GPU takes NCCL, a CPU gloo.
    """
    single = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if single or (dist.is_available() and dist.is_initialized()):
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Its functions take the group as a default when they are defined. Imported later, by whatever
    # compiles, they would keep the group and its threads alive to the interpreter's end, where they
    # can abort the process.
    from torch.distributed.nn import functional  # noqa: F401

    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Replace every gradient by its mean over ranks, in one collective for each dtype.

    A parameter without a gradient counts as zero.

    Args:
        parameters: the same on every rank, in the same order.
    """
    if world_size() == 1:
        return
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    for kind in sorted({p.dtype for p in parameters}, key=str):
        gradients = [p.grad for p in parameters if p.dtype == kind and p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        flat /= world_size()
        means = flat.split([g.numel() for g in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))


def largest(value: int, device: torch.device) -> int:
    """Return the largest of all ranks' values; all ranks get the same answer.

    Args:
        value: this rank's, a small whole number.
        device: where the collective runs.
    """
    if world_size() == 1:
        return value
    box = torch.tensor([float(value)], device=device)
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return int(box)


def from_first_rank(value: Any) -> Any:
    """Return the value that rank 0 holds, on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm whose training statistics are those of all ranks' samples together.

    Note: `nn.SyncBatchNorm` runs on GPUs only and assumes equal shares; this one runs anywhere,
    shares may be empty.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; in training with the statistics of the batch of all processes."""
        if not self.training or world_size() == 1:
            return super().forward(x)
        over = [0, *range(2, x.ndim)]
        full = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mine = float(x.numel() // max(x.shape[1], 1))
        n = all_reduce_sum(torch.full((1,), mine, dtype=full.dtype, device=x.device))
        mean = all_reduce_sum(full.sum(over)) / n
        shape = [1, -1] + [1] * (x.ndim - 2)
        centred = full - mean.view(shape)
        variance = all_reduce_sum(centred.square().sum(over)) / n
        self._update_running(mean.detach(), (variance * (n / (n - 1).clamp_min(1))).detach())
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(x.dtype)

    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f"batch norm takes [N, C, …]; got {list(x.shape)}")


def synchronize_batch_norm(module: nn.Module) -> None:
    """Replace every batch norm inside a module by a `SyncedBatchNorm`.

    Parameters and buffers stay the same. Nothing happens with a single process.
    """
    if world_size() == 1:
        return
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, SyncedBatchNorm):
                continue
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, _synced(child))


def _synced(norm: nn.modules.batchnorm._BatchNorm) -> SyncedBatchNorm:
    """A synchronized batch norm with the same parameters and buffers."""
    synced = SyncedBatchNorm(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    synced.weight, synced.bias = norm.weight, norm.bias
    for buffer, value in norm.named_buffers():
        setattr(synced, buffer, value)
    synced.train(norm.training)
    return synced
