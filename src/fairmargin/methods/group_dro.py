"""Group-DRO (Sagawa et al., ICLR 2020): minimise the loss of the worst (class, bias) group.

    ℓ_g = mean CE over the batch's samples of group g; 0 if it has none
    v_g ← v_g·exp(η·sg[ℓ_g + C/√n_g]) / Σ_g' …       n_g: training samples of g
    L = Σ_g v_g ℓ_g                                  with the new v

The weights v follow the worst group and persist from batch to batch. The method needs stronger
weight decay than usual, or early stopping: without it every training group is fitted and the
weights have nothing to choose.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import MakeEncoder, Method, first_view, require_bias
from fairmargin.methods.card import FROM_ZERO, Between, MethodCard, OptionCard
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

CARD = MethodCard(
    "Group DRO",
    "Sagawa et al., Distributionally Robust Neural Networks",
    "ICLR 2020",
    "bias labels",
    file="group_dro.py",
    options={
        "step_size": OptionCard("η, how fast the weights follow", FROM_ZERO, Between(1e-3, 0.1)),
        "adjustment": OptionCard(
            "C in C/√n_g, against the worse generalisation of small groups",
            FROM_ZERO,
            Between(0, 5, log=False),
        ),
    },
    search={"optimizer.weight_decay": Between(1e-5, 1)},
)


def group_means(values: Tensor, groups: Tensor, number: int) -> Tensor:
    """Return the mean [number] of the values [N] of each group.

    It is 0 for groups without samples. Samples of group −1 are left out.
    """
    member = F.one_hot(groups + 1, number + 1)[:, 1:].T.to(values.dtype)  # [number, N]
    return member @ values / member.sum(1).clamp_min(1)


def tilted(log_weights: Tensor, group_losses: Tensor, *, step_size: float) -> Tensor:
    """Return log v after v ← v·exp(η·ℓ), normalized.

    In logarithms no group's weight underflows to 0 for good.
    """
    log_v = log_weights + step_size * group_losses
    return log_v - log_v.logsumexp(0)


class GroupDRO(Method):
    """The run's network with a linear classifier, and a weight for each (class, bias) group.

    Samples of unknown bias belong to no group and teach nothing.

    Args:
        step_size: η.
        adjustment: C, against the worse generalisation of small groups.
    """

    sampler = "group-balanced"
    log_weights: Tensor  # [classes · biases], log v
    adjustments: Tensor  # C/√n_g

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        step_size: float = 0.01,
        adjustment: float = 0.0,
    ) -> None:
        super().__init__()
        require_bias("group-dro", info, instead="jtt")
        if step_size < 0 or adjustment < 0:
            raise ValueError(
                f"step_size and adjustment must not be negative; got {step_size} and {adjustment}"
            )
        self.step_size, self.biases = step_size, info.num_biases
        self.encoder = make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        n = info.counts.flatten().float()
        # Note: groups without training samples get no weight; in the public code they take part,
        # with loss 0.
        self.register_buffer("log_weights", ((n > 0) / (n > 0).sum()).log())
        adjustments = torch.where(n > 0, adjustment * n.clamp_min(1).rsqrt(), 0)
        self.register_buffer("adjustments", adjustments)

    def players(self) -> dict[str, list[nn.Parameter]]:
        return {"main": list(self.parameters())}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Move the weights, then yield the weighted loss."""
        assert batch.bias is not None
        logits, y, b = gather(self.predict(first_view(batch.images)), batch.labels, batch.bias)
        groups = torch.where(b >= 0, y * self.biases + b, -1)
        each = F.cross_entropy(full_precision(logits), y, reduction="none")
        losses = group_means(each, groups, len(self.log_weights))
        adjusted = losses.detach() + self.adjustments
        self.log_weights = tilted(self.log_weights, adjusted, step_size=self.step_size)
        v = self.log_weights.exp()
        # Note: the public code adds C/√n_g to this value too, which changes no gradient.
        loss = (v * losses).sum()
        self.terms = {
            "group-dro": loss.detach(),
            "worst group": losses.detach().max(),
            "largest weight": v.max(),
        }
        yield "main", loss
