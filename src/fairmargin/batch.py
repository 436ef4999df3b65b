"""What a dataset gives and a method takes: batches of samples, and the facts about them."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class DataInfo:
    """Facts about a dataset that methods, evaluation and reports need.

    Args:
        name: of the dataset.
        class_names: one for each label.
        bias_names: one for each bias value; empty if the bias is not known.
        image_shape: channels, height, width; of vectors, their length alone.
        counts: [classes, biases] of the training split, without samples of unknown bias.
        notes: palette, provenance, what was skipped, … for the run record.
        train_size: samples of the training split, for methods that keep something for each. A run
            fills it in.
        bias_features: how many features each sample brings from a bias-capturing model; 0 for none.
            A run fills it in.
        bias_parts: of a bias made of several columns, the value of each bias name in each column;
            empty if there is one column.
    """

    name: str
    class_names: tuple[str, ...]
    bias_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    counts: Tensor
    notes: dict[str, str] = field(default_factory=dict)
    train_size: int = 0
    bias_features: int = 0
    bias_parts: tuple[tuple[int, ...], ...] = ()

    @property
    def has_vectors(self) -> bool:
        """Whether samples are vectors, not images."""
        return len(self.image_shape) == 1

    @property
    def num_classes(self) -> int:
        """Number of labels."""
        return len(self.class_names)

    @property
    def num_biases(self) -> int:
        """Number of bias values; 0 if the bias is not known."""
        return len(self.bias_names)


@dataclass(frozen=True)
class Batch:
    """Samples on one device.

    Args:
        images: [N, C, H, W], or [N, V, C, H, W] with several views; floats, normalized.
        labels: [N].
        bias: [N], −1 for unknown; None if the bias is not known.
        index: [N] position of each sample in its split, for what is kept sample by sample.
        bias_features: [N, G] of a bias-capturing model.
        bias_values: [N, k], a bias that is numbers, NaN for unknown; None if it is labels.
        second: a batch of the second stream, where a method asks for one.
    """

    images: Tensor
    labels: Tensor
    bias: Tensor | None
    index: Tensor
    bias_features: Tensor | None = None
    bias_values: Tensor | None = None
    second: "Batch | None" = None

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on a device."""
        moved = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if value is not None
        }
        return replace(self, **moved)
