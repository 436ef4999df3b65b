"""How much two samples share the bias: by equal labels, by like features, or by near values.

A *cue* is what is known of the bias of each sample, one row for each. `alignment` compares the cues
of two sets of samples; `cues_of_labels` and `cues_of_values` make them of bias attributes.
"""

from typing import Literal

import torch
from torch import Tensor

from fairmargin.losses.choices import Biases
from fairmargin.runtime import distributed
from fairmargin.vectors import median_distance, settled

# "labels": 1 or 0, for cues [N] of integers. "cosine": for cues [N, G] of unit features. The
# kernels: for cues [N, k] of values in units of their bandwidth.
Alike = Literal["labels", "cosine", "gaussian", "box"]


def alignment(
    cue_a: Tensor, cue: Tensor, alike: Alike, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return how much each pair shares the bias, and whether that is known: both [c, N], 0 to 1.

    Args:
        cue_a: cues of the anchors, c rows.
        cue: cues of all samples, N rows.
        alike: how two cues are compared.
        dtype: of the result.
    """
    if alike == "labels":
        known = (cue_a[:, None] >= 0) & (cue[None, :] >= 0)
        return (cue_a[:, None] == cue[None, :]).to(dtype), known.to(dtype)
    if alike == "cosine":
        aligned = settled((cue_a @ cue.T).clamp(0, 1)).to(dtype)
        return aligned, torch.ones_like(aligned)
    # Column by column: products would lose what tells near values apart.
    distance = torch.zeros(len(cue_a), len(cue), dtype=cue.dtype, device=cue.device)
    for mine, theirs in zip(cue_a.unbind(1), cue.unbind(1), strict=True):
        step = (mine[:, None] - theirs).square()
        distance = distance + step if alike == "gaussian" else torch.maximum(distance, step)
    known = ~distance.isnan()
    distance = torch.where(known, distance, 0)
    if alike == "gaussian":
        return settled((-distance / 2).exp()).to(dtype), known.to(dtype)
    return (distance <= 1).to(dtype), known.to(dtype)


def is_known(cue: Tensor, alike: Alike) -> Tensor:
    """Return for each sample whether its bias is known, [N]."""
    if alike == "labels":
        return cue >= 0
    return ~cue.isnan().any(1)


def cues_of_labels(columns: list[Tensor], biases: Biases, across_ranks: bool) -> list[Tensor]:
    """Return one cue for each term of FairKL, from the columns of bias labels, [N] each.

    Args:
        columns: −1 is unknown.
        biases: "joint" makes one cue, in which samples are equal if they are in all columns, and
            unknown if they are in any; "sum" one for each column.
        across_ranks: number the joint values alike on all processes.
    """
    if biases == "sum" or len(columns) == 1:
        return columns
    everyone, mine = torch.stack(columns, 1), slice(None)
    if across_ranks:
        everyone, mine = distributed.gather_with_place(everyone)
    joint = torch.zeros_like(everyone[:, 0])
    for column in everyone.unbind(1):
        joint = number_groups(joint * len(joint) + number_groups(column))
    return [torch.where((everyone >= 0).all(1), joint, -1)[mine]]


def cues_of_values(
    values: Tensor, bandwidth: float, biases: Biases, across_ranks: bool
) -> list[Tensor]:
    """Return one cue for each term of FairKL, from values [N, k], in units of the bandwidth.

    Args:
        values: NaN is unknown.
        bandwidth: in the units of the values; 0 takes `median_distance` of each column.
        biases: "joint" makes one cue of all columns, "sum" one for each.
        across_ranks: take the median over the samples of all processes.
    """
    if bandwidth:
        scaled = values / bandwidth
    else:
        everyone = distributed.gather(values)[0] if across_ranks else values
        scaled = values / median_distance(everyone)
    return [scaled] if biases == "joint" else list(scaled.split(1, dim=1))


def number_groups(ids: Tensor) -> Tensor:
    """Return a number below N for each of N ids, equal for equal ids.

    Not every number is taken.
    """
    return torch.searchsorted(ids.sort().values, ids.contiguous())
