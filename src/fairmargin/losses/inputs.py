"""Checks of what people pass to a loss, and its conversion to rows that a loss can use.

Every message says what was given, what is wrong and what to do. Checks of values (finite, in range)
are skipped while `torch.compile` traces, because they depend on data, and on accelerators, because
Python would have to wait for the device (`losses.check`).
"""

import math
from typing import Any

import torch
from torch import Tensor

from fairmargin.losses._looks import checked
from fairmargin.vectors import full_precision, unit

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def rows(
    features: Tensor, *ids: Tensor, names: tuple[str, ...] = (), unit_norm: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """Return features as rows [N·V, D] in at least float32, with every id repeated for each view.

    Args:
        features: [N, D] or [N, V, D].
        ids: [N] integers each, such as labels and bias labels.
        names: the argument names of `ids`, for the messages.
        unit_norm: scale each row to length 1.
    """
    check_matrix(features, "features", views=True)
    n = features.shape[0]
    views = features.shape[1] if features.ndim == 3 else 1
    for value, name in zip(ids, names, strict=True):
        check_ids(value, n, name, device=features.device)
    repeated = [value.long() for value in ids]
    if views > 1:
        repeated = [value.repeat_interleave(views) for value in repeated]
    z = full_precision(features.flatten(0, -2))
    return (unit(z) if unit_norm else z), repeated


def unit_bias_features(bias_features: Tensor, features: Tensor) -> Tensor:
    """Return bias features [N, G] as unit rows, one for each view of `features`.

    They are in float32 at least. No gradient flows into them.

    Args:
        bias_features: [N, G]; rows of zeros are refused.
        features: [N, D] or [N, V, D], for the number of samples and views.
    """
    check_matrix(bias_features, "bias_features", length=features.shape[0])
    _check_not_zero(bias_features)
    g = unit(full_precision(bias_features.detach()))
    return g.repeat_interleave(features.shape[1], 0) if features.ndim == 3 else g


def check_tensor(x: Any, name: str) -> None:
    """Raise a TypeError unless `x` is a tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor; got {type(x).__name__}. "
            f"Convert it with torch.as_tensor({name})"
        )


def check_matrix(x: Tensor, name: str, *, views: bool = False, length: int | None = None) -> None:
    """Raise an error unless `x` is a matrix of finite floating-point numbers.

    Args:
        name: of the argument, for the messages.
        views: [N, V, D] will do too.
        length: number of rows it must have; None for any.
    """
    check_tensor(x, name)
    shapes = "[N, D] or [N, V, D]" if views else "[N, D]"
    if x.ndim != 2 and not (views and x.ndim == 3):
        raise ValueError(
            f"{name} must have shape {shapes}; got {list(x.shape)}. "
            "Flatten what one sample is to a vector D"
        )
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be floating point; got {x.dtype}. "
            f"Pass the network's output, or {name}.float()"
        )
    if length is not None and x.shape[0] != length:
        raise ValueError(
            f"{name} has {x.shape[0]} rows but features has {length} samples; "
            "give one row for each sample"
        )
    # A NaN or inf always reaches the sum, which is much faster than looking at each entry.
    if checked(x) and not math.isfinite(float(x.detach().sum())) and not bool(x.isfinite().all()):
        bad = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten()
        raise ValueError(
            f"{name} has NaN or inf in {len(bad)} of {x.shape[0]} rows (first: row {int(bad[0])}); "
            "the network has diverged or its input is not finite: "
            "lower the learning rate, or check the data"
        )


def check_ids(ids: Tensor, length: int, name: str, *, device: torch.device | None = None) -> None:
    """Raise an error unless `ids` are integers [length]; a bias must also be −1 or more.

    Args:
        name: of the argument, for the messages.
        device: where they must be; None for anywhere.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor of integers; got {type(ids).__name__}. "
            f"Convert it: torch.as_tensor({name})"
        )
    if ids.dtype not in INTEGERS:
        raise TypeError(
            f"{name} must be integers; got {ids.dtype}. "
            f"Class indices, not one-hot rows or scores: {name}.long()"
        )
    if ids.ndim != 1:
        raise ValueError(
            f"{name} must have shape [N]; got {list(ids.shape)}. Give one integer for each sample"
        )
    if ids.shape[0] != length:
        raise ValueError(
            f"{name} has {ids.shape[0]} entries but features has {length} samples; "
            "give one for each sample, not for each view"
        )
    if device is not None and ids.device != device:
        raise ValueError(
            f"{name} is on {ids.device} but features is on {device}; "
            f"move it with {name}.to(features.device)"
        )
    if name == "bias" and checked(ids) and len(ids) and int(ids.min()) < -1:
        raise ValueError(
            f"bias must be ≥ 0, or −1 for unknown; got {int(ids.min())}. "
            "Recode the attribute from 0 up"
        )


def check_values(values: Tensor, length: int, name: str, *, device: torch.device) -> None:
    """Raise an error unless `values` are numbers [length] or [length, k], NaN where unknown.

    Args:
        name: of the argument, for the messages.
        device: where they must be.
    """
    if values.ndim not in (1, 2) or 0 in values.shape[1:]:
        raise ValueError(
            f"{name} must have shape [N] or [N, k]; got {list(values.shape)}. "
            "Give one value of each attribute for each sample"
        )
    if values.shape[0] != length:
        raise ValueError(
            f"{name} has {values.shape[0]} rows but features has {length} samples; "
            "give one for each sample, not for each view"
        )
    if values.device != device:
        raise ValueError(
            f"{name} is on {values.device} but features is on {device}; "
            f"move it with {name}.to(features.device)"
        )
    if checked(values) and bool(values.isinf().any()):
        raise ValueError(f"{name} has infinite values; give finite ones, or NaN for unknown")


def check_classes(labels: Tensor, n: int, classes: int, *, device: torch.device) -> None:
    """Raise an error unless `labels` are n integers that index `classes` columns.

    Args:
        n: number of samples.
        classes: number of columns.
        device: where the labels must be.
    """
    check_ids(labels, n, "labels", device=device)
    if not checked(labels) or not n:
        return
    low, high = int(labels.min()), int(labels.max())
    if not 0 <= low <= high < classes:
        raise ValueError(
            f"labels must lie in 0…{classes - 1} for {classes} classes; got {low}…{high}"
        )


def check_chunk(chunk: int | None) -> None:
    """Raise an error unless `chunk` is a whole number of rows ≥ 1, or None."""
    if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
        raise ValueError(
            f"chunk must be a whole number of rows ≥ 1, or None to choose by size; got {chunk!r}"
        )


def check_temperature(temperature: float) -> None:
    """Raise an error unless the temperature is finite and above 0."""
    if not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
        raise ValueError(
            f"temperature must be a finite number above 0; got {temperature!r}. The paper uses 0.1"
        )


def check_epsilon(epsilon: float) -> None:
    """Raise an error unless ε is a number from 0 to inf."""
    if not (isinstance(epsilon, int | float) and epsilon >= 0):
        raise ValueError(
            f"epsilon must be a number from 0 to inf; got {epsilon!r}. "
            "It is a margin on similarity/temperature; the paper uses 0 to 0.5"
        )


def _check_not_zero(bias_features: Tensor) -> None:
    if not checked(bias_features):
        return
    zero = (bias_features.detach() == 0).all(1).nonzero().flatten()
    if len(zero):
        raise ValueError(
            f"bias_features has {len(zero)} rows of zeros (first: row {int(zero[0])}), "
            "which would conflict with everything; "
            "export one feature for each sample, in the order of the samples"
        )
