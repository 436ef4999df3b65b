"""ReBias (Bahng et al., ICML 2020): features independent of a network that sees only the bias.

    g minimises       CE(g, y) − λ_g·HSIC(h_f, h_g)
    then f minimises  CE(f, y) + λ·HSIC(h_f, h_g)

with the unbiased HSIC of `losses.hsic`, of kernels as wide as σ. g is biased by its architecture:
1×1 kernels see only colour, a BagNet only texture. No bias labels are needed.
"""

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import MakeEncoder, Method, Sweep, first_view
from fairmargin.methods.card import (
    ABOVE_ZERO,
    BIAS_NETWORK,
    FROM_ZERO,
    ONE_AND_BIAS_NETWORK,
    Between,
    MethodCard,
    OptionCard,
)
from fairmargin.networks import build_bias_encoder, linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

CARD = MethodCard(
    "ReBias",
    "Bahng et al., Learning De-biased Representations",
    "ICML 2020",
    networks=ONE_AND_BIAS_NETWORK,
    file="rebias.py",
    options={
        "bias_network": BIAS_NETWORK,
        "lambda": OptionCard("λ, the weight of HSIC for f", FROM_ZERO, Between(0.1, 30)),
        "lambda_bias": OptionCard("λ_g, the weight of HSIC for g", FROM_ZERO, Between(0.1, 30)),
        "sigma": OptionCard(
            "width of the kernels; median: the median distance, found anew every epoch", ABOVE_ZERO
        ),
    },
)


class ReBias(Method):
    """f is the run's network, g `bias_network`; g moves first, and f meets the g that has moved.

    Args:
        bias_network: name of g's encoder.
        lambda_: λ, the weight of HSIC for f.
        lambda_bias: λ_g, the weight of HSIC for g.
        sigma: width of both kernels. "median": each kernel is as wide as the median distance
            between its features, found anew every epoch.
    """

    least_batch = 4  # of the unbiased HSIC
    sigmas: Tensor
    stale: Tensor

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        bias_network: str = "simple-conv-1",
        lambda_: float = 1.0,
        lambda_bias: float = 1.0,
        sigma: float | Literal["median"] = 1.0,
    ) -> None:
        super().__init__()
        if sigma != "median" and not (isinstance(sigma, int | float) and sigma > 0):
            raise ValueError(
                f'sigma must be a number above 0 or "median"; got {sigma!r}. Biased-MNIST uses 1'
            )
        self.lambda_, self.lambda_bias, self.adaptive = lambda_, lambda_bias, sigma == "median"
        self.encoder = make_encoder()
        self.bias_encoder = build_bias_encoder(bias_network, self.encoder)
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.bias_classifier = linear_classifier(self.bias_encoder.dim, info.num_classes)
        # The widths for f and for g.
        sigmas = torch.ones(2) if sigma == "median" else torch.full((2,), sigma)
        self.register_buffer("sigmas", sigmas)
        self.register_buffer("stale", torch.tensor(self.adaptive))

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "bias", which is g, and "main", which is f."""
        return {
            "bias": [*self.bias_encoder.parameters(), *self.bias_classifier.parameters()],
            "main": [*self.encoder.parameters(), *self.classifier.parameters()],
        }

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        # Note: the public code takes the median over a quarter of the shuffled, augmented batches,
        # in training mode. The epoch's first batch is a sample of just that. A sweep is not: its
        # order may be that of the classes, which the batch norms and the pairs would see one by
        # one, and it would read the whole training set every epoch.
        self.stale.fill_(self.adaptive)

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train g, then f against the g that has moved."""
        x = first_view(batch.images)
        h_f, h_g, y = gather(self.encoder(x), self.bias_encoder(x), batch.labels)
        if self.stale:
            sigma_f = median_distance(h_f, self.sigmas[0])
            sigma_g = median_distance(h_g, self.sigmas[1])
            self.sigmas.copy_(torch.stack([sigma_f, sigma_g]))
            self.stale.fill_(False)
        bias = F.cross_entropy(full_precision(self.bias_classifier(h_g)), y)
        yield "bias", bias - self.lambda_bias * self._dependence(h_f.detach(), h_g)

        with torch.no_grad():
            # Of the g that has moved; f has not, so h_f is still its own.
            (h_g,) = gather(self.bias_encoder(x))
        main = F.cross_entropy(full_precision(self.classifier(h_f)), y)
        hsic = self._dependence(h_f, h_g)
        self.terms = {"bias": bias.detach(), "main": main.detach(), "hsic": hsic.detach()}
        if self.adaptive:
            self.terms |= {"sigma": self.sigmas[0].clone(), "bias sigma": self.sigmas[1].clone()}
        yield "main", main + self.lambda_ * hsic

    def _dependence(self, h_f: Tensor, h_g: Tensor) -> Tensor:
        # The last batch of an epoch may be too small for an estimate.
        if len(h_f) < self.least_batch:
            return h_f.new_zeros(())
        # Note: the public code hands σ_f to the kernel of g, and σ_g to that of f, when g moves.
        # Here each keeps its own.
        sigma_f, sigma_g = self.sigmas.tolist()
        return losses.hsic(h_f, h_g, sigma_x=sigma_f, sigma_y=sigma_g)


@torch.no_grad()
def median_distance(features: Tensor, otherwise: Tensor) -> Tensor:
    """Return the median of ‖a−b‖ over pairs of features.

    Note: the public code's median also counts every sample's distance 0 to itself.

    Args:
        otherwise: the value to return if the median is 0, or if there are no pairs.
    """
    h = full_precision(features)
    others = ~torch.eye(len(h), dtype=torch.bool, device=h.device)
    pairs = torch.cdist(h, h)[others]
    median = pairs.median() if len(pairs) else otherwise
    return torch.where(median > 0, median, otherwise).to(otherwise.dtype)
