"""Weather: something between the camera and the scene."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from fairmargin.data.corruptions.blur import line_blur, zoom_matrix
from fairmargin.data.corruptions.pixels import Streams, at_level, published_size, to_bytes, to_unit
from fairmargin.data.corruptions.plasma import plasma

# mean and deviation of the flakes, their size, threshold, blur radius and σ, weight of the scene's
# colours
SNOW = {
    32: (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    ),
    224: (
        (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
    ),
}
# weight of the image, of the frost
FROST = {
    32: ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    224: ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
}
# thickness, decay of the plasma map
FOG = {
    32: ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
    224: ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
}
LUMA = np.array([0.299, 0.587, 0.114])
# A sixth photograph comes with these; the published sets never drew it.
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
# Of the photographs, before a crop of the image's size.
REDUCTION = {32: 5, 224: 1}
# Colours of the procedural frost.
GLASS = np.array([25, 35, 50])
ICE = np.array([225, 240, 255])


def snow(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """w·x + (1−w)·max(x, 1.5·grey + ½) + flakes + flakes rotated by 180°"""
    mean, deviation, zoom, threshold, radius, sigma, w = at_level(SNOW, images, level)
    x = to_unit(images)
    height, width = images.shape[1:3]
    flakes = np.stack([r.normal(mean, deviation, (height, width)) for r in random])
    angle = np.array([r.uniform(-135, -45) for r in random])
    flakes = zoom_matrix(height, zoom) @ flakes @ zoom_matrix(width, zoom).T
    flakes[flakes < threshold] = 0
    flakes = line_blur(to_unit(to_bytes(flakes)), angle, radius, sigma)
    pale = np.maximum(x, 1.5 * (x @ LUMA)[..., None] + 0.5)
    return to_bytes(w * x + (1 - w) * pale + (flakes + flakes[:, ::-1, ::-1])[..., None])


def frost(
    images: np.ndarray, level: int, random: Streams, photographs: Sequence[np.ndarray] | None = None
) -> np.ndarray:
    """a·x + b·frost, with a random cut of a random photograph, or with `ice` if there are none.

    Args:
        photographs: uint8 [H, W, 3] each.
    """
    a, b = at_level(FROST, images, level)
    height, width = images.shape[1:3]
    if photographs is None:
        layer = ice(height, width, random)
    else:
        step = REDUCTION[published_size(images)]
        # Bilinear scaling by 1/5 without antialiasing, as in the published sets, takes the middle
        # of five pixels.
        small = [photograph[step // 2 :: step, step // 2 :: step] for photograph in photographs]
        layer = np.stack([_cut(small[r.integers(len(small))], height, width, r) for r in random])
    return (a * images + b * layer).clip(0, 255).astype(np.uint8)


def fog(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """(x + c·plasma) · m/(m + c),   m = max x"""
    c, decay = at_level(FOG, images, level)
    x = to_unit(images)
    height, width = images.shape[1:3]
    m = x.max((1, 2, 3), keepdims=True)
    return to_bytes((x + c * plasma(height, width, decay, random)[..., None]) * m / (m + c))


def ice(height: int, width: int, random: Streams) -> np.ndarray:
    """Draw bluish-white veins over a dark pane, [N, height, width, 3] on the 0–255 scale.

    Note: a substitute for the frost photographs of CIFAR-10-C and ImageNet-C, which are other
    people's pictures and not part of this package. Do not compare images made with it with
    published ones.

    Args:
        random: one stream for each of the N images.
    """
    cover = plasma(height, width, 2.0, random)
    veins = plasma(height, width, 1.5, random)
    # 1 along the contour lines of a rough map.
    ridge = 1 - 2 * np.abs(veins - 0.5)
    white = (1.6 * cover * ridge**2).clip(0, 1)[..., None]
    return GLASS + (ICE - GLASS) * white


def frost_source(frost_dir: Path | str | None) -> Literal["photographs", "procedural"]:
    """Return what `frost` will be made of, for the record of a dataset.

    Args:
        frost_dir: folder with the photographs; None for none.
    """
    if frost_dir is None:
        return "procedural"
    # Fails now rather than later if a photograph is missing.
    _paths(frost_dir)
    return "photographs"


def read_photographs(frost_dir: Path | str) -> list[np.ndarray]:
    """Read the frost photographs of a folder, uint8 [H, W, 3] each.

    Args:
        frost_dir: folder that holds all of PHOTOGRAPHS.
    """
    return [np.asarray(Image.open(path).convert("RGB")) for path in _paths(frost_dir)]


def _paths(frost_dir: Path | str) -> list[Path]:
    paths = [Path(frost_dir) / name for name in PHOTOGRAPHS]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"frost_dir {str(frost_dir)!r} has no {', '.join(missing)}; put the frost photographs "
            "of hendrycks/robustness there, or leave frost_dir out to use the procedural frost"
        )
    return paths


def _cut(photograph: np.ndarray, height: int, width: int, r: np.random.Generator) -> np.ndarray:
    full_height, full_width = photograph.shape[:2]
    if full_height < height or full_width < width:
        raise ValueError(
            f"a frost photograph of {full_height}×{full_width} pixels (after scaling) is too small "
            f"for images of {height}×{width}; use larger photographs, or leave frost_dir out"
        )
    top = r.integers(full_height - height + 1)
    left = r.integers(full_width - width + 1)
    return photograph[top : top + height, left : left + width]
