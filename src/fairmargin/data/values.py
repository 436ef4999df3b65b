"""Biases that are numbers, such as age or brightness: their values, and the bins they fall into.

The values go to methods that can use them. Bins, between quantiles of the training samples, are the
bias labels that everything else sees: other methods, samplers, accuracies by group.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fairmargin.data.drafts import UNKNOWN, Draft, Sample, combine
from fairmargin.vectors import median_distance

BiasKind = Literal["labels", "continuous"]


def with_bins(drafts: Sequence[Draft], columns: Sequence[str], number: int) -> dict[str, str]:
    """Read the bias of each draft as numbers, and put the names of their bins in its place.

    What is no number is a fault of the draft. Edges are quantiles of the known training values;
    equal quantiles make one edge, so a column may have fewer bins.

    Args:
        drafts: changed in place.
        columns: names of the columns of the bias.
        number: of bins in each column, at least 2.

    Returns:
        Notes on the bins, for the run record.
    """
    if number < 2:
        raise ValueError(f"data.bias_bins must be at least 2; got {number}")
    for draft in drafts:
        values = tuple(_number(cell, draft) for cell in draft.sample.bias_cells)
        draft.sample = replace(draft.sample, bias_values=values)
    good = [draft.sample for draft in drafts if not draft.faults and draft.sample.bias_values]
    training = np.array([sample.bias_values for sample in good if sample.split == "train"])
    if not len(training) or np.isnan(training).all(0).any():
        raise ValueError(
            "data.bias_kind=continuous needs a column of numbers for the bias, and the training "
            "samples have none; name it with data.bias_columns"
        )
    edges = [_edges(column, number) for column in training.T]
    for draft in drafts:
        given = zip(draft.sample.bias_values, edges, columns, strict=False)
        names = [_bin(value, cut, column) for value, cut, column in given]
        draft.sample = replace(draft.sample, bias=combine(names) if names else "")
    notes = {}
    for column, cut in zip(columns, edges, strict=True):
        shown = ", ".join(f"{edge:.4g}" for edge in cut)
        notes[f"bins of {column}"] = f"groups by quantiles of the training values: {shown}"
    return notes


def _number(cell: str, draft: Draft) -> float:
    """Return the number in a cell, NaN for unknown; what is no number is a fault of the draft."""
    if cell.casefold() in UNKNOWN:
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        value = math.inf
    if math.isfinite(value):
        return value
    draft.faults.append(f'the bias "{cell}" is no finite number, as data.bias_kind=continuous says')
    return math.nan


def _edges(values: np.ndarray, number: int) -> np.ndarray:
    """The inner edges of the bins."""
    known = values[~np.isnan(values)]
    cuts = np.unique(np.quantile(known, np.arange(1, number) / number))
    # An edge at the smallest value would leave the first bin empty.
    return cuts[cuts > known.min()]


def _bin(value: float, edges: np.ndarray, column: str) -> str:
    """The name of the bin; a value on an edge is in the upper one. Empty if it is unknown."""
    if math.isnan(value):
        return ""
    place = int(np.searchsorted(edges, value, side="right"))
    if not len(edges):
        where = "any"
    elif place == 0:
        where = f"below {edges[0]:.4g}"
    elif place == len(edges):
        where = f"from {edges[-1]:.4g}"
    else:
        where = f"{edges[place - 1]:.4g} to {edges[place]:.4g}"
    # The number puts the names in order.
    return f"{column} q{place + 1} ({where})"


def scaled_values(samples: Sequence[Sample], training: Tensor) -> Tensor:
    """Return the values [N, k] in units of their median distance between training samples.

    Args:
        samples: whose `bias_values` are taken; NaN for unknown.
        training: positions of the training samples.
    """
    values = torch.tensor([sample.bias_values for sample in samples], dtype=torch.float64)
    return (values / median_distance(values[training])).float()


def parts_of(samples: Sequence[Sample], bias_names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return, for each value of a bias made of several columns, the value in each of them.

    Args:
        samples: with the columns in `bias_cells`.
        bias_names: the joint values.

    Returns:
        One tuple for each name; empty if there is one column or none.
    """
    cells = {sample.bias: sample.bias_cells for sample in samples if sample.bias}
    if not cells or len(next(iter(cells.values()))) < 2:
        return ()
    numbers: list[dict[str, int]] = [{} for _ in next(iter(cells.values()))]
    found = []
    for name in bias_names:
        pairs = zip(numbers, cells[name], strict=True)
        found.append(tuple(known.setdefault(cell, len(known)) for known, cell in pairs))
    return tuple(found)
