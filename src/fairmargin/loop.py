"""The training loop: players move in turn, whatever the method. Precision, clipping and synchronization live here."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

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
from fairmargin.runtime import distributed

LEAST_SCALE = 2**-10  # of a float16 loss: where this has not helped, nothing will
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Diverged(RuntimeError):
    """A loss is not finite; the message says which, where, and what to do."""


class Training:
    """Everything that moves while a method is trained, which is what a checkpoint holds."""

    def __init__(
        self,
        method: Method,
        players: dict[str, Player],
        loader: Loader,
        *,
        seed: int,
        precision: str = "float32",
        clip: float | None = None,
        channels_last: bool = False,
        compiled: bool = False,
        second: Loader | None = None,
        sweep: Sweep | None = None,
        final_stage: FinalStage | None = None,
    ) -> None:
        """`final_stage`: what the method planned for this run; without, it is in its final stage from the start."""
        check_choice(precision, "precision", PRECISIONS)
        self.method, self.players, self.loader, self.seed = method, players, loader, seed
        self.second, self.sweep = second, sweep or _nothing
        self.final_stage = final_stage or FinalStage()
        self._stream: Iterator[Batch] = iter(())
        self.device = loader.device
        self.precision, self.clip, self.channels_last = precision, clip, channels_last
        # Half precision loses small gradients unless they are scaled; the other precisions have float32's range.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "float16")
        self.step = 0
        # Accelerators are waited for to check values in the first step of a run, begun or resumed, and not again.
        self.values_checked = False
        self.ended_at: int | None = (
            None  # the step after which the method was told that it was the last
        )
        self.rates: dict[str, float] = {}  # of the players that moved in the last step
        distributed.synchronize_batch_norm(method)
        if channels_last:
            method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if compiled:
            for module in method.modules():
                if isinstance(module, Encoder):
                    module.compile()

    @property
    def in_final_stage(self) -> bool:
        """Whether the method, as it stands, is what its name says: a matter of how far the run is, so nothing to save."""
        epochs = float(self.loader.epoch)
        if self.loader.next_batch:
            epochs += self.loader.next_batch / len(self.loader)
        return self.final_stage.reached(epochs, self.step, ended=self.ended_at == self.step)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "ended_at": self.ended_at,
            "method": self.method.state_dict(),
            "players": {
                name: player.optimizer.state_dict() for name, player in self.players.items()
            },
            "loader": self.loader.state_dict(),
            "scaler": self.scaler.state_dict(),
            **({"second": self.second.state_dict()} if self.second is not None else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
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
        """One batch: every player moves in its turn."""
        _seed(self.seed, self.step)
        moved = set()
        if self.second is not None:
            batch = replace(batch, second=self._next_of(self.second))
        if self.channels_last and batch.images.ndim == 4:
            batch = replace(
                batch, images=batch.images.contiguous(memory_format=torch.channels_last)
            )
        for name, loss in self._updates(batch):
            player = self.players[name]
            self.rates[name] = player.set_rate(epoch)
            moved.add(name)
            if not math.isfinite(float(loss.detach())):
                raise Diverged(
                    self._cause(batch, f"the loss of player {name!r} is {float(loss.detach())}")
                )
            player.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward(inputs=player.parameters)
            distributed.average_gradients(player.parameters)
            if self.clip is not None:
                self.scaler.unscale_(player.optimizer)
                nn.utils.clip_grad_norm_(player.parameters, self.clip)
            self.scaler.step(player.optimizer)
            self.scaler.update()  # here and not once a step: a player may move twice in it
            if self.scaler.get_scale() < LEAST_SCALE:
                raise Diverged(
                    self._cause(
                        batch,
                        f"the gradients of player {name!r} are not finite at any scale of its loss",
                    )
                )
        self.rates = {name: rate for name, rate in self.rates.items() if name in moved}
        self.values_checked = True
        self.step += 1

    def _next_of(self, loader: Loader) -> Batch:
        """The next batch of the second stream, which starts again when it ends."""
        batch = next(self._stream, None)
        while batch is None:
            self._stream = iter(loader)
            batch = next(self._stream, None)
        return batch

    def _updates(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """The method's, each computed under autocast; backward passes and optimizer steps stay outside of it."""
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
        terms = ", ".join(
            f"{name} = {float(value.detach()):.4g}" for name, value in self.method.terms.items()
        )
        broken = [name for name, value in self.method.terms.items() if not _finite(value)]
        bad = [i for i, x in zip(batch.index.tolist(), batch.images, strict=True) if not _finite(x)]
        lr = max(self.rates.values(), default=0)
        if bad:
            why = f"input images are not finite (samples {', '.join(map(str, bad[:5]))} of the training set): check the data"
        elif not all(_finite(p) for p in self.method.parameters()):
            why = f"an earlier step made weights infinite: lower optimizer.lr (now {lr:g}) or set train.clip=1"
        elif self.precision == "float16":
            why = "a value left the range of float16: use train.precision=bfloat16 or float32"
        else:
            why = f"the term {broken[0] if broken else 'itself'} overflowed: lower its weight or optimizer.lr (now {lr:g})"
        return f"step {self.step}, epoch {self.loader.epoch}: {what}. Terms: {terms or 'none yet'}. Likely cause: {why}"


def fit(
    training: Training,
    epochs: int,
    *,
    steps: int | None = None,
    after_step: Callable[[Batch], None] = lambda batch: None,
    after_epoch: Callable[[], None] = lambda: None,
) -> None:
    """Train from where `training` stands until so many epochs, or steps, are done."""
    loader, method = training.loader, training.method
    enough: Callable[[], bool] = lambda: loader.epoch >= epochs or training.step == steps
    while not (enough() and training.ended_at == training.step):
        if loader.next_batch == 0 and not enough():
            method.start_epoch(loader.epoch, training.sweep)
        method.train()
        number = len(loader)
        for batch in () if enough() else loader:
            training.advance(batch, loader.epoch + (loader.next_batch - 1) / number)
            after_step(batch)
            if enough():
                break
        if enough():
            method.finish(training.sweep)
            training.ended_at = training.step
        after_epoch()


def _nothing(split: str) -> Iterable[Batch]:
    raise ValueError(
        f"this training was set up without a way to sweep over the {split} samples; give it one: sweep=…"
    )


def _seed(seed: int, step: int) -> None:
    """Random numbers of a step depend on the seed, the step and the rank alone: no generator needs to be saved."""
    state = np.random.SeedSequence((seed, step, distributed.rank())).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]))


def _finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x.detach()).all())
