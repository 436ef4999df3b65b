"""The audit of a trained model, or of any embeddings: whom it fails, and what its embedding is organised by.

found = audit_run(Path("runs/biased-mnist-mini/ce/seed-0"))
found = audit_arrays({"embeddings": z, "labels": y, "bias": b, "predicted": answers})

Everything quadratic in the number of samples is done on a random part, whose size the result states.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmargin.audit import model_page
from fairmargin.audit.arrays import Arrays, read
from fairmargin.audit.section import Found, Progress, silent
from fairmargin.audit.slices import Slices, find_slices
from fairmargin.data.hashes import data_hash
from fairmargin.evaluate import jsonable
from fairmargin.evaluate.accuracy import (
    LEAST,
    accuracies,
    equalised_odds_gap,
    group_table,
    small_groups,
    wilson,
)
from fairmargin.evaluate.probe import fit_probe
from fairmargin.evaluate.similarity import SETS, ordering, similarities
from fairmargin.losses.divergences import VARIANCE_FLOOR, Moments, gaussian_kl
from fairmargin.losses.moments import COUNT, FIRST, SECOND, set_sums
from fairmargin.methods.dfr import balanced
from fairmargin.runs.folder import CONFIG, RunError, RunRecord
from fairmargin.runtime.threads import one_thread
from fairmargin.vectors import unit

FOLDS = 5
PROBED = 4000  # samples that a probe is fitted to
PAIRED = 2000  # samples whose pairs are compared
READ, CLASSES_READ = 6000, 30  # samples, and largest classes, in which the bias is read off
ITERATIONS = 60  # of a probe, which has its answers long before its optimum
ROUNDING = 1e-12  # a variance of distances that float32 embeddings cannot resolve

Pictures = Callable[
    [list[int]], dict[int, NDArray[np.uint8]]
]  # positions → images [C, H, W] of those at hand


def audit_arrays(
    source: Path | str | Mapping[str, Any],
    *,
    alpha: float = 0.05,
    clusters: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Found:
    """Audit embeddings in an .npz file or a dict.

    Args:
        source: "embeddings" or "features" [N, D]; "labels" [N]; "bias" [N], −1 for unknown; "logits" [N, classes] or
            "predicted" [N]; "class_names"; "bias_names"; "counts" [classes, biases] of the training set. All but the
            first two may be missing. Without answers, those of a cross-validated linear probe are judged.
        alpha: probability of reporting any slice when mistakes are random.
        clusters: of each class, where slices are looked for; None chooses.
        seed: of all that is drawn.
    """
    name = "these embeddings" if isinstance(source, Mapping) else Path(source).name
    return _audit(read(source), name, {"kind": "arrays"}, None, alpha, clusters, seed, progress)


def audit_run(
    folder: Path | str,
    *,
    alpha: float = 0.05,
    clusters: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Found:
    """Audit a finished run: its test set as the run recorded it. Pictures come from the dataset, where it is at hand."""
    record = RunRecord.read(Path(folder))
    if record.result is None:
        raise RunError(
            f"{folder} is not finished; an audit looks at the end. Continue it: fairmargin train --resume"
        )
    stored = record.arrays("test")
    names = {
        key: np.array(record.data[key])
        for key in ("class_names", "bias_names")
        if record.data.get(key)
    }
    counts = {"counts": np.array(record.data["counts"])} if "bias_names" in names else {}
    if not counts:
        stored.pop("bias", None)
    facts = {"kind": "run", **{key: record.result[key] for key in ("method", "dataset", "seed")}}
    name = f"{record.result['method']} on {record.result['dataset']}, seed {record.result['seed']}"
    if (
        "logits" in stored
    ):  # where they are not finite there is no answer, which "predicted" cannot say
        stored.pop("predicted", None)
    pictures = partial(_pictures, record)
    return _audit(
        read(stored | names | counts), name, facts, pictures, alpha, clusters, seed, progress
    )


def _audit(
    arrays: Arrays,
    name: str,
    facts: dict[str, Any],
    pictures: Pictures | None,
    alpha: float,
    clusters: int | None,
    seed: int,
    progress: Progress,
) -> Found:
    predicted, judge = arrays.predicted, "own"
    if predicted is None:
        predicted, judge = _cross_validated(arrays, seed, progress), f"linear probe, {FOLDS}-fold"
    warnings = list(arrays.warnings)
    judged = _judged(arrays, predicted, seed, warnings)
    geometry = None
    if arrays.bias is not None and int((arrays.bias >= 0).sum()) >= 2:
        geometry = _geometry(arrays, seed, progress)
    readable = None if arrays.bias is None else _readable(arrays, seed, progress)
    slices = find_slices(
        arrays.embeddings,
        arrays.labels.numpy(),
        predicted.numpy(),
        alpha=alpha,
        clusters=clusters,
        seed=seed,
        progress=progress,
    )
    if slices.left_out:
        warnings.append(model_page.without_slices([arrays.class_names[y] for y in slices.left_out]))
    measured = {
        **facts,
        "n": len(arrays),
        "dimensions": arrays.embeddings.shape[1],
        "class_names": list(arrays.class_names),
        "bias_names": list(arrays.bias_names),
        "classifier": judge,
        **judged,
        "geometry": geometry,
        "bias_readable": readable,
        "slices": _described(slices, arrays, predicted),
        "warnings": warnings,
    }
    measured = jsonable(measured)
    positions = model_page.pictured(measured)
    images = {}
    if pictures is not None and positions:
        progress("fetching pictures", 0, 1)
        images = pictures(positions)
        progress("fetching pictures", 1, 1)
    seen = model_page.Samples(arrays.labels.tolist(), predicted.tolist(), images)
    return Found(
        f"Audit of {name}",
        model_page.verdict(measured),
        measured,
        model_page.sections(measured, seen),
        tuple(warnings),
    )


# Accuracies


def _cross_validated(arrays: Arrays, seed: int, progress: Progress) -> Tensor:
    """[N] answers of linear probes, each sample's from a probe that has not seen it."""
    fold = _folds(arrays.labels, seed)
    predicted = torch.full_like(arrays.labels, -1)
    for k in range(FOLDS):
        progress("cross-validating a linear probe", k, FOLDS)
        predicted[fold == k] = _probe_answers(
            arrays.embeddings, arrays.labels, fold != k, fold == k, seed
        )
    progress("cross-validating a linear probe", FOLDS, FOLDS)
    return predicted


