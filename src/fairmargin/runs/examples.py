"""The arrays that a run keeps of its test set: outputs of every sample, and images of a few."""

import numpy as np
import torch
from torch import Tensor

from fairmargin.data import Data
from fairmargin.data.own import for_display
from fairmargin.data.split import sample_names
from fairmargin.evaluate import Outputs
from fairmargin.evaluate.accuracy import aligned_cells
from fairmargin.runs import record
from fairmargin.runs.folder import RunFolder

# Images kept of each kind.
MOST = 12


def save_outputs(folder: RunFolder, outputs: Outputs, data: Data) -> None:
    """Write test.npz and examples.npz.

    Args:
        folder: where to.
        outputs: what the method says about the test set.
        data: the dataset, whose test images are kept.
    """
    arrays = {
        "labels": outputs.labels.numpy(),
        "predicted": outputs.logits.argmax(1).numpy(),
        "logits": outputs.logits.float().numpy(),
        "features": outputs.features.float().numpy(),
    }
    if outputs.bias is not None:
        arrays["bias"] = outputs.bias.numpy()
    names = sample_names(data.test)
    if names is not None:
        arrays["names"] = np.array(names, dtype=str)
    folder.save_arrays(record.TEST, **arrays)
    positions: list[int] = []
    kinds: list[str] = []
    for kind, chosen in choose_examples(outputs, data).items():
        positions += chosen
        kinds += [kind] * len(chosen)
    index = torch.tensor(positions, dtype=torch.long)
    if len(index):
        images = data.test.images(index)
    else:
        images = torch.zeros(0, *data.info.image_shape).byte()
    folder.save_arrays(
        record.EXAMPLES,
        images=for_display(images).numpy(),
        index=index.numpy(),
        kind=np.array(kinds, dtype="U11"),
    )


def choose_examples(outputs: Outputs, data: Data) -> dict[str, list[int]]:
    """Choose positions in the test set, by kind: "aligned", "conflicting", "mistake".

    Aligned and conflicting samples are spread over the classes; mistakes are the most confident.

    Args:
        outputs: what the method says about the test set.
        data: says which groups are aligned.
    """
    chosen: dict[str, list[int]] = {}
    if outputs.bias is not None and data.info.num_biases:
        known = outputs.bias >= 0
        aligned = aligned_cells(data.info.counts)[outputs.labels, outputs.bias.clamp_min(0)] & known
        chosen["aligned"] = _spread(outputs.labels, aligned)
        chosen["conflicting"] = _spread(outputs.labels, known & ~aligned)
    confidence, predicted = outputs.logits.float().softmax(1).max(1)
    wrong = (predicted != outputs.labels).nonzero()[:, 0]
    surest = confidence[wrong].argsort(descending=True, stable=True)
    chosen["mistake"] = wrong[surest][:MOST].tolist()
    return chosen


def _spread(labels: Tensor, members: Tensor) -> list[int]:
    """Take the first member of every class, then the second of every class, and so on."""
    index = members.nonzero()[:, 0]
    y = labels[index]
    turn = torch.zeros_like(y)
    for label in y.unique():
        turn[y == label] = torch.arange(int((y == label).sum()))
    classes = int(y.max()) + 1 if len(y) else 1
    order = torch.argsort(turn * classes + y, stable=True)
    return index[order][:MOST].tolist()
