"""FairMargin, the method that this library recommends: it uses what is known of the bias.

    with bias labels     L = CE(f(x), y) + α·BiasCon(z, y, b) + λ·FairKL(z, y, b)
    with bias features   L = CE(f(x), y) + α·SoftCon(z, y, g) + λ·FairKL(z, y, g)
    with neither         L = CE(f(x), y)

With bias labels every (class, bias) group comes equally often in a batch, so that the few samples
that contradict the shortcut count, and some images are blended with others of their class and of
another bias (`mixing.py`), so that these few are not learned by heart. BiasCon (Hong & Yang,
NeurIPS 2021) pulls the samples of a class together across the bias. FairKL (Barbano et al., ICLR
2023) in its simplified form, (Δμ)² + (Δσ)² for pairs of one class and pairs of different classes,
takes what is left of the bias out of the distances. The classifier is trained along, on h itself.

How it was chosen: docs/results/suite.md. It was settled on validation samples of ten small tasks.
"""

from functools import partial

from fairmargin import losses
from fairmargin.batch import DataInfo
from fairmargin.methods.base import MakeEncoder
from fairmargin.methods.card import ABOVE_ZERO, FROM_ZERO, SHARE, Between, MethodCard, OptionCard
from fairmargin.methods.mixing import mixed_across_bias
from fairmargin.methods.objective import Objective
from fairmargin.methods.objectives import Row
from fairmargin.methods.row_losses import biascon, cross_entropy, softcon

CARD = MethodCard(
    "FairMargin",
    "this library",
    "–",
    "what is known of the bias",
    file="recommended.py",
    options={
        "alpha": OptionCard("α, the weight of BiasCon, or of SoftCon", FROM_ZERO, Between(0.1, 10)),
        "lambda": OptionCard("λ, the weight of FairKL", FROM_ZERO, Between(0.1, 10)),
        "temperature": OptionCard(
            "τ, which divides the similarities", ABOVE_ZERO, Between(0.05, 0.5)
        ),
        "mix": OptionCard(
            "share of the images that are blended with one of their class and another bias", SHARE
        ),
    },
)
WITH_LABELS = Row(biascon, "both", CARD, sampler="group-balanced")
WITH_FEATURES = Row(softcon, "both", CARD)
WITH_NEITHER = Row(cross_entropy, "classifier", CARD)


def build_fairmargin(
    make_encoder: MakeEncoder,
    info: DataInfo,
    *,
    alpha: float = 1.0,
    lambda_: float = 1.0,
    temperature: float = 0.1,
    mix: float = 0.5,
) -> Objective:
    """Build the sum of losses that suits what is known of the bias.

    Args:
        make_encoder: makes a fresh encoder.
        info: tells whether there are bias labels of two values or more, bias features, or neither.
        alpha: α; 0 leaves the contrastive loss out.
        lambda_: λ; 0 leaves FairKL out.
        temperature: τ of the contrastive loss.
        mix: share of blended images, with bias labels.
    """
    for name, value in {"alpha": alpha, "lambda": lambda_}.items():
        if value < 0:
            raise ValueError(f"{name} is a weight and must not be negative; got {value}")
    if not 0 <= mix <= 1:
        raise ValueError(f"mix is a share and must lie in [0, 1]; got {mix}")
    encoder = make_encoder()
    if info.num_biases > 1:
        name, row = "biascon", WITH_LABELS
    elif info.bias_features:
        name, row = "softcon", WITH_FEATURES
    else:
        # One bias value for all samples tells nothing either.
        return Objective("cross-entropy", WITH_NEITHER, encoder, info, cross_entropy)
    return Objective(
        name,
        row,
        encoder,
        info,
        partial(row.loss, temperature=temperature),
        alpha=alpha,
        beta=1.0,
        fairkl_weight=lambda_,
        # Values of a bias arrive in units of their median distance (data/values.py).
        fairkl=losses.FairKL(divergence="moments", negatives=True, bandwidth=1.0),
        prepare=partial(mixed_across_bias, share=mix),
    )
