"""The training loop: players move in turn, whatever the method.

Precision, clipping and synchronization live here.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.batch import Batch
from fairmargin.checks import check_choice
from fairmargin.data.loader import Loader
from fairmargin.methods.base import FinalStage, Method, Sweep
from fairmargin.networks import Encoder
from fairmargin.optim import Player
from fairmargin.runtime import distributed, waiting

# Smallest scale of a float16 loss: where this has not helped, nothing will.
LEAST_SCALE = 2**-10
Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Diverged(RuntimeError):
    """A loss is not finite; the message says which, where, and what to do."""


class Training:
    """Everything that changes while a method is trained, which is what a checkpoint holds.

    Args:
        method: the method to train.
        players: its players by name, with their optimizers.
        loader: batches of the training split.
        seed: with the step, decides all random numbers of a step.
        precision: of the forward passes.
        clip: largest norm of a player's gradient; None does not clip.
        channels_last: keep images and weights in that memory order.
        compiled: compile the encoders.
        second: batches of a second stream, where the method asks for one.
        sweep: how the method goes over all samples of a split between epochs.
        final_stage: what the method planned for this run; without it the method is in its final
            stage from the start.
    """

    def __init__(
        self,
        method: Method,
        players: dict[str, Player],
        loader: Loader,
        *,
        seed: int,
        precision: Precision = "float32",
        clip: float | None = None,
        channels_last: bool = False,
        compiled: bool = False,
        second: Loader | None = None,
        sweep: Sweep | None = None,
        final_stage: FinalStage | None = None,
    ) -> None:
        check_choice(precision, "precision", get_args(Precision))
        self.method = method
        self.players = players
        self.loader = loader
        self.seed = seed
        self.second = second
        self.sweep = sweep or _no_sweep
        self.final_stage = final_stage or FinalStage()
        self._stream: Iterator[Batch] = iter(())
        self.device = loader.device
        self.precision: Precision = precision
        self.clip = clip
        self.channels_last = channels_last
        self.compiled = compiled
        # Half precision loses small gradients unless they are scaled; the other precisions have
        # float32's range.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "float16")
        self.step = 0
        # Accelerators are waited for to check values in the first step of a run, begun or resumed,
        # and not again.
        self.values_checked = False
        # The step after which the method was told that it was the last.
        self.ended_at: int | None = None
        # Learning rates of the players that moved in the last step.
        self.rates: dict[str, float] = {}
        distributed.synchronize_batch_norm(method)
        if channels_last:
            method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if compiled:
            for module in method.modules():
                if isinstance(module, Encoder):
                    module.compile()

    @property
    def in_final_stage(self) -> bool:
        """Whether the method, as it stands, is what its name says.

        This follows from how far the run is, so there is nothing to save.
        """
        epochs = float(self.loader.epoch)
        if self.loader.next_batch:
            epochs += self.loader.next_batch / len(self.loader)
        return self.final_stage.reached(epochs, self.step, ended=self.ended_at == self.step)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed training needs."""
        optimizers = {name: player.optimizer.state_dict() for name, player in self.players.items()}
        state = {
            "step": self.step,
            "ended_at": self.ended_at,
            "method": self.method.state_dict(),
            "players": optimizers,
            "loader": self.loader.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        if self.second is not None:
            state["second"] = self.second.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.step, self.ended_at = state["step"], state["ended_at"]
        self.method.load_state_dict(state["method"])
        for name, player in self.players.items():
            player.optimizer.load_state_dict(state["players"][name])
        self.loader.load_state_dict(state["loader"])
        self.scaler.load_state_dict(state["scaler"])
        if self.second is not None:
            self.second.load_state_dict(state["second"])
            self._stream = iter(())

    def advance(self, batch: Batch, epoch: float) -> None:
        """Train on one batch: every player moves in its turn.

        Args:
            epoch: how many epochs are done, with fractions; for the learning rates.
        """
        waiting.at_step(self.step + 1)
        _seed(self.seed, self.step)
        moved = set()
        if self.second is not None:
            batch = replace(batch, second=self._next_of(self.second))
        if self.channels_last and batch.images.ndim == 4:
            images = batch.images.contiguous(memory_format=torch.channels_last)
            batch = replace(batch, images=images)
        for name, loss in self._updates(batch):
            player = self.players[name]
            self.rates[name] = player.set_rate(epoch)
            moved.add(name)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise Diverged(self._cause(batch, f"the loss of player {name!r} is {value}"))
            player.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward(inputs=player.parameters)
            distributed.average_gradients(player.parameters)
            if self.clip is not None:
                self.scaler.unscale_(player.optimizer)
                nn.utils.clip_grad_norm_(player.parameters, self.clip)
            self.scaler.step(player.optimizer)
            self.scaler.update()  # here and not once a step: a player may move twice in it
            if self.scaler.get_scale() < LEAST_SCALE:
                what = f"the gradients of player {name!r} are not finite at any scale of its loss"
                raise Diverged(self._cause(batch, what))
        self.rates = {name: rate for name, rate in self.rates.items() if name in moved}
        self.values_checked = True
        self.step += 1
        if not self.compiled:
            waiting.prepared()

    def _next_of(self, loader: Loader) -> Batch:
        """The next batch of the second stream, which starts again when it ends."""
        batch = next(self._stream, None)
        while batch is None:
            self._stream = iter(loader)
            batch = next(self._stream, None)
        return batch

    def _updates(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """The method's updates, each computed under autocast.

        Backward passes and optimizer steps stay outside of it.
        """
        updates = self.method.updates(batch, self.step)
        dtype = PRECISIONS[self.precision]
        while True:
            try:
                look = nullcontext() if self.values_checked else losses.check(True)
                with look, torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
                    item = next(updates, None)
            except ValueError as error:  # losses refuse features that are not finite
                if _finite(batch.images) and all(_finite(p) for p in self.method.parameters()):
                    raise
                raise Diverged(self._cause(batch, str(error))) from error
            if item is None:
                return
            yield item

    def _cause(self, batch: Batch, what: str) -> str:
        """A message about a training that diverged, with its likely cause and what to do."""
        terms = ", ".join(
            f"{name} = {float(value.detach()):.4g}" for name, value in self.method.terms.items()
        )
        broken = [name for name, value in self.method.terms.items() if not _finite(value)]
        bad = [i for i, x in zip(batch.index.tolist(), batch.images, strict=True) if not _finite(x)]
        lr = max(self.rates.values(), default=0)
        if bad:
            some = ", ".join(map(str, bad[:5]))
            why = (
                f"input images are not finite (samples {some} of the training set): check the data"
            )
        elif not all(_finite(p) for p in self.method.parameters()):
            why = (
                "an earlier step made weights infinite: "
                f"lower optimizer.lr (now {lr:g}) or set train.clip=1"
            )
        elif self.precision == "float16":
            why = "a value left the range of float16: use train.precision=bfloat16 or float32"
        else:
            term = broken[0] if broken else "itself"
            why = f"the term {term} overflowed: lower its weight or optimizer.lr (now {lr:g})"
        where = f"step {self.step}, epoch {self.loader.epoch}"
        return f"{where}: {what}. Terms: {terms or 'none yet'}. Likely cause: {why}"


def fit(
    training: Training,
    epochs: int,
    *,
    steps: int | None = None,
    after_step: Callable[[Batch], None] = lambda batch: None,
    after_epoch: Callable[[], None] = lambda: None,
) -> None:
    """Train from where `training` stands until so many epochs, or steps, are done.

    Args:
        epochs: in all, those that are done already included.
        steps: in all; None for no limit.
        after_step: called with each batch after its step.
        after_epoch: called at the end of every epoch, also of one that `steps` cuts short.
    """
    loader, method = training.loader, training.method
    enough: Callable[[], bool] = lambda: loader.epoch >= epochs or training.step == steps
    while not (enough() and training.ended_at == training.step):
        if loader.next_batch == 0 and not enough():
            with waiting.unlimited():
                method.start_epoch(loader.epoch, training.sweep)
        method.train()
        number = len(loader)
        for batch in () if enough() else loader:
            training.advance(batch, loader.epoch + (loader.next_batch - 1) / number)
            after_step(batch)
            if enough():
                break
        # Every shape of a batch has been compiled.
        waiting.prepared()
        with waiting.unlimited():
            if enough():
                method.finish(training.sweep)
                training.ended_at = training.step
            after_epoch()


def _no_sweep(split: str) -> Iterable[Batch]:
    raise ValueError(
        f"this training was set up without a way to sweep over the {split} samples; give it one: "
        "sweep=…"
    )


def _seed(seed: int, step: int) -> None:
    """Seed the random numbers of a step by the seed, the step and the rank alone.

    So no generator needs to be saved.
    """
    state = np.random.SeedSequence((seed, step, distributed.rank())).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]))


def _finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x.detach()).all())