def _folds(values: Tensor, seed: int) -> Tensor:
    """[N] fold of each sample; every value is spread evenly over the folds."""
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    order = order[values[order].argsort(stable=True)]
    fold = torch.empty_like(values)
    fold[order] = torch.arange(len(values)) % FOLDS
    return fold


def _probe_answers(
    x: NDArray[np.float32], y: Tensor, fitted: Tensor, judged: Tensor, seed: int
) -> Tensor:
    among = fitted.nonzero()[:, 0]
    if len(among) > PROBED:
        drawn = torch.randperm(len(among), generator=torch.Generator().manual_seed(seed))[:PROBED]
        among = among[drawn.sort().values]
    rows = unit(torch.from_numpy(x[among.numpy()]))
    with one_thread():
        probe = fit_probe(rows, y[among], int(y.max()) + 1, l2=1e-3, max_iterations=ITERATIONS)
    parts = judged.nonzero()[:, 0].split(8192)
    return torch.cat(
        [probe.logits(unit(torch.from_numpy(x[part.numpy()]))).argmax(1) for part in parts]
    )


def _judged(arrays: Arrays, predicted: Tensor, seed: int, warnings: list[str]) -> dict[str, Any]:
    """Accuracies by name, by class and by group, and the equalised-odds gap."""
    bias, shape = arrays.bias, (len(arrays.class_names), len(arrays.bias_names))
    counts = arrays.counts if arrays.counts is not None else torch.ones(shape, dtype=torch.long)
    named, said = accuracies(predicted, arrays.labels, bias, counts, seed=seed)
    warnings += said
    if arrays.counts is None:  # without the training set nobody knows what is aligned
        named = {
            name: named[name] for name in ("plain", "cell-mean", "worst-group") if name in named
        }
    n = torch.bincount(arrays.labels, minlength=shape[0])
    correct = torch.bincount(arrays.labels[predicted == arrays.labels], minlength=shape[0])
    low, high = wilson(correct, n)
    found: dict[str, Any] = {
        "accuracy": {name: asdict(interval) for name, interval in named.items()},
        "by_class": {
            "n": n.tolist(),
            "correct": correct.tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
        },
        "groups": None,
        "equalised_odds_gap": None,
        "counts": None if arrays.counts is None else arrays.counts.tolist(),
    }
    if bias is not None:
        groups = group_table(predicted, arrays.labels, bias, *shape)
        warnings += small_groups(
            groups.n, class_names=arrays.class_names, bias_names=arrays.bias_names
        )
        found["groups"] = {name: table.tolist() for name, table in vars(groups).items()}
        found["equalised_odds_gap"] = equalised_odds_gap(predicted, arrays.labels, bias)
    return found


