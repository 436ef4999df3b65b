"""Methods that are one network and one sum of losses, as rows of a table: the loss, and what it asks of everything else.

A loss is a function of what the network gives (`LossInputs`); its keywords are the method's options.
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


@dataclass(frozen=True)
class LossInputs:
    """What a loss may look at; the samples of all processes."""

    h: Tensor  # [N, D] or [N, V, D], the encoder's output
    z: Tensor  # the head's, of unit length
    inputs: Tensor  # of the classifier
    labels: Tensor
    bias: Tensor | None
    bias_features: Tensor | None
    classifier: nn.Linear
    prior: Tensor  # what the row made of the training counts; empty if it wants nothing of them
    step: int
    steps: int | None = None  # of the run, if that is known

    @property
    def logits(self) -> Tensor:
        """[N·V, K]"""
        return self.classifier(self.inputs.flatten(0, -2))

    @property
    def label_of_each_row(self) -> Tensor:
        return self._of_each_row(self.labels)

    @property
    def bias_of_each_row(self) -> Tensor:
        return self._of_each_row(self.known_bias)

    @property
    def known_bias(self) -> Tensor:
        if self.bias is None:
            raise Unsuited(
                'this loss needs bias labels and this batch has none; give the manifest a "bias" column, '
                'make labels of scores with --bias clusters, or train "softcon" with bias features'
            )
        return self.bias

    def _of_each_row(self, ids: Tensor) -> Tensor:
        return ids.repeat_interleave(self.h.shape[1]) if self.h.ndim == 3 else ids


Loss = Callable[..., Tensor]  # (LossInputs, *, settings…)


# Cross-entropies


def cross_entropy(x: LossInputs) -> Tensor:
    return F.cross_entropy(x.logits, x.label_of_each_row)


def _generalized(x: LossInputs, *, q: float = 0.7) -> Tensor:
    """GCE (Zhang & Sabuncu, NeurIPS 2018):  mean (1 − p_y^q)/q. It trusts what is easy, so it learns the shortcut best."""
    return losses.generalized_cross_entropy(x.logits, x.label_of_each_row, q=q)


def _logit_adjusted(x: LossInputs, *, strength: float = 1.0) -> Tensor:
    """Menon et al., ICLR 2021:  CE( f(x) + τ·log p̂(·), y );  at test time f(x) alone."""
    return F.cross_entropy(x.logits + strength * (x.prior + PRIOR_FLOOR).log(), x.label_of_each_row)


def _class_reweighted(x: LossInputs) -> Tensor:
    """mean_i  w_i·CE_i,   w_i = N/(K·n_y)"""
    return _weighted(x, x.prior[x.label_of_each_row])


def _group_reweighted(x: LossInputs) -> Tensor:
    """mean_i  w_i·CE_i,   w_i = N/(G·n_yb) over the G groups that are not empty; 1 where the bias is unknown."""
    y, b = x.label_of_each_row, x.bias_of_each_row
    return _weighted(x, torch.where(b >= 0, x.prior[y, b.clamp_min(0)], 1))


def _weighted(x: LossInputs, weight: Tensor) -> Tensor:
    # Note: over the number of samples, not over the weights of the batch as F.cross_entropy(weight=…) does: the expected
    # loss is then that of balanced data whatever the batch size.
    return (weight * F.cross_entropy(x.logits, x.label_of_each_row, reduction="none")).mean()


def _bias_balanced(x: LossInputs) -> Tensor:
    """BiasBal (Hong & Yang, NeurIPS 2021):  CE( f(x) + log p̂(·|b), y );  at test time f(x) alone."""
    return losses.bias_balanced_cross_entropy(
        x.logits, x.label_of_each_row, x.bias_of_each_row, x.prior
    )


def _end(
    x: LossInputs, *, disentangle: float = 1.0, entangle: float = 1.0, pairs: EntangledPairs = "all"
) -> Tensor:
    """EnD (Tartaglione et al., CVPR 2021):  CE + α·R⊥ + β·R∥"""
    regulariser = losses.end(
        x.h, x.labels, x.known_bias, disentangle=disentangle, entangle=entangle, pairs=pairs
    )
    return cross_entropy(x) + regulariser


def _max_margin(
    x: LossInputs, *, margin: int = 4, least_anneal: float = 0.0, anneal_steps: int = 0
) -> Tensor:
    """L-Softmax (Liu et al., ICML 2016). `anneal_steps`: over how many steps the margin comes in; 0: over the run's."""
    steps = anneal_steps or x.steps or PUBLISHED_STEPS
    anneal = losses.l_softmax_anneal(x.step, least=least_anneal, steps=steps)
    return losses.l_softmax(
        x.inputs.flatten(0, -2),
        x.classifier.weight,
        x.label_of_each_row,
        margin=margin,
        anneal=anneal,
    )


