"""A picture of the image tasks: what training shows, and what the test asks."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from fairmargin.data import Data, build
from fairmargin.evaluate.accuracy import aligned_cells
from fairmargin.suite.tasks import GROUPS, TASKS

# Samples of each kind in a row.
SHOWN = 5


def draw_tasks(file: Path) -> Path:
    """Draw a row for each task: typical training samples, then conflicting test samples.

    Args:
        file: the picture to write.
    """
    names = GROUPS["images"]
    figure, axes = plt.subplots(len(names), 1, figsize=(6.4, 0.72 * len(names)))
    for axis, name in zip(axes, names, strict=True):
        axis.imshow(_row(build(TASKS[name].dataset)), interpolation="nearest")
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
        for side in axis.spines.values():
            side.set_visible(False)
    axes[0].set_title("training, typical" + " " * 26 + "test, conflicting", fontsize=9)
    figure.tight_layout(pad=0.3)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    plt.close(figure)
    return file


def _row(data: Data) -> np.ndarray:
    """Return typical training and conflicting test samples side by side, uint8 [H, W, 3]."""
    follows = aligned_cells(data.info.counts)
    classes = torch.arange(SHOWN) % data.info.num_classes
    images = []
    for split, wanted in ((data.train, True), (data.test, False)):
        assert split.bias is not None
        fits = follows[split.labels, split.bias] == wanted
        if not follows.any():
            fits = torch.ones_like(fits)
        for k, y in enumerate(classes.tolist()):
            mine = torch.nonzero(fits & (split.labels == y)).flatten()
            images.append(split.images(mine[k : k + 1])[0].permute(1, 2, 0).numpy())
    gap = np.full((images[0].shape[0], 3, 3), 255, np.uint8)
    spaced = [piece for image in images for piece in (image, gap)]
    middle = 2 * SHOWN
    return np.concatenate([*spaced[:middle], gap, gap, gap, *spaced[middle:]], 1)
