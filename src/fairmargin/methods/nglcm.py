"""NGLCM, the neural grey-level co-occurrence matrix of HEX (Wang et al., ICLR 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NGLCM(nn.Module):
    """The neural grey-level co-occurrence matrix: images [N, C, H, W] to G [N, n·n].

    G = Σ_pixels clip(d − λ, 0, 1)·clip(r − θ, 0, 1)ᵀ       with learned λ, θ ∈ Rⁿ,
        r the grey level 0 … n−1, d that of the pixel to the left minus r

    (d, r) takes (2n−1)·n values. So pixels are counted first, whatever H and W, and
    G = clip(D − λ)·counts·clip(R − θ)ᵀ.

    Args:
        levels: n.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.lambda_ = nn.Parameter(torch.rand(levels) * levels)
        self.theta = nn.Parameter(torch.rand(levels) * levels)

    def forward(self, images: Tensor) -> Tensor:
        """Return G [N, n·n] of images [N, C, H, W]."""
        n = len(self.lambda_)
        D = torch.arange(1 - n, n, device=images.device)
        R = torch.arange(n, device=images.device)
        left = (D - self.lambda_[:, None]).clamp(0, 1)
        right = (R - self.theta[:, None]).clamp(0, 1)
        counts = co_occurrences(images, n).to(left.dtype)
        return (left @ counts @ right.T).flatten(1)


@torch.no_grad()
def co_occurrences(images: Tensor, levels: int) -> Tensor:
    """Return how many pixels of each image have each (d, r), [N, 2n−1, n] for n `levels`."""
    n = levels
    # Note: the paper divides by the largest grey value. Images arrive normalized, where black is no
    # longer 0.
    x = images.mean(1)
    low = x.amin((1, 2), keepdim=True)
    high = x.amax((1, 2), keepdim=True)
    spread = torch.where(high > low, high - low, 1)
    r = ((x - low) / spread * (n - 1)).floor().long()  # [N, H, W]
    d = F.pad(r[..., :-1], (1, 0)) - r  # −r in the first column
    cells = (2 * n - 1) * n
    first_cell = torch.arange(len(r), device=r.device)[:, None] * cells
    cell = ((d + n - 1) * n + r).flatten(1) + first_cell
    counts = torch.bincount(cell.flatten(), minlength=len(r) * cells)
    return counts.view(-1, 2 * n - 1, n)
