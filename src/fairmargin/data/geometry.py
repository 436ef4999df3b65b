"""Images on disk: which files are images, and the fixed geometry in which each published dataset wants them decoded.

Random crops happen later, on whole batches (`views`). Note: where a paper crops the original file at random, the file
is first brought to a fixed square here, and its crops come from that square.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fairmargin.data.decode import FORMATS, UnreadableImage, check_file

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def image_files(folder: Path) -> list[Path]:
    """The images directly inside a folder, sorted by name; hidden files and other kinds are passed over."""
    with os.scandir(folder) as entries:
        names = [
            e.name
            for e in entries
            if e.name.lower().endswith(IMAGE_SUFFIXES) and not e.name.startswith(".")
        ]
    return [folder / name for name in sorted(names)]


@dataclass(frozen=True)
class Geometry:
    """Decode a file to uint8 [3, side, side]: centre square, bilinear resize, centre crop, in this order.

    resize: the shorter side becomes this long and the proportions stay; with `stretch` both sides do.
    crop: side of the centre crop after resizing; the whole square by default.
    square: side of a centre crop of the file as it is, before resizing.
    """

    resize: int
    crop: int | None = None
    stretch: bool = False
    square: int | None = None

    @property
    def side(self) -> int:
        return self.resize if self.crop is None else self.crop

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what comes out."""
        return 3, self.side, self.side

    def __call__(self, path: Path) -> Tensor:
        return self.fit(_read(path))

    def fit(self, image: Image.Image) -> Tensor:
        """uint8 [3, side, side] from a picture of any size and mode."""
        image = image.convert("RGB")
        if self.square is not None:
            image = _centre(image, self.square)
        image = _centre(_to_size(image, self.resize, self.stretch), self.side)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()  # [3, side, side]


def _read(path: Path) -> Image.Image:
    """Note: as in the public codes, the picture is not turned by its EXIF data; that is why this is not `open_rgb`."""
    check_file(path)
    try:
        with Image.open(path, formats=FORMATS) as file:
            return file.convert("RGB")
    except (
        Exception
    ) as error:  # the readers of broken files fail in many ways; each becomes a reason
        raise UnreadableImage(
            path, f"cannot be decoded ({error}); copy it again from its archive"
        ) from error


def _to_size(image: Image.Image, resize: int, stretch: bool) -> Image.Image:
    width, height = image.size
    short = min(width, height)
    size = (resize, resize) if stretch else (resize * width // short, resize * height // short)
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


def _centre(image: Image.Image, side: int) -> Image.Image:
    """Black outside, should the image be smaller."""
    left, top = (round((length - side) / 2) for length in image.size)
    return image.crop((left, top, left + side, top + side))
