"""Optimizers and learning-rate schedules by name."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from fairmargin.checks import check_choice


class LARS(Optimizer):
    """SGD whose step for each weight matrix is proportional to the matrix's own norm (You, Gitman & Ginsburg, 2017).

    g ← ∇ + wd·w;  v ← momentum·v + lr·η·(‖w‖/‖g‖)·g;  w ← w − v

    Biases and normalization weights (one-dimensional) take plain momentum steps without decay.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        super().__init__(
            parameters,
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust},
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
                    velocity.mul_(group["momentum"]).add_(self._scaled(p, group), alpha=group["lr"])
                    p.sub_(velocity)

    def _scaled(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        assert p.grad is not None
        if p.ndim < 2:
            return p.grad
        g = p.grad.add(p, alpha=group["weight_decay"])
        size, slope = p.norm(), g.norm()
        return g * torch.where((size > 0) & (slope > 0), group["trust"] * size / slope, 1.0)


def _fused(parameters: Sequence[nn.Parameter]) -> bool | None:
    """True if all are on a CPU: one pass over the memory of each, equal up to rounding. Elsewhere PyTorch decides."""
    return all(p.device.type == "cpu" for p in parameters) or None


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": lambda p, *, lr, weight_decay, betas, **_: Adam(
        p, lr, tuple(betas), weight_decay=weight_decay, fused=_fused(p)
    ),
    "adamw": lambda p, *, lr, weight_decay, betas, **_: AdamW(
        p, lr, tuple(betas), weight_decay=weight_decay, fused=_fused(p)
    ),
    "sgd": lambda p, *, lr, weight_decay, momentum, nesterov, **_: SGD(
        p, lr, momentum, weight_decay=weight_decay, nesterov=nesterov, fused=_fused(p)
    ),
    "lars": lambda p, *, lr, weight_decay, momentum, **_: LARS(p, lr, momentum, weight_decay),
}
SCHEDULES = ("constant", "step", "cosine")


def schedule(
    name: str,
    epochs: float,
    *,
    milestones: Sequence[float] = (1 / 3, 2 / 3),
    factor: float = 0.1,
    floor: float = 0.0,
    warmup_epochs: float = 0.0,
    warmup_from: float = 0.01,
    per: str = "epoch",
) -> Callable[[float], float]:
    """The learning rate, as a share of the full one, after so many epochs (which need not be whole).

    Args:
        milestones: of "step", epochs after which the rate is multiplied by `factor`; below 1 they are shares of `epochs`.
        floor: "cosine" ends at this share of the rate: floor + (1 − floor)(1 + cos πe/E)/2.
        warmup_epochs: linear, step by step, from `warmup_from` to what the schedule has at its end.
        per: "epoch" changes the rate between epochs, "step" continuously.
    """
    check_choice(name, "schedule", SCHEDULES)
    check_choice(per, "schedule.per", ("epoch", "step"))
    ends = [m * epochs if m < 1 else m for m in milestones]

    def rate(epoch: float) -> float:
        if epoch < warmup_epochs:
            return warmup_from + (rate(warmup_epochs) - warmup_from) * epoch / warmup_epochs
        # A step's number divided by the steps of an epoch may fall short of a whole number by rounding.
        e = math.floor(epoch + 1e-9) if per == "epoch" else epoch
        if name == "step":
            return factor ** sum(e >= end - 1e-9 for end in ends)
        if name == "cosine":
            return floor + (1 - floor) * (1 + math.cos(math.pi * min(e / epochs, 1))) / 2
        return 1.0

    return rate


class Player:
    """One player's parameters with its optimizer and schedule. The rate is a function of the position: nothing to save."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        lr: float,
        rate: Callable[[float], float],
    ) -> None:
        self.parameters, self.optimizer, self.lr, self.rate = parameters, optimizer, lr, rate

    def set_rate(self, epoch: float) -> float:
        lr = self.lr * self.rate(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr


def player(
    parameters: list[nn.Parameter], optimizer: dict[str, Any], rate: Callable[[float], float]
) -> Player:
    """`optimizer` holds name, lr, weight_decay, momentum, betas and nesterov; each optimizer takes what it has."""
    settings = dict(optimizer)
    name = settings.pop("name")
    check_choice(name, "optimizer", OPTIMIZERS)
    return Player(parameters, OPTIMIZERS[name](parameters, **settings), settings["lr"], rate)
