"""Measure how well an attribute tells the label, and whether chance could do as well.

One half of the samples fits a shallow predictor to each attribute; the other half scores it. For
the test the labels of the scoring half are permuted. The predictors stay as they are, so one
permutation serves all attributes at once, and the largest standardised score of each permutation
corrects for having looked at many (Westfall & Young, 1993).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.tree import DecisionTreeClassifier

from fairmargin.audit.attributes import Attribute
from fairmargin.audit.section import Progress, silent

# Leaves of a tree for each class; at least 32 in all.
LEAVES = 4
SMALLEST_LEAF = 5
# With fewer mistakes than this, answers are compared instead of mistakes.
FEW = 5
# Share of equal answers from which on two attributes say the same.
SAME = 0.95
# Of the blind model.
TREES = 60
MOST_LEAVES = 2048


@dataclass(frozen=True)
class Answers:
    """What an attribute alone says about each scored sample.

    Args:
        attribute: of all samples.
        values: of the scored samples, [n, columns] or, of a category, [n].
        predicted: [n] classes.
        confidence: [n], of the predicted class if all classes were equally frequent.
    """

    attribute: Attribute
    values: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray


@dataclass(frozen=True)
class Score:
    """Balanced accuracy on the scored half, and how surprising it is.

    Args:
        accuracy: the mean of `recall`.
        error: its standard error.
        recall: [classes] share of right answers.
        p: probability that chance does as well.
        p_corrected: the same for the best of all attributes.
    """

    accuracy: float
    error: float
    recall: np.ndarray
    p: float
    p_corrected: float

    @property
    def strength(self) -> float:
        """Share of the way from chance to perfect: 0 at chance, 1 if every label is told."""
        chance = 1 / len(self.recall)
        return (self.accuracy - chance) / (1 - chance)


def halves(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut each class in two at random; return positions of (the fitting half, the scoring half).

    Args:
        labels: [N] classes.
        seed: of the cut.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    # By class, in random order inside.
    order = order[np.argsort(labels[order], kind="stable")]
    rank = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return np.sort(order[rank % 2 == 0]), np.sort(order[rank % 2 == 1])


def ask(
    attribute: Attribute, labels: np.ndarray, fit: np.ndarray, score: np.ndarray, classes: int
) -> Answers:
    """Fit a table to a category or a small tree to numbers, and return what it says.

    Every class counts alike.

    Args:
        attribute: of all samples.
        labels: [N] of all samples.
        fit: positions of the fitting half.
        score: positions of the scoring half.
        classes: number of classes.
    """
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
    """Return what the blind model says: a forest on all numbers about a picture at once.

    None of these numbers sees what a picture shows.

    Args:
        attributes: whose numbers are used; categories are left out.
        labels: [N] of all samples.
        fit: positions of the fitting half.
        score: positions of the scoring half.
        seed: of the forest.
    """
    values = np.concatenate([a.values for a in attributes if a.kind != "category"], 1)
    together = Attribute("blind model", "blind model", "several", values)
    return ask_forest(together, labels, fit, score, seed)


def ask_forest(
    attribute: Attribute, labels: np.ndarray, fit: np.ndarray, score: np.ndarray, seed: int
) -> Answers:
    """Fit a forest to an attribute of many numbers, and return what it says.

    Args:
        attribute: of all samples, not a category.
        labels: [N] of all samples.
        fit: positions of the fitting half.
        score: positions of the scoring half.
        seed: of the forest.
    """
    values = attribute.values
    forest = ExtraTreesClassifier(
        TREES,
        max_leaf_nodes=MOST_LEAVES,
        min_samples_leaf=SMALLEST_LEAF,
        class_weight="balanced",
        random_state=seed,
    )
    forest.fit(values[fit], labels[fit])
    told = forest.predict_proba(values[score])
    return Answers(attribute, values[score], told.argmax(1), told.max(1))


def judge(
    answers: Sequence[Answers],
    labels: np.ndarray,
    classes: int,
    *,
    permutations: int,
    seed: int,
    progress: Progress = silent,
) -> list[Score]:
    """Score each attribute.

    p = (1 + permutations at least as good) / (1 + permutations).

    Args:
        answers: of the attributes.
        labels: [n] of the scored half, with every class among them.
        classes: number of classes.
        permutations: of the labels.
        seed: of the permutations.
        progress: called now and then.
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
    # One answer for all samples has no deviation and is never surprising.
    spread = np.where(deviation > 1e-9, deviation, np.inf)
    z = (observed - 1 / classes) / spread
    z_chance = (chance - 1 / classes) / spread
    # Rounding must not make a permutation worse than itself.
    tiny = 1e-9
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
    """Return positions in `scores`, group by group, the strongest first.

    Of those within two standard errors of the strongest that is left, the one that stands first in
    `scores` comes first.

    Args:
        scores: the simplest attribute first.
        groups: number of the group of each; the lowest comes first.
    """
    left = sorted(range(len(scores)), key=lambda k: groups[k])
    order: list[int] = []
    while left:
        rivals = [k for k in left if groups[k] == groups[left[0]]]
        best = max((scores[k] for k in rivals), key=lambda score: score.accuracy)
        order.append(min(k for k in rivals if scores[k].accuracy >= best.accuracy - 2 * best.error))
        left.remove(order[-1])
    return order


def echoes(answers: Answers, stronger: Answers, labels: np.ndarray) -> bool:
    """Return True if `answers` tells nothing that `stronger` does not.

    That is so if `answers` is right half as often, or less, where `stronger` is wrong. If
    `stronger` makes hardly any mistakes, it is so if both say the same.

    Args:
        answers: of the weaker attribute.
        stronger: answers of the other.
        labels: [n] of the scored samples.
    """
    wrong = stronger.predicted != labels
    if wrong.sum() < FEW:
        return float((answers.predicted == stronger.predicted).mean()) >= SAME
    right = answers.predicted == labels
    return float(right[wrong].mean()) <= float(right.mean()) / 2
