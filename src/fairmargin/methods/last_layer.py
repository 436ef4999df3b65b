"""Fit a linear layer to features: group-balanced draws and an L1 penalty. DFR's second stage."""

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import Bounds, minimize
from torch import Tensor

# W [classes, D] and c [classes], double; c = −inf for classes without samples.
Fit = tuple[Tensor, Tensor]


def balanced(groups: Tensor, generator: torch.Generator) -> Tensor:
    """Return positions of a random subset with equally many samples of every group that occurs.

    Each group has as many as the smallest.

    Args:
        groups: [N] group of each sample.
    """
    _, group, sizes = groups.unique(return_inverse=True, return_counts=True)
    order = torch.randperm(len(groups), generator=generator)
    # Group after group, shuffled inside.
    order = order[group[order].argsort(stable=True)]
    rank = torch.arange(len(groups)) - (sizes.cumsum(0) - sizes)[group[order]]
    return order[rank < sizes.min()]


def fit_l1(x: Tensor, y: Tensor, classes: int, strength: float) -> Fit:
    """Return argmin over W, c of mean CE(W x + c, y) + strength·‖W‖₁.

    W = U − V with U, V ≥ 0 makes the penalty smooth.
    Note: c is free; liblinear, which the released code uses, penalises it too.

    Args:
        x: [n, D] features, double.
        y: [n] labels.
        classes: how many there are, with those that `y` lacks.
        strength: weight of the penalty.
    """
    n, d = x.shape
    present, target = y.unique(return_inverse=True)
    k = len(present)
    truth = F.one_hot(target, k).double()

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        both = torch.from_numpy(flat[: 2 * k * d]).view(2, k, d)
        intercept = torch.from_numpy(flat[2 * k * d :])
        log_p = (x @ (both[0] - both[1]).T + intercept).log_softmax(1)
        residual = (log_p.exp() - truth) / n
        slope = residual.T @ x
        gradient = torch.cat(
            [(strength + slope).flatten(), (strength - slope).flatten(), residual.sum(0)]
        )
        value = strength * both.sum() - (log_p * truth).sum() / n
        return float(value), gradient.numpy()

    lower = np.concatenate([np.zeros(2 * k * d), np.full(k, -np.inf)])
    options = {"gtol": 1e-7, "ftol": 0, "maxiter": 2000, "maxfun": 20_000, "maxcor": 30}
    start = np.zeros(len(lower))
    result = minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=Bounds(lower, np.inf), options=options
    )
    u, v = torch.from_numpy(result.x[: 2 * k * d]).view(2, k, d)
    weight = x.new_zeros(classes, d)
    weight[present] = u - v
    intercept = x.new_full((classes,), -torch.inf)
    intercept[present] = torch.from_numpy(result.x[2 * k * d :])
    return weight, intercept


def descend(
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    start: Fit,
    *,
    steps: int,
    rate: float,
    pull: float = 0.0,
    largest: float = 1.0,
) -> Fit:
    """Return W, c after gradient descent from `start`.

        Σ_i w_i·CE(W x_i + c, y_i) + pull·‖(W, c) − start‖²

    Args:
        x: [n, D] features, double.
        y: [n] labels.
        weights: w [n], whose sum is 1.
        start: W [classes, D] and c [classes], double.
        steps: of gradient descent, each on all samples.
        rate: of a step.
        pull: strength with which the start holds the layer.
        largest: norm of a gradient, which is shortened to it.
    """
    weight, intercept = start[0].clone(), start[1].clone()
    truth = F.one_hot(y, len(intercept)).double()
    for _ in range(steps):
        residual = weights[:, None] * ((x @ weight.T + intercept).softmax(1) - truth)
        slope = residual.T @ x + 2 * pull * (weight - start[0])
        level = residual.sum(0) + 2 * pull * (intercept - start[1])
        norm = float((slope.square().sum() + level.square().sum()).sqrt())
        step = rate * min(1.0, largest / max(norm, 1e-12))
        weight -= step * slope
        intercept -= step * level
    return weight, intercept
