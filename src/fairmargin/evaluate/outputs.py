"""What a method says about a split, and every number that follows from its logits."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import InOrder
from fairmargin.data.split import Split
from fairmargin.data.views import Views
from fairmargin.evaluate.accuracy import (
    accuracies,
    equalised_odds_gap,
    group_table,
    small_groups,
    values,
)
from fairmargin.evaluate.calibration import measure
from fairmargin.evaluate.modes import evaluating
from fairmargin.methods.base import Method

# What `judge` returns, ready for JSON; docs/evaluation.md names its entries.
Judged = dict[str, Any]


@dataclass(frozen=True)
class Outputs:
    """What a method says about a split, in the split's order, on the CPU.

    Args:
        features: [N, D] float32.
        logits: [N, K] float32.
        labels: [N].
        bias: [N], −1 for unknown; None without bias labels.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor
    bias: Tensor | None


def collect(
    method: Method,
    split: Split,
    views: Views,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Outputs:
    """Return features and logits of every sample, in evaluation mode.

    The mode of each module is restored afterwards.

    Args:
        views: how images are prepared; they must make one view of each.
        workers: processes that load images.
    """
    if views.number != 1:
        raise ValueError(
            f"evaluation looks at each image once and these views make {views.number}; "
            "give eval_views"
        )
    order = InOrder(len(split))
    loader = Loader(split, views, order, batch_size, device=device, workers=workers)
    pairs = []
    with evaluating(method):
        for batch in loader:
            # Not around the loader: views keep tensors that training uses too.
            with torch.inference_mode():
                pairs.append([x.float().cpu() for x in method.inspect(batch.images)])
    # An empty split has no batch to take widths from.
    features, logits = torch.zeros(0, 0), torch.zeros(0, 0)
    if pairs:
        features = torch.cat([pair[0] for pair in pairs])
        logits = torch.cat([pair[1] for pair in pairs])
    bias = None if split.bias is None else split.bias.cpu()
    return Outputs(features, logits, split.labels.cpu(), bias)


def answers(logits: Tensor) -> Tensor:
    """Return [N] the class of the largest logit.

    It is −1 where there is none, because a row holds NaN, +inf or only −inf.

    Args:
        logits: [N, K].
    """
    if not len(logits):
        return torch.zeros(0, dtype=torch.long)
    top, predicted = logits.max(1)
    return predicted.masked_fill(~top.isfinite(), -1)


def judge(
    logits: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    info: DataInfo,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Judged:
    """Return every number about one classifier on one set.

    {"n", "accuracy": {name: {"value", "low", "high"}},
     "groups": {"n", "correct", "low", "high"} | None, "equalised_odds_gap",
     "calibration": {"ece", "nll", "brier", "bins"} | None, "warnings"}

    Args:
        logits: [N, K].
        labels: [N].
        bias: [N], −1 for unknown; None leaves the plain accuracy only.
        resamples: of the bootstrap behind the intervals.
    """
    bias = _known(bias, info)
    predicted = answers(logits)
    found, warnings = accuracies(
        predicted, labels, bias, info.counts, resamples=resamples, seed=seed
    )
    silent = int((predicted < 0).sum())
    if silent:
        warnings.append(
            f"{silent} of {len(labels)} samples have logits that are not finite; "
            "they count as wrong"
        )
    groups, gap = None, None
    if bias is not None:
        groups = group_table(predicted, labels, bias, info.num_classes, info.num_biases)
        gap = equalised_odds_gap(predicted, labels, bias)
        warnings += small_groups(groups.n, class_names=info.class_names, bias_names=info.bias_names)
    calibrated = measure(logits, labels) if len(labels) and not silent else None
    tables = None
    if groups is not None:
        tables = {name: jsonable(table.tolist()) for name, table in vars(groups).items()}
    return {
        "n": len(labels),
        "accuracy": {name: asdict(interval) for name, interval in found.items()},
        "groups": tables,
        "equalised_odds_gap": gap,
        "calibration": calibrated and jsonable(asdict(calibrated)),
        "warnings": warnings,
    }


def _known(bias: Tensor | None, info: DataInfo) -> Tensor | None:
    """The bias labels, if there are any."""
    if bias is None or not info.num_biases or not bool((bias >= 0).any()):
        return None
    return bias


def available(split: Split, info: DataInfo) -> list[str]:
    """Return the names of the accuracies that these samples can have.

    Some need bias labels, or conflicting samples.
    """
    if not len(split):
        return []
    return list(values(split.labels, split.labels, _known(split.bias, info), info.counts))


def quick(
    method: Method,
    split: Split,
    views: Views,
    info: DataInfo,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> dict[str, float]:
    """Return the named accuracies of the method's own classifier, without intervals.

    It takes one pass, so it can be run after every epoch.

    Args:
        split: samples to look at.
        views: how images are prepared; one view of each.
        info: of the dataset, for the training counts.
        workers: processes that load images.
    """
    outputs = collect(method, split, views, batch_size=batch_size, device=device, workers=workers)
    return quick_of(outputs, info)


def quick_of(outputs: Outputs, info: DataInfo) -> dict[str, float]:
    """Return what `quick` does, from outputs that are there already."""
    return values(answers(outputs.logits), outputs.labels, _known(outputs.bias, info), info.counts)


def balanced_by(outputs: Outputs, answers_of_proxy: Tensor) -> float:
    """Return the mean of the accuracies of the groups (label, answer of a proxy) that occur.

    uLA's criterion (Tsirigotis et al., NeurIPS 2023): it needs no bias label.

    Args:
        outputs: of the method.
        answers_of_proxy: [N] classes.
    """
    right = (answers(outputs.logits) == outputs.labels).double()
    groups = torch.stack([outputs.labels, answers_of_proxy], 1).unique(dim=0, return_inverse=True)
    shares = [right[groups[1] == k].mean() for k in range(len(groups[0]))]
    return float(torch.stack(shares).mean())


def jsonable(value: Any) -> Any:
    """Return a value with NaN and infinities as None, inside lists and dicts too."""
    if isinstance(value, dict):
        return {key: jsonable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [jsonable(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
