"""What a trained method has learnt: accuracies, calibration, probes, and similarities.

    found = evaluate(method, data)
    found.test["own"]["accuracy"]["cell-mean"]["value"]

Nothing here chooses anything: the test set is only looked at.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.split import Data, Split, as_evaluated
from fairmargin.evaluate.accuracy import MEANINGS, NAMES
from fairmargin.evaluate.head import Head, LinearHead, NeighborHead
from fairmargin.evaluate.linear import Linear, LinearSettings, Progress, fit_linear
from fairmargin.evaluate.outputs import (
    Judged,
    Outputs,
    answers,
    available,
    balanced_by,
    collect,
    jsonable,
    judge,
    quick,
    quick_of,
)
from fairmargin.evaluate.probe import Probe, fit_probe, knn_logits
from fairmargin.evaluate.similarity import ordering, similarities
from fairmargin.methods.base import Method
from fairmargin.vectors import unit

CLASSIFIER_MEANINGS = {
    "own": "the method's own: what you would deploy",
    "probe": "logistic regression, to convergence, on unit features of the training images",
    "knn": "vote of the 20 training images with the largest cosine",
    "linear": (
        "linear evaluation: a layer trained by SGD on raw features of augmented training images"
    ),
}
CLASSIFIERS = tuple(CLASSIFIER_MEANINGS)
# The classifiers that are fitted by default. Linear evaluation is run when asked for: it takes a
# pass over the training set for each of its epochs.
USUAL = ("own", "probe", "knn")
# The classifier that `evaluate.report_classifier` names.
REPORTED = {"online": "own", "fitted": "probe", "knn": "knn"}


@dataclass(frozen=True)
class Evaluation:
    """All that is measured at the end of a run; everything but `outputs` is ready for JSON.

    Args:
        test: by classifier.
        extra_tests: by set, by classifier.
        similarity: see `similarity.similarities`; None where it cannot be had.
        ordering: see `similarity.ordering`; None where it cannot be had.
        outputs: of the test set.
        warnings: about classifiers that could not be fitted.
        heads: the probe and the neighbours as modules, by classifier.
    """

    test: dict[str, Judged]
    extra_tests: dict[str, dict[str, Judged]]
    similarity: dict[str, Any] | None
    ordering: dict[str, Any] | None
    outputs: Outputs
    warnings: list[str] = field(default_factory=list)
    heads: dict[str, Head] = field(default_factory=dict)


def evaluate(
    method: Method,
    data: Data,
    *,
    classifiers: Sequence[str] = USUAL,
    device: torch.device | str = "cpu",
    batch_size: int = 256,
    workers: int = 0,
    resamples: int = 1000,
    seed: int = 0,
    test: Split | None = None,
    linear: LinearSettings | None = None,
    progress: Progress = lambda what, done, of: None,
    report: str = "online",
    probe_weights: Tensor | None = None,
) -> Evaluation:
    """Judge the method's own classifier and others on the test set and every extra one.

    The others are fitted to the method's features.

    Probe and neighbours see the unit-normalized features of `data.train` as evaluation sees it,
    linear evaluation the raw features of its augmented views (`evaluate.linear`). Each is fitted
    once.

    Args:
        classifiers: any of "own", "probe", "knn", "linear".
        resamples: of the bootstrap behind the intervals.
        seed: of the bootstrap, and of the samples drawn for similarities.
        test: a set to look at instead of `data.test`.
        linear: how linear evaluation learns, and its seed.
        progress: called after every batch of linear evaluation, which may take long.
        report: "online", "fitted" or "knn": the classifier that comes first; it is added to the
            others.
        probe_weights: of the training samples [N], for the probe; all alike by default.
    """
    first = REPORTED[report]
    if first in classifiers or report != "online":
        classifiers = list(dict.fromkeys([first, *classifiers]))
    for name in classifiers:
        check_choice(name, "classifier", CLASSIFIERS)

    def outputs_of(split: Split) -> Outputs:
        return collect(
            method, split, data.eval_views, batch_size=batch_size, device=device, workers=workers
        )

    outputs = outputs_of(data.test if test is None else test)
    train = outputs_of(as_evaluated(data.train)) if {"probe", "knn"} & set(classifiers) else None
    heads, warnings = _heads(classifiers, train, data.info.num_classes, probe_weights)
    fitted = _fitted(classifiers, heads)
    if "linear" in classifiers:
        layer, best = _linear(
            method, data, outputs, linear, device=device, workers=workers, progress=progress
        )
        if layer.finite:
            facts = {"epochs": len(layer.losses), "loss": layer.losses[-1]}
            fitted["linear"] = _Classifier(
                lambda found: layer.logits(found.features), facts, _linear_doubts(layer)
            )
        else:
            warnings.append(
                f"no linear evaluation: its loss is not finite in epoch {len(layer.losses)}. "
                "Either the features of the "
                "training set are not, or evaluate.linear_lr is far too large"
            )

    def judged(found: Outputs) -> dict[str, Judged]:
        return {
            name: each.judge(found, data.info, resamples, seed) for name, each in fitted.items()
        }

    on_test = judged(outputs)
    if "linear" in on_test:
        on_test["linear"]["best-on-test"] = best
    ordered = None
    pairs = _has_pairs(outputs)
    if pairs is not None:
        ordered = ordering(outputs.features, outputs.labels, pairs, seed=seed)
    return Evaluation(
        test=on_test,
        extra_tests={name: judged(outputs_of(split)) for name, split in data.extra_tests.items()},
        similarity=similarity_of(outputs, seed=seed),
        ordering=ordered,
        outputs=outputs,
        warnings=warnings,
        heads={name: one.head for name, one in heads.items()},
    )


def similarity_of(outputs: Outputs, *, seed: int = 0) -> dict[str, Any] | None:
    """Return `similarity.similarities` of a split.

    It is None without bias labels, or with features that are not finite.

    Args:
        outputs: of a method on the split.
        seed: of the samples drawn.
    """
    pairs = _has_pairs(outputs)
    if pairs is None:
        return None
    return similarities(outputs.features, outputs.labels, pairs, seed=seed)


@dataclass(frozen=True)
class _Classifier:
    """Logits from a method's outputs, and what to say beside the numbers."""

    logits: Callable[[Outputs], Tensor]
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def judge(self, outputs: Outputs, info: DataInfo, resamples: int, seed: int) -> Judged:
        # The features of an empty set have no width that a classifier could take.
        logits = self.logits(outputs) if len(outputs.labels) else outputs.logits
        found = judge(logits, outputs.labels, outputs.bias, info, resamples=resamples, seed=seed)
        return {**found, **self.facts, "warnings": [*self.warnings, *found["warnings"]]}


