"""Linear evaluation as the contrastive literature does it: a layer trained by SGD on views.

    found = fit_linear(method, data.train, data.train_views, data.info)
    found.logits(features)    # [N, classes] of features h as `evaluate.collect` finds them

Protocol and defaults are those of HobbitLong/SupContrast, main_linear.py with the README's command:
the encoder stays frozen in evaluation mode; the layer reads its raw features h, before a projection
head and not normalized.

Note: that script reports its best epoch on the test set. Here the last epoch is the result.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairmargin.batch import DataInfo
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import WEIGHTS, Shuffled, seeded
from fairmargin.data.split import Split
from fairmargin.data.views import Views, without_colour
from fairmargin.evaluate.modes import evaluating
from fairmargin.losses.inputs import check_ids
from fairmargin.methods.base import Method
from fairmargin.optim import schedule

NAME = "linear evaluation"
# Added to the seed of a run, which is smaller: order and crops are not those of the training.
OWN_NUMBERS = 1 << 33
# (what is going on, batches done, batches in all).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LinearSettings:
    """How the layer learns; by default as SupContrast has it for SupCon encoders.

    Args:
        lr: learning rate at the start; for SimCLR the README of SupContrast says 1.
        epochs: passes over the training samples.
        batch_size: samples of a step.
        momentum: of SGD.
        weight_decay: of SGD.
        milestones: epochs after which the rate is multiplied by `factor`; below 1 they are shares
            of `epochs`.
        seed: of the first weights, the order of the samples and their views.
    """

    lr: float = 5.0
    epochs: int = 100
    batch_size: int = 512
    momentum: float = 0.9
    weight_decay: float = 0.0
    milestones: Sequence[float] = (0.6, 0.75, 0.9)
    factor: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        at_least = {"epochs": 1, "batch_size": 1, "momentum": 0, "weight_decay": 0, "seed": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{NAME} needs {name} of at least {least}; got {value}")
        for name in ("lr", "factor"):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"{NAME} needs {name} above 0; got {value}")


@dataclass(frozen=True)
class Linear:
    """Logits h·Wᵀ + b, and how they were learnt.

    Args:
        weight: W [classes, D] float32, on the CPU.
        bias: b [classes].
        losses: mean cross-entropy of the training views, epoch by epoch.
    """

    weight: Tensor
    bias: Tensor
    losses: tuple[float, ...]

    @property
    def finite(self) -> bool:
        """Whether the training did not diverge."""
        return math.isfinite(self.losses[-1])

    def logits(self, features: Tensor) -> Tensor:
        """Return logits [N, classes] float32 of features [N, D]."""
        if features.ndim != 2 or features.shape[1] != self.weight.shape[1]:
            raise ValueError(
                f"this layer was trained on {self.weight.shape[1]} features per sample; "
                f"got {list(features.shape)}. "
                "Give it features of the same network"
            )
        return F.linear(features.cpu().float(), self.weight, self.bias)


def fit_linear(
    method: Method,
    split: Split,
    views: Views,
    info: DataInfo,
    settings: LinearSettings | None = None,
    *,
    device: torch.device | str = "cpu",
    workers: int = 0,
    after_epoch: Callable[[Linear], None] = lambda layer: None,
    progress: Progress = lambda what, done, of: None,
) -> Linear:
    """Train a linear layer on frozen features of a split's augmented views.

    minimise over W, b   mean_i −log softmax(W h_i + b)_{y_i},   h_i = encoder(a view of image i)

    by SGD with momentum from W, b ~ U(−1/√D, 1/√D). Every epoch shows each image once, as one view
    with the crops and flips of `views` and without their changes of colour. So the encoder goes
    over the split once for each epoch, or once in all if the views change nothing at random.

    Weights, batch-norm statistics, gradients and modes of the method stay what they are. The same
    seed gives the same layer with any number of workers. A loss that is not finite ends the
    training early; see `Linear.finite`.

    Args:
        method: on `device` already.
        split: training samples, decoded as for training.
        views: the dataset's training views.
        after_epoch: called with the layer after every epoch.
        progress: called after every batch.
    """
    settings = settings or LinearSettings()
    n = len(split)
    if not n:
        raise ValueError(
            f"{NAME} needs training samples and there are none; give it the training split"
        )
    _check_labels(split.labels, n, info.num_classes)
    seed = OWN_NUMBERS + settings.seed
    loader = Loader(
        split,
        without_colour(views),
        Shuffled(n, seed),
        settings.batch_size,
        device=device,
        seed=seed,
        workers=workers,
    )
    features = _Features(method, loader)
    steps = settings.epochs * math.ceil(n / settings.batch_size)
    rate = schedule("step", settings.epochs, milestones=settings.milestones, factor=settings.factor)
    losses: list[float] = []
    done = 0
    with evaluating(method), torch.enable_grad():
        layer = first_layer(features.width(info), info.num_classes, settings.seed).to(device)
        sgd = torch.optim.SGD(
            layer.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay
        )
        for epoch in range(settings.epochs):
            sgd.param_groups[0]["lr"] = settings.lr * rate(epoch)
            total = torch.zeros((), device=device)
            for h, y in features.batches(epoch):
                loss = F.cross_entropy(layer(h), y)
                sgd.zero_grad()
                loss.backward()
                sgd.step()
                total += len(y) * loss.detach()
                done += 1
                progress(NAME, done, steps)
            losses.append(float(total) / n)
            if not math.isfinite(losses[-1]):
                break
            after_epoch(_copy(layer, losses))
    return _copy(layer, losses)


def first_layer(width: int, classes: int, seed: int) -> nn.Linear:
    """Return a layer with weight and bias from U(−1/√width, 1/√width), PyTorch's default.

    They depend on the seed alone.

    Args:
        width: D, number of features.
        classes: K, number of logits.
        seed: of the linear evaluation.
    """
    generator = seeded(WEIGHTS, OWN_NUMBERS + seed)
    layer = nn.utils.skip_init(nn.Linear, width, classes)
    bound = 1 / math.sqrt(width)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class _Features:
    """Features h of the samples, batch by batch in the loader's order, without gradient."""

    def __init__(self, method: Method, loader: Loader) -> None:
        self.method, self.loader = method, loader
        self.known: Tensor | None = None  # [N, D], kept where all epochs see the same pixels

    def width(self, info: DataInfo) -> int:
        """D, from a black image."""
        return self._of(torch.zeros(1, *info.image_shape, device=self.loader.device)).shape[1]

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(h [n, D], labels [n]) of every batch of an epoch."""
        if self.known is None:
            return self._seen(epoch)
        return self._remembered(epoch, self.known)

    def _seen(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        seen: list[tuple[Tensor, Tensor]] = []
        self.loader.set_epoch(epoch)
        for batch in self.loader:
            h = self._of(batch.images)
            if not self.loader.views.steps:
                seen.append((batch.index, h))
            yield h, batch.labels
        if seen:
            index = torch.cat([part[0] for part in seen])
            h = torch.cat([part[1] for part in seen])
            self.known = h.index_select(0, index.argsort())

    def _remembered(self, epoch: int, known: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        labels = self.loader.split.labels.to(known.device)
        for index in self.loader.sampler.batches(epoch, self.loader.batch_size):
            rows = index.to(known.device)
            yield known.index_select(0, rows), labels.index_select(0, rows)

    def _of(self, images: Tensor) -> Tensor:
        # Not inference mode: its tensors cannot be saved for a backward pass.
        with torch.no_grad():
            return self.method.features(images).float()


def _copy(layer: nn.Linear, losses: Sequence[float]) -> Linear:
    weight, bias = (parameter.detach().clone().cpu() for parameter in (layer.weight, layer.bias))
    return Linear(weight, bias, tuple(losses))


def _check_labels(labels: Tensor, n: int, classes: int) -> None:
    check_ids(labels, n, "labels")
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"labels must be from 0 to {classes - 1}; got {int(labels.min())} to "
            f"{int(labels.max())}. "
            "Does `info` belong to these samples?"
        )
