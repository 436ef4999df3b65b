"""Simple attributes that may give the label away, measured without knowing what a picture shows.

Pictures are read in chunks and only numbers are kept, so memory grows with the numbers and not with
the pictures.
To add an image statistic: a function from `Pictures` to [n, columns], and a row in `STATISTICS`.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fairmargin.audit.section import Progress, silent
from fairmargin.data.decode import opened
from fairmargin.data.members import size_of
from fairmargin.data.split import FileSplit, Split
from fairmargin.data.table import find_column, natural_order, read_table
from fairmargin.runtime.threads import one_thread

# Pixel values held at a time: several copies of them fit into the processor's cache.
AT_ONCE = 1 << 19
# Change of brightness from one pixel to the next that makes an edge.
EDGE = 0.1
# Pieces of each side of the border.
PIECES = 7
# Levels of a channel for the commonest colour.
COARSE = 4
# What clusters are made of, and the pixels along its side.
THUMBNAILS = "thumbnails"
SIDE = 8
# A metadata column with more different numbers than this is a number, not a category.
NUMBERS_FROM = 20
# A column with more different values per sample than this names samples and is no attribute.
MOST_LEVELS = 0.2
# What an empty cell of a metadata column is called.
EMPTY = "(empty)"
# What EXIF says of a file, and the number of its tag.
EXIF = {"camera": 0x0110, "maker": 0x010F, "software": 0x0131, "orientation": 0x0112}

Kind = Literal["colour", "number", "several", "category"]


@dataclass(frozen=True)
class Attribute:
    """One value, or a few, for every sample.

    Args:
        name: what people read.
        family: of attributes that are alike, such as "colour".
        kind: "colour" is red, green and blue from 0 to 1; "several" are numbers; "category" are
            positions in `levels`.
        values: float32 [N, columns]; of a category int64 [N].
        levels: names of the values of a category.
        sees_shape: True if it may see the object itself, so that it is never called a shortcut.
    """

    name: str
    family: str
    kind: Kind
    values: np.ndarray
    levels: tuple[str, ...] = ()
    sees_shape: bool = False


class Pictures:
    """Some pictures, and what several statistics need of them.

    Args:
        images: uint8 [n, C, H, W]; what is not red, green and blue is taken as grey.
    """

    def __init__(self, images: Tensor) -> None:
        x = images.float() / 255
        self.rgb = x if x.shape[1] == 3 else x.mean(1, keepdim=True).expand(-1, 3, -1, -1)

    @cached_property
    def grey(self) -> Tensor:
        """Brightness [n, H, W], with the colours weighted as the eye does."""
        return torch.einsum("nchw,c->nhw", self.rgb, torch.tensor([0.299, 0.587, 0.114]))

    @cached_property
    def mean(self) -> Tensor:
        """Mean colour [n, 3]."""
        return self.rgb.mean((2, 3))

    @property
    def border(self) -> int:
        """Width of the border in pixels: a fourteenth of the shorter side.

        A wider border would see what stands in the middle.
        """
        return max(1, min(self.rgb.shape[2:]) // 14)

    @cached_property
    def ring(self) -> Tensor:
        """Pixels of the border, [n, 3, P]."""
        w = self.border
        if min(self.rgb.shape[2:]) <= 2 * w:
            return self.rgb.flatten(2)
        rows = torch.cat([self.rgb[:, :, :w], self.rgb[:, :, -w:]], 2).flatten(2)
        columns = torch.cat([self.rgb[:, :, w:-w, :w], self.rgb[:, :, w:-w, -w:]], 3).flatten(2)
        return torch.cat([rows, columns], 2)

    @cached_property
    def chroma(self) -> Tensor:
        """Distance of each pixel from grey, [n, H, W]."""
        return self.rgb.amax(1) - self.rgb.amin(1)


def background_colour(p: Pictures) -> Tensor:
    """Return the median colour of the border.

    The median keeps a flat background exact where the object touches it.
    """
    return p.ring.median(2).values


def commonest_colour(p: Pictures) -> Tensor:
    """Return the middle of the fullest of 4 × 4 × 4 boxes of colours."""
    level = (p.rgb * COARSE).long().clamp(max=COARSE - 1)  # [n, 3, H, W]
    code = ((level[:, 0] * COARSE + level[:, 1]) * COARSE + level[:, 2]).flatten(1)
    n, boxes = len(code), COARSE**3
    offset = boxes * torch.arange(n)[:, None]
    sizes = torch.bincount((code + offset).flatten(), minlength=n * boxes).view(n, boxes)
    fullest = sizes.argmax(1)
    parts = torch.stack([fullest // COARSE**2, fullest // COARSE % COARSE, fullest % COARSE], 1)
    return (parts + 0.5) / COARSE


def background_texture(p: Pictures) -> Tensor:
    """Return the deviation of the border's pixels, averaged over the channels."""
    return p.ring.std(2, correction=0).mean(1, keepdim=True)


