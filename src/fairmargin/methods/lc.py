"""LC, logit correction (Liu et al., ICLR 2023): correct the logits by how common a group is.

    bias:  mean GCE(f_b(x), y);   â = argmax f_b(x),   p = softmax(f_b(x)/T)
    P[y,a] ← m·P[y,a] + (1 − m)·(mean of p_y over the batch's samples with label y and â = a)
    π_i    = P[·,â_i] / Σ_y P[y,â_i]
    x̃_i   = λ·x_i + (1 − λ)·x_j,   π̃_i = λ·π_i + (1 − λ)·π_j          (group MixUp)
    main:  mean CE( f(x̃) + log(π̃^η + 1e-4), y )

j is drawn from the samples of i's class whose bias is uncommon for it (â ≠ y), or from all of the
class if the batch has none; λ ~ U(1 − 2τ, 1 − τ). τ rises from 0 to `mixup`, so that in the end the
uncommon samples have the larger part. The bias need not be known. Predictions are those of f.

With `source` "labels" the groups are those of bias labels: π = p̂(·|b) counted on the training set,
and a bias is uncommon for a class where p̂(y|b) < p̂(y). Without mixing this is BiasBal, whose
adjustment has 1e-9 where this one has 1e-4: BiasBal is the loss for known groups, and LC adds
groups that a network finds, an estimate that follows it, and group MixUp.

Note: the public code draws a permutation of the class where no sample is uncommon; here it is a
draw with replacement. Its networks share one sum of losses, weighted; here each is a player.
"""

import math
from collections.abc import Iterator
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.batch import Batch, DataInfo
from fairmargin.checks import check_choice
from fairmargin.methods.base import (
    FinalStage,
    MakeEncoder,
    Method,
    RunLength,
    first_view,
    require_bias,
)
from fairmargin.methods.card import (
    ABOVE_ZERO,
    FROM_ZERO,
    Between,
    MethodCard,
    OptionCard,
    Range,
)
from fairmargin.methods.lff import BIASED_OPTIONS
from fairmargin.methods.row_losses import class_share, label_given_bias
from fairmargin.networks import linear_classifier
from fairmargin.runtime.distributed import from_first_rank, gather, gather_with_place
from fairmargin.vectors import full_precision

Source = Literal["network", "labels"]
# Of the public code: an empty group shifts its logit by −9.2.
CORRECTION_FLOOR = 1e-4
# Steps over which mixing comes in, where the length of the run is not known.
RAMP_STEPS = 10_000

CARD = MethodCard(
    "LC",
    "Liu et al., Avoiding Spurious Correlations via Logit Correction",
    "ICLR 2023",
    networks="two",
    file="lc.py",
    options={
        "source": OptionCard("groups found by a biased network, or those of bias labels"),
        "q": BIASED_OPTIONS["q"],
        "surrogate": BIASED_OPTIONS["surrogate"],
        "temperature": OptionCard("T, of the biased network's probabilities", ABOVE_ZERO),
        "ema_decay": OptionCard(
            "m, the decay of the estimated group table", Range(0, 1, below=True)
        ),
        "eta": OptionCard("η, the strength of the correction", FROM_ZERO, Between(0.5, 2)),
        "mixup": OptionCard("final τ of group MixUp; 0: no mixing", Range(0, 0.5)),
        "ramp_steps": OptionCard("steps over which τ rises to it; 0: half of the run", FROM_ZERO),
    },
    search={"method.q": Between(0.3, 0.9, log=False)},
)


