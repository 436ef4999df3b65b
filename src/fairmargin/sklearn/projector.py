"""A debiasing projection of frozen embeddings, as a scikit-learn transformer.

    projector = FairMarginProjector().fit(Z, y, bias)
    clean = projector.transform(Z_test)

It minimises over the projection f (Barbano et al., ICLR 2023)

    α · ε-SupInfoNCE(f(Z), y) + λ · FairKL(f(Z), y, bias)
"""

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import count, islice, pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.cluster import KMeans
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.data.samplers import BiasAware, GroupBalanced, Sampler, Shuffled
from fairmargin.losses import eps_supinfonce, fairkl
from fairmargin.losses.choices import Divergence
from fairmargin.losses.contrastive import warn_of_epsilon
from fairmargin.sklearn.inputs import UNKNOWN, Float, coded, standard

Sampling = Literal["group-balanced", "bias-aware", "shuffled"]
# Components by default, at most.
WIDEST = 128
# Steps whose mean loss is compared with that of the steps before.
BLOCK = 20
# Variance, relative to the largest, below which a direction of float32 embeddings is rounding.
RANK = 1e-6

Layer = tuple[Float, Float]  # W [out, in] and c [out]

log = logging.getLogger(__name__)


class FairMarginProjector(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Projects embeddings so that a class lies together whether or not its samples share the bias.

    Args:
        n_components: of the projection; None takes as many as there are features, 128 at most.
        hidden: widths of hidden layers with ReLU before the last one; () is a linear projection.
        epsilon: margin of ε-SupInfoNCE, on the similarity divided by the temperature.
        temperature: of ε-SupInfoNCE.
        alpha: weight of ε-SupInfoNCE.
        fairkl_weight: weight of FairKL, the paper's λ.
        divergence: of FairKL; see `losses.fairkl`.
        negatives: give FairKL its term of negative pairs.
        sampling: how batches are drawn when the bias is known. "group-balanced": every (class,
            bias) group equally often, no sample twice in a batch. "bias-aware": a conflicting pair
            of each class in every batch. "shuffled": groups as frequent as they are.
        pseudo_bias: clusters into which each class is cut where `fit` gets no bias, to take its
            place. None does without FairKL: what is learnt is then supervised, but not debiased.
        max_iter: optimization steps at most; the learning rate falls to 0 along a cosine.
        batch_size: samples of a step.
        learning_rate: of Adam, at the start.
        weight_decay: of Adam.
        tol: the fit ends early when the mean loss of 20 steps has not fallen by this for
            `n_iter_no_change` times 20 steps.
        n_iter_no_change: see `tol`.
        unit_norm: scale what `transform` returns to length 1, as the losses do.
        device: where the optimization runs.
        random_state: of batches, hidden layers and clusters.
        verbose: log the loss every 20 steps (logger "fairmargin.sklearn", level INFO).

    After `fit`: `components_` [n_components, features] of standardised inputs where the projection
    is linear, `mean_` and `scale_` of the inputs, `layers_`, `classes_`, `bias_values_` (None
    without bias), `loss_curve_` and `n_iter_`.

    Example:
        >>> projector = FairMarginProjector(fairkl_weight=1.0).fit(Z, y, bias)
        >>> LogisticRegression().fit(projector.transform(Z), y)
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        hidden: Sequence[int] = (),
        epsilon: float = 0.25,
        temperature: float = 0.1,
        alpha: float = 0.1,
        fairkl_weight: float = 1.0,
        divergence: Divergence = "moments",
        negatives: bool = True,
        sampling: Sampling = "group-balanced",
        pseudo_bias: int | None = None,
        max_iter: int = 300,
        batch_size: int = 512,
        learning_rate: float = 0.01,
        weight_decay: float = 1e-4,
        tol: float = 1e-4,
        n_iter_no_change: int = 5,
        unit_norm: bool = True,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.hidden = hidden
        self.epsilon = epsilon
        self.temperature = temperature
        self.alpha = alpha
        self.fairkl_weight = fairkl_weight
        self.divergence = divergence
        self.negatives = negatives
        self.sampling = sampling
        self.pseudo_bias = pseudo_bias
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.unit_norm = unit_norm
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, y: ArrayLike, bias: ArrayLike | None = None
    ) -> "FairMarginProjector":
        """Learn the projection.

        Args:
            X: [N, D] embeddings; they are standardised first.
            y: [N] classes, of any kind.
            bias: [N] values of the attribute that must not matter, of any kind; None, NaN, −1 and
                an empty text are unknown.
        """
        self._check()
        given: tuple[Float, NDArray[Any]] = validate_data(
            self, X, y, dtype=np.float64, ensure_min_samples=2
        )
        x, targets = given
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "FairMarginProjector tells classes apart and y has 1 class only: "
                f"{self.classes_[0]!r}"
            )
        too_many = self.n_components is not None and self.n_components > x.shape[1]
        if too_many and not len(self.hidden):
            raise ValueError(
                f"n_components={self.n_components} is more than the {x.shape[1]} features, "
                "and a linear projection adds "
                "none; lower it, or give hidden layers"
            )
        if self.alpha:
            warn_of_epsilon(self.epsilon, self.temperature, classes=len(self.classes_))
        random = check_random_state(self.random_state)
        self.mean_, self.scale_ = standard(x)
        x = (x - self.mean_) / self.scale_
        self.bias_values_, cue = self._bias(x, labels, bias, random)
        if not self.alpha and (cue is None or (cue == UNKNOWN).all()):
            raise ValueError(
                "alpha=0 leaves FairKL alone, which needs bias values, and none is known; "
                "give fit the bias of some samples, set pseudo_bias, or raise alpha"
            )
        network = self._start(x, random)
        self._optimize(network, x, labels, cue, int(random.randint(2**31 - 1)))
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self.layers_: list[Layer] = [(_numpy(one.weight), _numpy(one.bias)) for one in linear]
        self._n_features_out = len(self.layers_[-1][0])
        if len(self.layers_) == 1:
            self.components_ = self.layers_[0][0]
        elif hasattr(self, "components_"):  # of an earlier fit without hidden layers
            del self.components_
        return self

    def transform(self, X: ArrayLike) -> Float:
        """Return the projection [N, n_components] of embeddings [N, D]."""
        check_is_fitted(self)
        given: Float = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        z = (given - self.mean_) / self.scale_
        for weight, intercept in self.layers_[:-1]:
            z = np.maximum(z @ weight.T + intercept, 0)
        weight, intercept = self.layers_[-1]
        z = z @ weight.T + intercept
        if self.unit_norm:
            length = np.linalg.norm(z.astype(np.float64), axis=1, keepdims=True)
            z = z / np.where(length > 0, length, 1)
        return z.astype(given.dtype, copy=False)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _check(self) -> None:
        check_choice(self.sampling, "sampling", get_args(Sampling))
        least = {
            "n_components": 1,
            "max_iter": 1,
            "batch_size": 4,
            "n_iter_no_change": 1,
            "pseudo_bias": 2,
        }
        for name, low in least.items():
            value = getattr(self, name)
            optional = name in ("n_components", "pseudo_bias")
            if optional and value is None:
                continue
            if not (isinstance(value, int | np.integer) and value >= low):
                or_none = " or None" if optional else ""
                raise ValueError(
                    f"{name} must be an integer of at least {low}{or_none}; got {value!r}"
                )
        for name in ("alpha", "fairkl_weight", "weight_decay", "tol"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more; got {getattr(self, name)!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be above 0; got {self.learning_rate!r}")
        if not self.alpha and not self.fairkl_weight:
            raise ValueError(
                "alpha and fairkl_weight are both 0, which leaves nothing to learn; "
                "raise one of them"
            )
        if any(width < 1 for width in self.hidden):
            raise ValueError(
                f"hidden must be widths of at least 1, like (256,); got {tuple(self.hidden)}"
            )

    def _bias(
        self,
        x: Float,
        labels: NDArray[np.intp],
        bias: ArrayLike | None,
        random: np.random.RandomState,
    ) -> tuple[NDArray[Any] | None, NDArray[np.int64] | None]:
        """(values, position of each sample's value or −1).

        Clusters of each class take their place where there is no bias.
        """
        if bias is not None:
            check_consistent_length(x, bias)
            return coded(bias)
        if self.pseudo_bias is None:
            return None, None
        return None, _clusters(x, labels, self.pseudo_bias, random)

    def _start(self, x: Float, random: np.random.RandomState) -> nn.Sequential:
        """The network; if it is linear it starts as a whitening of the embeddings."""
        widths = [x.shape[1], *self.hidden, self.n_components or min(x.shape[1], WIDEST)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(random.randint(2**31 - 1)))
            layers = [nn.Linear(*both) for both in pairwise(widths)]
        if len(layers) == 1:
            with torch.no_grad():
                layers[0].weight.copy_(_whitening(x, widths[-1]))
                layers[0].bias.zero_()
        parts: list[nn.Module] = []
        for layer in layers:
            parts += [layer, nn.ReLU()]
        return nn.Sequential(*parts[:-1]).to(torch.device(self.device))

    def _optimize(
        self,
        network: nn.Sequential,
        x: Float,
        labels: NDArray[np.intp],
        cue: NDArray[np.int64] | None,
        seed: int,
    ) -> None:
        device = torch.device(self.device)
        z, y = torch.from_numpy(x).float().to(device), torch.from_numpy(labels).long()
        b = None if cue is None else torch.from_numpy(cue).long()
        optimizer = torch.optim.Adam(
            network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.max_iter)
        self.loss_curve_: list[float] = []
        for batch in islice(self._batches(y, b, seed), self.max_iter):
            bias = None if b is None else b[batch].to(device)
            loss = self._loss(network(z[batch.to(device)]), y[batch].to(device), bias)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            rate.step()
            self.loss_curve_.append(float(loss.detach()))
            if self._settled():
                break
        self.n_iter_ = len(self.loss_curve_)

    def _batches(self, y: Tensor, b: Tensor | None, seed: int) -> Iterator[Tensor]:
        """Batches without end.

        A batch has no sample twice, which would be a pair at distance 0, and at least two samples.
        """
        sampler: Sampler = Shuffled(len(y), seed)
        if b is not None and self.sampling == "group-balanced":
            sampler = GroupBalanced(y, b, seed)
        elif b is not None and self.sampling == "bias-aware":
            sampler = BiasAware(y, b, seed=seed)
        size = min(self.batch_size, len(y))
        for epoch in count():
            for batch in sampler.batches(epoch, size):
                drawn = batch.unique()
                if len(drawn) > 1:
                    yield drawn

    def _loss(self, z: Tensor, y: Tensor, b: Tensor | None) -> Tensor:
        loss = z.new_zeros(())
        if self.alpha:
            loss = self.alpha * eps_supinfonce(
                z, y, epsilon=self.epsilon, temperature=self.temperature
            )
        if b is not None and self.fairkl_weight:
            bias_term = fairkl(z, y, b, divergence=self.divergence, negatives=self.negatives)
            loss = loss + self.fairkl_weight * bias_term
        return loss

    def _settled(self) -> bool:
        if len(self.loss_curve_) % BLOCK:
            return False
        blocks = np.reshape(self.loss_curve_, (-1, BLOCK)).mean(1)
        if self.verbose:
            log.info("step %d: loss %.4f", len(self.loss_curve_), blocks[-1])
        patience = self.n_iter_no_change
        if not self.tol or len(blocks) <= patience:
            return False
        return bool(blocks[-patience:].min() > blocks[:-patience].min() - self.tol)


def _whitening(x: Float, components: int) -> Tensor:
    """[components, D]: directions of largest variance, each scaled to variance 1.

    Rows are zero where there are no more directions.

    A network that follows a shortcut spends most of its variance on it; what else it knows starts
    at the same height.
    """
    variance, directions = np.linalg.eigh(x.T @ x / len(x))
    variance, directions = variance[::-1][:components], directions[:, ::-1].T[:components]
    varies = variance > RANK * max(variance[0], 0)
    largest = np.abs(directions).argmax(1)
    # eigh leaves the sign of a direction open.
    sign = np.sign(directions[np.arange(len(directions)), largest])
    scale = np.where(varies, sign / np.sqrt(np.where(varies, variance, 1)), 0)
    return torch.from_numpy(directions * scale[:, None])


def _clusters(
    x: Float, labels: NDArray[np.intp], number: int, random: np.random.RandomState
) -> NDArray[np.int64]:
    """Clusters of each class; no two classes share one, because they were not found together."""
    cue = np.zeros(len(x), np.int64)
    for y in np.unique(labels):
        mine = labels == y
        k = min(number, len(np.unique(x[mine], axis=0)))
        cue[mine] = y * number + KMeans(k, n_init=3, random_state=random).fit_predict(x[mine])
    return cue


def _numpy(parameter: Tensor) -> Float:
    values: Float = parameter.detach().cpu().double().numpy()
    return values