def middle_against_border(p: Pictures) -> Tensor:
    """Return the mean colour of the middle minus that of the border."""
    height, width = p.rgb.shape[2:]
    middle = p.rgb[:, :, height // 4 : height - height // 4, width // 4 : width - width // 4]
    return middle.mean((2, 3)) - p.ring.mean(2)


def border_layout(p: Pictures) -> Tensor:
    """Return brightness and colourfulness of seven pieces of each side of the border."""
    both = torch.stack([p.grey, p.chroma], 1)  # [n, 2, H, W]
    w = p.border
    strips = both[:, :, :w], both[:, :, -w:], both[:, :, :, :w].mT, both[:, :, :, -w:].mT
    return torch.cat([F.adaptive_avg_pool2d(strip, (1, PIECES)).flatten(1) for strip in strips], 1)


def hue(p: Pictures) -> Tensor:
    """Return the direction of the mean colour on the wheel as cosine and sine; 0 and 0 for grey."""
    r, g, b = p.mean.unbind(1)
    wheel = torch.stack([r - (g + b) / 2, math.sqrt(3) / 2 * (g - b)], 1)
    length = wheel.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-3, wheel / length, 0)


def saturation(p: Pictures) -> Tensor:
    """Return the mean distance of the pixels from grey."""
    return p.chroma.mean((1, 2))[:, None]


def brightness(p: Pictures) -> Tensor:
    """Return the mean brightness."""
    return p.grey.mean((1, 2))[:, None]


def contrast(p: Pictures) -> Tensor:
    """Return the deviation of the brightness."""
    return p.grey.std((1, 2), correction=0)[:, None]


def tonal_range(p: Pictures) -> Tensor:
    """Return the darkest and the lightest spot, each a mean over 3 × 3 pixels."""
    side = min(3, *p.grey.shape[1:])
    spots = F.avg_pool2d(p.grey[:, None], side, 1).flatten(1)
    return torch.stack([spots.amin(1), spots.amax(1)], 1)


def sharpness(p: Pictures) -> Tensor:
    """Return the logarithm of the variance of the Laplacian, which blur lowers."""
    if min(p.grey.shape[1:]) < 3:
        return torch.zeros(len(p.grey), 1)
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]).view(1, 1, 3, 3)
    laplacian = F.conv2d(p.grey[:, None], kernel).flatten(1)
    return (laplacian.var(1, correction=0) + 1e-6).log()[:, None]


def edge_density(p: Pictures) -> Tensor:
    """Return the share of pixels where the brightness changes steeply."""
    down = p.grey[:, 1:, :-1] - p.grey[:, :-1, :-1]
    right = p.grey[:, :-1, 1:] - p.grey[:, :-1, :-1]
    steep = (down**2 + right**2) > EDGE**2
    # A picture one pixel wide has no edges, and a mean of nothing is NaN.
    return steep.float().flatten(1).mean(1, keepdim=True).nan_to_num(0.0)


@dataclass(frozen=True)
class Statistic:
    """A number, or a few, that a function finds in pictures."""

    family: str
    kind: Kind
    of: Callable[[Pictures], Tensor]


