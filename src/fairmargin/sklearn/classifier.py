"""Any method of the library as a scikit-learn classifier, on vectors or on small images.

model = FairMarginClassifier("ce+fairkl", random_state=0).fit(X, y, bias=b)
model.predict(X_test)                   # needs no bias
model.score(X_test, y_test, bias=b_test)
"""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from fairmargin.batch import Batch, DataInfo
from fairmargin.bias.visible import VisibleBias
from fairmargin.checks import check_choice
from fairmargin.config import Config
from fairmargin.data import ArraySplit, Data
from fairmargin.data.bias import count_cells
from fairmargin.loop import fit as fit_training
from fairmargin.methods import METHODS
from fairmargin.methods.base import Unsuited
from fairmargin.methods.catalog import card_of
from fairmargin.networks import ENCODERS
from fairmargin.runs import build
from fairmargin.runtime.threads import one_thread
from fairmargin.sklearn import defaults
from fairmargin.sklearn.inputs import (
    UNKNOWN,
    Images,
    Vectors,
    ViewsName,
    coded,
    images_of,
    pixels,
    standard,
)
from fairmargin.sklearn.trained import TrainedMethod

SamplerName = Literal[
    "auto", "method", "shuffled", "class-balanced", "group-balanced", "bias-aware", "weighted"
]


