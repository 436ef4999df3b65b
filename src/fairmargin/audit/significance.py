"""How well an attribute tells the label, measured on samples it was not fitted to, and whether chance could do as well.

One half of the samples fits a shallow predictor to each attribute; the other half scores it. For the test the labels of the
scoring half are permuted: the predictors stay as they are, so one permutation serves all attributes at once, and the largest
standardised score of each permutation corrects for having looked at many (Westfall & Young, 1993).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.tree import DecisionTreeClassifier

from fairmargin.audit.attributes import Attribute
from fairmargin.audit.section import Progress, silent

LEAVES = 4  # of a tree for each class, at least 32 in all
SMALLEST_LEAF = 5
FEW = 5  # mistakes, from which on they are looked at
SAME = 0.95  # of the answers
TREES, MOST_LEAVES = 60, 2048  # of the blind model


@dataclass(frozen=True)
class Answers:
    """What an attribute alone says about each scored sample."""

    attribute: Attribute
    values: np.ndarray  # [n, columns], or [n] of a category: the attribute of the scored samples
    predicted: np.ndarray  # [n]
    confidence: np.ndarray  # [n], of the predicted class when all classes are equally frequent


@dataclass(frozen=True)
class Score:
    """Balanced accuracy on the scored half, and how surprising it is."""

    accuracy: float
    error: float  # its standard error
    recall: np.ndarray  # [classes]
    p: float
    p_corrected: float

    @property
    def strength(self) -> float:
        """0 at chance, 1 when every label is told."""
        chance = 1 / len(self.recall)
        return (self.accuracy - chance) / (1 - chance)


def halves(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(fit, score): each class cut in two at random."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # by class, random inside
    rank = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return np.sort(order[rank % 2 == 0]), np.sort(order[rank % 2 == 1])


def ask(
    attribute: Attribute, labels: np.ndarray, fit: np.ndarray, score: np.ndarray, classes: int
) -> Answers:
    """Fit a table to a category and a small tree to numbers, classes counted alike."""
    if attribute.kind == "category":
        table = np.zeros((len(attribute.levels), classes))
        np.add.at(table, (attribute.values[fit], labels[fit]), 1)
        share = table / np.maximum(table.sum(0), 1)
        table = share / np.maximum(share.sum(1, keepdims=True), 1e-12)
        at = attribute.values[score]
    else:
        tree = DecisionTreeClassifier(
            max_leaf_nodes=max(32, LEAVES * classes),
            min_samples_leaf=SMALLEST_LEAF,
            class_weight="balanced",
            random_state=0,
        )
        tree.fit(attribute.values[fit], labels[fit])
        leaves = tree.tree_.value[:, 0]  # [nodes, classes]
        table = leaves / leaves.sum(1, keepdims=True)
        at = tree.apply(attribute.values[score])
    return Answers(attribute, attribute.values[score], table.argmax(1)[at], table.max(1)[at])


def ask_together(
    attributes: Sequence[Attribute],
    labels: np.ndarray,
    fit: np.ndarray,
    score: np.ndarray,
    seed: int,
) -> Answers:
    """The blind model: all numbers about a picture at once, none of which sees what it shows."""
    values = np.concatenate([a.values for a in attributes if a.kind != "category"], 1)
    forest = ExtraTreesClassifier(
        TREES,
        max_leaf_nodes=MOST_LEAVES,
        min_samples_leaf=SMALLEST_LEAF,
        class_weight="balanced",
        random_state=seed,
    )
    forest.fit(values[fit], labels[fit])
    told = forest.predict_proba(values[score])
    together = Attribute("blind model", "blind model", "several", values)
    return Answers(together, values[score], told.argmax(1), told.max(1))


def judge(
    answers: Sequence[Answers],
    labels: np.ndarray,
    classes: int,
    *,
    permutations: int,
    seed: int,
    progress: Progress = silent,
) -> list[Score]:
    """A score for each attribute; `labels` are those of the scored half, every class among them.

    p = (1 + permutations at least as good) / (1 + permutations).
    """
    said = np.stack([one.predicted for one in answers]).astype(np.int16)  # [attributes, n]
    number = np.bincount(labels, minlength=classes)
    weight = (1 / (classes * number))[labels]
    y = labels.astype(np.int16)
    observed = (said == y) @ weight

    random = np.random.default_rng(seed)
    chance = np.empty((permutations, len(answers)))
    for b in range(permutations):
        order = random.permutation(len(y))
        chance[b] = (said == y[order]) @ weight[order]
        if b % 50 == 49 or b + 1 == permutations:
            progress("permuting labels", b + 1, permutations)
    deviation = chance.std(0)
    spread = np.where(
        deviation > 1e-9, deviation, np.inf
    )  # one answer for all samples: never surprising
    z, z_chance = (observed - 1 / classes) / spread, (chance - 1 / classes) / spread
    tiny = 1e-9  # rounding must not make a permutation worse than itself
    p = (1 + (chance >= observed - tiny).sum(0)) / (1 + permutations)
    p_corrected = (1 + (z_chance.max(1)[:, None] >= z - tiny).sum(0)) / (1 + permutations)
    return [
        _score(one.predicted, labels, number, float(p[k]), float(p_corrected[k]))
        for k, one in enumerate(answers)
    ]


def _score(
    predicted: np.ndarray, labels: np.ndarray, number: np.ndarray, p: float, p_corrected: float
) -> Score:
    recall = np.bincount(labels, weights=predicted == labels, minlength=len(number)) / number
    error = float(np.sqrt((recall * (1 - recall) / number).sum()) / len(number))
    return Score(float(recall.mean()), error, recall, p, p_corrected)


def rank(scores: Sequence[Score], groups: Sequence[int]) -> list[int]:
    """Positions, group by group, the strongest first. Of those within two standard errors of the strongest left the one
    that stands first in `scores` comes first."""
    left, order = sorted(range(len(scores)), key=lambda k: groups[k]), []
    while left:
        rivals = [k for k in left if groups[k] == groups[left[0]]]
        best = max((scores[k] for k in rivals), key=lambda score: score.accuracy)
        order.append(min(k for k in rivals if scores[k].accuracy >= best.accuracy - 2 * best.error))
        left.remove(order[-1])
    return order


def echoes(answers: Answers, stronger: Answers, labels: np.ndarray) -> bool:
    """Whether `answers` tells nothing that `stronger` does not: where that is wrong, it is right half as often or less.

    Where the stronger makes hardly any mistakes to compare, whether both say the same.
    """
    wrong = stronger.predicted != labels
    if wrong.sum() < FEW:
        return float((answers.predicted == stronger.predicted).mean()) >= SAME
    right = answers.predicted == labels
    return float(right[wrong].mean()) <= float(right.mean()) / 2
