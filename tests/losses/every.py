"""Every loss of the library as a function of one batch, for tests that treat them alike."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairmargin import losses

D, CLASSES, BIASES, SCORES = 8, 5, 3, 4


@dataclass(frozen=True)
class Batch:
    z: Tensor  # [n, D], a leaf that requires a gradient
    y: Tensor  # [n]
    b: Tensor  # [n], some −1
    g: Tensor  # [n, SCORES] bias features
    weight: Tensor  # [CLASSES, D]
    prior: Tensor  # [BIASES, CLASSES]

    @property
    def views(self) -> Tensor:
        return self.z.unflatten(0, (-1, 2))

    @property
    def logits(self) -> Tensor:
        return self.z @ self.weight.T

    def on_device(self, module: type[nn.Module], *args, **settings) -> nn.Module:
        with torch.device(self.z.device):
            return module(*args, **settings)


def batch(n: int, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> Batch:
    """`n` even; labels and biases agree for the most part."""
    torch.manual_seed(seed)
    y = torch.randint(CLASSES, (n,), device=device)
    drawn = torch.randint(-1, BIASES, (n,), device=device)
    b = torch.where(torch.rand(n, device=device) < 0.5, y % BIASES, drawn)
    z = torch.randn(n, D, device=device, dtype=dtype) + nn.functional.one_hot(y, D).to(dtype)
    prior = torch.rand(BIASES, CLASSES, device=device).softmax(1)
    weight = torch.randn(CLASSES, D, device=device, dtype=dtype)
    return Batch(
        z.requires_grad_(), y, b, torch.rand(n, SCORES, device=device) + 0.1, weight, prior
    )


def large_margin(x: Batch) -> Tensor:
    hidden = torch.tanh(x.z)
    return losses.large_margin(hidden @ x.weight.T, [hidden], x.y)


# NAME, or NAME with what is particular about the call. A name is one of `losses.__all__`.
CASES = {
    "eps_infonce": lambda x: losses.eps_infonce(x.views, epsilon=0.25),
    "eps_supinfonce": lambda x: losses.eps_supinfonce(x.z, x.y, epsilon=0.25),
    "eps_supinfonce form a": lambda x: losses.eps_supinfonce(x.z, x.y, epsilon=0.25, form="a"),
    "eps_supinfonce form b": lambda x: losses.eps_supinfonce(x.z, x.y, epsilon=0.25, form="b"),
    "eps_supinfonce form d": lambda x: losses.eps_supinfonce(x.z, x.y, epsilon=0.25, form="d"),
    "eps_supinfonce inf": lambda x: losses.eps_supinfonce(x.z, x.y, epsilon=float("inf")),
    "eps_supinfonce any length": lambda x: losses.eps_supinfonce(
        x.z, x.y, unit_norm=False, temperature=2.0
    ),
    "eps_supcon": lambda x: losses.eps_supcon(x.z, x.y, epsilon=0.25),
    "supcon": lambda x: losses.supcon(x.z, x.y),
    "supcon_in": lambda x: losses.supcon_in(x.z, x.y),
    "simclr": lambda x: losses.simclr(x.views),
    "fairkl": lambda x: losses.fairkl(x.z, x.y, x.b),
    "fairkl negatives": lambda x: losses.fairkl(
        x.z, x.y, x.b, negatives=True, divergence="jeffreys"
    ),
    "fairkl anchor": lambda x: losses.fairkl(x.z, x.y, x.b, scope="anchor"),
    "fairkl lognormal": lambda x: losses.fairkl(x.z, x.y, x.b, divergence="lognormal"),
    "fairkl absolute": lambda x: losses.fairkl(x.z, x.y, x.b, divergence="absolute-mean"),
    "fairkl first view": lambda x: losses.fairkl(x.views, x.y[::2], x.b[::2], views="first"),
    "fairkl count": lambda x: losses.fairkl(x.z, x.y, x.b, normalize="count", divergence="moments"),
    "fairkl authors": lambda x: losses.fairkl(x.z, x.y, x.b, variant="authors"),
    "fairkl any length": lambda x: losses.fairkl(x.z / 3, x.y, x.b, unit_norm=False),
    "fairkl scores": lambda x: losses.fairkl(x.z, x.y, bias_features=x.g),
    "fairkl values": lambda x: losses.fairkl(x.z, x.y, x.g[:, 0], negatives=True),
    "fairkl columns": lambda x: losses.fairkl(x.z, x.y, torch.stack([x.b, x.y % 2], 1)),
    "fairkl_terms": lambda x: losses.fairkl_terms(x.views, x.y[::2], x.b[::2]).value,
    "information_bounds": lambda x: losses.information_bounds(x.views).lower,
    "information_bounds_from_scores": lambda x: (
        losses.information_bounds_from_scores(x.z @ x.z.T).upper
    ),
    "end": lambda x: losses.end(x.z, x.y, x.b),
    "end released": lambda x: losses.end(x.z, x.y, x.b, pairs="released"),
    "biascon": lambda x: losses.biascon(x.z, x.y, x.b),
    "softcon": lambda x: losses.softcon(x.z, x.y, x.g),
    "bias_balanced_cross_entropy": lambda x: losses.bias_balanced_cross_entropy(
        x.logits, x.y, x.b, x.prior
    ),
    "generalized_cross_entropy": lambda x: losses.generalized_cross_entropy(x.logits, x.y),
    "hsic": lambda x: losses.hsic(x.z, x.g),
    "l_softmax": lambda x: losses.l_softmax(x.z, x.weight, x.y),
    "large_margin": large_margin,
    "EpsInfoNCE": lambda x: losses.EpsInfoNCE(epsilon=0.25)(x.views),
    "EpsSupInfoNCE": lambda x: losses.EpsSupInfoNCE(epsilon=0.25)(x.z, x.y),
    "EpsSupCon": lambda x: losses.EpsSupCon(epsilon=0.25)(x.z, x.y),
    "SupCon": lambda x: losses.SupCon()(x.z, x.y),
    "SupConIn": lambda x: losses.SupConIn()(x.z, x.y),
    "SimCLR": lambda x: losses.SimCLR()(x.views),
    "FairKL": lambda x: x.on_device(losses.FairKL)(x.z, x.y, x.b),
    "EnD": lambda x: losses.EnD()(x.z, x.y, x.b),
    "BiasCon": lambda x: losses.BiasCon()(x.z, x.y, x.b),
    "SoftCon": lambda x: losses.SoftCon()(x.z, x.y, x.g),
    "BiasBalancedCrossEntropy": lambda x: losses.BiasBalancedCrossEntropy(x.prior)(
        x.logits, x.y, x.b
    ),
    "GeneralizedCrossEntropy": lambda x: losses.GeneralizedCrossEntropy()(x.logits, x.y),
    "HSIC": lambda x: losses.HSIC()(x.z, x.g),
    "LSoftmax": lambda x: x.on_device(losses.LSoftmax, D, CLASSES)(x.z, x.y),
    "LargeMargin": lambda x: losses.LargeMargin()(x.logits, [x.z], x.y),
}

# Of `losses.__all__`, what is no loss: a switch, a result, a schedule.
NO_LOSSES = {"check", "FairKLTerms", "InformationBounds", "l_softmax_anneal", "largest_epsilon"}
