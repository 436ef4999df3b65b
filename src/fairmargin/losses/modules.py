"""The losses as `nn.Module`, for training loops that hold their criteria as objects.

Each module stores the keyword arguments of its function and passes them on; its help is that of the
function. Three hold more: `FairKL` counts, `BiasBalancedCrossEntropy` keeps its prior, `LSoftmax`
its last layer and its step.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairmargin.losses._end import end
from fairmargin.losses._fairkl import fairkl, fairkl_terms, number_of_sets
from fairmargin.losses._limits import limits_of
from fairmargin.losses._signatures import keyword_arguments
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
    """Stores the keyword arguments of a loss function, and shows them in its repr.

    A subclass names its function: `class SupCon(_Shell, of=supcon)`. Its constructor then takes the
    function's keyword arguments, except those given `at_call`, and the function's help is
    added to its own.
    """

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(
        cls, of: Callable[..., Any] | None = None, at_call: Sequence[str] = ()
    ) -> None:
        super().__init_subclass__()
        if of is not None:
            cls.__signature__ = keyword_arguments(of, without=at_call)
            _add_help_of(of, cls)

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        given = self.__signature__.bind(**settings)
        given.apply_defaults()
        self.settings = given.arguments

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())


class _EpsShell(_Shell):
    """Warns of an ε beyond 2/τ, which vectors of length 1 cannot meet."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.settings["unit_norm"]:
            epsilon, temperature = self.settings["epsilon"], self.settings["temperature"]
            warn_of_epsilon(epsilon, temperature, stacklevel=2)


def _add_help_of(function: Callable[..., Any], module: type[nn.Module]) -> None:
    """Put the help of a loss function behind the help of its module."""
    name = function.__name__
    own = inspect.cleandoc(module.__doc__ or "")
    title = f"The keyword arguments are those of `losses.{name}`, whose tensors a call takes:"
    module.__doc__ = f"{own}\n\n{title}\n\n{inspect.getdoc(function)}\n"


class EpsInfoNCE(_EpsShell, of=eps_infonce):
    """ε-InfoNCE as a module: `loss = EpsInfoNCE(epsilon=0.25)(features)`."""

    def forward(self, features: Tensor) -> Tensor:
        return eps_infonce(features, **self.settings)


class EpsSupInfoNCE(_EpsShell, of=eps_supinfonce):
    """ε-SupInfoNCE as a module: `loss = EpsSupInfoNCE(epsilon=0.25)(features, labels)`."""

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return eps_supinfonce(features, labels, **self.settings)


class EpsSupCon(_EpsShell, of=eps_supcon):
    """ε-SupCon as a module: `loss = EpsSupCon(epsilon=0.25)(features, labels)`."""

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return eps_supcon(features, labels, **self.settings)


class SupCon(_Shell, of=supcon):
    """SupCon L_out as a module: `loss = SupCon()(features, labels)`."""

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        return supcon(features, labels, **self.settings)


class SupConIn(_Shell, of=supcon_in):
    """SupCon L_in as a module: `loss = SupConIn()(features, labels)`."""

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        return supcon_in(features, labels, **self.settings)


class SimCLR(_Shell, of=simclr):
    """SimCLR's NT-Xent as a module: `loss = SimCLR()(features)`, features [N, V, D]."""

    def forward(self, features: Tensor) -> Tensor:
        return simclr(features, **self.settings)


class FairKL(_Shell, of=fairkl, at_call=("bias_features",)):
    """FairKL as a module, which counts for the training log how often it had nothing to compare.

        fairkl = FairKL(divergence="moments")
        loss = fairkl(features, labels, bias)

    `bias_features` is an argument of the call and not of the constructor. After a call, `pairs`
    holds how many pairs each set had (A⁺, C⁺[, A⁻, C⁻]); `calls` and `dropped` count the calls and
    those in which every term was dropped, so that the value was 0.
    """

    pairs: Tensor
    calls: Tensor
    dropped: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        sets = number_of_sets(self.settings["negatives"], self.settings["variant"])
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
        """Return the loss, and count what it compared."""
        terms = fairkl_terms(features, labels, bias, bias_features=bias_features, **self.settings)
        self.pairs = terms.pairs.long()
        self.calls = self.calls + 1
        # The count follows the features: to bring them to it would be to wait for their device at
        # every call.
        self.dropped = self.dropped.to(terms.dropped.device) + terms.dropped
        return terms.value


