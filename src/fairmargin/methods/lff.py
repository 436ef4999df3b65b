"""LfF, Learning from Failure (Nam et al., NeurIPS 2020): learn where a biased network fails.

    bias:  mean GCE(f_b(x), y),  GCE = (1 − p_y^q)/q, which gives easy samples more weight
    e_i ← CE(f(x_i), y_i) on the first visit, then m·e_i + (1 − m)·CE(f(x_i), y_i),
          for f_b and for f_d
    ẽ_i = e_i / max{e_j : y_j = y_i}
    W_i = ẽ_b,i / (ẽ_b,i + ẽ_d,i + 1e-8), without gradient
    main:  mean W·CE(f_d(x), y)

The bias need not be known. Predictions are those of f_d.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import MakeEncoder, Method, first_view
from fairmargin.methods.card import SHARE, Between, MethodCard, OptionCard
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import full_precision

# Of the biased network and of the weights W; DFA has them too.
BIASED_OPTIONS = {
    "q": OptionCard("q of the biased network's GCE; 0 is cross-entropy", SHARE),
    "ema_decay": OptionCard("m, the decay of the smoothed losses", SHARE),
    "surrogate": OptionCard(
        "GCE in the form of the public codes, whose gradient is q times as long"
    ),
}
CARD = MethodCard(
    "LfF",
    "Nam et al., Learning from Failure",
    "NeurIPS 2020",
    networks="two",
    file="lff.py",
    options=BIASED_OPTIONS,
    search={
        "method.q": Between(0.3, 0.9, log=False),
        "method.ema_decay": Between(0.5, 0.9, log=False),
    },
)


class RelativeDifficulty(nn.Module):
    """W of every training sample: its difficulty for the biased network, as a share of both's.

    Args:
        info: of the dataset, which says how many training samples there are.
        decay: m.
    """

    # [train_size]; where a sample has not been seen, the number of classes.
    labels: Tensor
    # [2, train_size], e of the biased and of the other network; 0 where not seen.
    smoothed: Tensor

    def __init__(self, info: DataInfo, decay: float) -> None:
        super().__init__()
        if info.train_size < 1:
            raise ValueError(
                f"a loss is kept for each training sample and DataInfo.train_size of {info.name} "
                f"is {info.train_size}; give it the number of training samples: "
                "replace(info, train_size=len(data.train))"
            )
        if not 0 <= decay <= 1:
            raise ValueError(
                f"ema_decay must lie in [0, 1]; got {decay}. The published value is 0.7"
            )
        self.decay, self.classes = decay, info.num_classes
        self.register_buffer("labels", torch.full((info.train_size,), self.classes))
        self.register_buffer("smoothed", torch.zeros(2, info.train_size))

    @torch.no_grad()
    def forward(self, index: Tensor, labels: Tensor, biased: Tensor, other: Tensor) -> Tensor:
        """Take in the losses of a batch and return W [N].

        Args:
            index: [N] positions of the samples in the training set.
            biased: [N] cross-entropies of the biased network.
            other: [N] cross-entropies of the other network.
        """
        m, e = self.decay, self.smoothed
        new = torch.stack([biased, other]).to(e.dtype)  # [2, N]
        seen = self.labels[index] < self.classes
        new = torch.where(seen, m * e[:, index] + (1 - m) * new, new)
        # Note: a sample drawn twice in a batch keeps the larger value, whatever the order of
        # writing on this device.
        e.scatter_reduce_(1, index.expand(2, -1), new, "amax", include_self=False)
        self.labels[index] = labels
        # Over the whole table, because maxima also fall. The last column gathers the unseen.
        largest = e.new_zeros(2, self.classes + 1)
        largest.scatter_reduce_(1, self.labels.expand(2, -1), e, "amax")
        # Note: a class that is learnt perfectly has the maximum 0; the public codes divide by it.
        b, d = e[:, index] / largest[:, labels].clamp_min(torch.finfo(e.dtype).tiny)
        return b / (b + d + 1e-8)


class LfF(Method):
    """Two networks of the run's kind, each with a linear classifier.

    Args:
        q: of GCE.
        ema_decay: m, the decay of the smoothed losses.
        surrogate: use the public codes' form of GCE, sg[q·p_y^q]·CE, whose gradient is q times that
            of the paper's.
    """

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        q: float = 0.7,
        ema_decay: float = 0.7,
        surrogate: bool = False,
    ) -> None:
        super().__init__()
        self.q, self.surrogate = q, surrogate
        self.encoder, self.bias_encoder = make_encoder(), make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        self.bias_classifier = linear_classifier(self.bias_encoder.dim, info.num_classes)
        self.difficulty = RelativeDifficulty(info, ema_decay)

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "bias", which is f_b, and "main", which is f_d."""
        return {
            "bias": [*self.bias_encoder.parameters(), *self.bias_classifier.parameters()],
            "main": [*self.encoder.parameters(), *self.classifier.parameters()],
        }

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the losses of both networks, with W from their cross-entropies."""
        x = first_view(batch.images)
        logits_b = self.bias_classifier(self.bias_encoder(x))
        logits_d = self.predict(x)
        logits_b, logits_d, y, index = gather(logits_b, logits_d, batch.labels, batch.index)
        # Both tables hold plain cross-entropy, although the biased network minimises another loss.
        ce_b = F.cross_entropy(full_precision(logits_b), y, reduction="none")
        ce_d = F.cross_entropy(full_precision(logits_d), y, reduction="none")
        W = self.difficulty(index, y, ce_b, ce_d)
        bias = losses.generalized_cross_entropy(logits_b, y, q=self.q, surrogate=self.surrogate)
        main = (W * ce_d).mean()
        self.terms = {"bias": bias.detach(), "main": main.detach(), "weight": W.mean()}
        yield "bias", bias
        yield "main", main
