"""One image file into pixels of one size, whatever the file holds: or an error that names the file and the reason."""

import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fairmargin.checks import check_choice

ImageSize = int | tuple[int, int]  # one side of a square, or (height, width)
MODES = ("stretch", "crop", "pad")
# Named, because Pillow knows formats that start other programs (EPS runs Ghostscript).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
EXTENSIONS = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


class UnreadableImage(ValueError):
    """A file that cannot become pixels; `args` are (file, reason)."""

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


@dataclass(frozen=True)
class Decoder:
    """path → uint8 [3, H, W]. A value, so that it can be sent to worker processes.

    Args:
        size: one side of a square, or (height, width).
        mode: how another aspect ratio is met: "stretch" it, "crop" the middle, or "pad" with black.
    """

    size: ImageSize
    mode: str = "crop"

    def __post_init__(self) -> None:
        check_choice(self.mode, "mode", MODES)
        if min(self.shape) < 1:
            raise ValueError(
                f"an image needs at least one pixel in each direction; got size {self.size}"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return 3, height, width

    def __call__(self, path: Path) -> Tensor:
        return self.fit(open_rgb(path))

    def fit(self, image: Image.Image) -> Tensor:
        """uint8 [3, H, W] from a picture of any size and mode."""
        _, height, width = self.shape
        fitted = _fit(_rgb(image), width, height, self.mode)
        return (
            torch.from_numpy(np.array(fitted)).permute(2, 0, 1).contiguous()
        )  # [H, W, 3] → [3, H, W]


def open_rgb(path: Path) -> Image.Image:
    """The whole picture, upright and in 8-bit RGB; transparency is laid over white, 16-bit grey is scaled."""
    check_file(path)
    try:
        with Image.open(path, formats=FORMATS) as image:
            image.load()
            return _rgb(_upright(image))
    except UnidentifiedImageError:
        raise UnreadableImage(
            path, f"not an image that can be read ({', '.join(FORMATS)})"
        ) from None
    except (
        Exception
    ) as error:  # the readers of broken files fail in many ways; each becomes a reason
        raise UnreadableImage(
            path, f"cannot be decoded: {str(error) or type(error).__name__}"
        ) from error


def check_file(path: Path) -> None:
    """A regular file with something in it: opening a pipe or a device would wait for ever."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UnreadableImage(path, "no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UnreadableImage(path, getattr(error, "strerror", None) or str(error)) from None
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableImage(
            path, "a folder, not a file" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        )
    if found.st_size == 0:
        raise UnreadableImage(path, "an empty file (0 bytes)")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the pixels are loaded: broken metadata is no reason to lose a picture
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError(
            "floating-point pixels have no agreed range; save the image with 8 or 16 bits"
        )
    if image.mode.startswith("I"):  # 16 bits; some formats and versions of Pillow hold them in 32
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 65535:
            raise ValueError(
                "pixels beyond 16 bits have no agreed range; save the image with 8 or 16 bits"
            )
        return Image.fromarray(((grey.astype(np.uint32) + 128) // 257).astype(np.uint8)).convert(
            "RGB"
        )
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert(
            "RGB"
        )
    return image.convert("RGB")


def _fit(image: Image.Image, width: int, height: int, mode: str) -> Image.Image:
    method = Image.Resampling.BILINEAR  # antialiased when it shrinks
    if mode == "stretch":
        return image.resize((width, height), method)
    if mode == "crop":
        return ImageOps.fit(image, (width, height), method)
    scale = min(width / image.width, height / image.height)
    w, h = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    canvas = Image.new("RGB", (width, height))
    canvas.paste(image.resize((w, h), method), ((width - w) // 2, (height - h) // 2))
    return canvas
