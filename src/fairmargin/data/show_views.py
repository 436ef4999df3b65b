"""Draw how training images are augmented: an image, and what the network sees of it."""

import io
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from torch import Tensor

from fairmargin.data.own import FloatViews, for_display
from fairmargin.data.split import Data
from fairmargin.data.views import Views
from fairmargin.runtime.whole import write_bytes

# Images of the picture, and views of each.
ROWS, DRAWS = 8, 8
GAP = 2


def draw_augmented(data: Data, path: Path, *, seed: int = 0) -> Path:
    """Draw training images, one a row: as they are, and as training sees them.

    Args:
        data: with images of three channels or one.
        path: the file to write.
        seed: decides which images are shown, and their views.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.train), generator=generator)[:ROWS]
    images = data.train.images(order.sort().values)
    draws = -(-DRAWS // data.train_views.number)
    seen = [pixels_of(data.train_views, images, generator) for _ in range(draws)]
    views = torch.cat(seen, 1)[:, :DRAWS]  # [rows, DRAWS, C, H, W]
    figure, axes = plt.subplots(
        1, 2, figsize=(0.75 * (DRAWS + 1) + 0.6, 0.75 * len(images) + 0.8),
        width_ratios=[1, DRAWS], layout="constrained",
    )  # fmt: skip
    shown = ((axes[0], for_display(images)[:, None], "image"), (axes[1], views, "in training"))
    for ax, pictures, title in shown:
        ax.imshow(_sheet(pictures).numpy(), interpolation="nearest")
        ax.set_title(title, fontsize=9)
        ax.set_axis_off()
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:] or "png", dpi=120)
    plt.close(figure)
    write_bytes(path, buffer.getbuffer())
    return path


def pixels_of(views: Views, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return what training sees of images, before normalization: uint8 [n, views, C, H, W].

    Args:
        views: of the training split.
        images: [n, C, H, W] as the split gives them.
        generator: of the random numbers.
    """
    seen = views(images, generator)
    seen = seen if seen.ndim == 5 else seen[:, None]
    if isinstance(views, FloatViews):
        return for_display(seen)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (views.mean, views.std))
    return ((seen * std + mean).clamp(0, 1) * 255).round().byte()


def _sheet(pictures: Tensor) -> Tensor:
    """[rows, columns, C, H, W] side by side, uint8 [height, width, 3]."""
    rows, columns, _, height, width = pictures.shape
    sheet = torch.full((rows * (height + GAP), columns * (width + GAP), 3), 255, dtype=torch.uint8)
    for r in range(rows):
        for c in range(columns):
            color = pictures[r, c].expand(3, -1, -1).permute(1, 2, 0)
            top, left = r * (height + GAP), c * (width + GAP)
            sheet[top : top + height, left : left + width] = color
    return sheet
