"""FairKL's sums over pairs in the precision of the features, for devices with slow or no float64.

E[d²] − E[d]² of nearly equal distances loses every digit in float32. Nothing here is such a
difference of large numbers:

  d_ij = ‖u_i − u_j‖² = ‖u_i‖² + ‖u_j‖² − 2 u_i·u_j,   u = z − c
         c is the mean of the label for pairs of one label, and of the batch for the others, so d
         loses few digits however close the features are (2 − 2 z_i·z_j has an error of 1e-7 for any
         d). c cancels, so no gradient flows into it.
  Σw(x−p), Σw(x−p)²
         about p, the mean over the anchor's pairs in the set; anchors are then moved to a common p.

Only the sums of anchors, a few numbers each, are in `Limits.scalars`. Python never waits for a
value: samples of unknown bias stay where they are, with weight 0, and labels are not counted.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairmargin.losses import _streamed
from fairmargin.losses._alignment import Alike, alignment, number_groups
from fairmargin.losses._limits import limits_of
from fairmargin.losses.divergences import Measure

# Keeps 0/0 away from sets without pairs, which are dropped afterwards.
TINY = 1e-30

# Calls a function now and again in the backward pass, so that memory holds one chunk of distances
# and not all of them.
recomputed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def centred_sums(
    z: Tensor,
    y: Tensor,
    cue: Tensor,
    alike: Alike,
    signs: int,
    measure: Measure | None,
    unit_norm: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor]:
    """Return (count, Σw, Σw(x−p), Σw(x−p)²) for each anchor [N, sets, 4], and p [N, sets].

    Args:
        z: [N, D] features.
        y: [N] labels.
        cue: what is known of the bias, as `alignment` takes it.
        alike: how two cues are compared.
        signs: 1 for the sets A⁺ and C⁺, 2 for A⁻ and C⁻ too.
        measure: x = measure(d); None takes x = d = 2 − 2 z_i·z_j.
        unit_norm: the rows of z have length 1, or 0.
        chunk: anchors handled at a time; None chooses.
    """
    n = len(z)
    limits = limits_of(z)
    size = chunk or max(1, limits.pairs // max(n, 1))
    origins = [_mean_of_group(z.detach(), number_groups(y))]
    if signs == 2:
        origins.append(z.detach().mean(0))
    rows = [z - origin for origin in origins]
    lengths = [u.square().sum(1) + _missing_length(z, unit_norm) for u in rows]
    number = torch.arange(n, device=z.device)
    if n <= size:
        sums = _anchor_sums(rows, lengths, y, cue, number, rows, lengths, y, cue, alike, measure)
    else:
        one_chunk = _anchor_sums
        if _streamed.compiles_chunks(limits):
            one_chunk = _compiled_sums(_streamed.CHUNK_BACKEND)
        parts = []
        for start in range(0, n, size):
            r = slice(start, start + size)
            some_rows = [u[r] for u in rows]
            some_lengths = [a[r] for a in lengths]
            anchors = (some_rows, some_lengths, y[r], cue[r], number[r])
            parts.append(recomputed(one_chunk, *anchors, rows, lengths, y, cue, alike, measure))
        sums = torch.cat(parts)
    sums = sums.to(torch.promote_types(z.dtype, limits.scalars))
    return sums[..., :4], sums[..., 4].detach()


def pooled(sums: Tensor, pivot: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of all anchors as one: [1, sets, 4] about [1, sets].

    Σw(x−P) = Σw(x−p) + Σw·(p−P),   Σw(x−P)² = Σw(x−p)² + 2(p−P)·Σw(x−p) + Σw·(p−P)²

    Args:
        sums: [N, sets, 4], see `centred_sums`.
        pivot: [N, sets], what they are about.
    """
    _, mass, first, _ = sums.detach().unbind(-1)
    common = ((first + mass * pivot).sum(0) / mass.sum(0).clamp_min(TINY))[None]
    return move_pivot(sums, pivot, common).sum(0, keepdim=True), common


def move_pivot(sums: Tensor, pivot: Tensor, other: Tensor | float) -> Tensor:
    """Return sums about `pivot` as sums about another pivot.

    Args:
        sums: […, 4]: count, Σw, Σw(x−p), Σw(x−p)².
        pivot: p.
        other: what the result is about; 0 for plain sums.
    """
    count, mass, first, second = sums.unbind(-1)
    step = pivot - other
    moved_second = second + 2 * step * first + mass * step.square()
    return torch.stack([count, mass, first + mass * step, moved_second], -1)


def _mean_of_group(z: Tensor, group: Tensor) -> Tensor:
    """For each row the mean of its group."""
    total = torch.zeros_like(z).index_add(0, group, z)
    size = z.new_zeros(len(z)).index_add(0, group, z.new_ones(len(z)))
    return total[group] / size[group][:, None]


def _missing_length(z: Tensor, unit_norm: bool) -> Tensor:
    """1 − ‖z‖², so that 2 − 2 z_i·z_j = ‖z_i − z_j‖² + missing_i + missing_j.

    It is 0 for unit vectors and 1 for zeros.
    """
    missing = 1 - z.square().sum(1)
    return missing.detach().round() if unit_norm else missing


def _anchor_sums(
    u_a: list[Tensor],
    length_a: list[Tensor],
    y_a: Tensor,
    cue_a: Tensor,
    number: Tensor,
    u: list[Tensor],
    length: list[Tensor],
    y: Tensor,
    cue: Tensor,
    alike: Alike,
    measure: Measure | None,
) -> Tensor:
    """The four sums and the pivot of some anchors, the rows `number`, against all: [c, sets, 5]."""
    dtype = u[0].dtype
    same = (y_a[:, None] == y[None, :]).to(dtype)
    known = (number[:, None] != torch.arange(len(y), device=y.device)).to(dtype)  # no self-pairs
    aligned, both_known = alignment(cue_a, cue, alike, dtype)
    known = known * both_known
    sets = []
    for sign, label in enumerate((same, 1 - same)[: len(u)]):
        d = length_a[sign][:, None] + length[sign] - 2 * u_a[sign] @ u[sign].T  # [c, N]
        x = d if measure is None else measure(d)
        pair = label * known
        for weight in (pair * aligned, pair * (1 - aligned)):
            mass = weight.sum(1)
            pivot = (weight * x.detach()).sum(1) / mass.clamp_min(TINY)
            rest = x - pivot[:, None]
            weighted = weight * rest
            count = (weight > 0).sum(1).to(dtype)
            second = (weighted * rest).sum(1)
            sets.append(torch.stack([count, mass, weighted.sum(1), second, pivot], -1))
    return torch.stack(sets, -2)


@cache
def _compiled_sums(backend: str) -> Callable[..., Tensor]:
    return torch.compile(_anchor_sums, backend=backend)
