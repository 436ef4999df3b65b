"""Blend images of one class across the bias (LISA's intra-label mixing, Yao et al., ICML 2022).

    x̃_i = w·x_i + (1 − w)·x_j,   y_j = y_i,  b_j ≠ b_i,  w uniform in [½, 1]

The class stays, and the bias shows less or not at all. Samples that contradict the shortcut are
few, come often in balanced batches, and are soon known by heart; blended they are new each time.

Note: LISA draws w from Beta(2, 2), and chooses at random between this and mixing two classes of one
bias. Here x_i keeps the larger part, so that losses which compare samples by their bias may go on
with b_i.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fairmargin.batch import Batch
from fairmargin.runtime.distributed import from_first_rank, gather, gather_with_place

# How many samples of its class a sample is offered; it takes the first of another bias.
OFFERS = 4


@torch.no_grad()
def mixed_across_bias(batch: Batch, share: float) -> Batch:
    """Return the batch with a share of its images blended with others of all processes.

    Args:
        batch: with bias labels; samples of unknown bias stay as they are.
        share: of the images, 0 to 1. Those without a partner in the batch stay as they are.
    """
    if share == 0 or batch.bias is None:
        return batch
    images, mine = gather_with_place(batch.images)
    labels, bias = gather(batch.labels, batch.bias)
    n = len(labels)
    drawn = from_first_rank((torch.randperm(n), torch.rand(2, n)))
    order, (chance, weight) = (one.to(labels.device) for one in drawn)
    other = partners(labels, bias, order)
    # w = 1 leaves an image as it is.
    w = torch.where((other >= 0) & (chance < share), 0.5 + weight / 2, 1)[mine]
    w = w.to(images.dtype).view(-1, *[1] * (images.ndim - 1))
    return replace(batch, images=w * batch.images + (1 - w) * images[other.clamp_min(0)[mine]])


def partners(labels: Tensor, bias: Tensor, order: Tensor) -> Tensor:
    """Return a sample of the same class and another bias for each, [N]; −1 where none is found.

    The samples of a class stand in a circle in the order given; each is offered those that follow
    it, OFFERS at the most. Time and memory are linear in N but for sorting.

    Args:
        labels: [N].
        bias: [N]; −1 is unknown, and has no partner.
        order: a permutation of N.
    """
    place = order[labels[order].argsort(stable=True)]  # by class, in the order given within it
    y, b = labels[place], bias[place]
    first = torch.searchsorted(y, y)
    size = torch.searchsorted(y, y, right=True) - first
    position = torch.arange(len(y), device=y.device) - first
    found = torch.full_like(place, -1)
    for step in range(1, OFFERS + 1):
        offered = first + (position + step) % size
        fits = (found < 0) & (b >= 0) & (b[offered] >= 0) & (b[offered] != b)
        found = torch.where(fits, place[offered], found)
    return torch.full_like(found, -1).scatter(0, place, found)


__all__ = ["mixed_across_bias", "partners"]
