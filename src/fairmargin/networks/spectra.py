"""Transforms between the pixels of images or kernels and halves of their spectra.

A transform is two products with small matrices of cosines and sines, along one axis and then the
other; v and −v share theirs. Real images need only the frequencies u = 0 … L/2. With pixels in the
memory order [H, W, C, N] nothing needs to be rearranged. `spectral.py` has the notation.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

Complex = tuple[Tensor, Tensor]  # real and imaginary part
# Numbers of a row transformed at once: few enough to stay in the cache.
CHUNK = 8192


class Transform(NamedTuple):
    """From pixels [h, w] to half a spectrum [U, V], and by the transposed matrices back.

    e^(±i(up + vq)) = (cos up ± i sin up)(cos vq ± i sin vq). Rows r + is = Σ_p x (cos up ± i sin
    up) have the columns

        X(u, v)  = (r·cos vq ∓ s·sin vq) + i (s·cos vq ± r·sin vq)
        X(u, −v) = (r·cos vq ± s·sin vq) + i (s·cos vq ∓ r·sin vq)

    so that v and −v share their products: half of the work, then one sum and one difference.
    """

    rows: Tensor  # [2U, h], cos and ±sin in turn
    # [2, V, w]: cos of v = 0 … V/2 above ±sin of the v that have a −v, for r; above ∓sin, for s.
    columns: Tensor


class Transforms(NamedTuple):
    """The transforms of one convolution, and the sizes of its spectra."""

    image: Transform  # A
    kernel: Transform
    result: Transform  # Sᵀ
    frequencies: int  # U, of u
    columns: int  # V, of v
    area: int  # pixels with the zeros behind them


class Spectrum:
    """Room for the spectra of all v at one u, of P × Q images.

    Args:
        like: tensor whose type and device it takes.
    """

    def __init__(self, like: Tensor, v: int, p: int, q: int) -> None:
        self.values = like.new_empty(2, v, p, q)
        self.flat = self.values.flatten(2)
        half = v // 2 + 1
        (r, s), (minus_s, minus_r) = self.values[:, :half], self.values[:, half:]
        # (real, imaginary) of v = 0 … V/2, and of the −v.
        self.halves: tuple[Complex, Complex] = (r, s), (minus_r, minus_s)
        paired = v - half
        self.pairs = (r[1 : 1 + paired], minus_r), (s[1 : 1 + paired], minus_s)

    def read(self, rows: Tensor, by: Transform) -> None:
        """Fill it from the rows [2, w, PQ] of one u."""
        torch.bmm(by.columns, rows, out=self.flat)
        self._add_and_subtract()

    def write(self, rows: Tensor, by: Transform) -> None:
        """Write rows, the adjoint of `read`; the spectrum is lost."""
        self._add_and_subtract()
        torch.bmm(by.columns.mT, self.flat, out=rows)

    def _add_and_subtract(self) -> None:
        """(a, b) → (a + b, a − b) for the terms with cos and with sin of each v, in place.

        It is its own adjoint.
        """
        for a, b in self.pairs:
            a += b
            torch.sub(a, b, alpha=2, out=b)


def transform_rows(x: Tensor, by: Transform) -> Tensor:
    """Transform along the first axis: [h, w, P, Q] → [U, 2, w, PQ].

    Args:
        x: pixels of images or of a kernel.
        by: their transform.
    """
    pixels = x.reshape(len(x), -1)
    rows = pixels.new_empty(len(by.rows), pixels.shape[1])
    for some, of in zip(rows.split(CHUNK, 1), pixels.split(CHUNK, 1), strict=True):
        torch.mm(by.rows, of, out=some)
    return rows.view(len(by.rows) // 2, 2, x.shape[1], -1)


def restore_rows(rows: Tensor, by: Transform) -> Tensor:
    """Return the adjoint of `transform_rows`, [h, w·PQ].

    Args:
        rows: [U, 2, w, PQ].
        by: the transform of `transform_rows`.
    """
    flat = rows.view(len(by.rows), -1)
    pixels = flat.new_empty(by.rows.shape[1], flat.shape[1])
    for some, of in zip(pixels.split(CHUNK, 1), flat.split(CHUNK, 1), strict=True):
        torch.mm(by.rows.T, of, out=some)
    return pixels


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # they are kept, and an evaluation may be the first to need them
def transforms_of(h: int, w: int, k: int, dtype: torch.dtype, device: torch.device) -> Transforms:
    """Return the transforms between pixels and spectra of h × w images and k × k kernels.

    Args:
        h: height of the images.
        w: width of the images.
        k: size of the kernel, odd.
    """
    tall, wide = h + k // 2, w + k // 2
    frequencies, half = tall // 2 + 1, wide // 2 + 1

    def transform(rows: int, columns: int, sign: int, shift: int) -> Transform:
        cos, sin = _waves(tall, frequencies, rows, shift)
        both = torch.stack([cos, sign * sin], 1).flatten(0, 1)
        cos, sin = _waves(wide, half, columns, shift)
        sin = sign * sin[1 : 1 + wide - half]
        return Transform(both, torch.stack([torch.cat([cos, sin]), torch.cat([cos, -sin])]))

    image, kernel = transform(h, w, -1, 0), transform(k, k, 1, -(k // 2))
    # A frequency u stands for −u too, unless they are the same.
    times = [1.0 if u == -u % tall else 2.0 for u in range(frequencies)]
    twice = torch.tensor(times, dtype=torch.double)
    result = image._replace(rows=image.rows * twice.repeat_interleave(2)[:, None] / (tall * wide))

    def placed(one: Transform) -> Transform:
        return Transform(one.rows.to(device, dtype), one.columns.to(device, dtype))

    return Transforms(placed(image), placed(kernel), placed(result), frequencies, wide, tall * wide)


def _waves(length: int, frequencies: int, points: int, shift: int) -> tuple[Tensor, Tensor]:
    """cos and sin of 2π·u·(p + shift)/length, [frequencies, points]."""
    # Whole turns would cost digits.
    turns = torch.outer(torch.arange(frequencies), torch.arange(points) + shift) % length
    angle = turns.double() * (2 * math.pi / length)
    return angle.cos(), angle.sin()