# What the embedding is organised by


def _geometry(arrays: Arrays, seed: int, progress: Progress) -> dict[str, Any]:
    assert arrays.bias is not None
    progress("comparing pairs", 0, 3)
    known = (arrays.bias >= 0).nonzero()[:, 0]
    if len(known) > PAIRED:
        drawn = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))[:PAIRED]
        known = known[drawn.sort().values]
    z, y, b = (
        torch.from_numpy(arrays.embeddings[known.numpy()]),
        arrays.labels[known],
        arrays.bias[known],
    )
    similarity = similarities(z, y, b, seed=seed)
    progress("comparing pairs", 1, 3)
    ordered = ordering(z, y, b, seed=seed)
    progress("comparing pairs", 2, 3)
    by_class = fairkl_by_class(z, y, b, len(arrays.class_names))
    progress("comparing pairs", 3, 3)
    return {
        "similarity": similarity,
        "ordering": ordered,
        "fairkl": {"samples": len(known), "classes": by_class},
    }


def fairkl_by_class(
    features: Tensor, labels: Tensor, bias: Tensor, classes: int
) -> list[dict[str, Any]]:
    """FairKL of each class, over the pairs whose anchor is of that class.

    Of every set of pairs (A⁺, C⁺, A⁻, C⁻ of `losses.fairkl`): how many, mean and deviation of their cosines. "kl" has
    KL(N_A ‖ N_C) of distances for positives and negatives, without a floor on the variance, and None where a set has
    fewer than two pairs or no spread. "fairkl" is the loss itself: the same with the floor, positives plus negatives.
    """
    found = set_sums(features, labels, bias, negatives=True, by_anchor=True)
    sums = found.sums  # [known, 4 sets, 4 sums]
    return [_divergence(sums[found.y == k].sum(0)) for k in range(classes)]


def _divergence(sums: Tensor) -> dict[str, Any]:
    """From the sums over the pairs of A⁺, C⁺, A⁻ and C⁻ [4, 4]."""
    pairs = sums[:, COUNT]
    mean = sums[:, FIRST] / pairs  # of distances d = 2 − 2 cos
    variance = (sums[:, SECOND] / pairs - mean.square()).clamp_min(0)
    sets = {
        name: {
            "pairs": int(pairs[k]),
            "mean": float(1 - mean[k] / 2) if pairs[k] else None,
            "std": float(variance[k].sqrt() / 2) if pairs[k] else None,
        }
        for k, name in enumerate(SETS)
    }
    kl: dict[str, float | None] = {"positive": None, "negative": None}
    floored = []
    for sign, (a, c) in (("positive", (0, 1)), ("negative", (2, 3))):
        if min(pairs[a], pairs[c]) < 2:
            continue
        aligned, conflicting = Moments(mean[a], variance[a]), Moments(mean[c], variance[c])
        floored.append(float(gaussian_kl(aligned, conflicting, VARIANCE_FLOOR)))
        if min(variance[a], variance[c]) > ROUNDING:
            kl[sign] = float(gaussian_kl(aligned, conflicting, 0.0))
    return {"sets": sets, "kl": kl, "fairkl": sum(floored) if floored else None}


