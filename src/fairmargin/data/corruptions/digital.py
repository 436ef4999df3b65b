"""Digital: what cameras, editors and encoders do to the pixels."""

from io import BytesIO

import numpy as np
from PIL import Image

from fairmargin.data.corruptions.pixels import Streams, at_level, to_bytes, to_unit

# added to V
BRIGHTNESS = {32: (0.05, 0.1, 0.15, 0.2, 0.3), 224: (0.1, 0.2, 0.3, 0.4, 0.5)}
# share of the differences from the mean that is left
CONTRAST = {32: (0.75, 0.5, 0.4, 0.3, 0.15), 224: (0.4, 0.3, 0.2, 0.1, 0.05)}
# (a, b) of S ← a·S + b; levels 1 and 2 take colour away
SATURATE = {
    32: ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
    224: ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)),
}
# quality
JPEG = {32: (80, 65, 58, 50, 40), 224: (25, 18, 15, 10, 7)}
# share of the resolution that is left
PIXELATE = {32: (0.95, 0.9, 0.85, 0.75, 0.65), 224: (0.6, 0.5, 0.4, 0.3, 0.25)}
# What hue 0, which grey has by convention, loses as S grows.
RED = np.array([0, 1, 1])


def brightness(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """V ← min(V + c, 1) in HSV

    All three channels are scaled alike, which keeps hue and saturation exactly.
    """
    c = at_level(BRIGHTNESS, images, level)
    x = to_unit(images)
    v = x.max(-1, keepdims=True)
    brighter = np.minimum(v + c, 1)
    return to_bytes(np.where(v > 0, x * (brighter / np.where(v > 0, v, 1)), brighter))


def contrast(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """c·(x − m) + m,   m: mean of the channel"""
    c = at_level(CONTRAST, images, level)
    x = to_unit(images)
    m = x.mean((1, 2), keepdims=True)
    return to_bytes(c * (x - m) + m)


def saturate(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """S ← clip(a·S + b) in HSV

    With hue and V = max(r, g, b) kept, a channel's distance from V grows in proportion.
    """
    a, b = at_level(SATURATE, images, level)
    x = to_unit(images)
    v = x.max(-1, keepdims=True)
    distance = v - x
    widest = distance.max(-1, keepdims=True)  # S·V
    s = widest / np.where(v > 0, v, 1)
    grown = (a * s + b).clip(0, 1)
    hue = np.where(widest > 0, distance / np.where(widest > 0, widest, 1), RED)
    return to_bytes(v * (1 - grown * hue))


def jpeg(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Compress as JPEG and read back."""
    quality = at_level(JPEG, images, level)
    return np.stack([_through_jpeg(image, quality) for image in images])


def pixelate(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Shrink to a share c of each side and enlarge again, both by the mean over boxes."""
    c = at_level(PIXELATE, images, level)
    height, width = images.shape[1:3]
    small, full = (int(width * c), int(height * c)), (width, height)
    box = Image.Resampling.BOX
    pixelated = [Image.fromarray(image).resize(small, box).resize(full, box) for image in images]
    return np.stack([np.asarray(image) for image in pixelated])


def original(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Change nothing: some biased sets have a class without a corruption of its own."""
    return images.copy()


def _through_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
