"""HSIC, the Hilbert–Schmidt independence criterion (Gretton et al., 2005; Song et al., 2012), used by ReBias."""

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses.inputs import check_matrix
from fairmargin.vectors import full_precision


def hsic(
    x: Tensor,
    y: Tensor,
    *,
    sigma_x: float = 1.0,
    sigma_y: float | None = None,
    estimator: str = "unbiased",
) -> Tensor:
    """Dependence between two sets of features of the same m samples, with kernels k = exp(−‖a−b‖²/(2σ²)).

    unbiased  [tr K̃L̃ + (1ᵀK̃1)(1ᵀL̃1)/((m−1)(m−2)) − 2/(m−2)·1ᵀK̃L̃1] / (m(m−3)),  K̃, L̃ with zero diagonals; m ≥ 4
    biased    tr(KHLH)/(m−1)²,  H = I − 1/m

    Note: the ReBias code subtracts the diagonal from every row (K − diag K, a broadcast) instead of zeroing it. For an
    RBF kernel this turns every entry into k − 1, and the unbiased estimate does not change when a constant is added to
    all off-diagonal entries: the mistake is harmless here, and would not be with a kernel of varying diagonal.

    The unbiased estimate can be negative. `sigma_y` defaults to `sigma_x`.
    """
    check_choice(estimator, "estimator", ("unbiased", "biased"))
    check_matrix(x, "x")
    check_matrix(y, "y")
    if len(x) != len(y):
        raise ValueError(
            f"x has {len(x)} rows and y has {len(y)}; they must describe the same samples, in the same order"
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
        joint = (
            (K * L).sum()
            + K.sum() * L.sum() / ((m - 1) * (m - 2))
            - 2 / (m - 2) * (K.sum(0) @ L.sum(1))
        )
        return joint / (m * (m - 3))


def _rbf(x: Tensor, sigma: float, name: str) -> Tensor:
    if not sigma > 0:
        raise ValueError(
            f"{name} must be above 0; got {sigma}. A usual choice is the median distance between samples"
        )
    norm = x.square().sum(1)
    return (-(norm[:, None] + norm - 2 * x @ x.T).clamp_min(0) / (2 * sigma**2)).exp()