class LC(Method):
    """Two networks of the run's kind, each with a linear classifier; with labels only one.

    Args:
        source: where the groups come from.
        q: of GCE.
        surrogate: use the public codes' form of GCE (see LfF).
        temperature: T.
        ema_decay: m; the public command for Waterbirds forgets every batch's table (0).
        eta: η.
        mixup: final τ.
        ramp_steps: steps of the rise; 0 takes half of the run.
    """

    table: Tensor  # [classes, groups]: P, or p̂(y|b) as columns
    uncommon: Tensor  # [classes, groups]

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        source: Source = "network",
        q: float = 0.7,
        surrogate: bool = False,
        temperature: float = 0.1,
        ema_decay: float = 0.5,
        eta: float = 1.0,
        mixup: float = 0.5,
        ramp_steps: int = 0,
    ) -> None:
        super().__init__()
        check_choice(source, "source", get_args(Source))
        if temperature <= 0 or not 0 <= ema_decay < 1 or eta < 0:
            raise ValueError(
                "temperature must be above 0, ema_decay from 0 to below 1 and eta 0 or more; got "
                f"{temperature}, {ema_decay} and {eta}. Published are 0.1, 0.5 and 1"
            )
        if not 0 <= mixup <= 0.5 or ramp_steps < 0:
            raise ValueError(
                f"mixup must lie in [0, 0.5] and ramp_steps be 0 or more; got {mixup} and "
                f"{ramp_steps}"
            )
        self.source, self.q, self.surrogate = source, q, surrogate
        self.temperature, self.decay, self.eta = temperature, ema_decay, eta
        self.mixup, self.ramp_steps = mixup, ramp_steps
        self.steps = RAMP_STEPS * 2
        self.encoder = make_encoder()
        self.classifier = linear_classifier(self.encoder.dim, info.num_classes)
        if source == "labels":
            require_bias("lc", info, instead="lc with source=network")
            counts = info.counts.float()
            table = label_given_bias(counts).T
            uncommon = table < class_share(counts)[:, None]
        else:
            self.bias_encoder = make_encoder()
            self.bias_classifier = linear_classifier(self.bias_encoder.dim, info.num_classes)
            table = torch.zeros(info.num_classes, info.num_classes)
            uncommon = ~torch.eye(info.num_classes, dtype=torch.bool)
        self.register_buffer("table", table.contiguous())
        self.register_buffer("uncommon", uncommon)

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "bias", which is f_b, unless labels say the groups; and "main", which is f."""
        main = [*self.encoder.parameters(), *self.classifier.parameters()]
        if self.source == "labels":
            return {"main": main}
        bias = [*self.bias_encoder.parameters(), *self.bias_classifier.parameters()]
        return {"bias": bias, "main": main}

    def plan(self, run: RunLength) -> FinalStage:
        """Note the length of the run, by which mixing comes in."""
        self.steps = run.steps
        return FinalStage()

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the loss of the biased network, if there is one, and the corrected one."""
        x = first_view(batch.images)
        y, place = gather_with_place(batch.labels)
        self.terms = {}
        if self.source == "labels":
            assert batch.bias is not None
            (group,) = gather(batch.bias)
        else:
            (logits,) = gather(self.bias_classifier(self.bias_encoder(x)))
            bias = losses.generalized_cross_entropy(logits, y, q=self.q, surrogate=self.surrogate)
            group = self._take_in(full_precision(logits.detach()), y)
            self.terms["bias"] = bias.detach()
            yield "bias", bias
        prior = group_prior(self.table, group)  # [N, classes]
        share = 1.0
        if tau := self._tau(step):
            # Of the whole batch, so one draw for all ranks.
            draws = from_first_rank(torch.rand(len(y) + 1)).to(y.device)
            share = float(1 - 2 * tau + tau * draws[-1])
            known = group >= 0
            rare = self.uncommon[y, group.clamp_min(0)] & known
            partner = partners(y, rare, draws[:-1])
            (everyone,) = gather(x)
            x = share * x + (1 - share) * everyone[partner[place]]
            prior = share * prior + (1 - share) * prior[partner]
        (logits,) = gather(self.predict(x))
        main = corrected_cross_entropy(logits, y, prior, eta=self.eta)
        self.terms |= {"main": main.detach(), "own share": main.new_tensor(share)}
        yield "main", main

    def _take_in(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Take a batch into the table, and return its groups â [N]."""
        group = logits.argmax(1)
        p = (logits / self.temperature).softmax(1).gather(1, labels[:, None])[:, 0]
        seen = group_means(p, labels, group, len(self.table)).to(self.table)
        self.table.copy_(self.decay * self.table + (1 - self.decay) * seen)
        return group

    def _tau(self, step: int) -> float:
        """τ of this step: e^{−5(1−t)²}·`mixup`, t the share of the rise that is over."""
        length = self.ramp_steps or max(self.steps // 2, 1)
        rest = 1 - min(step / length, 1)
        return self.mixup * math.exp(-5 * rest**2)


def group_means(values: Tensor, labels: Tensor, group: Tensor, number: int) -> Tensor:
    """Return the mean value of each (label, group), [number, number]; 0 where there is none.

    Args:
        values: [N].
        labels: [N].
        group: [N].
        number: of classes, and of groups.
    """
    cell = labels * number + group
    total = values.new_zeros(number * number).index_add(0, cell, values)
    count = torch.bincount(cell, minlength=number * number)
    return (total / count.clamp_min(1)).view(number, number)


def group_prior(table: Tensor, group: Tensor) -> Tensor:
    """Return π of each sample: the column of its group, as shares [N, classes].

    An unknown group, −1, has equal ones everywhere: no correction.

    Args:
        table: [classes, groups].
        group: [N].
    """
    total = table.sum(0, keepdim=True)
    shares = torch.where(total > 0, table / torch.where(total > 0, total, 1), 1)
    return torch.where(group[:, None] >= 0, shares.T[group.clamp_min(0)], 1)


def partners(labels: Tensor, rare: Tensor, draws: Tensor) -> Tensor:
    """Return for each sample one of its class, with an uncommon bias if the batch has any: [N].

    Args:
        labels: [N].
        rare: [N], whether a sample's bias is uncommon for its class.
        draws: [N] random numbers in [0, 1), which choose.
    """
    n = len(labels)
    # By class, and in each class the uncommon first.
    order = (2 * labels + (~rare).long()).argsort(stable=True)
    classes = int(labels.max()) + 1 if n else 0
    size = torch.bincount(labels, minlength=classes)
    uncommon = torch.bincount(labels[rare], minlength=classes)
    start = size.cumsum(0) - size
    choices = torch.where(uncommon > 0, uncommon, size)[labels]
    pick = (draws * choices).long().minimum(choices - 1)
    return order[start[labels] + pick]


def corrected_cross_entropy(
    logits: Tensor, labels: Tensor, prior: Tensor, *, eta: float = 1.0
) -> Tensor:
    """Return mean CE( f + log(π^η + 1e-4), y ).

    Args:
        logits: f [N, classes].
        labels: [N].
        prior: π [N, classes].
        eta: η.
    """
    f = full_precision(logits)
    correction = (prior.to(f.dtype).pow(eta) + CORRECTION_FLOOR).log()
    return F.cross_entropy(f + correction, labels)
