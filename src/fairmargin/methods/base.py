"""What every method is: some players, each minimising its own loss, in turn."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from fairmargin.batch import Batch
from fairmargin.networks import Encoder

MakeEncoder = Callable[..., Encoder]  # a fresh encoder of the run's network; keywords override its options


class Method(nn.Module, ABC):
    """A method owns its networks and says how they learn; the training loop owns everything else.

    Randomness in `updates` must come from torch's global generator: the loop seeds it at every step, which is what makes
    an interrupted run continue bit by bit. What must survive an interruption is a parameter or a buffer.
    """

    optimisers: Mapping[str, Mapping[str, Any]] = {}  # of some players, where they differ from the run's optimiser
    least_batch = 1  # samples without which its losses say nothing

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, Tensor] = {}  # of the last step, detached, for the log
        self.pairs: Tensor | None = None  # in each set of FairKL, A⁺ C⁺ [A⁻ C⁻], at the last step

    @abstractmethod
    def players(self) -> dict[str, list[nn.Parameter]]:
        """Who is optimised; one optimiser each."""

    @abstractmethod
    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield (player, loss) in the order the players move; code after a `yield` sees the moved weights.

        With several processes every rank yields the loss of the whole batch (`distributed.gather`).
        """

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """[N, D] that evaluation looks at."""

    @abstractmethod
    def predict(self, images: Tensor) -> Tensor:
        """Logits [N, K]."""

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(features, logits); override where one pass gives both."""
        return self.features(images), self.predict(images)
