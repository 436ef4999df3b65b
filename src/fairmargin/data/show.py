"""A look at a dataset: aligned and conflicting examples of each class, and how often each label meets each bias."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from fairmargin.data.bias import count_cells
from fairmargin.data.split import Data, Split


def draw(data: Data, path: Path, *, split: str = "train", examples: int = 6, seed: int = 0) -> Path:
    """Rows are classes; left the most common bias of the class ("aligned"), middle all others, right the heat map."""
    chosen: Split = {"train": data.train, "valid": data.valid, "test": data.test}[split]
    info = data.info
    classes = min(info.num_classes, 20)
    has_bias = chosen.bias is not None and info.num_biases > 0
    columns = [_examples(chosen, k, True, examples, seed) for k in range(classes)]
    others = (
        [_examples(chosen, k, False, examples, seed) for k in range(classes)] if has_bias else []
    )
    width = (
        3.3
        + 0.42 * examples * (2 if has_bias else 1)
        + (0.42 * info.num_biases + 1.6 if has_bias else 0)
    )
    figure, axes = plt.subplots(
        1,
        3 if has_bias else 1,
        figsize=(width, 0.52 * classes + 1.3),
        width_ratios=[examples, examples, info.num_biases + 2] if has_bias else None,
        layout="constrained",
        squeeze=False,
    )
    _grid(
        axes[0, 0],
        columns,
        info.class_names[:classes],
        "most common bias (aligned)" if has_bias else "examples",
        True,
    )
    if has_bias:
        _grid(axes[0, 1], others, info.class_names[:classes], "other biases (conflicting)", False)
        _heat_map(
            axes[0, 2],
            count_cells(chosen.labels, chosen.bias, info.num_classes, info.num_biases)[:classes],
            data,
        )
    details = ", ".join(f"{key} {value}" for key, value in info.notes.items() if len(value) < 40)
    figure.suptitle(f"{info.name}, {split}: {len(chosen):,} samples ({details})", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _examples(split: Split, label: int, aligned: bool, number: int, seed: int) -> Tensor:
    """Up to `number` images of a class, uint8 [n, C, H, W]; aligned: with the class's most common bias."""
    member = split.labels == label
    if split.bias is not None and bool(member.any()):
        common = split.bias[member & (split.bias >= 0)]
        most = int(common.bincount().argmax()) if len(common) else -1
        member &= (split.bias == most) if aligned else (split.bias != most) & (split.bias >= 0)
    index = member.nonzero().flatten()
    order = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))[:number]
    return split.images(index[order]) if len(index) else torch.zeros(0, 3, 1, 1, dtype=torch.uint8)


def _grid(
    ax: Axes, rows: list[Tensor], names: tuple[str, ...], title: str, show_names: bool
) -> None:
    number = max((len(row) for row in rows), default=0)
    side = max((row.shape[-1] for row in rows if len(row)), default=1)
    canvas = torch.full(
        (len(rows) * (side + 2), max(number, 1) * (side + 2), 3), 255, dtype=torch.uint8
    )
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            image = image.expand(3, -1, -1) if image.shape[0] == 1 else image
            top, left = r * (side + 2), c * (side + 2)
            canvas[top : top + image.shape[1], left : left + image.shape[2]] = image.permute(
                1, 2, 0
            )
    ax.imshow(canvas.numpy(), interpolation="nearest")
    ax.set_title(title, fontsize=9)
    ax.set_xticks([])
    ticks = [(r + 0.5) * (side + 2) for r in range(len(rows))] if show_names else []
    ax.set_yticks(ticks, names[: len(ticks)], fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _heat_map(ax: Axes, counts: Tensor, data: Data) -> None:
    ax.imshow((counts.double() + 1).log(), cmap="Blues", aspect="auto")
    dark = (counts.double() + 1).log().max() / 2
    for y, row in enumerate(counts.tolist()):
        for b, value in enumerate(row):
            shade = "white" if counts.double()[y, b].add(1).log() > dark else "#222"
            ax.text(b, y, f"{value}", ha="center", va="center", fontsize=6.5, color=shade)
    ax.set_title("samples of each (label, bias)", fontsize=9)
    ax.set_xticks(range(counts.shape[1]), data.info.bias_names, rotation=45, ha="right", fontsize=7)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
