"""What FairMarginClassifier chooses where it is told nothing: network, options, batches, length.

docs/sklearn.md says how the numbers were chosen.
"""

import math
from collections.abc import Mapping
from typing import Any

from fairmargin.batch import DataInfo
from fairmargin.config.options import written
from fairmargin.methods.base import Unsuited
from fairmargin.methods.catalog import card_of
from fairmargin.methods.objectives import ROWS
from fairmargin.methods.row_builders import NAMES
from fairmargin.sklearn.inputs import Images, Vectors, ViewsName

Options = Mapping[str, Any]

# FairKL as docs/results/fairkl.md recommends it.
FAIRKL = {"divergence": "moments", "negatives": True, "last_activation": "relu"}
CONTRASTIVE = {"alpha": 0.1, "lambda": 1.0, "epsilon": 0.5}
# Methods that compare pairs by their bias, and find too few in batches with groups as they are.
BALANCED = ("end", "biascon", "biascon+ce")
# Their second network looks at images through small windows, or at textures.
IMAGES_ONLY = ("sin", "sin-proxy", "hex", "rebias", "rubi", "learned-mixin", "learned-mixin+h")

MLP: dict[str, Any] = {"widths": (64,)}
SMALL_CONVOLUTIONS: dict[str, Any] = {"kernel_size": 5, "stride": 2, "widths": (16, 32, 64)}
# Side of the largest images for which the small network is taken.
SMALL_SIDE = 64

# Of Adam. Rare groups are few samples that come often, and are soon learnt by heart.
VECTOR_DECAY = 1e-2
# As in the preset of biased-mnist-mini.
IMAGE_DECAY = 1e-5

# An epoch of few samples has few steps, so epochs are counted by the steps they make.
STEPS = 300
LEAST_EPOCHS, MOST_EPOCHS = 10, 100
# Share of the training samples that a method fitted to validation samples gets.
HELD_OUT = 0.2


def network(inputs: Vectors | Images) -> tuple[str, Options]:
    """(name, options) of the encoder for vectors, or for images of this size."""
    if isinstance(inputs, Vectors):
        return "mlp", MLP
    if max(inputs.shape[1:]) <= SMALL_SIDE:
        return "simple-conv-7", SMALL_CONVOLUTIONS
    return "resnet18", {}


def weight_decay(inputs: Vectors | Images) -> float:
    """Weight decay of Adam."""
    return VECTOR_DECAY if isinstance(inputs, Vectors) else IMAGE_DECAY


def method_options(method: str, given: Options) -> dict[str, Any]:
    """The options of a method: those given, above FairKL in the recommended form.

    Args:
        method: a name of METHODS.
        given: by the user.
    """
    chosen: dict[str, Any] = {}
    if method.endswith("+fairkl"):
        chosen = dict(FAIRKL)
        if method.startswith(("eps-supinfonce", "eps-supcon")):
            chosen |= CONTRASTIVE
    return chosen | {written(name): value for name, value in given.items()}


def sampler(method: str, info: DataInfo) -> str:
    """How batches are drawn: group-balanced for FairKL and its like; else as the method asks."""
    wants = method.endswith("+fairkl") or method in BALANCED
    return "group-balanced" if wants and info.bias_names else "auto"


def epochs(samples: int, batch_size: int) -> int:
    """Epochs that make about STEPS steps.

    Args:
        samples: in the training set.
    """
    wanted = math.ceil(STEPS / math.ceil(samples / batch_size))
    return min(max(wanted, LEAST_EPOCHS), MOST_EPOCHS)


def held_out(method: str) -> float:
    """Share of the samples for validation: 0, unless the method is fitted to validation samples."""
    return 0.0 if card_of(method).validation_fit is None else HELD_OUT


def check_suited(method: str, inputs: Vectors | Images, views: ViewsName) -> None:
    """Refuse a method that these inputs cannot be given to, before anything is built."""
    name, _ = NAMES.get(method, ("", False))
    pairs_of_views = name != "" and ROWS[name].views > 1
    if isinstance(inputs, Vectors) and (method in IMAGES_ONLY or pairs_of_views):
        raise Unsuited(
            f"{method} works on images and X holds vectors; give fit images, or choose a method "
            'such as "ce+fairkl" or "jtt"'
        )
    if pairs_of_views and views != "supcon":
        raise Unsuited(
            f"{method} compares two views of one image and views={views!r} gives one; "
            'set views="supcon"'
        )
