"""What an embedding is organised by: similarities of pairs, FairKL by class, the bias itself.

Everything quadratic in the number of samples is done on a random part; the result states its size.
"""

from typing import Any

import torch
from torch import Tensor

from fairmargin.audit.judgement import FOLDS, drawn, folds, probe_answers
from fairmargin.audit.section import Progress
from fairmargin.data.arrays import Arrays
from fairmargin.evaluate.accuracy import LEAST, wilson
from fairmargin.evaluate.similarity import SETS, ordering, similarities
from fairmargin.losses.divergences import VARIANCE_FLOOR, Moments, gaussian_kl
from fairmargin.losses.moments import COUNT, FIRST, SECOND, set_sums
from fairmargin.methods.dfr import balanced

# Most samples whose pairs are compared.
PAIRED = 2000
# Most samples, and most classes, in which a probe reads the bias.
READ = 6000
CLASSES_READ = 30
# A smaller variance of distances cannot be resolved in float32 embeddings.
ROUNDING = 1e-12


def compare_pairs(arrays: Arrays, seed: int, progress: Progress) -> dict[str, Any]:
    """Return similarities, the paper's ordering, and FairKL by class.

    Args:
        arrays: with bias labels.
        seed: of the samples and pairs that are drawn.
        progress: called after each of the three.
    """
    assert arrays.bias is not None
    doing = "comparing pairs"
    progress(doing, 0, 3)
    known = drawn((arrays.bias >= 0).nonzero()[:, 0], PAIRED, seed)
    z = torch.from_numpy(arrays.embeddings[known.numpy()])
    y = arrays.labels[known]
    b = arrays.bias[known]
    similarity = similarities(z, y, b, seed=seed)
    progress(doing, 1, 3)
    ordered = ordering(z, y, b, seed=seed)
    progress(doing, 2, 3)
    by_class = fairkl_by_class(z, y, b, len(arrays.class_names))
    progress(doing, 3, 3)
    return {
        "similarity": similarity,
        "ordering": ordered,
        "fairkl": {"samples": len(known), "classes": by_class},
    }


def fairkl_by_class(
    features: Tensor, labels: Tensor, bias: Tensor, classes: int
) -> list[dict[str, Any]]:
    """Return FairKL of each class, over the pairs whose anchor is of that class.

    "sets" has number, mean and deviation of the cosines of every set of pairs (A⁺, C⁺, A⁻, C⁻ of
    `losses.fairkl`). "kl" has KL(N_A ‖ N_C) of distances for positives and negatives, without a
    floor on the variance; None where a set has fewer than two pairs or no spread. "fairkl" is the
    loss itself: the same with the floor, positives plus negatives.

    Args:
        features: [N, D].
        labels: [N].
        bias: [N]; −1 for unknown.
        classes: number of classes.
    """
    found = set_sums(features, labels, bias, negatives=True, by_anchor=True)
    sums = found.sums  # [known, 4 sets, 4 sums]
    return [_divergence(sums[found.y == k].sum(0)) for k in range(classes)]


def _divergence(sums: Tensor) -> dict[str, Any]:
    """Return the entry of one class, from the sums over the pairs of A⁺, C⁺, A⁻ and C⁻ [4, 4]."""
    pairs = sums[:, COUNT]
    # Of distances d = 2 − 2 cos.
    mean = sums[:, FIRST] / pairs
    variance = (sums[:, SECOND] / pairs - mean.square()).clamp_min(0)
    sets = {}
    for k, name in enumerate(SETS):
        there = bool(pairs[k])
        sets[name] = {
            "pairs": int(pairs[k]),
            "mean": float(1 - mean[k] / 2) if there else None,
            "std": float(variance[k].sqrt() / 2) if there else None,
        }
    kl: dict[str, float | None] = {"positive": None, "negative": None}
    floored = []
    for sign, a, c in (("positive", 0, 1), ("negative", 2, 3)):
        if min(pairs[a], pairs[c]) < 2:
            continue
        aligned, conflicting = Moments(mean[a], variance[a]), Moments(mean[c], variance[c])
        floored.append(float(gaussian_kl(aligned, conflicting, VARIANCE_FLOOR)))
        if min(variance[a], variance[c]) > ROUNDING:
            kl[sign] = float(gaussian_kl(aligned, conflicting, 0.0))
    return {"sets": sets, "kl": kl, "fairkl": sum(floored) if floored else None}


def read_bias(arrays: Arrays, seed: int, progress: Progress) -> dict[str, Any]:
    """Return how well a linear probe reads the bias off the embeddings of one class.

    All bias values of a class are equally frequent.

    Args:
        arrays: with bias labels.
        seed: of the samples that are drawn.
        progress: called after each class.
    """
    assert arrays.bias is not None
    doing = "reading the bias inside classes"
    sizes = torch.bincount(arrays.labels[arrays.bias >= 0], minlength=len(arrays.class_names))
    largest = sizes.argsort(descending=True, stable=True)[:CLASSES_READ].sort().values.tolist()
    found = []
    for done, y in enumerate(largest):
        progress(doing, done, len(largest))
        one = _read_in_class(arrays, y, READ // len(largest), seed)
        if one is not None:
            found.append({"class": y, **one})
    progress(doing, len(largest), len(largest))
    above = [one["above_chance"] for one in found]
    return {"classes": found, "above_chance": sum(above) / len(above) if above else None}


def _read_in_class(arrays: Arrays, y: int, most: int, seed: int) -> dict[str, Any] | None:
    """Return the entry of class y; None if fewer than two bias values have enough samples."""
    assert arrays.bias is not None
    members = (arrays.labels == y) & (arrays.bias >= 0)
    size = torch.bincount(arrays.bias[members], minlength=len(arrays.bias_names))
    members = (members & (size >= LEAST)[arrays.bias.clamp_min(0)]).nonzero()[:, 0]
    values = int((size >= LEAST).sum())
    if values < 2:
        return None
    chosen = members[balanced(arrays.bias[members], torch.Generator().manual_seed(seed))]
    # balanced(…) has the bias values one after the other, each shuffled.
    chosen = chosen.view(values, -1)[:, : max(most // values, LEAST)].flatten()
    x = arrays.embeddings[chosen.numpy()]
    b = arrays.bias[chosen].unique(return_inverse=True)[1]
    fold = folds(b, seed)
    right = 0
    for k in range(FOLDS):
        answers = probe_answers(x, b, fold != k, fold == k, seed)
        right += int((answers == b[fold == k]).sum())
    low, high = wilson(torch.tensor(right), torch.tensor(len(b)))
    accuracy, chance = right / len(b), 1 / values
    return {
        "n": len(b),
        "values": values,
        "accuracy": {"value": accuracy, "low": float(low), "high": float(high)},
        "chance": chance,
        "above_chance": (accuracy - chance) / (1 - chance),
    }
