"""A `PairLoss` of a batch of any size, value and gradient in one pass, without an N×N matrix.

For a chunk of anchors:
  sort the batch by label, so that the class mates of the chunk lie in one narrow window of columns;
  s = z_chunk·zᵀ/τ    outside the window all are negatives: exponentiate in place and sum for L;
  (∂ℓ/∂s_window, ∂ℓ/∂L) by autograd on the window alone;
  ∂ℓ/∂s_n = ∂ℓ/∂L · e^{s_n−L}, so G·z and Gᵀ·z_chunk are two products with the exponentials.

That is three N×N×D products and two passes over the similarities in all; memory is chunk·N. A small
batch is one chunk whose window is everything, which needs no sorting. Finding the windows is a look
at the labels, for which Python would have to wait for an accelerator: there the window is
everything up to a size where that is the worse choice (_limits.py).
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fairmargin.losses._limits import Limits, limits_of
from fairmargin.losses._looks import checked
from fairmargin.losses.choices import Anchors
from fairmargin.losses.inputs import check_chunk
from fairmargin.losses.pairs import (
    FAR,
    Block,
    PairLoss,
    Weighting,
    dense,
    dense_rows,
    equality,
)

# Value, number of valid anchors, gradient with respect to z (None where none is needed).
Found = tuple[Tensor, Tensor, Tensor | None]


def mean_over_anchors(z: Tensor, labels: Tensor, loss: PairLoss, over: Anchors = "valid") -> Tensor:
    """Return the mean of a loss over the valid anchors, or over all of them.

    Args:
        z: [N, D] rows.
        labels: [N].
        over: "valid" anchors, or "all", of which the others count 0.
    """
    total, valid = sum_over_anchors(z, labels, loss)
    if checked(z) and not bool(valid):
        warnings.warn(
            "no anchor in this batch has a positive (and, for epsilon=inf, a negative): the loss "
            "is 0. Use a larger batch, several views, or a class-balanced sampler",
            stacklevel=5,
        )
    if z.shape[0] == 0:
        return z.sum()  # 0, attached to the graph
    return total / (valid.clamp_min(1) if over == "valid" else z.shape[0])


def sum_over_anchors(z: Tensor, labels: Tensor, loss: PairLoss) -> tuple[Tensor, Tensor]:
    """Return (Σ of a loss over the valid anchors, their number).

    Args:
        z: [N, D] rows.
        labels: [N].
    """
    check_chunk(loss.chunk)
    with torch.autocast(z.device.type, enabled=False):
        small = loss.chunk is None and z.shape[0] <= limits_of(z).one_block
        if torch.compiler.is_compiling() and small:
            return dense(z, labels, loss)  # one graph for the compiler
        return _Streamed.apply(z, labels, loss)


class _Streamed(torch.autograd.Function):
    """Equals `dense`, with value and gradient from one pass."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, labels: Tensor, loss: PairLoss) -> tuple[Tensor, Tensor]:
        limits = limits_of(z)
        safe = _is_safe(z, loss, limits.host)
        work = _Pass(loss, safe, ctx.needs_input_grad[0])
        small = loss.chunk is None and len(z) <= limits.one_block
        if small:
            total, valid, gradient = work.one_block(z, labels)
        elif compiles_chunks(limits):
            total, valid, gradient = work.by_compiled_chunks(z, labels)
        elif len(z) > limits.windows:
            total, valid, gradient = work.by_chunks(z, labels)
        else:
            total, valid, gradient = work.by_whole_rows(z, labels)
        ctx.mark_non_differentiable(valid)
        ctx.labels, ctx.loss, ctx.small = labels, loss, small
        ctx.save_for_backward(z, gradient)
        return total, valid

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        z, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives are wanted
            if not ctx.small:
                raise RuntimeError(
                    "the streamed loss keeps its first derivative only, so it cannot be "
                    "differentiated twice; "
                    f"use a batch of at most {limits_of(z).one_block} rows and chunk=None, "
                    "or drop create_graph=True"
                )
            total, _ = dense(z, ctx.labels, ctx.loss)
            (gradient,) = torch.autograd.grad(total, z, create_graph=True)
        return grad_total * gradient, None, None


