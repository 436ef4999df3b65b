"""Methods that are one network and one sum of losses: a table of rows, each with its card.

A row names its loss, says what else makes the method, and carries the method's card. The keywords
of the loss are options of the method; `row_builders` adds the options that rows share.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fairmargin.methods import row_losses
from fairmargin.methods.card import (
    ABOVE_ZERO,
    FROM_ZERO,
    SHARE,
    Between,
    MethodCard,
    OneOf,
    OptionCard,
    Range,
)
from fairmargin.methods.row_losses import Loss, LossInputs, cross_entropy


@dataclass(frozen=True)
class Row:
    """A method's loss and what else makes the method.

    A row that needs nothing of the bias also exists with "+fairkl".

    Args:
        loss: a function of `LossInputs`; its keywords are options of the method.
        learns: "classifier"; or "embedding", with the classifier as a probe on unit features; or
            "both", with the classifier on h itself.
        card: the facts about the method, with a meaning for each keyword of `loss`.
        prior: makes of the training counts[y, b] what the loss sees as `LossInputs.prior`.
        sampler: how batches are drawn, unless the configuration says otherwise.
        regularised: the loss compares the features of a classifier, so it reads them at length 1.
        intercept: whether the classifier has one.
        beta: default weight of `classification` besides the loss.
        classification: the classification loss that `beta` weights.
        second: the pairs may come from a second stream of batches.
        positives: what makes two samples a positive pair, in the rows for which the bounds of the
            information (Eq. 3) can be logged.
    """

    loss: Loss
    learns: Literal["classifier", "embedding", "both"]
    card: MethodCard
    prior: Callable[[Tensor], Tensor] | None = None
    sampler: str = "shuffled"
    regularised: bool = False
    intercept: bool = True
    beta: float = 0.0
    classification: Loss = cross_entropy
    second: bool = False
    positives: Literal["", "labels", "views"] = ""

    @property
    def views(self) -> int:
        """How many views of each image the loss needs."""
        return 2 if self.card.needs == "two views" else 1

    @property
    def needs(self) -> str:
        """What the loss must know of the bias: "bias labels", "bias features" or nothing."""
        return self.card.needs if self.card.needs.startswith("bias") else ""


BARBANO = "Barbano et al., Unbiased Supervised Contrastive Learning"
HONG = "Hong & Yang, Unbiased Classification through Bias-Contrastive and Bias-Balanced Learning"
IDRISSI = "Idrissi et al., Simple Data Balancing Achieves Competitive Worst-Group-Accuracy"
KHOSLA = "Khosla et al., Supervised Contrastive Learning"

TEMPERATURE = {
    "temperature": OptionCard("τ, which divides the similarities", ABOVE_ZERO, Between(0.05, 0.5))
}
EPSILON = {
    "epsilon": OptionCard(
        "margin ε between positives and negatives, on the similarity divided by τ",
        Range(0, math.inf, words="≥ 0, also inf"),
        Between(0, 1, log=False),
    )
}
BIASCON = TEMPERATURE | {
    "anchors": OptionCard(
        "anchors the mean is over: all, which counts 0 for those without a positive, or valid ones"
    )
}

ROWS = {
    # Cross-entropies
    "ce": Row(cross_entropy, "classifier", MethodCard("Cross-entropy", "the usual", "–")),
    "gce": Row(
        row_losses.generalized,
        "classifier",
        MethodCard(
            "GCE",
            "Zhang & Sabuncu, Generalized Cross Entropy Loss",
            "NeurIPS 2018",
            options={"q": OptionCard("between cross-entropy (0) and 1 − p_y (1)", SHARE)},
        ),
    ),
    "logit-adjusted": Row(
        row_losses.logit_adjusted,
        "classifier",
        MethodCard(
            "Logit adjustment",
            "Menon et al., Long-Tail Learning via Logit Adjustment",
            "ICLR 2021",
            options={
                "strength": OptionCard("τ, the weight of log p̂(y)", FROM_ZERO, Between(0.5, 2))
            },
        ),
        prior=row_losses.class_share,
    ),
    "class-reweighted": Row(
        row_losses.class_reweighted,
        "classifier",
        MethodCard("Class weights", "the usual", "–"),
        prior=row_losses.class_weights,
    ),
    "group-reweighted": Row(
        row_losses.group_reweighted,
        "classifier",
        MethodCard("Group weights", IDRISSI, "CLeaR 2022", "bias labels"),
        prior=row_losses.inverse_frequency,
    ),
    "group-balanced": Row(
        cross_entropy,
        "classifier",
        MethodCard("Group-balanced batches", IDRISSI, "CLeaR 2022", "bias labels"),
        sampler="group-balanced",
    ),
    "biasbal": Row(
        row_losses.bias_balanced,
        "classifier",
        MethodCard("BiasBal", HONG, "NeurIPS 2021", "bias labels"),
        prior=row_losses.label_given_bias,
    ),
    "end": Row(
        row_losses.end,
        "classifier",
        MethodCard(
            "EnD",
            "Tartaglione et al., EnD: Entangling and Disentangling",
            "CVPR 2021",
            "bias labels",
            options={
                "disentangle": OptionCard(
                    "α, the weight of R⊥: decorrelate samples that share the bias",
                    FROM_ZERO,
                    Between(0.1, 50),
                ),
                "entangle": OptionCard(
                    "β, the weight of R∥: align samples of one class and different bias",
                    FROM_ZERO,
                    Between(0.1, 50),
                ),
                "pairs": OptionCard(
                    "pairs that R∥ aligns: all, or the half of them that the released code takes"
                ),
            },
        ),
        regularised=True,
    ),
    "max-margin": Row(
        row_losses.max_margin,
        "classifier",
        MethodCard(
            "Max-Margin",
            "Liu et al., Large-Margin Softmax Loss",
            "ICML 2016",
            options={
                "margin": OptionCard(
                    "m, by which the angle is multiplied; 1 is cross-entropy",
                    Range(1, 64),
                    OneOf((2, 3, 4)),
                ),
                "least_anneal": OptionCard(
                    "weight of plain cross-entropy that stays to the end; 5 or 10 if it diverges",
                    FROM_ZERO,
                ),
                "anneal_steps": OptionCard(
                    "length of the schedule in steps; 0: the run's, 30000: the published one",
                    FROM_ZERO,
                ),
            },
        ),
        intercept=False,
    ),
    "large-margin": Row(
        row_losses.large_margin,
        "classifier",
        MethodCard(
            "Large-Margin",
            "Elsayed et al., Large Margin Deep Networks",
            "NeurIPS 2018",
            options={
                "gamma": OptionCard(
                    "γ, the distance to the decision boundary that is asked for",
                    ABOVE_ZERO,
                    Between(0.1, 10),
                ),
                "slope": OptionCard("α: a sample's loss is at most α·γ", ABOVE_ZERO),
                "norm": OptionCard("norm in which the distance is measured"),
                "top_k": OptionCard(
                    "number of strongest rival classes",
                    Range(1, 10_000, words="1 to the number of classes − 1"),
                ),
            },
        ),
    ),
    # Contrastive losses
    "supcon": Row(
        row_losses.supcon,
        "embedding",
        MethodCard("SupCon", KHOSLA, "NeurIPS 2020", options=TEMPERATURE),
        positives="labels",
    ),
    "supcon-in": Row(
        row_losses.supcon_in,
        "embedding",
        MethodCard("SupCon (in)", KHOSLA, "NeurIPS 2020", options=TEMPERATURE),
    ),
    "simclr": Row(
        row_losses.simclr,
        "embedding",
        MethodCard(
            "SimCLR",
            "Chen et al., A Simple Framework for Contrastive Learning",
            "ICML 2020",
            "two views",
            options=TEMPERATURE,
        ),
        positives="views",
    ),
    "eps-infonce": Row(
        row_losses.eps_infonce,
        "embedding",
        MethodCard("ε-InfoNCE", BARBANO, "ICLR 2023", "two views", options=TEMPERATURE | EPSILON),
        positives="views",
    ),
    "infol1o": Row(
        row_losses.infol1o,
        "embedding",
        MethodCard("InfoL1O", BARBANO, "ICLR 2023", "two views", options=TEMPERATURE),
        positives="views",
    ),
    "eps-supcon": Row(
        row_losses.eps_supcon,
        "embedding",
        MethodCard("ε-SupCon", BARBANO, "ICLR 2023", options=TEMPERATURE | EPSILON),
        positives="labels",
    ),
    "eps-supinfonce": Row(
        row_losses.eps_supinfonce,
        "embedding",
        MethodCard(
            "ε-SupInfoNCE",
            BARBANO,
            "ICLR 2023",
            options=TEMPERATURE
            | EPSILON
            | {
                "form": OptionCard("how several positives are combined (Eq. 17); c is the paper's"),
                "positives": OptionCard("mean or sum over the positives of an anchor, in form c"),
            },
        ),
        positives="labels",
    ),
    "biascon": Row(
        row_losses.biascon,
        "embedding",
        MethodCard("BiasCon", HONG, "NeurIPS 2021", "bias labels", options=BIASCON),
        second=True,
    ),
    "biascon+ce": Row(
        row_losses.biascon,
        "both",
        MethodCard("BiasCon + Cross-entropy", HONG, "NeurIPS 2021", "bias labels", options=BIASCON),
        beta=0.01,
        second=True,
    ),
    "biascon+biasbal": Row(
        row_losses.biascon,
        "both",
        MethodCard("BiasCon + BiasBal", HONG, "NeurIPS 2021", "bias labels", options=BIASCON),
        beta=0.01,
        classification=row_losses.bias_balanced,
        prior=row_losses.label_given_bias,
        second=True,
    ),
    "softcon": Row(
        row_losses.softcon,
        "both",
        MethodCard("SoftCon", HONG, "NeurIPS 2021", "bias features", options=BIASCON),
        beta=0.01,
        second=True,
    ),
}

__all__ = ["BARBANO", "ROWS", "LossInputs", "Row"]