def _large_margin(
    x: LossInputs, *, gamma: float = 1.0, slope: float = 2.0, norm: Norm = "l2", top_k: int = 1
) -> Tensor:
    layer = x.inputs.flatten(0, -2)  # after every batch norm
    logits = x.classifier(layer)
    return losses.large_margin(
        logits, [layer], x.label_of_each_row, gamma=gamma, alpha=slope, norm=norm, top_k=top_k
    )


# Contrastive losses


def _supcon(x: LossInputs, *, temperature: float = 0.1) -> Tensor:
    return losses.supcon(x.z, x.labels, temperature=temperature)


def _supcon_in(x: LossInputs, *, temperature: float = 0.1) -> Tensor:
    return losses.supcon_in(x.z, x.labels, temperature=temperature)


def _simclr(x: LossInputs, *, temperature: float = 0.1) -> Tensor:
    return losses.simclr(x.z, temperature=temperature)


def _eps_infonce(x: LossInputs, *, epsilon: float = 0.25, temperature: float = 0.1) -> Tensor:
    return losses.eps_infonce(x.z, epsilon=epsilon, temperature=temperature)


def _infol1o(x: LossInputs, *, temperature: float = 0.1) -> Tensor:
    return losses.eps_infonce(x.z, epsilon=torch.inf, temperature=temperature)


def _eps_supinfonce(
    x: LossInputs,
    *,
    epsilon: float = 0.25,
    temperature: float = 0.1,
    form: Form = "c",
    positives: Positives = "mean",
) -> Tensor:
    return losses.eps_supinfonce(
        x.z, x.labels, epsilon=epsilon, temperature=temperature, form=form, positives=positives
    )


def _eps_supcon(x: LossInputs, *, epsilon: float = 0.25, temperature: float = 0.1) -> Tensor:
    return losses.eps_supcon(x.z, x.labels, epsilon=epsilon, temperature=temperature)


def _biascon(x: LossInputs, *, temperature: float = 0.07, anchors: Anchors = "all") -> Tensor:
    """BiasCon (Hong & Yang, NeurIPS 2021): SupCon whose positives have another bias."""
    if not _conflict(x.labels, x.known_bias):
        return (
            0 * x.z.sum()
        )  # what the loss is then, without its warning: where the bias is strong, most batches are such
    return losses.biascon(x.z, x.labels, x.known_bias, temperature=temperature, anchors=anchors)


def _softcon(x: LossInputs, *, temperature: float = 0.07, anchors: Anchors = "all") -> Tensor:
    """SoftCon (Hong & Yang, NeurIPS 2021): positives weighted by how much the features of a bias model differ."""
    if x.bias_features is None:
        raise Unsuited(
            "SoftCon needs bias features and this batch has none; train a bias-capturing model and export its features "
            'with "fairmargin scores", then train with --bias scores; or, if there are bias labels, train "biascon+ce"'
        )
    return losses.softcon(x.z, x.labels, x.bias_features, temperature=temperature, anchors=anchors)


