"""What can be said of a picture without knowing what it shows: simple attributes that may give the label away.

Pictures are read in chunks and only numbers are kept, so memory grows with the numbers and not with the pictures.
To add an image statistic: a function from `Pictures` to [n, columns], and a row in `STATISTICS`.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fairmargin.audit.section import Progress, silent
from fairmargin.data.decode import FORMATS
from fairmargin.data.split import FileSplit, Split
from fairmargin.data.table import find_column, natural_order, read_table
from fairmargin.runtime.threads import one_thread

AT_ONCE = (
    1 << 19
)  # values of pixels held at a time: what the processor caches, several copies of it
EDGE = 0.1  # brightness per pixel from which on there is an edge
PIECES = 7  # of each side of the border
COARSE = 4  # levels of a channel for the commonest colour
THUMBNAILS, SIDE = "thumbnails", 8  # pixels along a side of what clusters are made of
NUMBERS_FROM = (
    20  # distinct numbers in a metadata column, above which it is a number and not a category
)
MOST_LEVELS = 0.2  # distinct values per sample, above which a column is a name of samples and not an attribute
EMPTY = "(empty)"


@dataclass(frozen=True)
class Attribute:
    """One value, or a few, for every sample."""

    name: str
    family: str
    kind: str  # colour (red, green, blue from 0 to 1), number, several (numbers), or category (codes of `levels`)
    values: np.ndarray  # float32 [N, columns]; of a category int64 [N]
    levels: tuple[str, ...] = ()
    sees_shape: bool = False  # it may be the object itself, so it is never called a shortcut


class Pictures:
    """Some pictures and what several statistics need of them."""

    def __init__(self, images: Tensor) -> None:
        """From uint8 [n, C, H, W]; what is not red, green and blue is taken as grey."""
        x = images.float() / 255
        self.rgb = x if x.shape[1] == 3 else x.mean(1, keepdim=True).expand(-1, 3, -1, -1)

    @cached_property
    def grey(self) -> Tensor:
        """[n, H, W], as the eye weighs the colours."""
        return torch.einsum("nchw,c->nhw", self.rgb, torch.tensor([0.299, 0.587, 0.114]))

    @cached_property
    def mean(self) -> Tensor:
        return self.rgb.mean((2, 3))  # [n, 3]

    @property
    def border(self) -> int:
        """Its width in pixels: a fourteenth of the shorter side. Wider ones would see what stands in the middle."""
        return max(1, min(self.rgb.shape[2:]) // 14)

    @cached_property
    def ring(self) -> Tensor:
        """The border's pixels, [n, 3, P]."""
        w = self.border
        if min(self.rgb.shape[2:]) <= 2 * w:
            return self.rgb.flatten(2)
        rows = torch.cat([self.rgb[:, :, :w], self.rgb[:, :, -w:]], 2).flatten(2)
        columns = torch.cat([self.rgb[:, :, w:-w, :w], self.rgb[:, :, w:-w, -w:]], 3).flatten(2)
        return torch.cat([rows, columns], 2)

    @cached_property
    def chroma(self) -> Tensor:
        """How far each pixel is from grey, [n, H, W]."""
        return self.rgb.amax(1) - self.rgb.amin(1)


def background_colour(p: Pictures) -> Tensor:
    return p.ring.median(
        2
    ).values  # the median keeps a flat background exact where the object touches it


