"""What every method is: some players, each minimising its own loss, in turn."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.data.views import Views
from fairmargin.networks import Encoder

# Makes a fresh encoder of the run's network; keywords override its options.
MakeEncoder = Callable[..., Encoder]
# Every sample of "train" or "valid" once, in order, without augmentation.
Sweep = Callable[[str], Iterable[Batch]]


@dataclass(frozen=True)
class SecondStream:
    """Batches that a method wants besides the ordinary ones; each step finds one in `batch.second`.

    Args:
        sampler: a name of `runs.build.SAMPLERS`.
        views: makes the views of this stream from the dataset's training views.
    """

    sampler: str
    batch_size: int
    views: Callable[[Views], Views]


@dataclass(frozen=True)
class RunLength:
    """How long a run is: its epochs or its steps, whichever end first.

    Args:
        epochs: need not be whole.
    """

    epochs: float
    steps: int


@dataclass(frozen=True)
class FinalStage:
    """When a method becomes what its name says; until then its predictions are another method's.

    A run that ends before is refused. Evaluations before it are logged, and none of them is the
    best of the run. By default a method is in its final stage from the first step on.

    Args:
        epochs: that come before it.
        steps: that come before it.
        at_end: it is what `Method.finish` makes.
        option: the method's option that decides this, for the message: "first_epochs=2".
        hint: advice on that option, for a run that is too short.
    """

    epochs: int = 0
    steps: int = 0
    at_end: bool = False
    option: str = ""
    hint: str = ""

    def reached(self, epochs: float, steps: int, *, ended: bool) -> bool:
        """Return whether a run is in its final stage.

        Args:
            epochs: that the run has behind it.
            steps: that the run has behind it.
            ended: whether `Method.finish` was called.
        """
        if self.at_end:
            return ended
        return epochs > self.epochs and steps > self.steps


class Method(nn.Module, ABC):
    """A method owns its networks and says how they learn; the training loop owns everything else.

    Randomness in `updates` must come from torch's global generator. The loop seeds it at every
    step, so that an interrupted run continues bit by bit. What must survive an interruption is a
    parameter or a buffer.

    Attributes:
        optimizers: settings of some players that differ from the run's optimizer.
        least_batch: samples that a batch needs for the losses to mean something.
        sampler: how batches are drawn, unless the configuration says otherwise.
        second: batches wanted besides the ordinary ones, if any.
        terms: the loss terms of the last step, detached, for the log.
        counts: what was counted at the last step, whole numbers [n] by name, for the log.
    """

    optimizers: Mapping[str, Mapping[str, Any]] = {}
    least_batch = 1
    sampler = "shuffled"
    second: SecondStream | None = None

    encoder: Encoder
    classifier: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    @abstractmethod
    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of each player; each player has an optimizer of its own."""

    @abstractmethod
    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield (player, loss) in the order the players move.

        Code after a `yield` sees the moved weights. With several processes every rank yields the
        loss of the whole batch (`distributed.gather`).
        """

    def plan(self, run: RunLength) -> FinalStage:
        """Return when the final stage begins in a run of this length.

        Called once before the first step, and again when a run is resumed: the place to note how
        long the run is.
        """
        return FinalStage()

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        """Prepare an epoch, before its first step; keep what is found in buffers or parameters."""

    def finish(self, sweep: Sweep) -> None:
        """Complete the method after the last step."""

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features [N, D] that evaluation looks at, and the logits [N, K].

        They are those of `encoder` and `classifier`, unless a method overrides this. `features`
        and `predict` follow from it, so that no two of them can disagree.
        """
        h = self.encoder(images)
        return h, self.classifier(h)

    def features(self, images: Tensor) -> Tensor:
        """Return the features [N, D] that evaluation looks at."""
        return self.inspect(images)[0]

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits [N, K]."""
        return self.inspect(images)[1]


class Unsuited(ValueError):
    """This dataset does not give what the method needs; the message says what to do."""


def require_bias(name: str, info: DataInfo, *, instead: str) -> None:
    """Refuse a dataset without bias labels, given by people or by clusters.

    Args:
        name: of the method.
        instead: a method that does without.
    """
    if info.bias_names:
        return
    needs = f"{name} needs to know the bias and {info.name} has no bias labels that it may use"
    if info.bias_features:
        raise Unsuited(f"{needs}, only scores; make labels of them with --bias clusters")
    raise Unsuited(
        f'{needs}; give the manifest a "bias" column, or run "fairmargin scores" and train with '
        f"--bias clusters, or train a method that does without, such as {instead}"
    )


def require_bias_features(name: str, info: DataInfo, *, instead: str) -> None:
    """Refuse a dataset without features of a bias-capturing model.

    Args:
        name: of the method.
        instead: a method that does without, and when to train it.
    """
    if not info.bias_features:
        raise Unsuited(
            f"{name} needs to know the bias by features of a bias-capturing model and {info.name} "
            'comes without; run "fairmargin scores" and train with --bias scores, or train '
            f"{instead}"
        )


def first_view(images: Tensor) -> Tensor:
    """Return the first view of each image, [N, C, H, W].

    For methods that keep one loss for each sample.
    """
    return images[:, 0] if images.ndim == 5 else images