def _conflict(labels: Tensor, bias: Tensor) -> bool:
    """Whether two samples of one class differ in their known bias."""
    cells = torch.stack([labels, bias], 1)[bias >= 0].unique(dim=0)
    return len(cells) > len(cells[:, 0].unique())


# What a row may make of the training counts [K, B]


def _label_given_bias(counts: Tensor) -> Tensor:
    """p̂(y|b) [B, K]"""
    return losses.BiasBalancedCrossEntropy.from_counts(counts).prior


def _class_share(counts: Tensor) -> Tensor:
    """p̂(y) [K]"""
    return counts.sum(1) / counts.sum().clamp_min(1)


def _class_weights(counts: Tensor) -> Tensor:
    return _inverse_frequency(counts.sum(1))


def _inverse_frequency(counts: Tensor) -> Tensor:
    """n̄/n of each cell, n̄ the mean of those that are not empty: over the training samples the weights average 1."""
    mean = counts.sum() / (counts > 0).sum().clamp_min(1)
    return torch.where(counts > 0, mean / counts.clamp_min(1), 1)


# The table


@dataclass(frozen=True)
class Row:
    """A method's loss and what else makes the method. A row that needs nothing also exists with "+fairkl"."""

    loss: Loss
    # "classifier"; "embedding", with the classifier as a probe on unit features; or "both", with the classifier on h itself
    learns: str
    views: int = 1  # of each image that the loss needs
    needs: str = ""  # "bias" labels, or "bias features"
    prior: Callable[[Tensor], Tensor] | None = (
        None  # of the training counts[y, b], kept for the loss
    )
    sampler: str = "shuffled"
    regularised: bool = (
        False  # a classifier whose features are compared, so it reads them at length 1
    )
    intercept: bool = True  # of the classifier
    beta: float = 0.0  # weight of `classification` beside the loss, by default
    classification: Loss = cross_entropy
    second: bool = False  # the pairs may come from a second stream of batches
    # "labels" or "views" decide who is a positive, in the rows for which Eq. 3's bounds of the information can be logged
    positives: str = ""


ROWS = {
    "ce": Row(cross_entropy, "classifier"),
    "gce": Row(_generalized, "classifier"),
    "logit-adjusted": Row(_logit_adjusted, "classifier", prior=_class_share),
    "class-reweighted": Row(_class_reweighted, "classifier", prior=_class_weights),
    "group-reweighted": Row(
        _group_reweighted, "classifier", needs="bias", prior=_inverse_frequency
    ),
    "group-balanced": Row(cross_entropy, "classifier", needs="bias", sampler="group-balanced"),
    "biasbal": Row(_bias_balanced, "classifier", needs="bias", prior=_label_given_bias),
    "end": Row(_end, "classifier", needs="bias", regularised=True),
    "max-margin": Row(_max_margin, "classifier", intercept=False),
    "large-margin": Row(_large_margin, "classifier"),
    "supcon": Row(_supcon, "embedding", positives="labels"),
    "supcon-in": Row(_supcon_in, "embedding"),
    "simclr": Row(_simclr, "embedding", views=2, positives="views"),
    "eps-infonce": Row(_eps_infonce, "embedding", views=2, positives="views"),
    "infol1o": Row(_infol1o, "embedding", views=2, positives="views"),
    "eps-supcon": Row(_eps_supcon, "embedding", positives="labels"),
    "eps-supinfonce": Row(_eps_supinfonce, "embedding", positives="labels"),
    "biascon": Row(_biascon, "embedding", needs="bias", second=True),
    "biascon+ce": Row(_biascon, "both", needs="bias", beta=0.01, second=True),
    "biascon+biasbal": Row(
        _biascon,
        "both",
        needs="bias",
        beta=0.01,
        classification=_bias_balanced,
        prior=_label_given_bias,
        second=True,
    ),
    "softcon": Row(_softcon, "both", needs="bias features", beta=0.01, second=True),
}
