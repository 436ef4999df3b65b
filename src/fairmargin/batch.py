"""What a dataset gives and a method takes: batches of samples, and the facts about them."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class DataInfo:
    """Facts about a dataset that methods, evaluation and reports need."""

    name: str
    class_names: tuple[str, ...]
    bias_names: tuple[str, ...]  # empty: nobody wrote the bias down
    image_shape: tuple[int, int, int]  # channels, height, width
    counts: Tensor  # [classes, biases] of the training split; samples of unknown bias are not in it
    notes: dict[str, str] = field(
        default_factory=dict
    )  # palette, provenance, what was skipped, … for the run record
    train_size: int = 0  # samples of the training split, for methods that keep something for each; a run fills it in
    bias_features: int = (
        0  # how many each sample brings from a bias-capturing model; 0: none. Likewise
    )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_biases(self) -> int:
        return len(self.bias_names)


@dataclass(frozen=True)
class Batch:
    """Samples on one device. Images are float and normalized."""

    images: Tensor  # [N, C, H, W], or [N, V, C, H, W] with several views
    labels: Tensor  # [N]
    bias: Tensor | None  # [N]; −1: unknown
    index: Tensor  # [N] position in its split, for whatever is kept sample by sample
    bias_features: Tensor | None = None  # [N, G] of a bias-capturing model
    second: "Batch | None" = None  # of the second stream, where a method asks for one

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        moved = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if value is not None
        }
        return replace(self, **moved)
