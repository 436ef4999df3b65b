"""The ε-margin family (Barbano et al., ICLR 2023) and the contrastive losses that it extends.

Notation, for one anchor: s_i = z_a·z_i/τ over its positives P, s_n over its negatives. ε is a
margin on s, so the margin on the cosine is ε·τ; `largest_epsilon` is the most that embeddings can
meet. Every loss is a mean over the anchors that have a positive. An anchor without negatives is
legal, except at ε = ∞, where its loss has no finite value and it is left out. `members.py` has the
formulas in code.
"""

import math
import warnings
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.losses import members
from fairmargin.losses._limits import Limits, limits_of
from fairmargin.losses._operators import operator_above
from fairmargin.losses._streamed import compiled_chunks, mean_over_anchors
from fairmargin.losses.choices import Form, Positives
from fairmargin.losses.inputs import check_epsilon, check_temperature, check_tensor, rows
from fairmargin.losses.members import FORMS
from fairmargin.losses.pairs import PairLoss, RowLoss

# Rows up to which form d holds all its triples at a time.
ALL_TRIPLES = 512


def several_blocks(rows: int, limits: Limits, settings: dict[str, Any]) -> bool:
    """Return whether a batch is streamed.

    Form d always counts its triples first, which no compiler can follow.

    Args:
        rows: of the batch.
        limits: of the device.
        settings: keyword arguments of the loss.
    """
    if settings.get("chunk") is not None or settings.get("form") == "d":
        return True
    return rows > limits.one_block