# The simplest first: of two that tell the label equally well, the first is ranked higher.
STATISTICS: dict[str, Statistic] = {
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
    """Measure every row of `STATISTICS`; return it with thumbnails, float32 [N, 3·8·8].

    Args:
        split: of the pictures.
        index: [N] positions in the split.
        progress: called after each chunk.
    """
    measures = {name: statistic.of for name, statistic in STATISTICS.items()}
    measures[THUMBNAILS] = _thumbnail
    step = max(1, AT_ONCE // max(1, split.images(index[:1]).numel()))
    kept: dict[str, Tensor] = {}
    with one_thread():
        for start in range(0, len(index), step):
            pictures = Pictures(split.images(index[start : start + step]))
            for name, measure in measures.items():
                values = measure(pictures)
                # One block for all chunks: small pieces kept between large ones that are freed
                # would scatter the memory.
                if name not in kept:
                    kept[name] = torch.empty(len(index), values.shape[1])
                kept[name][start : start + step] = values
            progress("looking at pictures", min(start + step, len(index)), len(index))
    attributes = [
        Attribute(name, statistic.family, statistic.kind, kept[name].numpy())
        for name, statistic in STATISTICS.items()
    ]
    return attributes, kept[THUMBNAILS].numpy()


def _thumbnail(p: Pictures) -> Tensor:
    return F.adaptive_avg_pool2d(p.rgb, SIDE).flatten(1)


def file_attributes(split: Split, index: Tensor, progress: Progress = silent) -> list[Attribute]:
    """Measure size, shape, type, bytes and EXIF of files; empty if the pictures are not files.

    Args:
        split: of the pictures.
        index: [N] positions in the split.
        progress: called now and then.
    """
    if not isinstance(split, FileSplit):
        return []
    facts = np.empty((len(index), 3), np.float32)
    kinds = []
    written: dict[str, list[str]] = {name: [] for name in EXIF}
    for row, i in enumerate(index.tolist()):
        path = split.paths[i]
        # This reads the header only: there is nothing that a limit would have to keep out.
        with opened(path, math.inf) as image:
            facts[row] = *image.size, math.log10(size_of(path))
            tags = _tags(image)
        for name, tag in EXIF.items():
            written[name].append(str(tags.get(tag, "")).strip("\0 ") or EMPTY)
        kinds.append(path.suffix.lower())
        if row % 256 == 255 or row + 1 == len(index):
            progress("looking at files", row + 1, len(index))
    width, height = facts[:, :1], facts[:, 1:2]
    return [
        Attribute("picture size", "file", "several", facts[:, :2]),
        Attribute("aspect ratio", "file", "number", width / height),
        Attribute("file size", "file", "number", facts[:, 2:]),
        _category("file type", "file", kinds),
        *(_category(name, "file", texts) for name, texts in written.items() if _says(texts)),
    ]


def _tags(image: Image.Image) -> Mapping[int, object]:
    """What EXIF says of a picture; nothing if it is broken, as for whoever decodes it."""
    try:
        return image.getexif()
    # Pillow raises many kinds of errors for broken metadata.
    except Exception:
        return {}


def _says(texts: Sequence[str]) -> bool:
    """Return True if a text about files differs between some and does not name each."""
    return 2 <= len(set(texts)) <= max(MOST_LEVELS * len(texts), 2)


def metadata_attributes(columns: Mapping[str, Sequence[str]]) -> tuple[list[Attribute], list[str]]:
    """Return (an attribute for each column, sentences about columns that are left out).

    Args:
        columns: the texts of each column, one for each sample. A column becomes a number or a
            category.
    """
    found: list[Attribute] = []
    left_out: list[str] = []
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
                f'column "{name}": {len(distinct):,} different values, '
                "a name rather than an attribute"
            )
        else:
            found.append(_category(name, "metadata", texts))
    return found, left_out


def _numbers(texts: Sequence[str]) -> np.ndarray | None:
    """Return float32 [N], empty cells below all others; None if some text is no finite number."""
    filled = [text for text in texts if text != EMPTY]
    try:
        known = np.array([float(text) for text in filled], np.float64)
    except ValueError:
        return None
    if not len(known) or not np.isfinite(known).all():
        return None
    values = np.full(len(texts), math.nan)
    values[[text != EMPTY for text in texts]] = known
    return np.nan_to_num(values, nan=2 * known.min() - known.max() - 1).astype(np.float32)


def _category(name: str, family: str, texts: Sequence[str]) -> Attribute:
    levels = natural_order(texts)
    code = {level: k for k, level in enumerate(levels)}
    return Attribute(name, family, "category", np.array([code[text] for text in texts]), levels)


def manifest_columns(
    manifest: Path, paths: Sequence[Path], *, base: Path, path_column: str, leave_out: Sequence[str]
) -> dict[str, list[str]]:
    """Return the other columns of a manifest, one text for each of the files `paths`.

    Args:
        manifest: the table.
        paths: of the files, in the order that is wanted.
        base: folder that paths in the table start from.
        path_column: name of the column with the paths.
        leave_out: names of columns that are not wanted.
    """
    header, rows = read_table(manifest)
    at = find_column(manifest, header, path_column, "path_column")
    row_of = {}
    for _, cells in rows:
        if len(cells) == len(header):
            row_of[Path(os.path.abspath(base / cells[at]))] = cells
    wanted = [k for k, name in enumerate(header) if name and k != at and name not in leave_out]
    others = {header[k]: k for k in wanted}
    return {name: [row_of[path][k] for path in paths] for name, k in others.items()}
