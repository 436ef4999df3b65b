"""Classifiers on frozen features: a linear one fitted to its optimum, and nearest neighbours."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from fairmargin.losses.inputs import check_ids, check_matrix
from fairmargin.vectors import unit

# Penalty on the weights.
L2 = 1e-4
# Largest entry of the gradient at the optimum, of a loss that starts at log(classes).
TOLERANCE = 1e-7
# Deviation/|mean| below which a float32 feature varies by rounding only.
CONSTANT = 1e-6
# Numbers held at a time.
HELD = 1 << 24


@dataclass(frozen=True)
class Probe:
    """Logits x·Wᵀ + c; −inf for classes that were not in the training labels.

    Args:
        weight: W [classes, D] float64.
        intercept: c [classes].
        converged: the gradient is below the tolerance.
        iterations: of the optimizer.
        missing: classes without training samples.
    """

    weight: Tensor
    intercept: Tensor
    converged: bool
    iterations: int
    missing: tuple[int, ...]

    def logits(self, features: Tensor) -> Tensor:
        """Return logits [N, classes] float64 of features [N, D]."""
        if features.ndim != 2 or features.shape[1] != self.weight.shape[1]:
            raise ValueError(
                f"this probe was fitted on {self.weight.shape[1]} features per sample; "
                f"got {list(features.shape)}. "
                "Give it features of the same network"
            )
        parts = [rows.double() @ self.weight.T for rows in _chunks(features, features.shape[1])]
        return torch.cat(parts) + self.intercept


def fit_probe(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    l2: float = L2,
    standardise: bool = True,
    max_iterations: int = 2000,
    weights: Tensor | None = None,
) -> Probe:
    """Fit a multinomial logistic regression, to convergence and without randomness.

    minimise over W, c   mean_i −w_i·log softmax(W x_i + c)_{y_i} + l2/2 ‖W‖²

    Args:
        features: [N, D].
        labels: [N] from 0 to classes − 1; classes without a sample get the logit −inf.
        l2: penalty on the weights (not on c); scikit-learn's C is 1/(N·l2).
        standardise: give every feature mean 0 and deviation 1 on these samples first, which makes
            the result independent of the features' scales; those that are constant are left out.
        weights: w [N], from 0 up, scaled to a mean of 1 here; all 1 by default.
    """
    check_matrix(features, "features")
    check_ids(labels, len(features), "labels")
    if not len(features):
        raise ValueError(
            "a probe needs training samples and there are none; give it the features of the "
            "training split"
        )
    _check_classes(labels, classes)
    if l2 <= 0:
        raise ValueError(f"l2 must be above 0, or separable classes have no optimum; got {l2}")
    w = _sample_weights(weights, len(features))
    present, y = labels.cpu().unique(return_inverse=True)
    x = features.cpu().double()
    mean, scale = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    if standardise:
        mean, scale = _mean_and_scale(x)
    fitted, converged, iterations = _minimise(
        (x - mean) * scale, y, len(present), l2, max_iterations, w
    )
    weight, intercept = x.new_zeros(classes, x.shape[1]), x.new_full((classes,), -torch.inf)
    weight[present] = fitted[:, :-1] * scale
    intercept[present] = fitted[:, -1] - weight[present] @ mean
    missing = sorted(set(range(classes)) - set(present.tolist()))
    return Probe(weight, intercept, converged, iterations, tuple(missing))


def _sample_weights(given: Tensor | None, n: int) -> Tensor:
    """Weights [N] with a mean of 1."""
    if given is None:
        return torch.ones(n, dtype=torch.double)
    w = given.cpu().double()
    usable = w.shape == (n,) and bool((w >= 0).all()) and bool(w.isfinite().all())
    if not usable or not bool(w.sum() > 0):
        raise ValueError(
            f"weights must be {n} finite numbers from 0 up, one for each sample, and not all 0"
        )
    return w / w.mean()


def _mean_and_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, 1/deviation) of each column; 0 instead of 1/deviation where it is constant."""
    mean, deviation = x.mean(0), x.std(0, correction=0)
    varies = deviation > CONSTANT * mean.abs()
    return mean, torch.where(varies, 1 / torch.where(varies, deviation, 1), 0)


def _minimise(
    x: Tensor, y: Tensor, classes: int, l2: float, max_iterations: int, weights: Tensor
) -> tuple[Tensor, bool, int]:
    """(W and c side by side [classes, D + 1], converged, iterations), by L-BFGS from zero."""
    n, d = x.shape
    x = torch.cat([x, x.new_ones(n, 1)], 1)
    truth = F.one_hot(y, classes).double()
    penalty = torch.cat([x.new_full((d,), l2), x.new_zeros(1)])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = torch.from_numpy(flat).view(classes, d + 1)
        log_p = (x @ w.T).log_softmax(1)
        shrink = penalty * w
        loss = (shrink * w).sum() / 2 - weights @ log_p.gather(1, y[:, None])[:, 0] / n
        gradient = (weights[:, None] * (log_p.exp_() - truth)).T @ x / n + shrink
        return float(loss), gradient.flatten().numpy()

    start = np.zeros(classes * (d + 1))
    # Features of trained networks are nearly collinear; a long memory saves many iterations.
    memory = min(100, max(10, HELD // len(start)))
    # Only the gradient ends it: a small step in the loss alone may lie far from the optimum when l2
    # is small.
    options = {
        "gtol": TOLERANCE,
        "ftol": 0,
        "maxiter": max_iterations,
        "maxfun": 10 * max_iterations,
        "maxcor": memory,
    }
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    converged = bool(np.abs(result.jac).max() <= TOLERANCE)
    return torch.from_numpy(result.x).view(classes, d + 1), converged, int(result.nit)


def knn_logits(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    classes: int,
    *,
    k: int = 20,
    chunk: int | None = None,
) -> Tensor:
    """Return logs of the vote shares of the k nearest training samples: [N, classes].

        log (votes_c + 1/classes) / (k + 1)

    so that their softmax is that share and no class gets the probability 0. The nearest samples are
    those with the largest cosine.

    Args:
        train_features: [M, D].
        train_labels: [M] from 0 to classes − 1.
        features: [N, D].
        k: neighbours that vote, at most M.
        chunk: samples compared with the training set at a time; None takes as many as 64 MB of
            cosines allow.
    """
    check_matrix(train_features, "train_features")
    check_matrix(features, "features")
    check_ids(train_labels, len(train_features), "train_labels")
    if k < 1 or not len(train_features):
        raise ValueError(
            "nearest neighbours need k ≥ 1 and training samples; "
            f"got k={k} and {len(train_features)}"
        )
    _check_classes(train_labels, classes)
    k = min(k, len(train_features))
    bank, parts = unit(train_features.float()), []
    for rows in _chunks(features, len(bank), chunk):
        nearest = (unit(rows.float()) @ bank.T).topk(k, sorted=False).indices  # [n, k]
        votes = F.one_hot(train_labels.long()[nearest], classes).sum(1)
        parts.append(((votes + 1 / classes) / (k + 1)).log())
    return torch.cat(parts)


def _chunks(x: Tensor, width: int, size: int | None = None) -> Iterator[Tensor]:
    """Rows of `x`, as many at a time as keep rows · width bounded.

    There is at least one part, which may be empty.
    """
    yield from x.split(size or max(1, HELD // max(width, 1)))


def _check_classes(labels: Tensor, classes: int) -> None:
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"labels must be from 0 to {classes - 1}; got {int(labels.min())} to "
            f"{int(labels.max())}. "
            "Is `classes` the number of classes of the whole dataset?"
        )
