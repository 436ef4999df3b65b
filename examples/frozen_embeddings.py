"""Remove a known bias from frozen embeddings with a scikit-learn transformer. Takes seconds.

    python examples/frozen_embeddings.py

The "embeddings" are the pixels of scikit-learn's 8×8 digits and ten more features that say which
value a bias has: the digit's own for 98 % of the training samples, any value in the test set. A
logistic regression follows the bias. `FairMarginProjector` is told the bias of the training samples
and learns a projection that keeps it out of the distances.
"""

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from fairmargin import FairMarginProjector
from fairmargin.audit._embeddings import audit_arrays


def with_shortcut(
    x: np.ndarray, y: np.ndarray, agreement: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (embeddings, bias): the features, with the bias written beside them."""
    random = np.random.default_rng(seed)
    bias = np.where(random.random(len(y)) < agreement, y, random.integers(0, 10, len(y)))
    cue = 30 * np.eye(10)[bias] + random.normal(size=(len(y), 10))
    return np.concatenate([x, cue], axis=1), bias


def group_weights(y: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Weigh samples so that every (label, bias) group counts alike."""
    groups = np.stack([y, bias])
    _, group, size = np.unique(groups, axis=1, return_inverse=True, return_counts=True)
    weights = 1 / size[group]
    return weights / weights.mean()


def projected() -> Pipeline:
    """Build a projector followed by a logistic regression."""
    steps = [
        ("projector", FairMarginProjector(random_state=0)),
        ("classifier", LogisticRegression(max_iter=5000)),
    ]
    return Pipeline(steps)


def main() -> None:
    """Compare four classifiers where the shortcut misleads, and the embeddings before and after."""
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.4, random_state=0, stratify=y)
    z, bias = with_shortcut(x, y, 0.98, seed=0)
    z_test, bias_test = with_shortcut(x_test, y_test, 0.0, seed=1)
    weights = group_weights(y, bias)
    both = {"projector__bias": bias, "classifier__sample_weight": weights}

    models: dict[str, ClassifierMixin] = {
        "logistic regression": LogisticRegression(max_iter=5000).fit(z, y),
        "group-reweighted": LogisticRegression(max_iter=5000).fit(z, y, weights),
        "projector": projected().fit(z, y, projector__bias=bias),
        "projector, group-reweighted": projected().fit(z, y, **both),
    }
    print("accuracy where the shortcut misleads:")
    misleads = bias_test != y_test
    for name, model in models.items():
        right = model.predict(z_test) == y_test
        print(f"  {name:28}{right[misleads].mean():.1%}")

    projector = models["projector"][0]
    for name, embeddings in (("before", z_test), ("after", projector.transform(z_test))):
        told = {"embeddings": embeddings, "labels": y_test, "bias": bias_test}
        links = audit_arrays(told).json["geometry"]["ordering"]["links"]
        print(f"{name}: same digit closer than same bias in {links[1]['share']:.0%} of comparisons")


if __name__ == "__main__":
    main()
