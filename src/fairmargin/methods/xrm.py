"""XRM's twins (Pezeshki et al., Discovering Environments with XRM, ICML 2024): find who is unusual.

    each training sample belongs to the half of one of two networks, drawn once
    loss:   mean CE(f_in(x), ỹ), class-balanced;  f_in is the network of the sample's half
    flip:   ỹ ← ŷ with probability (p − 1/K)·K/(K − 1),  p = max softmax f_out(x), ŷ its class;
            f_out is the other network

The twins imitate each other's confident mistakes, and so come to rely on what is easy. A sample
that the other twin calls by another class than its own is where that fails: `--bias xrm`.

Note: written from the paper's description; no other code was looked at. Classes are balanced inside
each batch. The paper chooses hyperparameters by the largest number of flipped labels; the log has
it as "share flipped".
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import MakeEncoder, Method, first_view
from fairmargin.methods.card import MethodCard
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import from_first_rank, gather
from fairmargin.vectors import full_precision

CARD = MethodCard(
    "XRM twins",
    "Pezeshki et al., Discovering Environments with XRM",
    "ICML 2024",
    networks="two, each on a half",
    file="xrm.py",
)


class XRMTwins(Method):
    """Two networks of the run's kind; predictions are by the mean of their logits.

    Features are those of both, side by side.
    """

    in_first: Tensor  # [train_size], whether the first network learns from a sample
    flipped: Tensor  # [train_size], ỹ where a label was flipped, else −1

    def __init__(self, make_encoder: MakeEncoder, info: DataInfo) -> None:
        super().__init__()
        if info.train_size < 1:
            raise ValueError(
                "xrm-twins gives each training sample to one of two networks and "
                f"DataInfo.train_size of {info.name} is {info.train_size}; give it their number: "
                "replace(info, train_size=len(data.train))"
            )
        self.encoder, self.other = make_encoder(), make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.other_classifier = linear_classifier(self.other.dim, info.num_classes)
        halves = torch.randperm(info.train_size) < (info.train_size + 1) // 2
        self.register_buffer("in_first", halves)
        self.register_buffer("flipped", torch.full((info.train_size,), -1))

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "main": both networks, whose losses share no weight."""
        modules = (self.encoder, self.classifier, self.other, self.other_classifier)
        return {"main": [p for module in modules for p in module.parameters()]}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Each network learns from its half, then labels are flipped."""
        images = first_view(batch.images)
        first = self.classifier(self.encoder(images))
        second = self.other_classifier(self.other(images))
        first, second, y, index = gather(
            full_precision(first), full_precision(second), batch.labels, batch.index
        )
        flipped = self.flipped[index]
        y = torch.where(flipped >= 0, flipped, y)
        of_first = self.in_first[index][:, None]
        held_in = torch.where(of_first, first, second)
        held_out = torch.where(of_first, second, first).detach()
        each = F.cross_entropy(held_in, y, reduction="none")
        sizes = torch.bincount(y, minlength=first.shape[1])
        weight = 1 / sizes[y].to(each)
        loss = (weight * each).sum() / weight.sum()
        self._flip(index, held_out)
        share = (self.flipped >= 0).float().mean()
        self.terms = {"twins": loss.detach(), "share flipped": share}
        yield "main", loss

    def _flip(self, index: Tensor, held_out: Tensor) -> None:
        """Replace labels by confident answers of the network that did not learn from them."""
        p, said = held_out.softmax(1).max(1)
        # The same draw on all ranks.
        drawn = from_first_rank(torch.rand(len(p), dtype=torch.float64)).to(p.device)
        chosen = drawn < flip_probability(p, held_out.shape[1])
        self.flipped[index[chosen]] = said[chosen]

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of both networks side by side, and the mean of their logits."""
        h, g = self.encoder(images), self.other(images)
        return torch.cat([h, g], 1), (self.classifier(h) + self.other_classifier(g)) / 2

    def twins(self, features: Tensor) -> Tensor:
        """Return the logits of both networks [2, N, K], from features as `inspect` gives them.

        Args:
            features: [N, 2D].
        """
        h, g = features.split([self.encoder.dim, self.other.dim], 1)
        return torch.stack([self.classifier(h), self.other_classifier(g)])


def flip_probability(p: Tensor, classes: int) -> Tensor:
    """Return how likely a label becomes the held-out answer: 0 for a guess, 1 for certainty.

    Args:
        p: probability of the answer, [N].
        classes: K.
    """
    return (p.double() - 1 / classes) * classes / (classes - 1)
