"""What every method is: some players, each minimising its own loss, in turn."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.data.views import Views
from fairmargin.networks import Encoder

MakeEncoder = Callable[
    ..., Encoder
]  # a fresh encoder of the run's network; keywords override its options
Sweep = Callable[
    [str], Iterable[Batch]
]  # every sample of "train" or "valid" once, in order, without augmentation


@dataclass(frozen=True)
class SecondStream:
    """Batches that a method wants beside the ordinary ones; each step finds the next in `batch.second`."""

    sampler: str  # a name of assemble.SAMPLERS
    batch_size: int
    views: Callable[[Views], Views]  # from the dataset's training views


@dataclass(frozen=True)
class RunLength:
    """How long a run is: its epochs or its steps, whichever end first."""

    epochs: float  # need not be whole
    steps: int


@dataclass(frozen=True)
class FinalStage:
    """When a method becomes what its name says; until then its predictions are another method's.

    A run that ends before is refused. Evaluations before it are logged, and none of them is the best of the run.
    By default a method is in its final stage from the first step on.
    """

    epochs: int = 0  # that come before it
    steps: int = 0  # that come before it
    at_end: bool = False  # it is what `Method.finish` makes
    option: str = ""  # of the method, which says so: "first_epochs=2"
    hint: str = ""  # on that option, for whoever gave too short a run

    def reached(self, epochs: float, steps: int, *, ended: bool) -> bool:
        """Whether a run with so many epochs and steps behind it is in its final stage; `ended`: after `finish`."""
        return ended if self.at_end else epochs > self.epochs and steps > self.steps


class Method(nn.Module, ABC):
    """A method owns its networks and says how they learn; the training loop owns everything else.

    Randomness in `updates` must come from torch's global generator: the loop seeds it at every step, which is what makes
    an interrupted run continue bit by bit. What must survive an interruption is a parameter or a buffer.
    """

    optimizers: Mapping[
        str, Mapping[str, Any]
    ] = {}  # of some players, where they differ from the run's optimizer
    least_batch = 1  # samples without which its losses say nothing
    sampler = "shuffled"  # what an epoch is made of, unless the configuration says otherwise
    second: SecondStream | None = None

    encoder: Encoder
    classifier: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, Tensor] = {}  # of the last step, detached, for the log
        # What was counted at the last step: whole numbers [n] by name, for the log.
        self.counts: dict[str, Tensor] = {}

    @abstractmethod
    def players(self) -> dict[str, list[nn.Parameter]]:
        """Who is optimized; one optimizer each."""

    @abstractmethod
    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield (player, loss) in the order the players move; code after a `yield` sees the moved weights.

        With several processes every rank yields the loss of the whole batch (`distributed.gather`).
        """

    def plan(self, run: RunLength) -> FinalStage:
        """Say when the final stage begins in a run of this length.

        Called once before the first step, and again when a run is resumed: the place to note how long the run is.
        """
        return FinalStage()

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        """Before the first step of every epoch; what it finds out must be kept in buffers or parameters."""

    def finish(self, sweep: Sweep) -> None:
        """After the last step."""

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(features [N, D] that evaluation looks at, logits [N, K]): of `encoder` and `classifier`, unless overridden here.

        `features` and `predict` follow from it, so that no two of them can disagree.
        """
        h = self.encoder(images)
        return h, self.classifier(h)

    def features(self, images: Tensor) -> Tensor:
        return self.inspect(images)[0]

    def predict(self, images: Tensor) -> Tensor:
        return self.inspect(images)[1]


class Unsuited(ValueError):
    """This dataset does not give what the method needs; the message says what to do."""


def require_bias(name: str, info: DataInfo, *, instead: str) -> None:
    """Bias labels, of people or of clusters."""
    if info.bias_names:
        return
    needs = f"{name} needs to know the bias and {info.name} has no bias labels that it may use"
    if info.bias_features:
        raise Unsuited(f"{needs}, only scores; make labels of them with --bias clusters")
    raise Unsuited(
        f'{needs}; give the manifest a "bias" column, or run "fairmargin scores" and train with --bias clusters, '
        f"or train a method that does without, such as {instead}"
    )


def require_bias_features(name: str, info: DataInfo, *, instead: str) -> None:
    """Features of a bias-capturing model."""
    if not info.bias_features:
        raise Unsuited(
            f"{name} needs to know the bias by features of a bias-capturing model and {info.name} comes without; "
            f'run "fairmargin scores" and train with --bias scores, or train {instead}'
        )


def first_view(images: Tensor) -> Tensor:
    """[N, C, H, W]: a sample has one loss in the table, so one view of it is used."""
    return images[:, 0] if images.ndim == 5 else images