def _readable(arrays: Arrays, seed: int, progress: Progress) -> dict[str, Any]:
    """How well a linear probe reads the bias off the embeddings of one class, all its bias values equally frequent."""
    assert arrays.bias is not None
    sizes = torch.bincount(arrays.labels[arrays.bias >= 0], minlength=len(arrays.class_names))
    largest = sizes.argsort(descending=True, stable=True)[:CLASSES_READ].sort().values.tolist()
    found = []
    for done, y in enumerate(largest):
        progress("reading the bias inside classes", done, len(largest))
        if one := _read_in_class(arrays, y, READ // len(largest), seed):
            found.append({"class": y, **one})
    progress("reading the bias inside classes", len(largest), len(largest))
    above = [one["above_chance"] for one in found]
    return {"classes": found, "above_chance": sum(above) / len(above) if above else None}


def _read_in_class(arrays: Arrays, y: int, most: int, seed: int) -> dict[str, Any] | None:
    """None where fewer than two bias values have enough samples."""
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
    x, b = arrays.embeddings[chosen.numpy()], arrays.bias[chosen].unique(return_inverse=True)[1]
    fold = _folds(b, seed)
    right = sum(
        int((_probe_answers(x, b, fold != k, fold == k, seed) == b[fold == k]).sum())
        for k in range(FOLDS)
    )
    low, high = wilson(torch.tensor(right), torch.tensor(len(b)))
    chance = 1 / values
    return {
        "n": len(b),
        "values": values,
        "accuracy": {"value": right / len(b), "low": float(low), "high": float(high)},
        "chance": chance,
        "above_chance": (right / len(b) - chance) / (1 - chance),
    }


# Slices


def _described(
    slices: Slices, arrays: Arrays, predicted: Tensor, shown: int = 16
) -> dict[str, Any]:
    entries = []
    for one in slices.found:
        members = torch.from_numpy(one.members)
        entries.append(
            {
                "class": one.label,
                "n": len(one.members),
                "discovery": asdict(one.discovery),
                "confirmation": asdict(one.confirmation),
                "rest_of_class": asdict(one.rest),
                "p": one.p,
                "p_corrected": one.corrected,
                "answers": _most_frequent(predicted[members], arrays.class_names),
                "bias": None
                if arrays.bias is None
                else _most_frequent(arrays.bias[members], arrays.bias_names),
                "central": one.members[:shown].tolist(),
                "mistakes": one.mistakes[:shown].tolist(),
            }
        )
    return {
        "found": entries,
        "tested": slices.tested,
        "alpha": slices.alpha,
        "clusters": {arrays.class_names[y]: k for y, k in slices.clusters.items()},
        "left_out": [arrays.class_names[y] for y in slices.left_out],
    }


def _most_frequent(values: Tensor, names: tuple[str, ...], most: int = 3) -> list[dict[str, Any]]:
    """The most frequent values and their shares; no answer and unknown bias are left out."""
    n = torch.bincount(values[values >= 0], minlength=len(names))
    top = n.argsort(descending=True, stable=True)[:most].tolist()
    return [{"name": names[k], "share": float(n[k]) / len(values)} for k in top if n[k]]


# Pictures


def _pictures(record: RunRecord, positions: list[int]) -> dict[int, NDArray[np.uint8]]:
    """Test images [C, H, W]: from the dataset if it is at hand and still the same, else those the run has kept."""
    from fairmargin.config import load_resolved
    from fairmargin.runs import build

    try:
        test = build.data(load_resolved(record.path / CONFIG)).test
        if data_hash(test) == record.environment.get("data", {}).get("test"):
            return dict(zip(positions, test.images(torch.tensor(positions)).numpy(), strict=True))
    except (OSError, ValueError):
        pass
    if not record.has_arrays("examples"):
        return {}
    kept = record.arrays("examples")
    return {
        int(i): image
        for i, image in zip(kept["index"], kept["images"], strict=True)
        if int(i) in set(positions)
    }
