"""Image corruptions at five levels (Hendrycks & Dietterich, ICLR 2019) on whole batches.

Every corruption is a pure function of uint8 images [N, H, W, 3], a level and one random stream for each image.
Parameters are those of CIFAR-10-C for small images and of ImageNet-C for large ones.
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
CHUNK = (
    2**18
)  # pixels at a time: enough to vectorise over, small enough for temporaries to stay near the processor


def corrupt(
    images: np.ndarray,
    name: str,
    level: int,
    *,
    seed: int = 0,
    index: np.ndarray | None = None,
    frost_dir: Path | str | None = None,
) -> np.ndarray:
    """The images under one corruption, uint8 [N, H, W, 3].

    Args:
        images: uint8 [N, H, W, 3].
        name: one of CORRUPTIONS.
        level: 1 (weakest) to 5.
        seed: of all randomness, together with `index`.
        index: [N] who each image is, 0 … N−1 unless told. The draws for an image depend on `seed` and its index only,
            not on the batch it comes in.
        frost_dir: folder with the frost photographs of hendrycks/robustness; without it frost is procedural.
    """
    check_choice(name, "corruption", CORRUPTIONS)
    check_level(level)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(
            f"images must be uint8 [N, H, W, 3]; got {images.dtype} {list(images.shape)}"
        )
    who = np.arange(len(images)) if index is None else np.asarray(index)
    if who.shape != (len(images),) or (
        len(who) and not (np.issubdtype(who.dtype, np.integer) and who.min() >= 0)
    ):
        raise ValueError(
            f"index must give one integer ≥ 0 for each of the {len(images)} images; got {who.tolist()[:5]} …"
        )
    apply = CORRUPTIONS[name]
    if name == "frost" and frost_dir is not None:
        apply = partial(weather.frost, photographs=weather.read_photographs(frost_dir))
    out = np.empty_like(images)
    step = max(1, CHUNK // max(1, images.shape[1] * images.shape[2]))
    for start in range(0, len(images), step):
        part = slice(start, start + step)
        out[part] = apply(images[part], level, _streams(seed, who[part]))
    return out


def _streams(seed: int, index: np.ndarray) -> list[np.random.Generator]:
    return [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(i,))) for i in index.tolist()
    ]