def eps_infonce(
    features: Tensor,
    *,
    epsilon: float = 0.0,
    temperature: float = 0.1,
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """ε-InfoNCE (Barbano et al., ICLR 2023, Eq. 2): a contrastive loss with a margin, no labels.

    The positives of a view are the other views of its image; all other views are negatives.

        −s⁺ + log(e^{s⁺−ε} + Σ_n e^{s_n}),   s = z·z'/τ

    ε = 0 is InfoNCE, also called NT-Xent; ε = inf is InfoL1O.

    Args:
        features: [N, V, D], V ≥ 2 views of each of N images.
        epsilon: margin on the similarity divided by the temperature, 0 to inf; the paper uses 0 to
            0.5.
        temperature: τ > 0; the paper uses 0.1.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        A scalar, the mean over anchors.

    Example:
        >>> z = torch.stack([encoder(first_view), encoder(second_view)], 1)  # [N, 2, D]
        >>> loss = losses.eps_infonce(z, epsilon=0.25)
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
    form: Form = "c",
    positives: Positives = "mean",
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """ε-SupInfoNCE (Barbano et al., ICLR 2023, Eq. 4): every positive beats all negatives by ε.

        mean_i  −s_i + log(e^{s_i−ε} + Σ_n e^{s_n}),   s = z·z'/τ

    over the positives i of an anchor, with n over its negatives. Unlike SupCon it does not compare
    positives with each other. This is form c; the others (Eq. 17 of the appendix) are:

        a    log(e^{−ε} + Σ_i Σ_n e^{s_n−s_i})
        b    Σ_n log(e^{−ε} + Σ_i e^{s_n−s_i})
        d    Σ_i Σ_n log(e^{−ε} + e^{s_n−s_i})

    Args:
        features: [N, D], or [N, V, D] with the views of one image as positives of each other.
        labels: [N] integers.
        epsilon: margin on the similarity divided by the temperature, 0 to inf; the paper uses 0 to
            0.5. No embedding meets more than `largest_epsilon(classes, temperature)`.
        temperature: τ > 0; the paper uses 0.1.
        form: how several positives are combined; the paper's is "c". "d" compares every positive
            with every negative, which is cubic in N.
        positives: "mean" over the positives of an anchor in form c, as the authors ran it, or
            "sum", as Eq. 4 prints it.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        A scalar, the mean over the anchors that have a positive. It can be negative if ε > 0. A
        batch without any positive gives a zero that is attached to the graph, and a warning.

    Example:
        >>> z = encoder(images)  # [N, D]
        >>> loss = losses.eps_supinfonce(z, labels, epsilon=0.25)
        >>> loss.backward()
    """
    check_choice(form, "form", get_args(Form))
    check_choice(positives, "positives", get_args(Positives))
    check_epsilon(epsilon)
    member: RowLoss = partial(FORMS[form], epsilon=epsilon)
    if form == "c":
        member = partial(FORMS[form], epsilon=epsilon, positives=positives)
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
    """ε-SupCon (Barbano et al., ICLR 2023, Eq. 5): SupCon with a margin to the negatives.

        mean_i  −s_i + log(Σ_t e^{s_t−ε} + Σ_n e^{s_n}),   s = z·z'/τ

    over the positives i of an anchor, with t over all its positives and n over its negatives. ε = 0
    is exactly SupCon's L_out.

    Args:
        features: [N, D], or [N, V, D] with the views of one image as positives of each other.
        labels: [N] integers; None takes the other views of an image as its positives.
        epsilon: margin on the similarity divided by the temperature, 0 to inf; the paper uses 0 to
            0.5.
        temperature: τ > 0; the paper uses 0.1.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        A scalar, the mean over the anchors that have a positive.

    Example:
        >>> loss = losses.eps_supcon(encoder(images), labels, epsilon=0.25)
    """
    check_epsilon(epsilon)
    member = partial(members.supcon_out, epsilon=epsilon)
    return _family(features, labels, member, temperature, unit_norm, chunk)


def supcon(
    features: Tensor,
    labels: Tensor | None = None,
    *,
    temperature: float = 0.1,
    unit_norm: bool = True,
    chunk: int | None = None,
) -> Tensor:
    """SupCon L_out (Khosla et al., NeurIPS 2020, Eq. 2), the usual supervised contrastive loss.

        mean_i  −s_i + log(Σ_t e^{s_t} + Σ_n e^{s_n}),   s = z·z'/τ

    over the positives i of an anchor, with t over all its positives and n over its negatives. It is
    `eps_supcon` at ε = 0, and without labels SimCLR's NT-Xent.

    Args:
        features: [N, D], or [N, V, D] with the views of one image as positives of each other.
        labels: [N] integers; None takes the other views of an image as its positives.
        temperature: τ > 0; Khosla et al. and the ε-margin paper use 0.1.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        A scalar, the mean over the anchors that have a positive.

    Example:
        >>> loss = losses.supcon(encoder(images), labels)
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
    """SupCon L_in (Khosla et al., NeurIPS 2020, Eq. 3): content once one positive is ahead.

        −log( 1/P Σ_i e^{s_i} / (Σ_t e^{s_t} + Σ_n e^{s_n}) ),   s = z·z'/τ

    over the P positives i, t of an anchor and its negatives n.

    Note: the 1/P is Khosla's; Eq. 7 of the ε-margin paper omits it, which shifts the value by log
    P.

    Args:
        features: [N, D], or [N, V, D] with the views of one image as positives of each other.
        labels: [N] integers; None takes the other views of an image as its positives.
        temperature: τ > 0; Khosla et al. use 0.1.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        A scalar, the mean over the anchors that have a positive.

    Example:
        >>> loss = losses.supcon_in(encoder(images), labels)
    """
    return _family(features, labels, members.supcon_in, temperature, unit_norm, chunk)


def simclr(
    features: Tensor, *, temperature: float = 0.1, unit_norm: bool = True, chunk: int | None = None
) -> Tensor:
    """SimCLR's NT-Xent (Chen et al., ICML 2020, Eq. 1): tell images apart, without labels.

        −s⁺ + log(e^{s⁺} + Σ_n e^{s_n}),   s = z·z'/τ

    with the other view of the image as positive and all views of other images as negatives. It is
    `supcon` without labels.

    Args:
        features: [N, V, D], V ≥ 2 views of each of N images.
        temperature: τ > 0; the default is that of the ε-margin paper.
        unit_norm: scale each embedding to unit length first.
        chunk: anchors handled at a time; None chooses, and uses the dense form for small batches.

    Returns:
        A scalar, the mean over anchors.

    Example:
        >>> z = torch.stack([encoder(first_view), encoder(second_view)], 1)  # [N, 2, D]
        >>> loss = losses.simclr(z)
    """
    return supcon(features, None, temperature=temperature, unit_norm=unit_norm, chunk=chunk)


def largest_epsilon(classes: int | None = None, temperature: float = 0.1) -> float:
    """Return the largest margin ε that embeddings of length 1 can meet for every pair.

        2/τ              without `classes`: a positive at the anchor and a negative opposite
                         (appendix A.2 of Barbano et al., ICLR 2023)
        K/((K−1)·τ)      with K classes

    K unit vectors have Σ_{i≠j} z_i·z_j = ‖Σz‖² − K ≥ −K, so two of them have a cosine of −1/(K−1)
    or more, and no margin on the cosine can exceed 1 + 1/(K−1). The vertices of a regular simplex,
    where SupCon has its minimum (Graf et al., ICML 2021), reach it. A larger ε is legal, and so is
    inf (InfoL1O); the loss then never levels off.

    Args:
        classes: K ≥ 2; for losses without labels an image is a class of its own. None if not known.
        temperature: τ > 0 of the loss.

    Example:
        >>> losses.largest_epsilon()
        20.0
        >>> round(losses.largest_epsilon(10), 1)
        11.1
    """
    check_temperature(temperature)
    if classes is None:
        return 2 / temperature
    if classes < 2:
        raise ValueError(
            "classes must be at least 2, or None if not known: a margin is between two; "
            f"got {classes}"
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
    """Warn of a finite ε beyond `largest_epsilon`.

    Call it once, where a loss is set up, and not at every call of the loss.

    Args:
        classes: as in `largest_epsilon`; None where it is not known. With fewer than two nothing
            can be said but 2/τ.
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
            f"epsilon={epsilon:g} is more than any embedding can meet at temperature "
            f"{temperature:g}: the positive leads by {most:.4g} at most{among}, "
            "so the loss never levels off. The paper uses 0 to 0.5; inf is InfoL1O",
            stacklevel=stacklevel + 1,
        )


def image_of_each_view(features: Tensor) -> Tensor:
    """Return [N] labels that make views of one image, and nothing else, positives of each other.

    Args:
        features: [N, V, D].
    """
    check_tensor(features, "features")
    if features.ndim != 3:
        raise ValueError(
            "without labels the positives are other views, so features must have shape [N, V, D]; "
            f"got {list(features.shape)}. Stack the views on dimension 1, or pass labels"
        )
    return torch.arange(features.shape[0], device=features.device)


def _family(
    features: Tensor,
    labels: Tensor | None,
    member: RowLoss,
    temperature: float,
    unit_norm: bool,
    chunk: int | None,
    whole_rows: bool = False,
) -> Tensor:
    """The mean of a member over the anchors of a batch."""
    check_temperature(temperature)
    if labels is None:
        labels = image_of_each_view(features)
    z, (y,) = rows(features, labels, names=("labels",), unit_norm=unit_norm)
    loss = PairLoss(member, temperature, whole_rows=whole_rows, unit_norm=unit_norm, chunk=chunk)
    return mean_over_anchors(z, y, loss)


def _chunk_of_triples(features: Any, labels: Any) -> int | None:
    """Form d holds anchors × positives × rows at a time: few anchors when the batch is large."""
    if not (isinstance(features, Tensor) and isinstance(labels, Tensor)):
        return None  # _family says what is wrong
    n = features.shape[:-1].numel()
    if n <= ALL_TRIPLES or labels.ndim != 1 or not len(labels):
        return None
    most = int(labels.unique(return_counts=True)[1].max()) * n // len(labels)
    return max(1, limits_of(features).chunk_bytes // (4 * n * most))
