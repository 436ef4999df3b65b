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
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairmargin.runtime.waiting import AGAIN, RankLostError, arrival, watched

# Collectives wait so long. Who does not come is noticed by `waiting`, which knows why others wait.
NEVER = timedelta(days=365)
# Seconds after which a process that does not come ends the run.
TIMEOUT = 300.0


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
def processes(device: torch.device, timeout: float = TIMEOUT) -> Iterator[None]:
    """Join the process group that `torchrun` describes in the environment; leave it at the end.

    Nothing is joined without `torchrun`, or if the process is in a group already. Inside, a process
    that does not come is named, and ends the wait for it (`waiting`).

    Args:
        device: of this process; a GPU takes NCCL, a CPU gloo.
        timeout: seconds after which a wait for a process ends.
    """
    if dist.is_available() and dist.is_initialized():
        with _watched(dist.distributed_c10d._get_default_store(), timeout), _said_if_lost():
            yield
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Its functions take the group as a default when they are defined. Imported later, by whatever
    # compiles, they would keep the group and its threads alive to the interpreter's end, where they
    # can abort the process.
    from torch.distributed.nn import functional  # noqa: F401

    store, number, size = _meeting_point(timeout)
    with _watched(store, timeout, number, size):
        with arrival:
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=number,
                world_size=size,
                timeout=NEVER,
            )
        try:
            with _said_if_lost():
                yield
        finally:
            dist.destroy_process_group()


def _meeting_point(timeout: float) -> tuple[Any, int, int]:
    """Return the store that `torchrun` describes, the number of this process and of all."""
    from torch.distributed.rendezvous import rendezvous

    try:
        found = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    except dist.DistError as error:
        raise RankLostError(
            f"not all {os.environ['WORLD_SIZE']} processes came within {timeout:g} s: "
            f"{str(error).splitlines()[0]}. Start all ranks with the same command, or raise "
            "train.timeout_seconds"
        ) from error
    store, number, size = found
    store.set_timeout(NEVER)
    return store, number, size


@contextmanager
def _watched(
    store: Any, timeout: float, number: int | None = None, size: int | None = None
) -> Iterator[None]:
    """Watch over the other processes while inside; nothing to watch with a single one."""
    size = dist.get_world_size() if size is None else size
    number = dist.get_rank() if number is None else number
    if size == 1:
        yield
        return
    # Under torchrun the store belongs to the launcher, elsewhere to rank 0.
    of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    with watched(store, number, size, timeout, None if of_launcher else 0):
        yield


@contextmanager
def _said_if_lost() -> Iterator[None]:
    """Turn what a collective says about a process that ended into one sentence."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        lost = isinstance(error, dist.DistError) or "gloo/transport" in text
        if not lost or world_size() == 1:
            raise
        raise RankLostError(
            f"rank {rank()} lost its connection at step {arrival.step}, because another process of "
            f"this run ended; that one says why, unless it was killed. {AGAIN}"
        ) from error


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
        with arrival:
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
    with arrival:
        dist.all_reduce(box, dist.ReduceOp.MAX)
        return int(box)


def from_first_rank(value: Any) -> Any:
    """Return the value that rank 0 holds, on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    with arrival:
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
    if getattr(norm, "parts", 1) > 1:
        raise ValueError(
            "network.norm_parts splits the batches of one process, and here are several, which "
            "normalize all samples together; leave it out"
        )
    synced = SyncedBatchNorm(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    synced.weight, synced.bias = norm.weight, norm.bias
    for buffer, value in norm.named_buffers():
        setattr(synced, buffer, value)
    synced.train(norm.training)
    return synced
