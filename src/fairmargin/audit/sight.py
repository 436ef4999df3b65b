"""Look at every picture of a dataset once, and keep the few numbers that several parts need.

What is kept of a picture: a digest of its pixels, a small thumbnail, low frequencies, directions of
edges, and how light and sharp it is. Memory grows with these and not with the pictures.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fairmargin.audit.section import Progress, silent
from fairmargin.data.split import Data, FileSplit, Split, sample_names
from fairmargin.runtime.threads import one_thread

# Pixel values held at a time: several copies of them fit into the processor's cache.
AT_ONCE = 1 << 19
# Decoded bytes of files that are kept, because an audit looks at pictures more than once.
REMEMBERED = 512 << 20
# Sides of thumbnails, and of the grey pictures that frequencies and edges are taken from.
THUMBNAIL = 16
GREY = 32
# Frequencies along each side that are kept, with the constant one.
FREQUENCIES = 9
# Cells along each side and directions of the edges in each.
CELLS = 4
DIRECTIONS = 8
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Sight:
    """What is known of every picture of all splits, in the order train, valid, test.

    Args:
        split: [N] positions in `SPLITS`.
        position: [N] positions inside the split.
        labels: [N] positions in the dataset's class names.
        names: of the pictures; None where they have none.
        digests: of the pixels, [N] of 16 bytes.
        thumbnails: uint8 [N, 3·16·16].
        waves: float32 [N, 9·9] low frequencies of the brightness.
        edges: float32 [N, 4·4·8] strength of edges by place and direction.
        light: float32 [N, 3]: mean, darkest and lightest brightness, without the extreme hundredth.
        blur: float32 [N] logarithm of how little of the contrast is in details.
    """

    split: NDArray[np.int8]
    position: NDArray[np.int64]
    labels: NDArray[np.int64]
    names: tuple[str, ...] | None
    digests: NDArray[np.void]
    thumbnails: NDArray[np.uint8]
    waves: NDArray[np.float32]
    edges: NDArray[np.float32]
    light: NDArray[np.float32]
    blur: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.position)

    def name(self, k: int) -> str:
        """Return the picture's name; its split and position where it has none."""
        if self.names is not None:
            return self.names[k]
        return f"{SPLITS[self.split[k]]} {self.position[k]}"


def look(data: Data, chosen: dict[str, NDArray[np.int64]], progress: Progress = silent) -> Sight:
    """Look at pictures of all splits.

    Args:
        data: the dataset.
        chosen: positions to look at, by split.
        progress: called after each chunk.
    """
    parts, done = [], 0
    total = sum(len(index) for index in chosen.values())
    named = []
    for number, name in enumerate(SPLITS):
        split, index = getattr(data, name), chosen[name]
        if not len(index):
            continue

        def report(more: int, before: int = done) -> None:
            progress("comparing pictures", before + more, total)

        measured = _measured(split, torch.from_numpy(index), report)
        measured["split"] = np.full(len(index), number, np.int8)
        measured["position"] = index
        measured["labels"] = split.labels.numpy()[index]
        parts.append(measured)
        known = sample_names(split)
        named.append(None if known is None else [known[i] for i in index])
        done += len(index)
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    names: list[str] | None = []
    for some in named:
        names = None if names is None or some is None else names + some
    return Sight(names=None if names is None else tuple(names), **joined)


def remember(data: Data) -> Data:
    """Return the dataset with files decoded once, as far as memory allows.

    Args:
        data: any dataset; what is in memory already stays as it is.
    """
    room = [REMEMBERED]

    def of(split: Split) -> Split:
        if not isinstance(split, FileSplit):
            return split
        return replace(split, decode=_Remembering(split.decode, room))

    return replace(data, train=of(data.train), valid=of(data.valid), test=of(data.test))


class _Remembering:
    """Decodes a file once, while there is room.

    Args:
        decode: turns a file into pixels.
        room: bytes that are left, shared between several of these.
    """

    def __init__(self, decode: Callable[[Path], Tensor], room: list[int]) -> None:
        self.decode = decode
        self.room = room
        self.kept: dict[Path, Tensor] = {}

    def __call__(self, path: Path) -> Tensor:
        if path in self.kept:
            return self.kept[path]
        pixels = self.decode(path)
        if pixels.nbytes <= self.room[0]:
            self.room[0] -= pixels.nbytes
            self.kept[path] = pixels
        return pixels


