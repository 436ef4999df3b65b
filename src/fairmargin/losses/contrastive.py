"""The ε-margin family (Barbano et al., ICLR 2023), side by side: the difference between members is the knowledge.

Notation, for one anchor: s_i = z_a·z_i/τ over its positives P, s_n over its negatives, L = log Σ_n e^{s_n}.
ε is a margin on s, so the margin on the cosine is ε·τ; `largest_epsilon` is the most that embeddings can meet. Every loss
is a mean over the anchors that have a positive; an anchor without negatives is legal (L = −∞), except at ε = ∞ where its
loss has no finite value and it is left out.
"""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fairmargin.checks import check_choice
from fairmargin.losses._limits import Limits, limits_of
from fairmargin.losses._operators import operator_above
from fairmargin.losses._pairs import (
    Block,
    RowLoss,
    compiled_chunks,
    masked_logsumexp,
    mean_over_anchors,
)
from fairmargin.losses.inputs import check_epsilon, check_temperature, check_tensor, rows

TINY = 1e-30  # keeps 0/0 away from anchors without positives, which are masked out
# Rows up to which form d holds all its triples at a time.
ALL_TRIPLES = 512


def several_blocks(rows: int, limits: Limits, settings: dict[str, Any]) -> bool:
    """Whether a batch is streamed. Form d always counts its triples first, which no compiler can follow."""
    return (
        rows > limits.one_block or settings.get("chunk") is not None or settings.get("form") == "d"
    )


