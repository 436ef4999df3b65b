"""HSIC, the Hilbert–Schmidt independence criterion (Gretton et al., ALT 2005), used by ReBias."""

from typing import get_args

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses.choices import Estimator
from fairmargin.losses.inputs import check_matrix
from fairmargin.vectors import full_precision, power_of_two


def hsic(
    x: Tensor,
    y: Tensor,
    *,
    sigma_x: float = 1.0,
    sigma_y: float | None = None,
    estimator: Estimator = "unbiased",
) -> Tensor:
    """HSIC: how much two sets of features of the same m samples depend on each other.

    With kernels k = exp(−‖a−b‖²/(2σ²)), K of x and L of y:

        unbiased  [tr K̃L̃ + (1ᵀK̃1)(1ᵀL̃1)/((m−1)(m−2)) − 2/(m−2)·1ᵀK̃L̃1] / (m(m−3))
                  K̃ and L̃ have zero diagonals (Song et al., JMLR 2012)
        biased    tr(KHLH)/(m−1)²,  H = I − 1/m  (Gretton et al., ALT 2005)

    Note: the ReBias code subtracts the diagonal from every row (K − diag K, a broadcast) instead of
    zeroing it. For an RBF kernel this turns every entry into k − 1, and the unbiased estimate does
    not change when a constant is added to all off-diagonal entries: the mistake is harmless here,
    and would not be with a kernel of varying diagonal.

    Args:
        x: [m, D] features; m ≥ 4, or 2 for the biased estimate.
        y: [m, E] features of the same samples, in the same order.
        sigma_x: kernel width σ of x, above 0. A usual choice is the median distance between
            samples.
        sigma_y: kernel width of y; None takes `sigma_x`.
        estimator: "unbiased", as ReBias uses it, or "biased".

    Returns:
        A scalar; about 0 for independent features. The unbiased estimate can be negative.

    Example:
        >>> loss = F.cross_entropy(logits, y) + losses.hsic(h, biased_features)
    """
    check_choice(estimator, "estimator", get_args(Estimator))
    check_matrix(x, "x")
    check_matrix(y, "y")
    if len(x) != len(y):
        raise ValueError(
            f"x has {len(x)} rows and y has {len(y)}; "
            "they must describe the same samples, in the same order"
        )
    m = len(x)
    least = 2 if estimator == "biased" else 4
    if m < least:
        raise ValueError(
            f"the {estimator} HSIC needs at least {least} samples; got {m}. Use a larger batch"
        )
    sigma_y = sigma_x if sigma_y is None else sigma_y
    with torch.autocast(x.device.type, enabled=False):
        x, y = full_precision(x), full_precision(y)
        dtype = torch.promote_types(x.dtype, y.dtype)
        x, y = x.to(dtype), y.to(dtype)
        K, L = _rbf(x, sigma_x, "sigma_x"), _rbf(y, sigma_y, "sigma_y")
        if estimator == "biased":
            centred = K - K.mean(0, keepdim=True) - K.mean(1, keepdim=True) + K.mean()  # HKH
            return (centred * L).sum() / (m - 1) ** 2
        off = 1 - torch.eye(m, dtype=K.dtype, device=K.device)
        K, L = K * off, L * off
        trace = (K * L).sum()
        joint = trace + K.sum() * L.sum() / ((m - 1) * (m - 2))
        joint = joint - 2 / (m - 2) * (K.sum(0) @ L.sum(1))
        return joint / (m * (m - 3))


def _rbf(x: Tensor, sigma: float, name: str) -> Tensor:
    """The kernel matrix exp(−‖x_i−x_j‖²/(2σ²))."""
    if not sigma > 0:
        raise ValueError(
            f"{name} must be above 0; got {sigma}. "
            "A usual choice is the median distance between samples"
        )
    # Distances of centred rows suffer less from rounding, and squares of scaled ones do not
    # overflow. A sample has the distance 0 to itself whatever rounding says.
    power = power_of_two(x.detach().abs().amax()) if x.numel() else 1
    x = x / power
    x = x - x.mean(0)
    norm = x.square().sum(1)
    off = 1 - torch.eye(len(x), dtype=x.dtype, device=x.device)
    distance = (norm[:, None] + norm - 2 * x @ x.T).clamp_min(0) * off
    largest = torch.finfo(x.dtype).max
    width = torch.as_tensor(power / sigma, dtype=x.dtype, device=x.device).clamp_max(largest**0.5)
    return (-distance / 2 * width**2).exp()