class EnD(_Shell, of=end):
    """EnD as a module: `loss = F.cross_entropy(logits, labels) + EnD()(features, labels, bias)`."""

    def forward(self, features: Tensor, labels: Tensor, bias: Tensor) -> Tensor:
        return end(features, labels, bias, **self.settings)


class BiasCon(_Shell, of=biascon):
    """BiasCon as a module: `loss = BiasCon()(features, labels, bias)`."""

    def forward(self, features: Tensor, labels: Tensor, bias: Tensor) -> Tensor:
        return biascon(features, labels, bias, **self.settings)


class SoftCon(_Shell, of=softcon):
    """SoftCon as a module: `loss = SoftCon()(features, labels, bias_features)`."""

    def forward(self, features: Tensor, labels: Tensor, bias_features: Tensor) -> Tensor:
        return softcon(features, labels, bias_features, **self.settings)


class GeneralizedCrossEntropy(_Shell, of=generalized_cross_entropy):
    """Generalized cross-entropy as a module: `loss = GeneralizedCrossEntropy()(logits, labels)`."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return generalized_cross_entropy(logits, labels, **self.settings)


class HSIC(_Shell, of=hsic):
    """HSIC as a module: `dependence = HSIC(sigma_x=1.0)(x, y)`."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return hsic(x, y, **self.settings)


class LargeMargin(_Shell, of=large_margin):
    """The large-margin loss as a module: `loss = LargeMargin()(logits, [hidden], labels)`."""

    def forward(self, logits: Tensor, layers: Sequence[Tensor], labels: Tensor) -> Tensor:
        return large_margin(logits, layers, labels, **self.settings)


class BiasBalancedCrossEntropy(nn.Module):
    """Bias-balanced cross-entropy as a module that keeps its prior as a buffer.

        criterion = BiasBalancedCrossEntropy.from_counts(counts)  # counts[y, b] of the training set
        loss = criterion(logits, labels, bias)

    Args:
        prior: [B, K], p̂(y|b).
    """

    prior: Tensor

    def __init__(self, prior: Tensor) -> None:
        super().__init__()
        self.register_buffer("prior", prior)

    @classmethod
    def from_counts(cls, counts: Tensor) -> "BiasBalancedCrossEntropy":
        """Return the loss for training counts[y, b], normalized over y for each b.

        A bias value that never occurs gets a uniform prior.

        Args:
            counts: [K, B] training samples of each label and bias value.
        """
        per_bias = counts.T.to(torch.float32)
        total = per_bias.sum(1, keepdim=True)
        uniform = 1 / max(per_bias.shape[1], 1)
        return cls(torch.where(total > 0, per_bias / total.clamp_min(1), uniform))

    def forward(self, logits: Tensor, labels: Tensor, bias: Tensor) -> Tensor:
        return bias_balanced_cross_entropy(logits, labels, bias, self.prior)


class LSoftmax(nn.Module):
    """L-Softmax as a module that holds the last layer and its annealing step.

        criterion = LSoftmax(encoder.dim, classes, anneal_steps=1000)
        loss = criterion(features, labels)        # while training
        logits = criterion.logits(features)       # at test time

    Args:
        features: D, the width of the features.
        classes: K.
        margin: m ≥ 1; the published choice is 4.
        least_anneal: λ never falls below it.
        anneal_steps: steps of the training, over which the published annealing is stretched. The
            default is its own 30,000; with it a run of 1,000 steps would end as it began, with
            cross-entropy.
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
        self.margin = margin
        self.least_anneal = least_anneal
        self.anneal_steps = anneal_steps
        self.last = nn.Linear(features, classes, bias=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def logits(self, features: Tensor) -> Tensor:
        """Return the plain logits [N, classes], for test time."""
        logits: Tensor = self.last(features)
        return logits

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        # A number where it is free to read; elsewhere λ is computed on the device.
        """Return the loss of a batch; in training, also advance the schedule of λ."""
        read = limits_of(self.steps).host and not torch.compiler.is_compiling()
        step = int(self.steps) if read else self.steps.clone()
        anneal = l_softmax_anneal(step, least=self.least_anneal, steps=self.anneal_steps)
        if self.training:
            self.steps += 1
        return l_softmax(features, self.last.weight, labels, margin=self.margin, anneal=anneal)


_add_help_of(bias_balanced_cross_entropy, BiasBalancedCrossEntropy)
_add_help_of(l_softmax, LSoftmax)