@dataclass(frozen=True)
class _Fitted:
    """A classifier on frozen features, as a module, and what to say beside its numbers."""

    head: Head
    logits: Callable[[Outputs], Tensor]
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def _heads(
    names: Sequence[str], train: Outputs | None, classes: int, weights: Tensor | None
) -> tuple[dict[str, _Fitted], list[str]]:
    """Probe and neighbours by name, and warnings if they cannot be had."""
    if train is None:
        return {}, []
    if not bool(train.features.isfinite().all()):
        return {}, [
            "the features of the training set are not finite: neither probe nor nearest neighbours"
        ]
    x, y = unit(train.features), train.labels
    found: dict[str, _Fitted] = {}
    if "probe" in names:
        probe = fit_probe(x, y, classes, weights=weights)
        facts: dict[str, Any] = {"converged": probe.converged, "iterations": probe.iterations}
        if weights is not None:
            facts["balanced"] = True
        found["probe"] = _Fitted(
            LinearHead.of(probe),
            lambda outputs: probe.logits(unit(outputs.features)),
            facts,
            _doubts(probe),
        )
    if "knn" in names:
        found["knn"] = _Fitted(
            NeighborHead(x, y, classes),
            lambda outputs: _neighbours(x, y, outputs.features, classes),
        )
    return found, []


def _fitted(names: Sequence[str], heads: dict[str, _Fitted]) -> dict[str, "_Classifier"]:
    """The classifiers by name, in the order of the names."""
    found: dict[str, _Classifier] = {}
    for name in names:
        if name == "own":
            found[name] = _Classifier(lambda outputs: outputs.logits)
        elif name in heads:
            one = heads[name]
            found[name] = _Classifier(one.logits, one.facts, one.warnings)
    return found


def _neighbours(x: Tensor, y: Tensor, features: Tensor, classes: int) -> Tensor:
    """kNN logits; NaN for samples whose own features are not finite."""
    usable = features.isfinite().all(1)
    logits = torch.full((len(features), classes), torch.nan)
    logits[usable] = knn_logits(x, y, features[usable], classes)
    return logits


def _linear(
    method: Method, data: Data, test: Outputs, settings: LinearSettings | None, **how: Any
) -> tuple[Linear, dict[str, Any] | None]:
    """The layer after its last epoch, and its best epoch on the test set.

    The former is the result; the latter is what others report.
    """
    course: list[float] = []  # plain accuracy on the test set, epoch by epoch

    def look(layer: Linear) -> None:
        if len(test.labels):
            right = answers(layer.logits(test.features)) == test.labels
            course.append(float(right.double().mean()))

    layer = fit_linear(
        method, data.train, data.train_views, data.info, settings, after_epoch=look, **how
    )
    if not course:
        return layer, None
    return layer, {"epoch": 1 + course.index(max(course)), "plain": max(course)}


def _doubts(probe: Probe) -> tuple[str, ...]:
    said = []
    if not probe.converged:
        said.append(f"the probe had not converged after {probe.iterations} iterations")
    if probe.missing:
        said.append(
            f"no training samples of class {', '.join(map(str, probe.missing))}: "
            "the probe never answers it"
        )
    return tuple(said)


def _linear_doubts(layer: Linear) -> tuple[str, ...]:
    """A warning if the loss is far above that of equal probabilities.

    A layer that was trained too little is about as bad as those; one whose steps are too large is
    worse.
    """
    loss, equal = layer.losses[-1], math.log(len(layer.bias))
    if loss <= 2 * equal:
        return ()
    return (
        f"linear evaluation ended with a training loss of {loss:.3g}, more than twice the "
        f"{equal:.3g} of equal "
        "probabilities: evaluate.linear_lr is too large for these features",
    )


def _has_pairs(outputs: Outputs) -> Tensor | None:
    """The bias labels, if pairs of samples can be compared by them."""
    bias = outputs.bias
    if bias is None or int((bias >= 0).sum()) < 2 or not bool(outputs.features.isfinite().all()):
        return None
    return bias


__all__ = [
    "CLASSIFIERS",
    "CLASSIFIER_MEANINGS",
    "MEANINGS",
    "NAMES",
    "REPORTED",
    "USUAL",
    "Evaluation",
    "Judged",
    "LinearSettings",
    "Outputs",
    "answers",
    "available",
    "balanced_by",
    "collect",
    "evaluate",
    "fit_linear",
    "jsonable",
    "judge",
    "quick",
    "quick_of",
    "similarity_of",
]
