"""The losses of the rows in objectives.py: functions of what one network gives (`LossInputs`).

The keywords of a loss are options of its method; the row's card says what they mean.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.losses.choices import Anchors, EntangledPairs, Form, Norm, Positives
from fairmargin.losses.classification import PRIOR_FLOOR
from fairmargin.losses.margin import PUBLISHED_STEPS
from fairmargin.methods.base import Unsuited

Loss = Callable[..., Tensor]  # (LossInputs, *, options…)


@dataclass(frozen=True)
class LossInputs:
    """What a loss may look at, of the samples of all processes.

    Args:
        h: [N, D] or [N, V, D], the output of the encoder.
        z: the output of the projection head, of unit length.
        inputs: what the classifier reads.
        labels: [N] classes.
        bias: [N] bias labels, −1 where unknown; None if the dataset has none.
        bias_features: [N, G] features of a bias-capturing model, or None.
        classifier: the linear layer on `inputs`.
        prior: what `Row.prior` made of the training counts; empty if the row has none.
        step: number of the step, from 0.
        steps: length of the run, if it is known.
        bias_values: [N, k] values of a bias that is numbers, NaN where unknown, or None.
    """

    h: Tensor
    z: Tensor
    inputs: Tensor
    labels: Tensor
    bias: Tensor | None
    bias_features: Tensor | None
    classifier: nn.Linear
    prior: Tensor
    step: int
    steps: int | None = None
    bias_values: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """[N·V, K] logits, a row for each view."""
        return self.classifier(self.inputs.flatten(0, -2))

    @property
    def label_of_each_row(self) -> Tensor:
        """[N·V] labels, one for each row of `logits`."""
        return self._of_each_row(self.labels)

    @property
    def bias_of_each_row(self) -> Tensor:
        """[N·V] bias labels, one for each row of `logits`."""
        return self._of_each_row(self.known_bias)

    @property
    def known_bias(self) -> Tensor:
        """The bias labels; an error if there are none."""
        if self.bias is None:
            raise Unsuited(
                "this loss needs bias labels and this batch has none; give the manifest a "
                '"bias" column, make labels of scores with --bias clusters, or train "softcon" '
                "with bias features"
            )
        return self.bias

    def _of_each_row(self, ids: Tensor) -> Tensor:
        return ids.repeat_interleave(self.h.shape[1]) if self.h.ndim == 3 else ids


# Cross-entropies


def cross_entropy(x: LossInputs) -> Tensor:
    """mean CE(f(x), y)"""
    return F.cross_entropy(x.logits, x.label_of_each_row)


def generalized(x: LossInputs, *, q: float = 0.7) -> Tensor:
    """GCE (Zhang & Sabuncu, NeurIPS 2018):  mean (1 − p_y^q)/q.

    Easy samples weigh more than in cross-entropy, so it learns a shortcut even more readily.
    """
    return losses.generalized_cross_entropy(x.logits, x.label_of_each_row, q=q)


def logit_adjusted(x: LossInputs, *, strength: float = 1.0) -> Tensor:
    """Menon et al., ICLR 2021:  CE( f(x) + τ·log p̂(·), y );  at test time f(x) alone."""
    shift = strength * (x.prior + PRIOR_FLOOR).log()
    return F.cross_entropy(x.logits + shift, x.label_of_each_row)


def class_reweighted(x: LossInputs) -> Tensor:
    """mean_i  w_i·CE_i,   w_i = N/(K·n_y)"""
    return _weighted(x, x.prior[x.label_of_each_row])


def group_reweighted(x: LossInputs) -> Tensor:
    """mean_i  w_i·CE_i,   w_i = N/(G·n_yb) over the G non-empty groups; 1 if the bias is unknown"""
    y, b = x.label_of_each_row, x.bias_of_each_row
    return _weighted(x, torch.where(b >= 0, x.prior[y, b.clamp_min(0)], 1))


def _weighted(x: LossInputs, weight: Tensor) -> Tensor:
    # Note: divided by the number of samples, not by the sum of the batch's weights as in
    # F.cross_entropy(weight=…): the expected loss is then that of balanced data, whatever the
    # batch size.
    each = F.cross_entropy(x.logits, x.label_of_each_row, reduction="none")
    return (weight * each).mean()


def bias_balanced(x: LossInputs) -> Tensor:
    """BiasBal (Hong & Yang, NeurIPS 2021):  CE( f(x) + log p̂(·|b), y );  at test time f(x)."""
    return losses.bias_balanced_cross_entropy(
        x.logits, x.label_of_each_row, x.bias_of_each_row, x.prior
    )


def end(
    x: LossInputs,
    *,
    disentangle: float = 1.0,
    entangle: float = 1.0,
    pairs: EntangledPairs = "all",
) -> Tensor:
    """EnD (Tartaglione et al., CVPR 2021):  CE + α·R⊥ + β·R∥"""
    regulariser = losses.end(
        x.h, x.labels, x.known_bias, disentangle=disentangle, entangle=entangle, pairs=pairs
    )
    return cross_entropy(x) + regulariser


def max_margin(
    x: LossInputs, *, margin: int = 4, least_anneal: float = 0.0, anneal_steps: int = 0
) -> Tensor:
    """L-Softmax (Liu et al., ICML 2016), whose margin comes in gradually."""
    steps = anneal_steps or x.steps or PUBLISHED_STEPS
    anneal = losses.l_softmax_anneal(x.step, least=least_anneal, steps=steps)
    layer = x.inputs.flatten(0, -2)
    return losses.l_softmax(
        layer, x.classifier.weight, x.label_of_each_row, margin=margin, anneal=anneal
    )


def large_margin(
    x: LossInputs,
    *,
    gamma: float = 1.0,
    slope: float = 2.0,
    norm: Norm = "l2",
    top_k: int = 1,
) -> Tensor:
    """Large-margin loss (Elsayed et al., NeurIPS 2018) at the input of the classifier."""
    # After every batch norm: none may couple the samples between this layer and the logits.
    layer = x.inputs.flatten(0, -2)
    logits = x.classifier(layer)
    return losses.large_margin(
        logits, [layer], x.label_of_each_row, gamma=gamma, alpha=slope, norm=norm, top_k=top_k
    )


# Contrastive losses


def supcon(x: LossInputs, *, temperature: float = 0.1) -> Tensor:
    """SupCon L_out (Khosla et al., NeurIPS 2020, Eq. 2)."""
    return losses.supcon(x.z, x.labels, temperature=temperature)


def supcon_in(x: LossInputs, *, temperature: float = 0.1) -> Tensor:
    """SupCon L_in (Khosla et al., NeurIPS 2020, Eq. 3)."""
    return losses.supcon_in(x.z, x.labels, temperature=temperature)


def simclr(x: LossInputs, *, temperature: float = 0.1) -> Tensor:
    """NT-Xent (Chen et al., ICML 2020)."""
    return losses.simclr(x.z, temperature=temperature)


def eps_infonce(x: LossInputs, *, epsilon: float = 0.25, temperature: float = 0.1) -> Tensor:
    """ε-InfoNCE (Barbano et al., ICLR 2023)."""
    return losses.eps_infonce(x.z, epsilon=epsilon, temperature=temperature)


def infol1o(x: LossInputs, *, temperature: float = 0.1) -> Tensor:
    """InfoL1O, the limit ε → ∞ of ε-InfoNCE."""
    return losses.eps_infonce(x.z, epsilon=torch.inf, temperature=temperature)


def eps_supinfonce(
    x: LossInputs,
    *,
    epsilon: float = 0.25,
    temperature: float = 0.1,
    form: Form = "c",
    positives: Positives = "mean",
) -> Tensor:
    """ε-SupInfoNCE (Barbano et al., ICLR 2023, Eq. 4)."""
    return losses.eps_supinfonce(
        x.z, x.labels, epsilon=epsilon, temperature=temperature, form=form, positives=positives
    )


def eps_supcon(x: LossInputs, *, epsilon: float = 0.25, temperature: float = 0.1) -> Tensor:
    """ε-SupCon (Barbano et al., ICLR 2023, Eq. 5)."""
    return losses.eps_supcon(x.z, x.labels, epsilon=epsilon, temperature=temperature)


def biascon(x: LossInputs, *, temperature: float = 0.07, anchors: Anchors = "all") -> Tensor:
    """BiasCon (Hong & Yang, NeurIPS 2021): SupCon whose positives have another bias."""
    if not _conflict(x.labels, x.known_bias):
        # The value that the loss has then, without its warning: with a strong bias, most batches
        # have no conflicting pair.
        return 0 * x.z.sum()
    return losses.biascon(x.z, x.labels, x.known_bias, temperature=temperature, anchors=anchors)


def softcon(x: LossInputs, *, temperature: float = 0.07, anchors: Anchors = "all") -> Tensor:
    """SoftCon (Hong & Yang, NeurIPS 2021): SupCon, positives weighted by unlike bias features."""
    if x.bias_features is None:
        raise Unsuited(
            "SoftCon needs bias features and this batch has none; train a bias-capturing model "
            'and export its features with "fairmargin scores", then train with --bias scores; '
            'or, if there are bias labels, train "biascon+ce"'
        )
    return losses.softcon(x.z, x.labels, x.bias_features, temperature=temperature, anchors=anchors)


def _conflict(labels: Tensor, bias: Tensor) -> bool:
    """Whether two samples of one class differ in their known bias."""
    cells = torch.stack([labels, bias], 1)[bias >= 0].unique(dim=0)
    return len(cells) > len(cells[:, 0].unique())


# Priors: what a row may make of the training counts [K, B]


def label_given_bias(counts: Tensor) -> Tensor:
    """p̂(y|b) [B, K]"""
    return losses.BiasBalancedCrossEntropy.from_counts(counts).prior


def class_share(counts: Tensor) -> Tensor:
    """p̂(y) [K]"""
    return counts.sum(1) / counts.sum().clamp_min(1)


def class_weights(counts: Tensor) -> Tensor:
    """n̄/n of each class [K]"""
    return inverse_frequency(counts.sum(1))


def inverse_frequency(counts: Tensor) -> Tensor:
    """n̄/n of each cell, n̄ the mean of the non-empty cells; the weights average 1."""
    mean = counts.sum() / (counts > 0).sum().clamp_min(1)
    return torch.where(counts > 0, mean / counts.clamp_min(1), 1)
