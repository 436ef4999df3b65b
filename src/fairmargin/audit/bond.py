"""Measure how far an attribute is bound to what a picture shows.

An attribute that the object itself brings along, such as the border that trousers touch, varies
inside a class with the object: wide trousers touch more of it. A planted attribute does not: which
pictures of a class carry it has nothing to do with what they show. So inside each class the
attribute's support for the label is predicted from the object, for pictures that the prediction
has not seen. The correlation of both is the bond: near 0 for what was planted, clearly above for
what belongs to the object.

The object is described by what planted attributes do not reach: the middle of the picture, coarse,
in grey, with its own brightness and contrast taken away.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from torch import Tensor
from torch.nn import functional as F

from fairmargin.audit.attributes import Attribute
from fairmargin.data.split import Split
from fairmargin.runtime.threads import one_thread

# An attribute belongs to the object if its bond, with its standard error, may reach this.
BOUND = 0.18
# Pixels along the side of the coarse picture.
SIDE = 10
# Cells along the side in which edges are counted.
CELLS = 4
# The margin that is left out: this fraction of each side. Frames, tints and patches live there.
MARGIN = 7
# Most samples that the attribute, and the prediction from the object, are fitted to.
MOST = 4000
FOLDS = 4
TREES = 40
SMALLEST_LEAF = 5
# Families that change edges when they are planted, so that edges must not describe the object.
SEES_EDGES = ("texture", "blind model", "learned")
# Families that are not read off the picture and so cannot see the object.
NOT_SEEN = ("metadata",)
# Pictures described at a time.
AT_ONCE = 1000


def describe(split: Split, index: np.ndarray) -> dict[str, np.ndarray]:
    """Return two descriptions of the object in each picture, float32 [n, columns].

    "form" is the coarse picture; "edges" is the same with the strength of its edges.

    Args:
        split: of the pictures.
        index: [n] positions in the split.
    """
    forms, edges = [], []
    with one_thread():
        for part in torch.from_numpy(index).split(AT_ONCE):
            middle = _middle(split.images(part))
            forms.append(_form(middle))
            edges.append(_edges(middle))
    form = torch.cat(forms).numpy()
    return {"form": form, "edges": np.concatenate([form, torch.cat(edges).numpy()], 1)}


def _middle(images: Tensor) -> Tensor:
    """Return the grey picture without its margin, [n, 1, h, w]."""
    height, width = images.shape[2:]
    top, left = max(1, round(height / MARGIN)), max(1, round(width / MARGIN))
    if min(height - 2 * top, width - 2 * left) < 2:
        top = left = 0
    grey = images.float().mean(1, keepdim=True) / 255
    return grey[:, :, top : height - top, left : width - left]


def _standardised(x: Tensor) -> Tensor:
    """Take away brightness and contrast of each picture."""
    flat = x.flatten(1)
    mean, deviation = flat.mean(1), flat.std(1, correction=0)
    return (x - mean[:, None, None, None]) / (deviation + 0.01)[:, None, None, None]


def _form(middle: Tensor) -> Tensor:
    side = min(SIDE, *middle.shape[2:])
    return _standardised(F.adaptive_avg_pool2d(middle, side)).flatten(1)


def _edges(middle: Tensor) -> Tensor:
    x = _standardised(middle)[:, 0]
    right = x[:, :-1, 1:] - x[:, :-1, :-1]
    down = x[:, 1:, :-1] - x[:, :-1, :-1]
    four = torch.stack([right, down, right + down, right - down], 1).abs()
    cells = F.adaptive_avg_pool2d(four, min(CELLS, *four.shape[2:])).flatten(1)
    return torch.cat([cells, cells.mean(1, keepdim=True), cells.std(1, keepdim=True)], 1)


class Bonds:
    """Measures bonds of attributes with the object, in one sample of an audit.

    Args:
        split: of the pictures.
        index: [N] positions of all audited samples in the split.
        labels: [N] classes.
        fit: positions in `index` of the fitting half.
        score: positions in `index` of the scoring half.
        seed: of the draws and the folds.
    """

    def __init__(
        self,
        split: Split,
        index: np.ndarray,
        labels: np.ndarray,
        fit: np.ndarray,
        score: np.ndarray,
        seed: int,
    ) -> None:
        random = np.random.default_rng(seed)
        self._fit = np.sort(random.permutation(fit)[:MOST])
        self._score = np.sort(random.permutation(score)[:MOST])
        self._fold = random.permutation(len(self._score)) % FOLDS
        self._labels = labels
        self._seed = seed
        self._describe: Callable[[], dict[str, np.ndarray]] = lambda: describe(
            split, index[self._score]
        )
        self._objects: dict[str, np.ndarray] | None = None

    def of(self, attribute: Attribute) -> float | None:
        """Return the bond, from about 0 to 1; None if the attribute is not read off the picture.

        Args:
            attribute: of all audited samples.
        """
        if attribute.family in NOT_SEEN:
            return None
        if self._objects is None:
            self._objects = self._describe()
        objects = self._objects["form" if attribute.family in SEES_EDGES else "edges"]
        labels = self._labels[self._score]
        support = _centred(self._support(attribute), labels)
        if support.std() < 1e-4:
            return 0.0
        foretold = self._foretold(objects, support, labels)
        both = np.sqrt((support**2).sum() * (foretold**2).sum())
        return float((support * foretold).sum() / both) if both > 0 else 0.0

    def may_hold(self, bond: float | None) -> bool:
        """Return True if the attribute may belong to the object, as far as these samples tell.

        The fewer samples, the less is called a shortcut: a correlation of n has an error of 1/√n.

        Args:
            bond: of the attribute; None is never bound.
        """
        if bond is None:
            return False
        return bond + 1 / math.sqrt(len(self._score)) >= BOUND

    def _support(self, attribute: Attribute) -> np.ndarray:
        """How far the attribute alone speaks for the label of each scored sample, [n]."""
        fit, score = self._fit, self._score
        values = attribute.values
        if attribute.kind == "category":
            values = np.eye(len(attribute.levels), dtype=np.float32)[values]
        forest = ExtraTreesClassifier(
            TREES,
            max_features=None if values.shape[1] <= 100 else "sqrt",
            min_samples_leaf=SMALLEST_LEAF,
            max_leaf_nodes=256,
            class_weight="balanced",
            random_state=self._seed,
        )
        forest.fit(values[fit], self._labels[fit])
        told = forest.predict_proba(values[score])
        column = np.searchsorted(forest.classes_, self._labels[score])
        column = np.minimum(column, len(forest.classes_) - 1)
        known = forest.classes_[column] == self._labels[score]
        return np.where(known, told[np.arange(len(score)), column], 0.0)

    def _foretold(self, objects: np.ndarray, support: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Predict the support from the object and the label, by folds; centred in each class."""
        classes = labels.max() + 1
        # Scaled, so that a tree may cut by the label as easily as by a pixel.
        known = np.concatenate([objects, 3 * np.eye(classes, dtype=np.float32)[labels]], 1)
        foretold = np.zeros(len(labels))
        for k in range(FOLDS):
            out = self._fold == k
            forest = ExtraTreesRegressor(
                TREES,
                max_features=0.2,
                min_samples_leaf=SMALLEST_LEAF,
                max_leaf_nodes=256,
                random_state=self._seed,
            )
            forest.fit(known[~out], support[~out])
            foretold[out] = forest.predict(known[out])
        return _centred(foretold, labels)


def _centred(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Subtract from each value the mean of its class."""
    number = np.maximum(np.bincount(labels), 1)
    return values - (np.bincount(labels, weights=values) / number)[labels]
