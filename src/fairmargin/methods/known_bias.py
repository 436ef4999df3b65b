"""What methods that take bias labels or bias features share: one vector for each sample."""

import torch.nn.functional as F
from torch import Tensor

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import Unsuited


def require_known_bias(name: str, info: DataInfo, *, instead: str) -> None:
    """Refuse a dataset with neither bias labels nor features of a bias-capturing model.

    Args:
        name: of the method.
        instead: a method that does without.
    """
    if not info.bias_names and not info.bias_features:
        raise Unsuited(
            f"{name} needs to know the bias and {info.name} has no bias labels that it may use; "
            'give the manifest a "bias" column, or run "fairmargin scores" and train with --bias '
            f"scores, or train a method that does without, such as {instead}"
        )


def bias_code(batch: Batch, biases: int) -> Tensor | None:
    """Return what is known of the bias of each sample, [N, G]; None if nothing is.

    Features of a bias-capturing model where there are some, else bias labels as unit vectors, in
    which an unknown bias is a row of zeros.

    Args:
        batch: of the samples.
        biases: number of bias values.
    """
    if batch.bias_features is not None:
        return batch.bias_features
    if batch.bias is None:
        return None
    known = (batch.bias >= 0)[:, None]
    return F.one_hot(batch.bias.clamp_min(0), biases).float() * known