def _measured(
    split: Split, index: Tensor, report: Callable[[int], None]
) -> dict[str, NDArray[np.generic]]:
    step = max(1, AT_ONCE // max(1, split.images(index[:1]).numel()))
    kept: dict[str, NDArray[np.generic]] = {}
    with one_thread():
        for start in range(0, len(index), step):
            images = split.images(index[start : start + step])
            found = _numbers(images)
            for name, values in found.items():
                # One block for all chunks keeps the memory whole.
                if name not in kept:
                    kept[name] = np.empty((len(index), *values.shape[1:]), values.dtype)
                kept[name][start : start + step] = values
            report(min(start + step, len(index)))
    return kept


def _numbers(images: Tensor) -> dict[str, NDArray[np.generic]]:
    """Measure uint8 images [n, C, H, W]; what is not red, green and blue is taken as grey."""
    x = images.float()
    rgb = x if x.shape[1] == 3 else x.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    weight = torch.tensor([0.299, 0.587, 0.114]) / 255
    grey = torch.einsum("nchw,c->nhw", rgb, weight)
    small = F.adaptive_avg_pool2d(rgb, THUMBNAIL).round().byte().flatten(1)
    even = _resized(grey, GREY)
    return {
        "digests": _digests(images),
        "thumbnails": small.numpy(),
        "waves": _waves(even).numpy(),
        "edges": _edges(even).numpy(),
        "light": _light(grey).numpy(),
        "blur": _blur(grey).numpy(),
    }


def _digests(images: Tensor) -> NDArray[np.void]:
    shape = str(tuple(images.shape[1:])).encode()
    found = b"".join(
        hashlib.blake2b(row.tobytes() + shape, digest_size=16).digest()
        for row in images.contiguous().numpy()
    )
    return np.frombuffer(found, "V16")


def _resized(grey: Tensor, side: int) -> Tensor:
    """Return [n, side, side]: means where pictures are larger, interpolated where smaller."""
    if tuple(grey.shape[1:]) == (side, side):
        return grey
    if min(grey.shape[1:]) >= side:
        return F.adaptive_avg_pool2d(grey[:, None], side)[:, 0]
    return F.interpolate(grey[:, None], (side, side), mode="bilinear", antialias=True)[:, 0]


@lru_cache(maxsize=1)
def _cosines() -> Tensor:
    """Return [FREQUENCIES, GREY], the first rows of a discrete cosine transform."""
    place = (torch.arange(GREY) + 0.5) * math.pi / GREY
    rows = torch.cos(torch.arange(FREQUENCIES)[:, None] * place)
    return rows * torch.where(torch.arange(FREQUENCIES) > 0, 2, 1)[:, None].sqrt() / GREY**0.5


def _waves(grey: Tensor) -> Tensor:
    cosines = _cosines()
    return (cosines @ grey @ cosines.T).flatten(1)


def _edges(grey: Tensor) -> Tensor:
    """Return the strength of edges in 4 × 4 cells and 8 directions, to a length of 1."""
    padded = F.pad(grey[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    right = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    strength = (right**2 + down**2).sqrt()
    turn = torch.atan2(down, right) / math.pi % 1 * DIRECTIONS
    low = turn.floor()
    share = turn - low
    low = low.long() % DIRECTIONS
    planes = torch.zeros(len(grey), DIRECTIONS, *grey.shape[1:])
    planes.scatter_(1, low[:, None], (strength * (1 - share))[:, None])
    planes.scatter_add_(1, (low[:, None] + 1) % DIRECTIONS, (strength * share)[:, None])
    cells = F.adaptive_avg_pool2d(planes, CELLS).flatten(1).sqrt()
    return cells / cells.norm(dim=1, keepdim=True).clamp_min(1e-6)


def _light(grey: Tensor) -> Tensor:
    pixels = grey.flatten(1)
    rank = max(1, pixels.shape[1] // 100)
    dark = pixels.kthvalue(rank, 1).values
    bright = -(-pixels).kthvalue(rank, 1).values
    return torch.stack([pixels.mean(1), dark, bright], 1)


def _blur(grey: Tensor) -> Tensor:
    """Return the logarithm of the Laplacian's variance against the brightness's."""
    if min(grey.shape[1:]) < 3:
        return torch.zeros(len(grey))
    middle = grey[:, 1:-1, 1:-1]
    around = grey[:, :-2, 1:-1] + grey[:, 2:, 1:-1] + grey[:, 1:-1, :-2] + grey[:, 1:-1, 2:]
    detail = (around - 4 * middle).flatten(1).var(1, correction=0)
    whole = middle.flatten(1).var(1, correction=0)
    return ((detail + 1e-6) / (whole + 1e-6)).log()
