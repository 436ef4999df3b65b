"""The columns of audit.csv for a model: a row for each sample that it was judged on."""

import numpy as np
from torch import Tensor

from fairmargin.audit.rows import Columns
from fairmargin.audit.slices import Slices
from fairmargin.data.arrays import Arrays


def columns(arrays: Arrays, predicted: Tensor, slices: Slices, split: str | None) -> Columns:
    """Return label, bias, prediction, confidence, slice and mistake of each sample.

    Args:
        arrays: the samples.
        predicted: [N] the answers that were judged.
        slices: that were found; they are numbered from 1, as on the page.
        split: of the samples; None if they have their own, or none.
    """
    n = len(arrays)
    table: Columns = {}
    if arrays.names is not None:
        table["path"] = arrays.names
    if split is not None:
        table["split"] = [split] * n
    elif arrays.split is not None:
        table["split"] = arrays.split
    table["index"] = list(range(n))
    table["label"] = [arrays.class_names[y] for y in arrays.labels.tolist()]
    if arrays.bias is not None:
        table["bias"] = [arrays.bias_names[b] if b >= 0 else None for b in arrays.bias.tolist()]
    table["prediction"] = [arrays.class_names[y] if y >= 0 else None for y in predicted.tolist()]
    if arrays.confidence is not None:
        table["confidence"] = [float(v) for v in arrays.confidence]
    number = np.zeros(n, np.int64)
    for k, one in enumerate(slices.found, 1):
        number[one.members] = k
    table["slice"] = [f"slice {k}" if k else None for k in number.tolist()]
    wrong = (predicted != arrays.labels).tolist()
    table["mistake"] = ["yes" if flag else None for flag in wrong]
    return table
