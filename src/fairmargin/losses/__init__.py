"""Losses as pure functions: tensors first, everything else by keyword, a scalar back.

    loss = losses.eps_supinfonce(z, y, epsilon=0.25) + losses.fairkl(z, y, b)

Keyword arguments default to the paper's choice. Features may be [N, D] or [N, V, D]. The
capitalised names are `nn.Module` shells over the functions. `check` says on which devices values
are checked.

What is no loss stands in modules of its own: `losses.choices` (types of arguments that are one of
some words), `losses.divergences` (the divergences of FairKL),
`losses.moments` (sums over sets of pairs), `losses.pairs` and `losses.members` (the ε-margin family
as functions of similarities) and `losses.inputs` (checks of arguments).
"""

from fairmargin.losses._end import end
from fairmargin.losses._fairkl import FairKLTerms, fairkl, fairkl_terms
from fairmargin.losses._looks import check
from fairmargin.losses.bias_contrastive import biascon, softcon
from fairmargin.losses.classification import bias_balanced_cross_entropy, generalized_cross_entropy
from fairmargin.losses.contrastive import (
    eps_infonce,
    eps_supcon,
    eps_supinfonce,
    largest_epsilon,
    simclr,
    supcon,
    supcon_in,
)
from fairmargin.losses.dependence import hsic
from fairmargin.losses.information import (
    InformationBounds,
    information_bounds,
    information_bounds_from_scores,
)
from fairmargin.losses.margin import l_softmax, l_softmax_anneal, large_margin
from fairmargin.losses.modules import (
    HSIC,
    BiasBalancedCrossEntropy,
    BiasCon,
    EnD,
    EpsInfoNCE,
    EpsSupCon,
    EpsSupInfoNCE,
    FairKL,
    GeneralizedCrossEntropy,
    LargeMargin,
    LSoftmax,
    SimCLR,
    SoftCon,
    SupCon,
    SupConIn,
)

__all__ = [
    "HSIC",
    "BiasBalancedCrossEntropy",
    "BiasCon",
    "EnD",
    "EpsInfoNCE",
    "EpsSupCon",
    "EpsSupInfoNCE",
    "FairKL",
    "FairKLTerms",
    "GeneralizedCrossEntropy",
    "InformationBounds",
    "LSoftmax",
    "LargeMargin",
    "SimCLR",
    "SoftCon",
    "SupCon",
    "SupConIn",
    "bias_balanced_cross_entropy",
    "biascon",
    "check",
    "end",
    "eps_infonce",
    "eps_supcon",
    "eps_supinfonce",
    "fairkl",
    "fairkl_terms",
    "generalized_cross_entropy",
    "hsic",
    "information_bounds",
    "information_bounds_from_scores",
    "l_softmax",
    "l_softmax_anneal",
    "large_margin",
    "largest_epsilon",
    "simclr",
    "softcon",
    "supcon",
    "supcon_in",
]
