"""Noise: every entry of an image (pixel and channel) is disturbed independently."""

import numpy as np

from fairmargin.data.corruptions.pixels import Streams, at_level, to_bytes, to_unit

# standard deviation
GAUSSIAN = {32: (0.04, 0.06, 0.08, 0.09, 0.10), 224: (0.08, 0.12, 0.18, 0.26, 0.38)}
# photons of a white pixel
SHOT = {32: (500, 250, 100, 75, 50), 224: (60, 25, 12, 5, 3)}
# share of entries hit
IMPULSE = {32: (0.01, 0.02, 0.03, 0.05, 0.07), 224: (0.03, 0.06, 0.09, 0.17, 0.27)}
# standard deviation at white
SPECKLE = {32: (0.06, 0.10, 0.12, 0.16, 0.20), 224: (0.15, 0.20, 0.35, 0.45, 0.60)}


def gaussian_noise(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """x + c·n,   n ~ N(0, 1)"""
    c = at_level(GAUSSIAN, images, level)
    return to_bytes(to_unit(images) + c * _normal(images, random))


def shot_noise(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Poisson(c·x) / c"""
    c = at_level(SHOT, images, level)
    rates = c * to_unit(images)
    photons = [r.poisson(rate) for r, rate in zip(random, rates, strict=True)]
    return to_bytes(np.stack(photons) / c)


def impulse_noise(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """Salt and pepper: 0 with probability c/2, 255 with probability c/2, else untouched."""
    c = at_level(IMPULSE, images, level)
    u = np.stack([r.random(images.shape[1:]) for r in random])
    return np.where(u < c / 2, 0, np.where(u < c, 255, images)).astype(np.uint8)


def speckle_noise(images: np.ndarray, level: int, random: Streams) -> np.ndarray:
    """x + c·x·n,   n ~ N(0, 1)"""
    c = at_level(SPECKLE, images, level)
    x = to_unit(images)
    return to_bytes(x + c * x * _normal(images, random))


def _normal(images: np.ndarray, random: Streams) -> np.ndarray:
    return np.stack([r.standard_normal(images.shape[1:]) for r in random])