@dataclass(frozen=True)
class _Pass:
    """One pass over the anchors of a batch: (Σ loss, number of valid anchors, ∂/∂z).

    Args:
        safe: no exponential can overflow or vanish (`_is_safe`).
    """

    loss: PairLoss
    safe: bool
    need_gradient: bool

    def one_block(self, z: Tensor, y: Tensor) -> Found:
        """Handle all anchors at once."""
        everything = slice(0, len(z))
        s = z @ (z / self.loss.temperature).T
        exponentials = torch.empty_like(s)
        total, valid, g_window, share = self.differentiate(
            s, s, exponentials, y, everything, everything
        )
        if g_window is None:
            return total, valid, None
        G = g_window if share is None else torch.addcmul(g_window, share, exponentials)
        return total, valid, (G + G.T) @ z / self.loss.temperature

    def by_chunks(self, z: Tensor, y: Tensor) -> Found:
        """Handle chunks of anchors, sorted by label so that each has a narrow window."""
        y, order = y.sort(stable=True)
        z = z[order]  # [N, D]
        weighting = self.loss.weighting
        if weighting is not None:
            weighting = Weighting(weighting.cue[order], weighting.rule)
        work = replace(self, loss=replace(self.loss, weighting=weighting))
        gradient = torch.zeros_like(z)
        total, valid = _start_sums(z, y)
        for rows, window, s in _chunks(z, y, self.loss):
            window_s = s[:, window].clone()
            chunk_total, chunk_valid, g_window, share = work.differentiate(
                s, window_s, s, y, rows, window
            )
            total += chunk_total
            valid += chunk_valid
            if g_window is None:
                continue
            z_rows = z[rows]
            gradient[rows] += g_window @ z[window]
            gradient[window].addmm_(g_window.T, z_rows)
            if share is not None:
                gradient[rows] += share * (s @ z)  # s holds the exponentials now
                gradient.addmm_(s.T, share * z_rows)
        if not self.need_gradient:
            return total.to(z.dtype), valid, None
        unsorted = torch.empty_like(gradient)
        unsorted[order] = gradient / self.loss.temperature
        return total.to(z.dtype), valid, unsorted

    def by_whole_rows(self, z: Tensor, y: Tensor) -> Found:
        """Handle chunks of anchors against every row: more work than `by_chunks`, and no look."""
        everything = slice(0, len(z))
        gradient = torch.zeros_like(z)
        total, valid = _start_sums(z, y)
        for rows in _slices(len(z), chunk_size(z, self.loss.chunk)):
            z_rows = z[rows]
            s = (z_rows / self.loss.temperature) @ z.T
            exponentials = torch.empty_like(s)
            chunk_total, chunk_valid, g_window, share = self.differentiate(
                s, s, exponentials, y, rows, everything
            )
            total += chunk_total
            valid += chunk_valid
            if g_window is None:
                continue
            G = g_window if share is None else torch.addcmul(g_window, share, exponentials)
            gradient[rows] += G @ z
            gradient.addmm_(G.T, z_rows)
        if not self.need_gradient:
            return total.to(z.dtype), valid, None
        return total.to(z.dtype), valid, gradient / self.loss.temperature

    def by_compiled_chunks(self, z: Tensor, y: Tensor) -> Found:
        """Handle each chunk by the definition: the compiler fuses its passes."""
        some_rows = _compiled_rows(CHUNK_BACKEND)
        gradient = torch.zeros_like(z)
        total, valid = _start_sums(z, y)
        number = torch.arange(len(z), device=z.device)
        cue, rule = self.loss.cue_and_rule(y)
        for rows in _slices(len(z), chunk_size(z, self.loss.chunk)):
            z_rows, z_all = z[rows].detach(), z.detach()
            with torch.enable_grad():
                z_rows.requires_grad_(self.need_gradient)
                z_all.requires_grad_(self.need_gradient)
                chunk_total, chunk_valid = some_rows(
                    z_rows,
                    z_all,
                    y[rows],
                    y,
                    number[rows],
                    cue[rows],
                    cue,
                    rule,
                    self.loss.row_loss,
                    self.loss.temperature,
                )
            total += chunk_total.detach()
            valid += chunk_valid
            if self.need_gradient:
                g_rows, g_all = torch.autograd.grad(chunk_total, (z_rows, z_all))
                gradient += g_all
                gradient[rows] += g_rows
        return total.to(z.dtype), valid, gradient if self.need_gradient else None

    def differentiate(
        self,
        s: Tensor,
        window_s: Tensor,
        exponentials: Tensor,
        y: Tensor,
        rows: slice,
        window: slice,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return (Σ loss, how many anchors are valid, ∂/∂s in the window, ∂ℓ/∂L·e^{−L}).

        Args:
            s: similarities of the anchors `rows` to every row.
            window_s: those in the window, which autograd differentiates by.
            exponentials: filled with e^s of the negatives; it may be s itself.
            window: columns that hold all class mates of the anchors.
        """
        positive = equality(y[rows], y[window], s.dtype)
        negative = 1 - positive
        # An anchor is not its own positive.
        positive.diagonal(rows.start - window.start)[: len(s)] = 0
        if self.loss.whole_rows:
            sums, log_negatives = s, s.new_zeros(len(s))  # not used
        else:
            sums, log_negatives = _exponentiate(s, exponentials, window, negative, self.safe)
        weight = _weights(positive, self.loss.weighting, rows, window)
        with torch.enable_grad():
            window_s.requires_grad_(self.need_gradient)
            log_negatives.requires_grad_(self.need_gradient)
            block = Block(window_s, positive, negative, weight, log_negatives, weight.sum(1))
            loss, valid = self.loss.row_loss(block)
            total = loss.sum()
        if not self.need_gradient:
            return total, valid.sum(), None, None
        g_window, g_log = torch.autograd.grad(total, (window_s, log_negatives), allow_unused=True)
        share = None
        if g_log is not None:
            share = g_log[:, None] / sums.clamp_min(torch.finfo(s.dtype).tiny)
        return total.detach(), valid.sum(), g_window, share


def _start_sums(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros to which the losses and the numbers of valid anchors of the chunks are added."""
    dtype = torch.promote_types(z.dtype, limits_of(z).scalars)
    return z.new_zeros((), dtype=dtype), y.new_zeros(())


def _exponentiate(
    s: Tensor, out: Tensor, window: slice, negative: Tensor, safe: bool
) -> tuple[Tensor, Tensor]:
    """Set out = e^{s_n − top}, 0 in the anchor's own class; `out` may be s.

    Returns (row sums [c, 1], log Σ_n e^{s_n} [c]).
    """
    if safe:
        torch.exp(s, out=out)
        out[:, window] *= negative
        sums = out.sum(1, keepdim=True)
        return sums, sums.log()[:, 0]
    if out is not s:
        out.copy_(s)
    out[:, window] += (negative - 1) * FAR  # keeps the anchor's own class out of the maximum
    top = out.amax(1, keepdim=True)
    out.sub_(top).clamp_max_(0).exp_()
    out[:, window] *= negative
    sums = out.sum(1, keepdim=True)
    return sums, (sums.log() + top)[:, 0]


def _weights(positive: Tensor, weighting: Weighting | None, rows: slice, columns: slice) -> Tensor:
    if weighting is None:
        return positive
    return positive * weighting.rule(weighting.cue[rows], weighting.cue[columns])


def _chunks(z: Tensor, y: Tensor, loss: PairLoss) -> Iterator[tuple[slice, slice, Tensor]]:
    """(anchors, columns that hold all their class mates, similarities of the anchors to every row).

    All chunks of similarities are written to one buffer.
    """
    n = len(z)
    if n == 0:
        return
    size = min(n, chunk_size(z, loss.chunk))
    starts = list(range(0, n, size))
    stops = [min(start + size, n) for start in starts]
    first = torch.searchsorted(y, y[starts]).tolist()
    last = torch.searchsorted(y, y[[stop - 1 for stop in stops]], right=True).tolist()
    buffer = z.new_empty(size, n)
    for start, stop, low, high in zip(starts, stops, first, last, strict=True):
        s = torch.mm(z[start:stop] / loss.temperature, z.T, out=buffer[: stop - start])
        window = slice(0, n) if loss.whole_rows else slice(low, high)
        yield slice(start, stop), window, s


def chunk_size(z: Tensor, chunk: int | None) -> int:
    """Return how many anchors are handled at a time: `chunk`, or what suits the device.

    Args:
        z: [N, D] rows, for their number, type and device.
        chunk: what the caller asked for; None if nothing.
    """
    if chunk is not None:
        return chunk
    limits = limits_of(z)
    least, most = limits.chunk_rows
    return max(least, min(most, limits.chunk_bytes // (max(len(z), 1) * z.element_size())))


def _slices(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _is_safe(z: Tensor, loss: PairLoss, host: bool) -> bool:
    """Whether no exponential can overflow or vanish, as |s| ≤ max‖z‖²/τ (Cauchy–Schwarz).

    No row maximum is needed then, which saves two passes.
    """
    if loss.unit_norm or not len(z):
        longest = 1.0
    elif host:
        longest = float(z.square().sum(1).max())
    else:
        return False  # not known without a look
    return longest / loss.temperature < math.log(torch.finfo(z.dtype).max) / 2 - 4


# Compiles the chunks where the whole loss is one operator of a compiled graph (_operators.py).
CHUNK_BACKEND = "inductor"
_compiled_chunks = False


@contextmanager
def compiled_chunks(on: bool) -> Iterator[None]:
    """Compile chunks inside the `with` block, on devices where that pays, or do not.

    Args:
        on: whether chunks are compiled inside.
    """
    global _compiled_chunks
    before = _compiled_chunks
    _compiled_chunks = on
    try:
        yield
    finally:
        _compiled_chunks = before


def compiles_chunks(limits: Limits) -> bool:
    """Return whether chunks are compiled now, on a device with these limits."""
    return limits.compile_chunks and _compiled_chunks


@cache
def _compiled_rows(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(dense_rows, backend=backend)