class FairMarginClassifier(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator
):
    """Trains a method of `fm.methods.METHODS` on vectors [N, D] or images of type uint8.

    Vectors are standardised first, images normalized, both by what the training data are like.
    Features of the encoder come from `transform`.

    Args:
        method: a name from `fm.methods.METHODS`, such as "ce", "ce+fairkl", "group-dro", "jtt";
            `fairmargin list methods` shows all. Some need `bias`.
        network: a name from `fm.networks.ENCODERS`; None takes an MLP for vectors, a small
            convolutional network for images of up to 64 pixels a side, and ResNet-18 above.
        method_options: options of the method (`fairmargin list methods NAME`), as {"lambda": 2.0}.
            FairKL is in the form that docs/results/fairkl.md recommends, unless they say otherwise.
        network_options: keywords of the network's class, as {"widths": (256, 128)}.
        sampler: how batches are drawn. "auto": every (class, bias) group equally often for FairKL
            and others that compare pairs by their bias, if the bias is known; else, and always
            with "method", as the method asks.
        views: of images: "plain"; "crop-flip" for random crops and flips; "supcon" for two views
            with colour changes too, which methods that compare views need.
        epochs: passes over the training data; None takes as many as make 300 steps, from 10 to 100.
        batch_size: samples of a step.
        learning_rate: of Adam, at the start; it falls to 0 along a cosine.
        weight_decay: of Adam; None takes 0.01 for vectors and 0.00001 for images.
        validation_fraction: share of each (class, bias) group that is held out for methods that
            are fitted to validation samples; None takes 0.2 for these (DFR), and 0 for the others.
        device: where training happens: "auto", "cpu", "cuda", "mps", …
        random_state: decides weights and batches.

    Attributes:
        classes_: the labels, sorted.
        bias_values_: the known values of the bias, sorted; None if there are none.
        n_features_in_: numbers of a sample.
        feature_names_in_: names of the columns, if X had names that are texts.
        image_shape_: (3, height, width) of images; None for vectors.
        epochs_: passes over the training data that were made.
        history_: for each epoch the mean of each loss term.

    Example:
        >>> model = FairMarginClassifier("ce+fairkl", random_state=0).fit(X, y, bias=b)
        >>> model.predict(X_test)
    """

    def __init__(
        self,
        method: str = "ce+fairkl",
        network: str | None = None,
        *,
        method_options: Mapping[str, Any] | None = None,
        network_options: Mapping[str, Any] | None = None,
        sampler: SamplerName = "auto",
        views: ViewsName = "plain",
        epochs: int | None = None,
        batch_size: int = 128,
        learning_rate: float = 3e-3,
        weight_decay: float | None = None,
        validation_fraction: float | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.network = network
        self.method_options = method_options
        self.network_options = network_options
        self.sampler = sampler
        self.views = views
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: ArrayLike, bias: ArrayLike | None = None, **unsupported: Any
    ) -> "FairMarginClassifier":
        """Train the method.

        Args:
            X: [N, D] vectors, or uint8 images [N, H, W, 3] or [N, 3, H, W].
            y: [N] classes, of any kind.
            bias: [N] values of the attribute that must not matter, of any kind; None, NaN, −1 and
                an empty text are unknown. Methods that need no bias do not see it.
            unsupported: nothing; `sample_weight` is refused.
        """
        _refuse(unsupported)
        self._check()
        inputs, x, targets = self._training_inputs(X, y)
        defaults.check_suited(self.method, inputs, self.views)
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "FairMarginClassifier tells classes apart and y has 1 class only: "
                f"{self.classes_[0]!r}"
            )
        values, cue = _known_bias(x, bias)
        self.bias_values_ = values
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        whole = ArraySplit(
            inputs.tensor(x),
            torch.from_numpy(labels).long(),
            None if cue is None else torch.from_numpy(cue).long(),
        )
        if isinstance(inputs, Vectors):
            whole = ArraySplit(whole.pixels.float(), whole.labels, whole.bias)
        data = self._data(inputs, whole, seed)
        self._warn_of_bias(data.info)
        self._train(inputs, data, seed, bias_given=bias is not None)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class [N] of each sample.

        Args:
            X: as in `fit`.
        """
        logits = self._outputs(X)[1]
        labels: NDArray[Any] = self.classes_[logits.argmax(1)]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability [N, classes] of each class, in the order of `classes_`.

        Args:
            X: as in `fit`.
        """
        logits = self._outputs(X)[1]
        likely = np.exp(logits - logits.max(1, keepdims=True))
        probabilities: NDArray[np.float64] = likely / likely.sum(1, keepdims=True)
        return probabilities

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the logits [N, classes]; of two classes, that of the second less the first's, [N].

        Args:
            X: as in `fit`.
        """
        logits = self._outputs(X)[1]
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the features [N, n_features_out] that the encoder gives.

        Args:
            X: as in `fit`.
        """
        return self._outputs(X)[0]

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        bias: ArrayLike | None = None,
    ) -> float:
        """Return the accuracy; with `bias`, its mean over the (class, bias) groups.

        The plain accuracy on data like the training data rewards a shortcut. The mean over groups
        counts the rare groups, where a shortcut misleads, as much as the frequent ones.

        Args:
            X: as in `fit`.
            y: [N] classes.
            sample_weight: [N] weights for the plain accuracy.
            bias: [N] values as in `fit`; samples of unknown bias are left out.
        """
        if bias is None:
            return float(super().score(X, y, sample_weight))
        if sample_weight is not None:
            raise ValueError(
                "with bias, the score is a mean over groups, which takes no sample_weight; "
                "give one of the two"
            )
        check_consistent_length(y, bias)
        _, cue = coded(bias)
        known = cue != UNKNOWN
        if not known.any():
            raise ValueError("no bias is known, so there are no groups to score; leave bias=None")
        right = self.predict(X) == np.asarray(y)
        _, label = np.unique(np.asarray(y)[known], return_inverse=True)
        groups = np.stack([label, cue[known]])
        _, group = np.unique(groups, axis=1, return_inverse=True)
        size = np.bincount(group)
        return float((np.bincount(group, right[known]) / size).mean())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _check(self) -> None:
        check_choice(self.method, "method", METHODS)
        check_choice(self.sampler, "sampler", get_args(SamplerName))
        check_choice(self.views, "views", get_args(ViewsName))
        if self.network is not None:
            check_choice(self.network, "network", ENCODERS)
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            optional = name == "epochs"
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not (whole and value >= 1) and not (optional and value is None):
                or_none = " or None" if optional else ""
                raise ValueError(f"{name} must be an integer of at least 1{or_none}; got {value!r}")
        if not 0 < self.learning_rate < np.inf:
            raise ValueError(f"learning_rate must be above 0; got {self.learning_rate!r}")
        if self.weight_decay is not None and not 0 <= self.weight_decay < np.inf:
            raise ValueError(f"weight_decay must be 0 or more, or None; got {self.weight_decay!r}")
        if self.validation_fraction is not None and not 0 <= self.validation_fraction < 1:
            raise ValueError(
                "validation_fraction must be from 0 to below 1, or None; "
                f"got {self.validation_fraction!r}"
            )

    def _training_inputs(
        self, X: ArrayLike, y: ArrayLike
    ) -> tuple[Vectors | Images, NDArray[Any], NDArray[Any]]:
        """(how inputs are made, samples, classes), after validation."""
        if _ndim(X) <= 2:
            x, targets = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
            self.image_shape_ = None
            if self.network not in (None, "mlp"):
                raise ValueError(
                    f"network={self.network!r} takes images and X holds vectors; "
                    'leave network=None, or set "mlp"'
                )
            return Vectors(*standard(x)), x, targets
        x = pixels(X)
        targets = validate_data(self, X="no_validation", y=y)
        check_consistent_length(x, targets)
        if len(x) < 2:
            raise ValueError(f"at least 2 images are needed; got n_samples={len(x)}")
        inputs = images_of(x)
        self.image_shape_ = inputs.shape
        self.n_features_in_ = int(np.prod(inputs.shape))
        if hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        return inputs, x, targets

    def _validated(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        if self.image_shape_ is None:
            x: NDArray[Any] = validate_data(self, X, dtype=np.float64, reset=False)
            return x
        images = pixels(X)
        if images.shape[1:] != self.image_shape_:
            raise ValueError(
                f"X has images of {list(images.shape[1:])} and FairMarginClassifier was fitted to "
                f"{list(self.image_shape_)} (channels, height, width); resize them"
            )
        return images

    def _outputs(self, X: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
        x = self._validated(X)
        return self.trained_.outputs(x)

    def _data(self, inputs: Vectors | Images, whole: ArraySplit, seed: int) -> Data:
        fraction = self.validation_fraction
        if fraction is None:
            fraction = defaults.held_out(self.method)
        train, valid = whole.hold_out(fraction, seed=seed)
        biases = [] if self.bias_values_ is None else [str(value) for value in self.bias_values_]
        info = DataInfo(
            name="the data given to fit",
            class_names=tuple(str(one) for one in self.classes_),
            bias_names=tuple(biases),
            image_shape=inputs.shape,
            counts=count_cells(train.labels, train.bias, len(self.classes_), len(biases)),
            train_size=len(train),
        )
        empty = whole.subset(torch.zeros(0, dtype=torch.long))
        return Data(train, valid, empty, info, inputs.views(self.views), inputs.views())

    def _warn_of_bias(self, info: DataInfo) -> None:
        uses_bias = card_of(self.method).uses_bias_labels
        values_of_class = (info.counts > 0).sum(1)
        if uses_bias and info.bias_names and int(values_of_class.max()) < 2:
            warnings.warn(
                "in every class the bias has one value only, so nothing tells the bias from the "
                f"class and {self.method} cannot; add samples whose bias differs from that of "
                "their class",
                stacklevel=3,
            )

    def _config(self, inputs: Vectors | Images, info: DataInfo, seed: int) -> Config:
        network, network_options = defaults.network(inputs)
        if self.network is not None:
            network, network_options = self.network, {}
        sampler: str = self.sampler
        if sampler == "auto":
            sampler = defaults.sampler(self.method, info)
        elif sampler == "method":
            sampler = "auto"
        epochs = self.epochs
        if epochs is None:
            epochs = defaults.epochs(info.train_size, self.batch_size)
        method_options = defaults.method_options(self.method, self.method_options or {})
        decay = self.weight_decay
        if decay is None:
            decay = defaults.weight_decay(inputs)
        optimizer = {
            "name": "adam",
            "lr": float(self.learning_rate),
            "weight_decay": float(decay),
        }
        settings: dict[str, Any] = {
            "data": {"sampler": sampler},
            "network": {"name": network, **network_options, **(self.network_options or {})},
            "method": {"name": self.method, **method_options},
            "optimizer": optimizer,
            "schedule": {"name": "cosine", "per": "step"},
            "train": {"epochs": int(epochs), "batch_size": int(self.batch_size)},
        }
        return Config(seed=seed, **settings)

    def _train(self, inputs: Vectors | Images, data: Data, seed: int, *, bias_given: bool) -> None:
        config = self._config(inputs, data.info, seed)
        device = build.device(self.device)
        epochs: list[dict[str, float]] = []
        steps: list[dict[str, float]] = []

        def after_step(batch: Batch) -> None:
            steps.append({name: float(x) for name, x in training.method.terms.items()})

        def after_epoch() -> None:
            names = dict.fromkeys(name for step in steps for name in step)
            means = {n: np.mean([step[n] for step in steps if n in step]) for n in names}
            epochs.append({name: float(mean) for name, mean in means.items()})
            steps.clear()

        cuda = [device] if device.type == "cuda" else []
        threads = one_thread() if isinstance(inputs, Vectors) else nullcontext()
        # The loop seeds torch's generator at every step; the caller's must stay as it is.
        with torch.random.fork_rng(devices=cuda), threads:
            try:
                method = build.method_for(config, data.info)
                visible = VisibleBias(data.info, {"train": data.train, "valid": data.valid})
                training = build.training(config, method, data, device, bias=visible)
                fit_training(
                    training, config.train.epochs, after_step=after_step, after_epoch=after_epoch
                )
            except Unsuited as error:
                needs = card_of(self.method).needs
                if bias_given or "bias labels" not in needs:
                    raise
                raise Unsuited(f"{error}. In scikit-learn: fit(X, y, bias=…)") from None
        self.history_ = epochs
        self.epochs_ = config.train.epochs
        self.trained_ = TrainedMethod(config, data.info, inputs, method)
        self._n_features_out = self.trained_.features


def _refuse(unsupported: Mapping[str, Any]) -> None:
    given = [name for name, value in unsupported.items() if value is not None]
    if not given:
        return
    if given == ["sample_weight"]:
        raise TypeError(
            "FairMarginClassifier takes no sample_weight, because its methods draw batches and "
            'weigh samples themselves; choose method="class-reweighted" or "group-reweighted", '
            'or sampler="class-balanced" or "group-balanced"'
        )
    raise TypeError(f"fit takes X, y and bias; it does not know {', '.join(given)}")


def _ndim(X: ArrayLike) -> int:
    shape = getattr(X, "shape", None)
    return len(np.asarray(X).shape if shape is None else shape)


def _known_bias(
    x: NDArray[Any], bias: ArrayLike | None
) -> tuple[NDArray[Any] | None, NDArray[np.int64] | None]:
    """(values, position of each sample's value or −1); None if no sample's bias is known."""
    if bias is None:
        return None, None
    check_consistent_length(x, bias)
    values, cue = coded(bias)
    return (values, cue) if len(values) else (None, None)
