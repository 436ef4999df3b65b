"""How often a model's answers are right; without answers, those of a cross-validated probe."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmargin.audit.section import Progress
from fairmargin.data.arrays import Arrays
from fairmargin.evaluate.accuracy import (
    accuracies,
    equalised_odds_gap,
    group_table,
    small_groups,
    wilson,
)
from fairmargin.evaluate.probe import fit_probe
from fairmargin.runtime.threads import one_thread
from fairmargin.vectors import unit

FOLDS = 5
# Most samples that a probe is fitted to.
PROBED = 4000
# Of a probe, which has its answers long before its optimum.
ITERATIONS = 60
# Rows that a probe answers at a time.
ROWS = 8192
# Accuracies that make sense without the training set; only that says which groups are aligned.
WITHOUT_COUNTS = ("plain", "cell-mean", "worst-group")


def measure(arrays: Arrays, predicted: Tensor, seed: int, warnings: list[str]) -> dict[str, Any]:
    """Return accuracies by name, by class and by group, and the equalised-odds gap.

    Args:
        arrays: labels, bias and training counts.
        predicted: [N] answers.
        seed: of the bootstrap.
        warnings: gets further sentences.
    """
    labels, bias = arrays.labels, arrays.bias
    classes, biases = len(arrays.class_names), len(arrays.bias_names)
    counts = arrays.counts
    if counts is None:
        counts = torch.ones(classes, biases, dtype=torch.long)
    named, said = accuracies(predicted, labels, bias, counts, seed=seed)
    warnings += said
    if arrays.counts is None:
        named = {name: named[name] for name in WITHOUT_COUNTS if name in named}
    n = torch.bincount(labels, minlength=classes)
    correct = torch.bincount(labels[predicted == labels], minlength=classes)
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
        groups = group_table(predicted, labels, bias, classes, biases)
        warnings += small_groups(
            groups.n, class_names=arrays.class_names, bias_names=arrays.bias_names
        )
        found["groups"] = {name: table.tolist() for name, table in vars(groups).items()}
        found["equalised_odds_gap"] = equalised_odds_gap(predicted, labels, bias)
    return found


def cross_validated(arrays: Arrays, seed: int, progress: Progress) -> Tensor:
    """Return [N] answers of linear probes, each from a probe that has not seen the sample.

    Args:
        arrays: embeddings and labels.
        seed: of the folds.
        progress: called after each fold.
    """
    doing = "cross-validating a linear probe"
    fold = folds(arrays.labels, seed)
    predicted = torch.full_like(arrays.labels, -1)
    for k in range(FOLDS):
        progress(doing, k, FOLDS)
        answers = probe_answers(arrays.embeddings, arrays.labels, fold != k, fold == k, seed)
        predicted[fold == k] = answers
    progress(doing, FOLDS, FOLDS)
    return predicted


def folds(values: Tensor, seed: int) -> Tensor:
    """Return [N] the fold of each sample; every value is spread evenly over the folds.

    Args:
        values: [N] classes or bias values.
        seed: of the order.
    """
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    order = order[values[order].argsort(stable=True)]
    fold = torch.empty_like(values)
    fold[order] = torch.arange(len(values)) % FOLDS
    return fold


def probe_answers(
    x: NDArray[np.float32], y: Tensor, fitted: Tensor, judged: Tensor, seed: int
) -> Tensor:
    """Fit a linear probe to some samples and return its answers to others.

    Args:
        x: [N, D] embeddings.
        y: [N] classes.
        fitted: [N] bool, the samples it is fitted to.
        judged: [N] bool, the samples it answers.
        seed: of the draw, if too many are to be fitted.
    """
    among = drawn(fitted.nonzero()[:, 0], PROBED, seed)
    rows = unit(torch.from_numpy(x[among.numpy()]))
    with one_thread():
        probe = fit_probe(rows, y[among], int(y.max()) + 1, l2=1e-3, max_iterations=ITERATIONS)
    answers = []
    for part in judged.nonzero()[:, 0].split(ROWS):
        logits = probe.logits(unit(torch.from_numpy(x[part.numpy()])))
        answers.append(logits.argmax(1))
    return torch.cat(answers)


def drawn(positions: Tensor, most: int, seed: int) -> Tensor:
    """Return at most `most` of these positions, drawn at random, in ascending order.

    Args:
        positions: to draw from.
        most: how many to draw at most.
        seed: of the draw.
    """
    if len(positions) <= most:
        return positions
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(seed))
    return positions[order[:most].sort().values]
