"""Choose a debiasing method by grid search in scikit-learn. Takes less than a minute on a CPU.

    python examples/sklearn_classifier.py

2,000 vectors of four classes: weak features of the class, and strong ones that say which of four
sites a sample is from. The site is the class's own for 95 % of the training samples, and any other
in the test set. Three-fold cross-validation on the training samples chooses the method, by the mean
accuracy over the (class, site) groups. With fairlearn installed, its MetricFrame shows the accuracy
at each site.
"""

import numpy as np
import sklearn
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV

import fairmargin as fm

CLASSES = np.array(["adder", "boa", "cobra", "mamba"])
SITES = np.array(["Aix", "Bonn", "Cork", "Metz"])
METHODS = ["ce", "group-balanced", "ce+fairkl"]


def with_shortcut(n: int, agreement: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw (vectors, class, site); the site follows the class in this share of the samples."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 4, n)
    another = (y + random.integers(1, 4, n)) % 4
    site = np.where(random.random(n) < agreement, y, another)
    weak = np.eye(4)[y] + 0.4 * random.normal(size=(n, 4))
    strong = 3 * np.eye(4)[site] + 0.3 * random.normal(size=(n, 4))
    x = np.concatenate([weak, strong, random.normal(size=(n, 10))], axis=1)
    return x, CLASSES[y], SITES[site]


def show_groups(y: np.ndarray, predicted: np.ndarray, site: np.ndarray) -> None:
    """Print the accuracy at each site, if fairlearn is there."""
    try:
        from fairlearn.metrics import MetricFrame
    except ImportError:
        print("no table of sites: it needs fairlearn (pip install fairlearn)")
        return
    frame = MetricFrame(
        metrics={"accuracy": accuracy_score},
        y_true=y,
        y_pred=predicted,
        sensitive_features={"site": site},
    )
    print(frame.by_group.round(3).to_string())


def main() -> None:
    """Search, then compare the chosen method with cross-entropy where the shortcut misleads."""
    x, y, site = with_shortcut(2000, 0.95, seed=0)
    x_test, y_test, site_test = with_shortcut(2000, 0.0, seed=1)
    with sklearn.config_context(enable_metadata_routing=True):
        model = fm.FairMarginClassifier(random_state=0, device="cpu")
        model.set_fit_request(bias=True).set_score_request(bias=True)
        search = GridSearchCV(model, {"method": METHODS}, cv=3).fit(x, y, bias=site)
    results = search.cv_results_
    print("validation, mean over groups:")
    for method, score in zip(METHODS, results["mean_test_score"], strict=True):
        print(f"  {method:16}{score:.1%}")
    print(f"chosen: {search.best_params_['method']}")

    plain = fm.FairMarginClassifier("ce", random_state=0, device="cpu").fit(x, y)
    for name, fitted in (("ce", plain), ("chosen", search.best_estimator_)):
        predicted = fitted.predict(x_test)
        print(
            f"{name}: test accuracy where the shortcut misleads: {np.mean(predicted == y_test):.1%}"
        )
        show_groups(y_test, predicted, site_test)


if __name__ == "__main__":
    main()