def eps_infonce(
    features: Tensor,
    *,
    epsilon: float = 0.0,
    temperature: float = 0.1,
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """ε-InfoNCE (Eq. 2): the positives of a view are the other views of its image; features [N, V, D].

    −s⁺ + log(e^{s⁺−ε} + Σ_n e^{s_n})      ε = 0: InfoNCE / NT-Xent; ε = inf: InfoL1O
    """
    labels = image_of_each_view(features)
    return eps_supinfonce(
        features, labels, epsilon=epsilon, temperature=temperature, unit_norm=unit_norm, chunk=chunk
    )


@operator_above(several_blocks)
def eps_supinfonce(
    features: Tensor,
    labels: Tensor,
    *,
    epsilon: float = 0.0,
    temperature: float = 0.1,
    form: str = "c",
    positives: str = "mean",
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """ε-SupInfoNCE (Eq. 4; forms a–d: Eq. 17 of the appendix).

    c (the paper's)  mean_i  −s_i + log(e^{s_i−ε} + Σ_n e^{s_n})      `positives="sum"` for Σ_i, as Eq. 4 prints it
    a                log(e^{−ε} + Σ_i Σ_n e^{s_n−s_i})
    b                Σ_n log(e^{−ε} + Σ_i e^{s_n−s_i})
    d                Σ_i Σ_n log(e^{−ε} + e^{s_n−s_i})

    Args:
        features: [N, D], or [N, V, D] with the views of one image as positives of each other.
        labels: [N] integers.
        epsilon: margin on the similarity divided by the temperature, 0 to inf; the paper uses 0 to 0.5, and no
            embedding meets more than `largest_epsilon(classes, temperature)`.
        form: how several positives are combined; d compares every positive with every negative: cubic in N.
        positives: "mean" or "sum" over the positives of an anchor, in form c.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.
    """
    check_choice(form, "form", FORMS)
    check_choice(positives, "positives", ("mean", "sum"))
    check_epsilon(epsilon)
    settings = {"epsilon": epsilon, "positives": positives} if form == "c" else {"epsilon": epsilon}
    member: RowLoss = partial(FORMS[form], **settings)
    if form == "d":
        chunk = _chunk_of_triples(features, labels) if chunk is None else chunk
        with compiled_chunks(False):  # it counts its positives, which no compiler can follow
            return _family(features, labels, member, temperature, unit_norm, chunk, whole_rows=True)
    return _family(features, labels, member, temperature, unit_norm, chunk, whole_rows=form == "b")


@operator_above(several_blocks)
def eps_supcon(
    features: Tensor,
    labels: Tensor | None,
    *,
    epsilon: float = 0.0,
    temperature: float = 0.1,
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """ε-SupCon (Eq. 5): SupCon's L_out with a margin between positives and negatives.

    mean_i  −s_i + log(Σ_t e^{s_t−ε} + Σ_n e^{s_n}),   t over all positives      ε = 0: exactly L_out
    """
    check_epsilon(epsilon)
    return _family(
        features, labels, partial(_supcon_out, epsilon=epsilon), temperature, unit_norm, chunk
    )


def supcon(
    features: Tensor,
    labels: Tensor | None = None,
    *,
    temperature: float = 0.1,
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """SupCon L_out (Khosla et al., NeurIPS 2020, Eq. 2); without labels SimCLR's NT-Xent on features [N, V, D].

    mean_i  −s_i + log(Σ_t e^{s_t} + Σ_n e^{s_n})
    """
    return eps_supcon(features, labels, temperature=temperature, unit_norm=unit_norm, chunk=chunk)


@operator_above(several_blocks)
def supcon_in(
    features: Tensor,
    labels: Tensor | None = None,
    *,
    temperature: float = 0.1,
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """SupCon L_in (Khosla et al., Eq. 3): satisfied as soon as one positive is ahead of the negatives.

    −log( 1/P Σ_i e^{s_i} / (Σ_t e^{s_t} + Σ_n e^{s_n}) )

    Note: the 1/P is Khosla's; Eq. 7 of the ε-margin paper omits it, which shifts the value by log P.
    """
    return _family(features, labels, _supcon_in, temperature, unit_norm, chunk)


def simclr(
    features: Tensor, *, temperature: float = 0.1, unit_norm: bool = True, chunk: int | None = None
) -> Tensor:
    """SimCLR's NT-Xent (Chen et al., ICML 2020): `supcon` without labels; features [N, V, D]."""
    return supcon(features, None, temperature=temperature, unit_norm=unit_norm, chunk=chunk)


def largest_epsilon(classes: int | None = None, temperature: float = 0.1) -> float:
    """The largest margin ε that embeddings of length 1 can meet for every anchor, positive and negative.

    2/τ              without `classes`: a positive at the anchor and a negative opposite (the paper's appendix A.2)
    K/((K−1)·τ)      with K classes

    K unit vectors have Σ_{i≠j} z_i·z_j = ‖Σz‖² − K ≥ −K, so two of them have a cosine of −1/(K−1) or more, and no margin
    on the cosine can exceed 1 + 1/(K−1). The vertices of a regular simplex, where SupCon has its minimum (Graf et al.,
    ICML 2021), reach it. A larger ε is legal, and so is inf (InfoL1O); the loss then never levels off.

    Args:
        classes: K ≥ 2; for losses without labels an image is a class of its own.
    """
    check_temperature(temperature)
    if classes is None:
        return 2 / temperature
    if classes < 2:
        raise ValueError(
            f"classes must be at least 2, or None if not known: a margin is between two; got {classes}"
        )
    return classes / ((classes - 1) * temperature)


def warn_of_epsilon(
    epsilon: float,
    temperature: float,
    *,
    classes: int | None = None,
    classes_are: str = "classes",
    stacklevel: int = 2,
) -> None:
    """Warn of a finite ε beyond `largest_epsilon`; once, where a loss is set up, and not at every call of it.

    Args:
        classes: as in `largest_epsilon`, None where it is not known; with fewer than two nothing can be said but 2/τ.
        classes_are: what the message calls them.
        stacklevel: of `warnings.warn`, counted from the caller.
    """
    check_temperature(temperature)
    check_epsilon(epsilon)
    known = classes if classes is not None and classes > 1 else None
    most = largest_epsilon(known, temperature)
    if most < epsilon < math.inf:
        among = "" if known is None else f" among {known} {classes_are}"
        warnings.warn(
            f"epsilon={epsilon:g} is more than any embedding can meet at temperature {temperature:g}: the positive leads "
            f"by {most:.4g} at most{among}, so the loss never levels off. The paper uses 0 to 0.5; inf is InfoL1O",
            stacklevel=stacklevel + 1,
        )


# The members. Each takes a Block and gives (loss of each anchor, which anchors are valid).


def _form_a(block: Block, *, epsilon: float) -> tuple[Tensor, Tensor]:
    negatives, valid = _usable(block, epsilon)
    hardest = _finite(masked_logsumexp(-block.s, block.positive))  # log Σ_i e^{−s_i}
    return torch.where(valid, _log_margin(negatives + hardest, epsilon), 0), valid


def _form_b(block: Block, *, epsilon: float) -> tuple[Tensor, Tensor]:
    valid = block.mass > 0
    hardest = _finite(masked_logsumexp(-block.s, block.positive))
    each = _log_margin(block.s + hardest[:, None], epsilon)
    return torch.where(valid, (each * block.negative).sum(1), 0), valid


def _form_c(block: Block, *, epsilon: float, positives: str) -> tuple[Tensor, Tensor]:
    negatives, valid = _usable(block, epsilon)
    each = _log_margin(negatives[:, None] - block.s, epsilon)  # log(e^{−ε} + Σ_n e^{s_n−s_i})
    total = (each * block.weight).sum(1)
    return torch.where(
        valid, total if positives == "sum" else total / block.mass.clamp_min(TINY), 0
    ), valid


def _form_d(block: Block, *, epsilon: float) -> tuple[Tensor, Tensor]:
    most = int(block.mass.max()) if len(block.mass) else 0
    mine = block.positive.topk(most, dim=1).indices  # [c, P]: positives first
    gap = block.s[:, None, :] - block.s.gather(1, mine)[:, :, None]  # [c, P, N]
    pair = block.positive.gather(1, mine)[:, :, None] * block.negative[:, None, :]
    return (_log_margin(gap, epsilon) * pair).sum((1, 2)), block.mass > 0


def _supcon_out(block: Block, *, epsilon: float = 0.0) -> tuple[Tensor, Tensor]:
    rivals, valid = _usable(block, epsilon)
    pull = (block.s * block.weight).sum(1) / block.mass.clamp_min(TINY)
    if epsilon < math.inf:
        rivals = torch.logaddexp(
            _finite(masked_logsumexp(block.s, block.positive)) - epsilon, rivals
        )
    return torch.where(valid, rivals - pull, 0), valid


def _supcon_in(block: Block) -> tuple[Tensor, Tensor]:
    valid = block.mass > 0
    mine = _finite(masked_logsumexp(block.s, block.positive))
    return torch.where(
        valid, block.mass.clamp_min(1).log() - mine + torch.logaddexp(mine, block.log_negatives), 0
    ), valid


FORMS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "a": _form_a,
    "b": _form_b,
    "c": _form_c,
    "d": _form_d,
}


def _family(
    features: Tensor,
    labels: Tensor | None,
    member: RowLoss,
    temperature: float,
    unit_norm: bool,
    chunk: int | None,
    whole_rows: bool = False,
) -> Tensor:
    check_temperature(temperature)
    if labels is None:
        labels = image_of_each_view(features)
    z, (y,) = rows(features, labels, names=("labels",), unit_norm=unit_norm)
    return mean_over_anchors(
        z,
        y,
        member,
        temperature=temperature,
        chunk=chunk,
        whole_rows=whole_rows,
        unit_norm=unit_norm,
    )


def _chunk_of_triples(features: Any, labels: Any) -> int | None:
    """Form d holds anchors × positives × rows at a time: few anchors when the batch is large."""
    if not (isinstance(features, Tensor) and isinstance(labels, Tensor)):
        return None  # _family says what is wrong
    n = features.shape[:-1].numel()
    if n <= ALL_TRIPLES or labels.ndim != 1 or not len(labels):
        return None
    most = int(labels.unique(return_counts=True)[1].max()) * n // len(labels)
    return max(1, limits_of(features).chunk_bytes // (4 * n * most))


def image_of_each_view(features: Tensor) -> Tensor:
    """[N] labels that make views of one image, and nothing else, positives of each other."""
    check_tensor(features, "features")
    if features.ndim != 3:
        raise ValueError(
            f"without labels the positives are other views, so features must have shape [N, V, D]; "
            f"got {list(features.shape)}. Stack the views on dimension 1, or pass labels"
        )
    return torch.arange(features.shape[0], device=features.device)


def _usable(block: Block, epsilon: float) -> tuple[Tensor, Tensor]:
    """(L, valid anchors); at ε = ∞ an anchor without negatives is not valid, and its L is made finite."""
    valid = block.mass > 0
    if epsilon == math.inf:
        return _finite(block.log_negatives), valid & (block.log_negatives != -math.inf)
    return block.log_negatives, valid


def _log_margin(gap: Tensor, epsilon: float) -> Tensor:
    """log(e^{−ε} + e^{gap}), for ε from 0 to inf and gap down to −inf."""
    if epsilon == math.inf:
        return gap
    if epsilon < 8:  # faster, and ε is small enough to be added and taken away again
        return F.softplus(gap + epsilon if epsilon else gap, threshold=40).sub_(epsilon)
    return torch.logaddexp(gap, gap.new_full((), -epsilon))


def _finite(log_sum: Tensor) -> Tensor:
    """0, without gradient, for the log of an empty sum: anchors that have none are masked out afterwards.

    A NaN stays one, and shows in the loss.
    """
    return torch.where(log_sum != -math.inf, log_sum, 0)
