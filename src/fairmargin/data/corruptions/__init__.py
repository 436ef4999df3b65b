"""Image corruptions at five levels (Hendrycks & Dietterich, ICLR 2019) on whole batches.

Every corruption is a pure function of uint8 images [N, H, W, 3], a level and one random stream for
each image. Parameters are those of CIFAR-10-C for small images and of ImageNet-C for large ones.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fairmargin.checks import check_choice
from fairmargin.data.corruptions import blur, digital, elastic, noise, spatter, weather
from fairmargin.data.corruptions.pixels import Streams, check_level
from fairmargin.data.corruptions.weather import frost_source

__all__ = ["CORRUPTIONS", "corrupt", "frost_source"]

Corruption = Callable[[np.ndarray, int, Streams], np.ndarray]
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian-noise": noise.gaussian_noise,
    "shot-noise": noise.shot_noise,
    "impulse-noise": noise.impulse_noise,
    "speckle-noise": noise.speckle_noise,
    "gaussian-blur": blur.gaussian_blur,
    "glass-blur": blur.glass_blur,
    "defocus-blur": blur.defocus_blur,
    "motion-blur": blur.motion_blur,
    "zoom-blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "saturate": digital.saturate,
    "jpeg": digital.jpeg,
    "pixelate": digital.pixelate,
    "elastic": elastic.elastic,
    "spatter": spatter.spatter,
    "original": digital.original,
}
# Pixels at a time: enough for fast array operations, few enough for temporaries to stay cached.
CHUNK = 2**18


def corrupt(
    images: np.ndarray,
    name: str,
    level: int,
    *,
    seed: int = 0,
    index: np.ndarray | None = None,
    frost_dir: Path | str | None = None,
) -> np.ndarray:
    """Return the images under one corruption, uint8 [N, H, W, 3].

    Args:
        images: uint8 [N, H, W, 3].
        name: one of CORRUPTIONS.
        level: 1 (weakest) to 5.
        seed: random seed, together with `index`.
        index: the number of each image, [N]; 0 … N−1 by default. The draws for an image depend on
            `seed` and its number only, not on the batch it comes in.
        frost_dir: folder with the frost photographs of hendrycks/robustness; without it frost is
            procedural.
    """
    check_choice(name, "corruption", CORRUPTIONS)
    check_level(level)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(
            f"images must be uint8 [N, H, W, 3]; got {images.dtype} {list(images.shape)}"
        )
    numbers = np.arange(len(images)) if index is None else np.asarray(index)
    is_whole = np.issubdtype(numbers.dtype, np.integer)
    valid = numbers.size == 0 or (is_whole and numbers.min() >= 0)
    if numbers.shape != (len(images),) or not valid:
        raise ValueError(
            f"index must give one integer ≥ 0 for each of the {len(images)} images; "
            f"got {numbers.tolist()[:5]} …"
        )
    apply = CORRUPTIONS[name]
    if name == "frost" and frost_dir is not None:
        apply = partial(weather.frost, photographs=weather.read_photographs(frost_dir))
    out = np.empty_like(images)
    step = max(1, CHUNK // max(1, images.shape[1] * images.shape[2]))
    for start in range(0, len(images), step):
        part = slice(start, start + step)
        out[part] = apply(images[part], level, _streams(seed, numbers[part]))
    return out


def _streams(seed: int, index: np.ndarray) -> list[np.random.Generator]:
    """One random stream for each image."""
    seeds = [np.random.SeedSequence(seed, spawn_key=(i,)) for i in index.tolist()]
    return [np.random.default_rng(own) for own in seeds]
