"""Optimizers and learning-rate schedules by name."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fairmargin.checks import check_choice

# Parameters, or groups of them.
Parameters = Sequence[nn.Parameter] | Sequence[dict[str, Any]]
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
# Methods that PyTorch wraps to keep them out of compiled code.
WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def without_compiler(base: type[AnyOptimizer]) -> type[AnyOptimizer]:
    """Return a subclass that takes the same steps and does not import PyTorch's compiler.

    The wrappers of these methods import it when they are first called, which takes a second of
    every process that trains.
    """
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(base, name)) for name in WRAPPED}
    methods["step"] = torch.no_grad()(inspect.unwrap(base.step))
    facts = {"__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), methods | facts)


Adam = without_compiler(torch.optim.Adam)
AdamW = without_compiler(torch.optim.AdamW)
SGD = without_compiler(torch.optim.SGD)


@without_compiler
class LARS(Optimizer):
    """SGD whose step for each weight matrix is proportional to its norm (You et al., 2017).

        g ← ∇ + wd·w;  v ← momentum·v + lr·η·(‖w‖/‖g‖)·g;  w ← w − v

    Biases and normalization weights (one-dimensional) take plain momentum steps without decay.

    Args:
        parameters: to optimize.
        lr: learning rate.
        weight_decay: wd.
        trust: η, the trust coefficient.
    """

    def __init__(
        self,
        parameters: Parameters,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(parameters, defaults)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient; `closure` is not used."""
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


def _fused(parameters: Parameters) -> bool | None:
    """True if all are on a CPU; elsewhere PyTorch decides.

    It is one pass over the memory of each parameter, equal up to rounding.
    """
    groups = [p["params"] if isinstance(p, dict) else [p] for p in parameters]
    return all(p.device.type == "cpu" for group in groups for p in group) or None


def _adam(p: Parameters, *, lr: float, weight_decay: float, betas: Any, **_: Any) -> Optimizer:
    return Adam(p, lr, tuple(betas), weight_decay=weight_decay, fused=_fused(p))


def _adamw(p: Parameters, *, lr: float, weight_decay: float, betas: Any, **_: Any) -> Optimizer:
    return AdamW(p, lr, tuple(betas), weight_decay=weight_decay, fused=_fused(p))


def _sgd(
    p: Parameters, *, lr: float, weight_decay: float, momentum: float, nesterov: bool, **_: Any
) -> Optimizer:
    return SGD(p, lr, momentum, weight_decay=weight_decay, nesterov=nesterov, fused=_fused(p))


def _lars(p: Parameters, *, lr: float, weight_decay: float, momentum: float, **_: Any) -> Optimizer:
    return LARS(p, lr, momentum, weight_decay)


# Each takes the settings that it has, and ignores the others.
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": _adam,
    "adamw": _adamw,
    "sgd": _sgd,
    "lars": _lars,
}
ScheduleName = Literal["constant", "step", "cosine"]
Per = Literal["epoch", "step"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)


def schedule(
    name: ScheduleName,
    epochs: float,
    *,
    milestones: Sequence[float] = (1 / 3, 2 / 3),
    factor: float = 0.1,
    floor: float = 0.0,
    warmup_epochs: float = 0.0,
    warmup_from: float = 0.01,
    per: Per = "epoch",
) -> Callable[[float], float]:
    """Return the learning rate as a function of epochs done, as a share of the full rate.

    Args:
        name: "constant", "step" or "cosine".
        epochs: E, of the whole training.
        milestones: of "step", epochs after which the rate is multiplied by `factor`; below 1 they
            are shares of `epochs`.
        floor: "cosine" ends at this share of the rate: floor + (1 − floor)(1 + cos πe/E)/2.
        warmup_epochs: linear, step by step, from `warmup_from` to what the schedule has at its end.
        per: "epoch" changes the rate between epochs, "step" continuously.

    Example:
        >>> rate = schedule("cosine", 100)
        >>> rate(50)
        0.5
    """
    check_choice(name, "schedule", SCHEDULES)
    check_choice(per, "schedule.per", get_args(Per))
    ends = [m * epochs if m < 1 else m for m in milestones]

    def rate(epoch: float) -> float:
        if epoch < warmup_epochs:
            return warmup_from + (rate(warmup_epochs) - warmup_from) * epoch / warmup_epochs
        # A step's number divided by the steps of an epoch may fall short of a whole number by
        # rounding.
        e = math.floor(epoch + 1e-9) if per == "epoch" else epoch
        if name == "step":
            return factor ** sum(e >= end - 1e-9 for end in ends)
        if name == "cosine":
            return floor + (1 - floor) * (1 + math.cos(math.pi * min(e / epochs, 1))) / 2
        return 1.0

    return rate


class Player:
    """One player's parameters with its optimizer and learning-rate schedule.

    The rate is a function of the position in the training, so there is nothing to save.

    Args:
        lr: the full learning rate.
        rate: share of it after so many epochs.
        backbone_lr: the full learning rate of the optimizer's group "backbone", if there is one.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        lr: float,
        rate: Callable[[float], float],
        backbone_lr: float | None = None,
    ) -> None:
        self.parameters = parameters
        self.optimizer = optimizer
        self.lr = lr
        self.rate = rate
        self.backbone_lr = backbone_lr

    def set_rate(self, epoch: float) -> float:
        """Set the learning rates after so many epochs, and return that outside of the backbone."""
        share = self.rate(epoch)
        lr = self.lr * share
        for group in self.optimizer.param_groups:
            group["lr"] = lr
            if group.get("backbone") and self.backbone_lr is not None:
                group["lr"] = self.backbone_lr * share
        return lr


def player(
    parameters: list[nn.Parameter],
    optimizer: dict[str, Any],
    rate: Callable[[float], float],
    backbone: Iterable[nn.Parameter] = (),
) -> Player:
    """Return a player for some parameters.

    Args:
        optimizer: name, lr, weight_decay, momentum, betas and nesterov; each optimizer takes what
            it has.
        rate: share of the learning rate after so many epochs, from `schedule`.
        backbone: parameters, of this player or others, that move at `backbone_lr` if it is given.
    """
    settings = dict(optimizer)
    name = settings.pop("name")
    check_choice(name, "optimizer", OPTIMIZERS)
    backbone_lr = settings.pop("backbone_lr", None)
    groups: Parameters = parameters
    if backbone_lr is not None:
        inside = {id(p) for p in backbone}
        slow = [p for p in parameters if id(p) in inside]
        rest = [p for p in parameters if id(p) not in inside]
        both: list[dict[str, Any]] = [{"params": rest}, {"params": slow, "backbone": True}]
        groups = [group for group in both if group["params"]]
    made = OPTIMIZERS[name](groups, **settings)
    return Player(parameters, made, settings["lr"], rate, backbone_lr)
