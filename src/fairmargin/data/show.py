"""Draw a dataset: examples of each class, and how often each label meets each bias."""

import io
import textwrap
from pathlib import Path
from typing import Literal

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from fairmargin.data.bias import count_cells
from fairmargin.data.split import Data, Split
from fairmargin.runtime.terminal import visible
from fairmargin.runtime.whole import write_bytes

SplitName = Literal["train", "valid", "test"]
# Letters of the title on an inch, and inches of one more line.
LETTERS = 11
LINE = 0.18
# Letters of a name beside the picture.
LONGEST = 20
# Rows of the picture; the classes after these are not drawn.
MOST_CLASSES = 20


def draw(
    data: Data,
    path: Path,
    *,
    split: SplitName = "train",
    examples: int = 6,
    seed: int = 0,
) -> Path:
    """Draw a split, one row for each class, into the file `path`.

    The left column shows samples with the most common bias of the class ("aligned"), the middle one
    all others, and the right one a heat map of the counts.

    Args:
        examples: most images of a class in each column.
        seed: decides which images are shown.
    """
    splits: dict[str, Split] = {"train": data.train, "valid": data.valid, "test": data.test}
    chosen = splits[split]
    info = data.info
    classes = range(min(info.num_classes, MOST_CLASSES))
    names = info.class_names[: len(classes)]
    aligned = [_examples(chosen, k, True, examples, seed) for k in classes]
    height = 0.52 * len(classes) + 1.3
    width = 3.3 + 0.42 * examples
    if chosen.bias is None or info.num_biases == 0:
        figure, ax = plt.subplots(figsize=(width, height), layout="constrained")
        _grid(ax, aligned, names, "examples")
    else:
        conflicting = [_examples(chosen, k, False, examples, seed) for k in classes]
        counts = count_cells(chosen.labels, chosen.bias, info.num_classes, info.num_biases)
        width += 0.42 * examples + 0.42 * info.num_biases + 1.6
        figure, axes = plt.subplots(
            1,
            3,
            figsize=(width, height),
            width_ratios=[examples, examples, info.num_biases + 2],
            layout="constrained",
        )
        _grid(axes[0], aligned, names, "most common bias (aligned)")
        _grid(axes[1], conflicting, (), "other biases (conflicting)")
        _heat_map(axes[2], counts[: len(classes)], info.bias_names)
    details = ", ".join(f"{key} {value}" for key, value in info.notes.items() if len(value) < 40)
    title = f"{info.name}, {split}: {len(chosen):,} samples" + (f" ({details})" if details else "")
    lines = textwrap.wrap(title, int(LETTERS * width))
    figure.set_figheight(height + LINE * (len(lines) - 1))
    figure.suptitle("\n".join(lines), fontsize=10)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:] or "png", dpi=120)
    plt.close(figure)
    write_bytes(path, buffer.getbuffer())
    return path


def _examples(split: Split, label: int, aligned: bool, number: int, seed: int) -> Tensor:
    """Up to `number` images of a class, uint8 [n, C, H, W].

    With `aligned`, those with the most common bias of the class; without, those with another one.
    """
    member = split.labels == label
    if split.bias is not None and bool(member.any()):
        known = split.bias >= 0
        biases = split.bias[member & known]
        most = int(biases.bincount().argmax()) if len(biases) else -1
        if aligned:
            member &= split.bias == most
        else:
            member &= (split.bias != most) & known
    index = member.nonzero().flatten()
    if not len(index):
        return torch.zeros(0, 3, 1, 1, dtype=torch.uint8)
    order = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))[:number]
    return split.images(index[order])


def _grid(ax: Axes, rows: list[Tensor], names: tuple[str, ...], title: str) -> None:
    """Draw a row of images for each tensor; `names` may be empty."""
    number = max((len(row) for row in rows), default=0)
    side = max((row.shape[-1] for row in rows if len(row)), default=1)
    step = side + 2
    canvas = torch.full((len(rows) * step, max(number, 1) * step, 3), 255, dtype=torch.uint8)
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            colour = image.expand(3, -1, -1) if image.shape[0] == 1 else image
            pixels = colour.permute(1, 2, 0)  # [H, W, 3]
            top, left = r * step, c * step
            canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    ax.imshow(canvas.numpy(), interpolation="nearest")
    ax.set_title(title, fontsize=9)
    ax.set_xticks([])
    places = [(r + 0.5) * step for r in range(len(names))]
    ax.set_yticks(places, _drawable(names), fontsize=8, parse_math=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _heat_map(ax: Axes, counts: Tensor, bias_names: tuple[str, ...]) -> None:
    shades = (counts.double() + 1).log()
    ax.imshow(shades, cmap="Blues", aspect="auto")
    # Halfway along the color map, which begins at the smallest shade.
    dark = (shades.min() + shades.max()) / 2
    for y, row in enumerate(counts.tolist()):
        for b, value in enumerate(row):
            colour = "white" if shades[y, b] > dark else "#222"
            ax.text(b, y, f"{value}", ha="center", va="center", fontsize=6.5, color=colour)
    ax.set_title("samples of each (label, bias)", fontsize=9)
    names, places = _drawable(bias_names), range(counts.shape[1])
    ax.set_xticks(places, names, rotation=45, ha="right", fontsize=7, parse_math=False)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)


def _drawable(names: tuple[str, ...]) -> list[str]:
    """Names that a font can draw and a picture has room for."""
    shown = [visible(name) for name in names]
    return [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in shown]
