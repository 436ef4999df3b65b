"""The losses as `nn.Module`, for training loops that hold their criteria as objects. Each only stores its settings."""

from typing import Any

import torch
from torch import Tensor, nn

from fairmargin.losses._end import end
from fairmargin.losses._fairkl import VARIANCE_FLOOR, fairkl_terms
from fairmargin.losses._limits import limits_of
from fairmargin.losses.bias_contrastive import biascon, softcon
from fairmargin.losses.classification import bias_balanced_cross_entropy, generalized_cross_entropy
from fairmargin.losses.contrastive import (
    eps_infonce,
    eps_supcon,
    eps_supinfonce,
    simclr,
    supcon,
    supcon_in,
    warn_of_epsilon,
)
from fairmargin.losses.dependence import hsic
from fairmargin.losses.margin import PUBLISHED_STEPS, l_softmax, l_softmax_anneal, large_margin


class _Shell(nn.Module):
    """Keeps keyword settings, shows them in its repr."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())


class _EpsShell(_Shell):
    """Of a member of the ε-family: warns of an ε beyond 2/τ, which vectors of length 1 cannot meet."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if settings["unit_norm"]:
            warn_of_epsilon(settings["epsilon"], settings["temperature"], stacklevel=3)


class EpsInfoNCE(_EpsShell):
    """`losses.eps_infonce`"""

    def __init__(
        self, *, epsilon: float = 0.0, temperature: float = 0.1, unit_norm: bool = True
    ) -> None:
        super().__init__(epsilon=epsilon, temperature=temperature, unit_norm=unit_norm)

    def forward(self, features: Tensor) -> Tensor:
        return eps_infonce(features, **self.settings)


class EpsSupInfoNCE(_EpsShell):
    """`losses.eps_supinfonce`"""

    def __init__(
        self,
        *,
        epsilon: float = 0.0,
        temperature: float = 0.1,
        form: str = "c",
        positives: str = "mean",
        unit_norm: bool = True,
        chunk: int | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            temperature=temperature,
            form=form,
            positives=positives,
            unit_norm=unit_norm,
            chunk=chunk,
        )

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return eps_supinfonce(features, labels, **self.settings)


class EpsSupCon(_EpsShell):
    """`losses.eps_supcon`"""

    def __init__(
        self,
        *,
        epsilon: float = 0.0,
        temperature: float = 0.1,
        unit_norm: bool = True,
        chunk: int | None = None,
    ) -> None:
        super().__init__(epsilon=epsilon, temperature=temperature, unit_norm=unit_norm, chunk=chunk)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return eps_supcon(features, labels, **self.settings)


class SupCon(_Shell):
    """`losses.supcon`"""

    def __init__(
        self, *, temperature: float = 0.1, unit_norm: bool = True, chunk: int | None = None
    ) -> None:
        super().__init__(temperature=temperature, unit_norm=unit_norm, chunk=chunk)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        return supcon(features, labels, **self.settings)


class SupConIn(_Shell):
    """`losses.supcon_in`"""

    def __init__(
        self, *, temperature: float = 0.1, unit_norm: bool = True, chunk: int | None = None
    ) -> None:
        super().__init__(temperature=temperature, unit_norm=unit_norm, chunk=chunk)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        return supcon_in(features, labels, **self.settings)


class SimCLR(_Shell):
    """`losses.simclr`"""

    def __init__(
        self, *, temperature: float = 0.1, unit_norm: bool = True, chunk: int | None = None
    ) -> None:
        super().__init__(temperature=temperature, unit_norm=unit_norm, chunk=chunk)

    def forward(self, features: Tensor) -> Tensor:
        return simclr(features, **self.settings)


