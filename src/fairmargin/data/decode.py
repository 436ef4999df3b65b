"""Decode an image file, whatever it holds, into pixels of one size.

A file that cannot be decoded raises an error that names the file and the reason.
"""

import io
import math
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fairmargin.checks import check_choice
from fairmargin.data.members import is_member, open_bytes, size_of
from fairmargin.runtime.limits import IMAGE_KEY, problem_of_size

# One side of a square, or (height, width).
ImageSize = int | tuple[int, int]
Mode = Literal["stretch", "crop", "pad"]
# Named, because Pillow knows formats that start other programs (EPS runs Ghostscript).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# The first bytes of a TIFF, of either byte order.
TIFF = (b"II*\0", b"MM\0*")
EXTENSIONS = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


class UnreadableImage(ValueError):
    """A file that cannot become pixels; `args` are (file, reason)."""

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


@dataclass(frozen=True)
class Decoder:
    """Decodes a path into uint8 [3, H, W]. It is a plain value, so worker processes can have it.

    Args:
        size: one side of a square, or (height, width).
        mode: what to do with another aspect ratio: "stretch" the image, "crop" its middle, or
            "pad" it with black.
        largest: megapixels above which a picture is refused; by default
            `$FAIRMARGIN_LARGEST_IMAGE`, or 100. It is no part of how a picture is prepared.
    """

    size: ImageSize
    mode: Mode = "crop"
    largest: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_choice(self.mode, "mode", get_args(Mode))
        if min(self.shape) < 1:
            raise ValueError(
                f"an image needs at least one pixel in each direction; got size {self.size}"
            )
        if self.largest is not None and not 0 < self.largest < math.inf:
            raise ValueError(
                f"{IMAGE_KEY} must be a number of megapixels above 0; got {self.largest}"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (3, H, W) of every decoded image."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return 3, height, width

    def __call__(self, path: Path, content: bytes | None = None) -> Tensor:
        return self.fit(open_rgb(path, self.largest, content))

    def fit(self, image: Image.Image) -> Tensor:
        """uint8 [3, H, W] from a picture of any size and mode."""
        _, height, width = self.shape
        fitted = _fit(_rgb(image), width, height, self.mode)
        # [H, W, 3] → [3, H, W]
        return torch.from_numpy(np.array(fitted)).permute(2, 0, 1).contiguous()


def open_rgb(path: Path, largest: float | None = None, content: bytes | None = None) -> Image.Image:
    """Open the whole picture, upright and in 8-bit RGB.

    Transparency is laid over white, and 16-bit grey is scaled.

    Args:
        path: of a file, or of a member of a tar.
        largest: megapixels above which it is refused; see `Decoder`.
        content: what the file holds, if it has been read already.
    """
    if content is None:
        check_file(path)
    try:
        with opened(path, largest, content) as image:
            image.load()
            return _rgb(_upright(image))
    except (UnreadableImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise UnreadableImage(path, _unknown_kind(path)) from None
    except _NoAgreedRange as error:
        raise UnreadableImage(path, str(error)) from None
    # Pillow raises many kinds of errors for broken files.
    except Exception as error:
        reason = f"cannot be decoded: {str(error) or type(error).__name__}"
        raise UnreadableImage(path, reason) from error


@contextmanager
def opened(
    path: Path, largest: float | None = None, content: bytes | None = None
) -> Iterator[Image.Image]:
    """Open a picture of a known format, without its pixels; refuse one that is too large.

    Args:
        path: of a file, or of a member of a tar.
        largest: megapixels above which it is refused; see `Decoder`.
        content: what the file holds, if it has been read already.
    """
    usual = Image.MAX_IMAGE_PIXELS
    # Our limit counts, which can be raised, and not Pillow's.
    Image.MAX_IMAGE_PIXELS = None
    try:
        source = open_bytes(path) if content is None else io.BytesIO(content)
        image = Image.open(source, formats=FORMATS)
    finally:
        Image.MAX_IMAGE_PIXELS = usual
    with image:
        if wrong := problem_of_size(*image.size, largest):
            raise UnreadableImage(path, wrong)
        yield image


class _NoAgreedRange(ValueError):
    """Pixels of which nobody can say what is black and what is white."""


def _unknown_kind(path: Path) -> str:
    """Return why Pillow does not know a file: of a TIFF, that its pixels are of an unusual kind."""
    source = open_bytes(path)
    with source.open("rb") if isinstance(source, Path) else source as file:
        is_tiff = file.read(4) in TIFF
    if is_tiff:
        return (
            "a TIFF whose pixels cannot be read, such as floating-point ones in colour; "
            "save the image with 8 or 16 bits"
        )
    return f"not an image that can be read ({', '.join(FORMATS)})"


def check_file(path: Path) -> None:
    """Raise unless this is a regular file that is not empty.

    Opening a pipe or a device would wait for ever.
    """
    if is_member(path):
        if size_of(path) == 0:
            raise UnreadableImage(path, "an empty file (0 bytes)")
        return
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UnreadableImage(path, "no such file") from None
    # ValueError: the name holds a zero byte.
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableImage(path, reason) from None
    if stat.S_ISDIR(found.st_mode):
        raise UnreadableImage(path, "a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableImage(path, "not a regular file")
    if found.st_size == 0:
        raise UnreadableImage(path, "an empty file (0 bytes)")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    # The pixels are loaded; broken metadata is no reason to lose the picture.
    except Exception:
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise _NoAgreedRange(
            "floating-point pixels have no agreed range; save the image with 8 or 16 bits"
        )
    # 16 bits, which some formats and versions of Pillow hold in 32.
    if image.mode.startswith("I"):
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 65535:
            raise _NoAgreedRange(
                "pixels beyond 16 bits have no agreed range; save the image with 8 or 16 bits"
            )
        eight_bits = ((grey.astype(np.uint32) + 128) // 257).astype(np.uint8)
        return Image.fromarray(eight_bits).convert("RGB")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert("RGB")
    return image.convert("RGB")


def _fit(image: Image.Image, width: int, height: int, mode: Mode) -> Image.Image:
    # Antialiased when it shrinks.
    method = Image.Resampling.BILINEAR
    if mode == "stretch":
        return image.resize((width, height), method)
    if mode == "crop":
        return ImageOps.fit(image, (width, height), method)
    scale = min(width / image.width, height / image.height)
    w = max(1, round(image.width * scale))
    h = max(1, round(image.height * scale))
    canvas = Image.new("RGB", (width, height))
    canvas.paste(image.resize((w, h), method), ((width - w) // 2, (height - h) // 2))
    return canvas
