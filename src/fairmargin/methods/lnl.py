"""LNL, Learning Not to Learn (Kim et al., CVPR 2019): hide the bias from a predictor.

    main:       CE(C(F(x)), y) + λ·mean_i Σ_k p_k log p_k,   p = softmax(G(F(x)))
    main:       −r·CE(G(F(x)), b)       with the F that has just moved,
    predictor:     CE(G(F(x)), b)       and both from the same F and G

F is the trunk, C the rest of the network with its classifier, G the bias predictor. The paper's
reversal layer lets one backward pass serve two players, with the sign of one turned; here each
player gets its own loss.
"""

from collections.abc import Iterator
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.checks import check_choice
from fairmargin.methods.base import MakeEncoder, Method, first_view, require_bias
from fairmargin.methods.card import FROM_ZERO, Between, MethodCard, OptionCard
from fairmargin.networks import MLP, BagNet18, Encoder, ResNet, SimpleConvNet, linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

Predictor = Literal["auto", "half", "linear"]

CARD = MethodCard(
    "LNL",
    "Kim et al., Learning Not to Learn",
    "CVPR 2019",
    "bias labels",
    networks="one, and a bias predictor",
    file="lnl.py",
    options={
        "lambda": OptionCard(
            "λ, the weight of the predictor's negative entropy", FROM_ZERO, Between(0.01, 10)
        ),
        "reversal": OptionCard(
            "r, the weight with which the trunk climbs the predictor's loss",
            FROM_ZERO,
            Between(0.01, 1),
        ),
        "predictor": OptionCard(
            "a second half of the network, or a linear layer; auto: linear for residual networks"
        ),
    },
)


def negative_entropy(logits: Tensor) -> Tensor:
    """Return Σ_k p_k log p_k [N]; it is least, −log K, where p is uniform."""
    log_p = F.log_softmax(full_precision(logits), 1)
    return (log_p.exp() * log_p).sum(1)


def mean_where_known(values: Tensor, bias: Tensor) -> Tensor:
    """Return the mean of the values [N] over the samples of known bias; 0 if there is none."""
    known = bias >= 0
    return (values * known).sum() / known.sum().clamp_min(1)


def bias_cross_entropy(logits: Tensor, bias: Tensor) -> Tensor:
    """Return the mean of CE(logits, b) over the samples of known bias."""
    each = F.cross_entropy(full_precision(logits), bias, reduction="none", ignore_index=-1)
    return mean_where_known(each, bias)


def halves(encoder: Encoder) -> tuple[nn.Sequential, nn.Sequential]:
    """Return the layers of a network before and after its middle.

    The cut is after half of the blocks, or after the second stage of a residual network, both as in
    Hong & Yang (NeurIPS 2021). The second half ends before the average over positions.
    """
    match encoder:
        case SimpleConvNet():
            layers: list[nn.Module] = list(encoder.blocks)
            cut = len(layers) // 2
        case ResNet():
            stages = [getattr(encoder, name) for name in encoder.stages]
            layers, cut = [encoder.conv1, encoder.bn1, encoder.relu, encoder.maxpool, *stages], 6
        case BagNet18():
            stages = [encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4]
            layers, cut = [encoder.conv1, encoder.conv2, encoder.bn1, encoder.relu, *stages], 6
        case MLP():
            layers = [nn.Flatten(), *encoder.layers]
            # A layer is followed by its activation.
            cut = 1 + 2 * max(1, len(encoder.layers) // 4)
        case _:
            raise ValueError(
                "lnl must know where the middle of a network is, and does not for "
                f"{type(encoder).__name__}; add its layers to halves() in methods/lnl.py, or "
                "choose another network"
            )
    return nn.Sequential(*layers[:cut]), nn.Sequential(*layers[cut:])


class Pool(nn.Module):
    """The average over positions, where there are any."""

    def forward(self, maps: Tensor) -> Tensor:
        """Return [N, C] of maps [N, C, H, W]; what has no positions stays as it is."""
        return maps.mean((2, 3)) if maps.ndim == 4 else maps


class LNL(Method):
    """The run's network cut in two, and a predictor of the bias at the cut.

    Args:
        lambda_: λ, the weight of the predictor's negative entropy.
        reversal: r.
        predictor: "half", a second half like the network's own; "linear", on the average over
            positions; "auto", Hong & Yang's choice: linear for residual networks, else half.
    """

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        lambda_: float = 1.0,
        reversal: float = 0.1,
        predictor: Predictor = "auto",
    ) -> None:
        super().__init__()
        require_bias("lnl", info, instead="lff")
        check_choice(predictor, "predictor", get_args(Predictor))
        self.lambda_, self.reversal = lambda_, reversal
        encoder = make_encoder()
        self.trunk, rest = halves(encoder)
        self.rest = nn.Sequential(*rest, Pool())
        self.classifier = linear_classifier(encoder.dim, info.num_classes)
        if predictor == "half" or (predictor == "auto" and not isinstance(encoder, ResNet)):
            # Note: weights start like the network's, not from PyTorch's default as in Hong & Yang's
            # code.
            half = halves(make_encoder())[1]
            last = linear_classifier(encoder.dim, info.num_biases)
            self.predictor = nn.Sequential(*half, Pool(), last)
        else:
            with torch.no_grad():
                width = self.trunk.eval()(torch.zeros(1, *info.image_shape)).shape[1]
            self.predictor = nn.Sequential(Pool(), linear_classifier(width, info.num_biases))
        self.train()

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "main", trunk and rest, and "predictor"."""
        main = [*self.trunk.parameters(), *self._after_the_cut()]
        return {"main": main, "predictor": list(self.predictor.parameters())}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Train main, then reverse the trunk and train the predictor."""
        assert batch.bias is not None
        x = first_view(batch.images)
        maps = self.trunk(x)
        logits = self.classifier(self.rest(maps))
        guess = self.predictor(maps)
        logits, guess, y, b = gather(logits, guess, batch.labels, batch.bias)
        cross_entropy = F.cross_entropy(full_precision(logits), y)
        entropy = mean_where_known(negative_entropy(guess), b)
        self.terms = {"cross-entropy": cross_entropy.detach(), "negative entropy": entropy.detach()}
        yield "main", cross_entropy + self.lambda_ * entropy

        maps = self.trunk(x)
        # Both before anyone moves; detached, so that main's step leaves the predictor's graph
        # whole.
        through, own = gather(self.predictor(maps), self.predictor(maps.detach()))
        reversed_ = bias_cross_entropy(through, b)
        predicted = bias_cross_entropy(own, b)
        self.terms["bias"] = predicted.detach()
        # The public codes step all of main here, with gradient 0 after the cut: momentum and decay
        # go on.
        still = 0 * torch.stack([p.sum() for p in self._after_the_cut()]).sum()
        yield "main", -self.reversal * reversed_ + still
        yield "predictor", predicted

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features after the cut and the logits."""
        h = self.rest(self.trunk(images))
        return h, self.classifier(h)

    def _after_the_cut(self) -> list[nn.Parameter]:
        return [*self.rest.parameters(), *self.classifier.parameters()]