class FairKL(_Shell):
    """`losses.fairkl`, counting for the training log how often it had nothing to compare.

    After a call, `pairs` holds how many pairs each set had (A⁺, C⁺[, A⁻, C⁻]); `calls` and `dropped` count the calls
    and those in which every term was dropped, so the value was 0.
    """

    pairs: Tensor
    calls: Tensor
    dropped: Tensor

    def __init__(
        self,
        *,
        divergence: str = "kl",
        scope: str = "batch",
        negatives: bool = False,
        variant: str = "paper",
        variance_floor: float = VARIANCE_FLOOR,
        normalize: str = "weights",
        unit_norm: bool = True,
        across_ranks: bool = False,
        chunk: int | None = None,
        views: str = "all",
    ) -> None:
        super().__init__(
            divergence=divergence,
            scope=scope,
            negatives=negatives,
            variant=variant,
            variance_floor=variance_floor,
            normalize=normalize,
            unit_norm=unit_norm,
            across_ranks=across_ranks,
            chunk=chunk,
            views=views,
        )
        sets = 4 if negatives or variant == "authors" else 2
        self.register_buffer("pairs", torch.zeros(sets, dtype=torch.long), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)
        self.register_buffer("dropped", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(
        self,
        features: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        *,
        bias_features: Tensor | None = None,
    ) -> Tensor:
        terms = fairkl_terms(features, labels, bias, bias_features=bias_features, **self.settings)
        self.pairs = terms.pairs.long()
        self.calls = self.calls + 1
        # The count follows the features: to bring them to it would be to wait for their device at every call.
        self.dropped = self.dropped.to(terms.dropped.device) + terms.dropped
        return terms.value


class EnD(_Shell):
    """`losses.end`"""

    def __init__(
        self,
        *,
        disentangle: float = 1.0,
        entangle: float = 1.0,
        pairs: str = "all",
        unit_norm: bool = True,
    ) -> None:
        super().__init__(
            disentangle=disentangle, entangle=entangle, pairs=pairs, unit_norm=unit_norm
        )

    def forward(self, features: Tensor, labels: Tensor, bias: Tensor) -> Tensor:
        return end(features, labels, bias, **self.settings)


class BiasCon(_Shell):
    """`losses.biascon`"""

    def __init__(
        self,
        *,
        temperature: float = 0.07,
        anchors: str = "all",
        unit_norm: bool = True,
        chunk: int | None = None,
    ) -> None:
        super().__init__(temperature=temperature, anchors=anchors, unit_norm=unit_norm, chunk=chunk)

    def forward(self, features: Tensor, labels: Tensor, bias: Tensor) -> Tensor:
        return biascon(features, labels, bias, **self.settings)


class SoftCon(_Shell):
    """`losses.softcon`"""

    def __init__(
        self,
        *,
        temperature: float = 0.07,
        anchors: str = "all",
        unit_norm: bool = True,
        chunk: int | None = None,
    ) -> None:
        super().__init__(temperature=temperature, anchors=anchors, unit_norm=unit_norm, chunk=chunk)

    def forward(self, features: Tensor, labels: Tensor, bias_features: Tensor) -> Tensor:
        return softcon(features, labels, bias_features, **self.settings)


class BiasBalancedCrossEntropy(nn.Module):
    """`losses.bias_balanced_cross_entropy` with its prior [B, K] kept as a buffer."""

    prior: Tensor

    def __init__(self, prior: Tensor) -> None:
        super().__init__()
        self.register_buffer("prior", prior)

    @classmethod
    def from_counts(cls, counts: Tensor) -> "BiasBalancedCrossEntropy":
        """From training counts[y, b]: normalized over y for each b; a bias value never seen gets a uniform prior."""
        per_bias = counts.T.to(torch.float32)
        total = per_bias.sum(1, keepdim=True)
        return cls(
            torch.where(total > 0, per_bias / total.clamp_min(1), 1 / max(per_bias.shape[1], 1))
        )

    def forward(self, logits: Tensor, labels: Tensor, bias: Tensor) -> Tensor:
        return bias_balanced_cross_entropy(logits, labels, bias, self.prior)


class GeneralizedCrossEntropy(_Shell):
    """`losses.generalized_cross_entropy`"""

    def __init__(self, *, q: float = 0.7, surrogate: bool = False) -> None:
        super().__init__(q=q, surrogate=surrogate)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return generalized_cross_entropy(logits, labels, **self.settings)


class HSIC(_Shell):
    """`losses.hsic`"""

    def __init__(
        self, *, sigma_x: float = 1.0, sigma_y: float | None = None, estimator: str = "unbiased"
    ) -> None:
        super().__init__(sigma_x=sigma_x, sigma_y=sigma_y, estimator=estimator)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return hsic(x, y, **self.settings)


class LSoftmax(nn.Module):
    """`losses.l_softmax` with its last layer and annealing step; `logits(features)` for test time.

    `anneal_steps`: of the training, over which the published annealing is stretched. The default is its own 30,000; a run
    of 1,000 steps would end as it began, with cross-entropy.
    """

    steps: Tensor

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        margin: int = 4,
        least_anneal: float = 0.0,
        anneal_steps: int = PUBLISHED_STEPS,
    ) -> None:
        super().__init__()
        self.margin, self.least_anneal, self.anneal_steps = margin, least_anneal, anneal_steps
        self.last = nn.Linear(features, classes, bias=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.last(features)
        return logits

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        # A number where it is free to read; elsewhere λ is computed on the device.
        read = limits_of(self.steps).host and not torch.compiler.is_compiling()
        step = int(self.steps) if read else self.steps.clone()
        anneal = l_softmax_anneal(step, least=self.least_anneal, steps=self.anneal_steps)
        if self.training:
            self.steps += 1
        return l_softmax(features, self.last.weight, labels, margin=self.margin, anneal=anneal)


class LargeMargin(_Shell):
    """`losses.large_margin`"""

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        alpha: float = 2.0,
        norm: str = "l2",
        top_k: int = 1,
        scores: str = "probabilities",
    ) -> None:
        super().__init__(gamma=gamma, alpha=alpha, norm=norm, top_k=top_k, scores=scores)

    def forward(self, logits: Tensor, layers: list[Tensor], labels: Tensor) -> Tensor:
        return large_margin(logits, layers, labels, **self.settings)