def commonest_colour(p: Pictures) -> Tensor:
    """Middle of the fullest of 4 × 4 × 4 boxes of colours."""
    level = (p.rgb * COARSE).long().clamp(max=COARSE - 1)  # [n, 3, H, W]
    code = ((level[:, 0] * COARSE + level[:, 1]) * COARSE + level[:, 2]).flatten(1)
    n, boxes = len(code), COARSE**3
    offset = boxes * torch.arange(n)[:, None]
    fullest = (
        torch.bincount((code + offset).flatten(), minlength=n * boxes).view(n, boxes).argmax(1)
    )
    parts = torch.stack([fullest // COARSE**2, fullest // COARSE % COARSE, fullest % COARSE], 1)
    return (parts + 0.5) / COARSE


def background_texture(p: Pictures) -> Tensor:
    return p.ring.std(2, correction=0).mean(1, keepdim=True)


def middle_against_border(p: Pictures) -> Tensor:
    height, width = p.rgb.shape[2:]
    middle = p.rgb[:, :, height // 4 : height - height // 4, width // 4 : width - width // 4]
    return middle.mean((2, 3)) - p.ring.mean(2)


def border_layout(p: Pictures) -> Tensor:
    """Brightness and colourfulness of seven pieces of each side of the border."""
    both = torch.stack([p.grey, p.chroma], 1)  # [n, 2, H, W]
    w = p.border
    strips = both[:, :, :w], both[:, :, -w:], both[:, :, :, :w].mT, both[:, :, :, -w:].mT
    return torch.cat([F.adaptive_avg_pool2d(strip, (1, PIECES)).flatten(1) for strip in strips], 1)


def hue(p: Pictures) -> Tensor:
    """Direction of the mean colour around the wheel as cosine and sine; of grey, 0 and 0."""
    r, g, b = p.mean.unbind(1)
    wheel = torch.stack([r - (g + b) / 2, math.sqrt(3) / 2 * (g - b)], 1)
    length = wheel.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-3, wheel / length, 0)


def saturation(p: Pictures) -> Tensor:
    return p.chroma.mean((1, 2))[:, None]


def brightness(p: Pictures) -> Tensor:
    return p.grey.mean((1, 2))[:, None]


def contrast(p: Pictures) -> Tensor:
    return p.grey.std((1, 2), correction=0)[:, None]


def tonal_range(p: Pictures) -> Tensor:
    """Its darkest and its lightest spot, each a mean over 3 × 3 pixels."""
    side = min(3, *p.grey.shape[1:])
    spots = F.avg_pool2d(p.grey[:, None], side, 1).flatten(1)
    return torch.stack([spots.amin(1), spots.amax(1)], 1)


def sharpness(p: Pictures) -> Tensor:
    """Logarithm of the variance of the Laplacian, which blur lowers."""
    if min(p.grey.shape[1:]) < 3:
        return torch.zeros(len(p.grey), 1)
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]).view(1, 1, 3, 3)
    return (F.conv2d(p.grey[:, None], kernel).flatten(1).var(1, correction=0) + 1e-6).log()[:, None]


def edge_density(p: Pictures) -> Tensor:
    down = p.grey[:, 1:, :-1] - p.grey[:, :-1, :-1]
    right = p.grey[:, :-1, 1:] - p.grey[:, :-1, :-1]
    steep = (down**2 + right**2) > EDGE**2
    return (
        steep.float().flatten(1).mean(1, keepdim=True).nan_to_num(0.0)
    )  # a picture one pixel wide has none


@dataclass(frozen=True)
class Statistic:
    family: str
    kind: str
    of: Callable[[Pictures], Tensor]


STATISTICS: dict[
    str, Statistic
] = {  # the simplest first: of two that tell the label equally well it is ranked higher
    "background colour": Statistic("background", "colour", background_colour),
    "commonest colour": Statistic("colour", "colour", commonest_colour),
    "mean colour": Statistic("colour", "colour", lambda p: p.mean),
    "hue": Statistic("colour", "several", hue),
    "saturation": Statistic("colour", "number", saturation),
    "brightness": Statistic("light", "number", brightness),
    "contrast": Statistic("light", "number", contrast),
    "tonal range": Statistic("light", "several", tonal_range),
    "sharpness": Statistic("texture", "number", sharpness),
    "edge density": Statistic("texture", "number", edge_density),
    "background texture": Statistic("background", "number", background_texture),
    "middle against border": Statistic("background", "several", middle_against_border),
    "border layout": Statistic("background", "several", border_layout),
}


