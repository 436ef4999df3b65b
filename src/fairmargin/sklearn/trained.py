"""A trained method that can be pickled: its settings and its weights, and none of its code."""

import warnings
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.config import Config
from fairmargin.data.views import Views
from fairmargin.evaluate.modes import evaluating
from fairmargin.methods import Method
from fairmargin.runs import build
from fairmargin.sklearn.inputs import Images, Vectors

# Samples that are predicted at a time.
VECTORS, IMAGES = 4096, 256


class TrainedMethod:
    """What predictions need: the method, and how inputs are made for it.

    Vectors are predicted in double precision on the CPU, so that a sample's answer does not depend
    on which others are asked for with it.

    Args:
        config: of the training.
        info: the facts that the method was built with.
        inputs: how arrays become inputs.
        method: trained.
    """

    def __init__(
        self, config: Config, info: DataInfo, inputs: Vectors | Images, method: Method
    ) -> None:
        self.config = config
        self.info = info
        self.inputs = inputs
        self.method = self._ready(method)

    def outputs(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(features [N, D], logits [N, classes]).

        Args:
            x: as the training data were, after validation.
        """
        views: Views = self.inputs.views()
        device = next(self.method.parameters()).device
        size = VECTORS if isinstance(self.inputs, Vectors) else IMAGES
        found: list[tuple[Tensor, Tensor]] = []
        with evaluating(self.method), torch.inference_mode():
            for part in self.inputs.tensor(x).split(size):
                h, logits = self.method.inspect(views(part.to(device)))
                found.append((h.double().cpu(), logits.double().cpu()))
        features, logits = (torch.cat(parts) for parts in zip(*found, strict=True))
        return features.numpy(), logits.numpy()

    @property
    def features(self) -> int:
        """How many features a sample has."""
        return self.outputs(self.inputs.blank())[0].shape[1]

    def _ready(self, method: Method) -> Method:
        method.requires_grad_(False).eval()
        return method.cpu().double() if isinstance(self.inputs, Vectors) else method

    def __getstate__(self) -> dict[str, Any]:
        state = {name: tensor.cpu() for name, tensor in self.method.state_dict().items()}
        return {**vars(self), "method": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        weights = state.pop("method")
        vars(self).update(state)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # Whatever was to be said of the settings was said at training.
            warnings.simplefilter("ignore", UserWarning)
            method = build.method_for(self.config, self.info)
        self.method = self._ready(method)
        self.method.load_state_dict(weights)
