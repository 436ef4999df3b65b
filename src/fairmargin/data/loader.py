"""Batches of a split, epoch after epoch: a sampler gives the order, views run on the device.

What a batch holds depends on (seed, epoch, its number) only: not on the number of worker processes,
not on the ranks that share it, not on where a run was interrupted.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fairmargin.batch import Batch
from fairmargin.data.samplers import PIXELS, Sampler, seeded
from fairmargin.data.split import ArraySplit, FileSplit, Split
from fairmargin.data.views import PartOf, Views
from fairmargin.runtime.exhausted import WorkerKilled, is_shortage
from fairmargin.runtime.safe_path import safe_path


class Loader:
    """Iterates over the rest of the current epoch, then moves on to the next.

    A loop left by `break` stays where it was, and the next one continues there; `set_epoch` goes to
    the beginning of an epoch. With `world_size` > 1 every rank gets its contiguous part of each
    batch: together, in rank order, they hold what one process would. A last batch smaller than
    `world_size` leaves some ranks an empty part, so that all take the same number of steps.

    Args:
        workers: processes that decode files; pixels in memory need none.
        drop_last: leave out a last batch that is not full.
        bias_features: [N, G], by position in the split.
        rank: which part of each batch to load, of `world_size` parts.
    """

    def __init__(
        self,
        split: Split,
        views: Views,
        sampler: Sampler,
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        workers: int = 0,
        drop_last: bool = False,
        bias_features: Tensor | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank must be from 0 to world_size − 1 = {world_size - 1}; got {rank}"
            )
        if bias_features is not None and len(bias_features) != len(split):
            raise ValueError(
                f"bias_features has {len(bias_features)} rows and the split {len(split)} samples; "
                "export one row per sample, in the order of the split"
            )
        self.split = split
        self.views = views
        self.sampler = sampler
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.seed = seed
        self.workers = workers
        self.drop_last = drop_last
        self.bias_features = bias_features
        self.rank = rank
        self.world_size = world_size
        self._drawn: tuple[int, list[Tensor]] | None = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self.epoch, self.next_batch = epoch, 0

    def __len__(self) -> int:
        """Number of batches in the current epoch, including those already seen."""
        return len(self._batches())

    def state_dict(self) -> dict[str, int]:
        """Return the position, and what it depends on."""
        return {
            "epoch": self.epoch,
            "next_batch": self.next_batch,
            "seed": self.seed,
            "batch_size": self.batch_size,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at a position that `state_dict` returned."""
        for name in ("seed", "batch_size"):
            own = getattr(self, name)
            if state[name] != own:
                raise ValueError(
                    f"this position belongs to a loader with {name}={state[name]} and this one has "
                    f"{name}={own}; build it with the saved value to continue the same run"
                )
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]

    def __iter__(self) -> Iterator[Batch]:
        epoch, first = self.epoch, self.next_batch
        batches = self._batches()[first:]
        bounds = [_bounds(len(batch), self.rank, self.world_size) for batch in batches]
        parts = [batch[start:stop] for batch, (start, stop) in zip(batches, bounds, strict=True)]
        for i, images in enumerate(self._pixels(parts)):
            number = first + i
            # Before the yield, so that a position saved while holding this batch is the one after.
            self.next_batch = number + 1
            randomness = None
            if self.views.steps:
                generator = seeded(PIXELS, self.seed, epoch, number)
                randomness = PartOf(generator, start=bounds[i][0], total=len(batches[i]))
            yield self._assemble(parts[i], images, randomness)
        self.set_epoch(epoch + 1)

    def _batches(self) -> list[Tensor]:
        """Batches of the current epoch, kept because drawing them can be slow."""
        if self._drawn is None or self._drawn[0] != self.epoch:
            drawn = self.sampler.batches(self.epoch, self.batch_size, self.drop_last)
            self._drawn = (self.epoch, drawn)
        return self._drawn[1]

    def _assemble(self, index: Tensor, images: Tensor, randomness: PartOf | None) -> Batch:
        bias, features = self.split.bias, self.bias_features
        if bias is not None:
            bias = bias.index_select(0, index).to(self.device)
        if features is not None:
            features = features.index_select(0, index).to(self.device)
        values = getattr(self.split, "bias_values", None)
        if values is not None:
            values = values.index_select(0, index).to(self.device)
        return Batch(
            images=self.views(images.to(self.device, non_blocking=True), randomness),
            labels=self.split.labels.index_select(0, index).to(self.device),
            bias=bias,
            index=index.to(self.device),
            bias_features=features,
            bias_values=values,
        )

    def _pixels(self, parts: list[Tensor]) -> Iterable[Tensor]:
        fetch = _Fetch(self.split, parts)
        if self.workers == 0 or isinstance(self.split, ArraySplit):
            return map(fetch.__getitem__, range(len(parts)))
        loader = DataLoader(
            fetch,
            batch_size=None,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            # Without one it would draw from the global generator, and workers would change the run.
            generator=torch.Generator(),
        )
        return _from_workers(loader)


def _from_workers(loader: DataLoader[Tensor]) -> Iterator[Tensor]:
    """What its worker processes send; one error for all the ways in which one can be gone."""
    # Its processes start when it is asked for an iterator.
    with safe_path():
        iterator = iter(loader)
    try:
        yield from iterator
    except (EOFError, ConnectionError) as error:
        raise WorkerKilled("a process that reads images was killed") from error


class _Fetch(Dataset[Tensor]):
    """Item k: the pixels of batch k."""

    def __init__(self, split: Split, parts: list[Tensor]) -> None:
        self.split, self.parts = split, parts

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, k: int) -> Tensor:
        index = self.parts[k]
        try:
            if len(index):
                return self.split.images(index)
            # No images, but of the right shape.
            return self.split.images(torch.tensor([0]))[:0]
        except Exception as error:
            if is_shortage(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"{self._culprit(index)}: {reason}") from error

    def _culprit(self, index: Tensor) -> str:
        """Name the first sample of a broken batch that cannot be read alone.

        Decoders do not always name their file.
        """
        for i in index:
            try:
                self.split.images(i[None])
            except Exception:
                name = f"sample {int(i)}"
                if isinstance(self.split, FileSplit):
                    name = str(self.split.paths[int(i)])
                return f"cannot read {name}; repair or remove it"
        return "each image of a batch can be read but not all together; do they have one size?"


def _bounds(n: int, rank: int, world_size: int) -> tuple[int, int]:
    """(start, stop) of a rank's part when n samples are cut into contiguous, nearly equal parts."""
    return n * rank // world_size, n * (rank + 1) // world_size
