"""Classifiers on frozen features that are reported, kept and exported instead of a method's own."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairmargin.batch import Batch
from fairmargin.evaluate.probe import Probe, knn_logits
from fairmargin.methods.base import Method
from fairmargin.vectors import unit

# Logit of a class that was not in the training labels; −inf would make exported files fail.
NEVER = -1e4


class LinearHead(nn.Module):
    """Logits W·h/‖h‖ + c of features h [N, D]."""

    weight: Tensor
    intercept: Tensor

    def __init__(self, weight: Tensor, intercept: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.float())
        self.register_buffer("intercept", intercept.float().clamp_min(NEVER))

    @staticmethod
    def of(probe: Probe) -> "LinearHead":
        """Return the head that gives the logits of a fitted probe."""
        return LinearHead(probe.weight, probe.intercept)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [N, classes]."""
        return F.linear(unit(features.float()), self.weight, self.intercept)


class NeighborHead(nn.Module):
    """Logs of the vote shares of the nearest training samples; see `probe.knn_logits`."""

    features: Tensor
    labels: Tensor
    classes: Tensor

    def __init__(self, features: Tensor, labels: Tensor, classes: int | Tensor) -> None:
        super().__init__()
        self.register_buffer("features", features.float())
        self.register_buffer("labels", labels.long())
        self.register_buffer("classes", torch.as_tensor(classes))

    def forward(self, features: Tensor) -> Tensor:
        """Logits [N, classes]."""
        return knn_logits(self.features, self.labels, features, int(self.classes))


Head = LinearHead | NeighborHead


def head_from(tensors: Mapping[str, Tensor]) -> Head:
    """Return the head whose `state_dict` this is."""
    if "weight" in tensors:
        return LinearHead(tensors["weight"], tensors["intercept"])
    return NeighborHead(tensors["features"], tensors["labels"], tensors["classes"])


class WithHead(Method):
    """A trained method that answers by a classifier fitted to its features. It is not trained."""

    def __init__(self, method: Method, head: Head) -> None:
        super().__init__()
        self.method, self.head = method, head
        self.encoder = method.encoder

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Nothing moves."""
        return {}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Nothing is learned."""
        return iter(())

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the method's features, and the logits of the head."""
        features, _ = self.method.inspect(images)
        return features, self.head(features)