def image_statistics(
    split: Split, index: Tensor, progress: Progress = silent
) -> tuple[list[Attribute], np.ndarray]:
    """Every row of `STATISTICS` for the samples `index`, and their thumbnails, float32 [N, 3·8·8]."""
    measures = {name: statistic.of for name, statistic in STATISTICS.items()} | {
        THUMBNAILS: _thumbnail
    }
    step = max(1, AT_ONCE // max(1, split.images(index[:1]).numel()))
    kept: dict[str, Tensor] = {}
    with one_thread():
        for start in range(0, len(index), step):
            pictures = Pictures(split.images(index[start : start + step]))
            for name, measure in measures.items():
                values = measure(pictures)
                # All of it at once: small pieces kept between large ones that are freed would scatter the memory.
                kept.setdefault(name, torch.empty(len(index), values.shape[1]))[
                    start : start + step
                ] = values
            progress("looking at pictures", min(start + step, len(index)), len(index))
    attributes = [
        Attribute(name, statistic.family, statistic.kind, kept[name].numpy())
        for name, statistic in STATISTICS.items()
    ]
    return attributes, kept[THUMBNAILS].numpy()


def _thumbnail(p: Pictures) -> Tensor:
    return F.adaptive_avg_pool2d(p.rgb, SIDE).flatten(1)


def file_attributes(split: Split, index: Tensor, progress: Progress = silent) -> list[Attribute]:
    """Size, shape, type and bytes of the files before they are decoded; none where the pictures are no files."""
    if not isinstance(split, FileSplit):
        return []
    facts, kinds = np.empty((len(index), 3), np.float32), []
    for row, i in enumerate(index.tolist()):
        path = split.paths[i]
        with Image.open(path, formats=FORMATS) as image:  # reads the header only
            facts[row] = *image.size, math.log10(path.stat().st_size)
        kinds.append(path.suffix.lower())
        if row % 256 == 255 or row + 1 == len(index):
            progress("looking at files", row + 1, len(index))
    width, height = facts[:, :1], facts[:, 1:2]
    return [
        Attribute("picture size", "file", "several", facts[:, :2]),
        Attribute("aspect ratio", "file", "number", width / height),
        Attribute("file size", "file", "number", facts[:, 2:]),
        _category("file type", "file", kinds),
    ]


def metadata_attributes(columns: Mapping[str, Sequence[str]]) -> tuple[list[Attribute], list[str]]:
    """(an attribute for each column of texts, the columns left out and why). A column is a number or a category."""
    found, left_out = [], []
    for name, cells in columns.items():
        texts = [cell.strip() or EMPTY for cell in cells]
        distinct = set(texts)
        numbers = _numbers(texts)
        if len(distinct) < 2:
            left_out.append(f'column "{name}": one value for every sample')
        elif numbers is not None and len(distinct) > NUMBERS_FROM:
            found.append(Attribute(name, "metadata", "number", numbers[:, None]))
        elif len(distinct) > max(MOST_LEVELS * len(texts), 2):
            left_out.append(
                f'column "{name}": {len(distinct):,} different values, a name rather than an attribute'
            )
        else:
            found.append(_category(name, "metadata", texts))
    return found, left_out


def _numbers(texts: Sequence[str]) -> np.ndarray | None:
    """float32 [N], or None if some text is no finite number; empty cells lie below all others."""
    try:
        values = np.array(
            [math.nan if text == EMPTY else float(text) for text in texts], np.float64
        )
    except ValueError:
        return None
    known = values[~np.isnan(values)]
    if (
        not len(known)
        or not np.isfinite(known).all()
        or len(known) < sum(text != EMPTY for text in texts)
    ):
        return None
    return np.nan_to_num(values, nan=2 * known.min() - known.max() - 1).astype(np.float32)


def _category(name: str, family: str, texts: Sequence[str]) -> Attribute:
    levels = natural_order(texts)
    code = {level: k for k, level in enumerate(levels)}
    return Attribute(name, family, "category", np.array([code[text] for text in texts]), levels)


def manifest_columns(
    manifest: Path, paths: Sequence[Path], *, base: Path, path_column: str, leave_out: Sequence[str]
) -> dict[str, list[str]]:
    """What else a manifest says of the files `paths`: the columns of its table except `leave_out`, in that order."""
    header, rows = read_table(manifest)
    at = find_column(manifest, header, path_column, "path_column")
    row_of = {
        Path(os.path.abspath(base / cells[at])): cells
        for _, cells in rows
        if len(cells) == len(header)
    }
    others = {
        name: k for k, name in enumerate(header) if name and k != at and name not in leave_out
    }
    return {name: [row_of[path][k] for path in paths] for name, k in others.items()}
