"""Which files are images, and the fixed geometry in which each published dataset is decoded.

Random crops happen later, on whole batches (`views`). Note: where a paper crops the original file
at random, the file is first brought to a fixed square here, and its crops come from that square.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fairmargin.data.decode import UnreadableImage, check_file, opened

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def image_files(folder: Path) -> list[Path]:
    """List the images directly inside a folder, sorted by name.

    Hidden files and files of other kinds are passed over.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    shown = [name for name in names if not name.startswith(".")]
    return [folder / name for name in sorted(shown) if name.lower().endswith(IMAGE_SUFFIXES)]


@dataclass(frozen=True)
class Geometry:
    """Decode a file to uint8 [3, side, side]: centre square, bilinear resize, centre crop.

    Args:
        resize: length of the shorter side after resizing, proportions kept; of both with `stretch`.
        crop: side of the centre crop after resizing; the whole square by default.
        stretch: resize both sides, whatever the proportions.
        square: side of a centre crop of the file as it is, before resizing.
    """

    resize: int
    crop: int | None = None
    stretch: bool = False
    square: int | None = None

    @property
    def side(self) -> int:
        """Side of the decoded image."""
        return self.resize if self.crop is None else self.crop

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what comes out."""
        return 3, self.side, self.side

    def __call__(self, path: Path, content: bytes | None = None) -> Tensor:
        return self.fit(_read(path, content))

    def fit(self, image: Image.Image) -> Tensor:
        """uint8 [3, side, side] from a picture of any size and mode."""
        image = image.convert("RGB")
        if self.square is not None:
            image = _centre(image, self.square)
        image = _centre(_to_size(image, self.resize, self.stretch), self.side)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()  # [3, side, side]


def _read(path: Path, content: bytes | None) -> Image.Image:
    """Note: as in the public codes, EXIF rotation is ignored, unlike in `decode.open_rgb`."""
    if content is None:
        check_file(path)
    try:
        with opened(path, content=content) as file:
            return file.convert("RGB")
    except UnreadableImage:
        raise
    # Pillow raises many kinds of errors for broken files.
    except Exception as error:
        reason = f"cannot be decoded ({error}); copy it again from its archive"
        raise UnreadableImage(path, reason) from error


def _to_size(image: Image.Image, resize: int, stretch: bool) -> Image.Image:
    width, height = image.size
    short = min(width, height)
    size = (resize * width // short, resize * height // short)
    if stretch:
        size = (resize, resize)
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


def _centre(image: Image.Image, side: int) -> Image.Image:
    """Cut out the central square; black outside, if the image is smaller."""
    left, top = (round((length - side) / 2) for length in image.size)
    return image.crop((left, top, left + side, top + side))
