"""Debias frozen embeddings of any kind with a scikit-learn transformer. Runs in seconds on a CPU, needs no download.

    python examples/frozen_embeddings.py

The "embeddings" are the pixels of scikit-learn's 8×8 digits and ten more features that say which value a bias has. It is
the digit's own for 98 of 100 training samples and any in the test set. A logistic regression follows it. The projector
is told the bias of the training samples, and learns a projection that keeps it out of the distances.
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
    """(embeddings, bias)."""
    random = np.random.default_rng(seed)
    bias = np.where(random.random(len(y)) < agreement, y, random.integers(0, 10, len(y)))
    cue = 30 * np.eye(10)[bias] + random.normal(size=(len(y), 10))
    return np.concatenate([x, cue], axis=1), bias


def group_weights(y: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Every (label, bias) group counts alike."""
    _, group, size = np.unique(np.stack([y, bias]), axis=1, return_inverse=True, return_counts=True)
    return (1 / size)[group] / (1 / size)[group].mean()


def main() -> None:
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.4, random_state=0, stratify=y)
    z, bias = with_shortcut(x, y, 0.98, seed=0)
    z_test, bias_test = with_shortcut(x_test, y_test, 0.0, seed=1)
    weights = group_weights(y, bias)

    def projected() -> Pipeline:
        return Pipeline(
            [
                ("projector", FairMarginProjector(random_state=0)),
                ("classifier", LogisticRegression(max_iter=5000)),
            ]
        )

    models: dict[str, ClassifierMixin] = {
        "logistic regression": LogisticRegression(max_iter=5000).fit(z, y),
        "group-reweighted": LogisticRegression(max_iter=5000).fit(z, y, weights),
        "projector": projected().fit(z, y, projector__bias=bias),
        "projector, group-reweighted": projected().fit(
            z, y, projector__bias=bias, classifier__sample_weight=weights
        ),
    }
    print("accuracy where the shortcut misleads:")
    for name, model in models.items():
        print(f"  {name:28}{(model.predict(z_test) == y_test)[bias_test != y_test].mean():.1%}")

    projector = models["projector"][0]
    told = {"labels": y_test, "bias": bias_test}
    for name, embeddings in (("before", z_test), ("after", projector.transform(z_test))):
        links = audit_arrays(told | {"embeddings": embeddings}).json["geometry"]["ordering"][
            "links"
        ]
        print(f"{name}: same digit closer than same bias in {links[1]['share']:.0%} of comparisons")


if __name__ == "__main__":
    main()
