"""Sizes that depend on the device: how much is held at a time, and when a loss may look.

A *look* is anything that makes Python wait for a number of the device: `.item()`, `.tolist()`,
`bool(x)`, `unique`, a mask as an index. On the CPU it costs nothing. A GPU first has to finish all
the work that was queued before it.

The row of the CPU is measured (docs/performance.md). The other rows are estimates: no GPU was at
hand.
"""

import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

NEVER = sys.maxsize


@dataclass(frozen=True)
class Limits:
    """Sizes and habits that suit one kind of device.

    Args:
        one_block: rows up to which the ε-losses are one N×N block; above, chunks of anchors.
        chunk_bytes: bytes of similarities held at a time in a chunk.
        chunk_rows: fewest and most anchors of a chunk.
        pairs: distances that FairKL holds at a time.
        matrix: rows up to which FairKL with bias labels visits all pairs; above, it counts
            (label, bias) cells, which is a look.
        windows: rows above which the ε-losses look at the labels, sort by them and handle positives
            in narrow windows.
        host: values lie in the host's memory: looks are free, and float64 takes twice the time of
            float32, not 64 times.
        scalars: type of sums over pairs, and of what is computed from them. These are a few
            numbers, for which any float64 is fast enough.
        compile_chunks: chunks go through the default compiler when the caller is compiled
            (_operators.py).
    """

    one_block: int
    chunk_bytes: int
    chunk_rows: tuple[int, int]
    pairs: int
    matrix: int
    windows: int
    host: bool = False
    scalars: torch.dtype = torch.float32
    compile_chunks: bool = False


# Large enough for fast products, small enough for the cache and for narrow windows.
_CPU = Limits(
    one_block=512,
    chunk_bytes=16 << 20,
    chunk_rows=(64, 256),
    pairs=1 << 21,
    matrix=1536,
    windows=0,
    host=True,
    scalars=torch.float64,
)
# A kernel takes some 5 µs to start, and a pass over 64 MiB some 100 µs at 1 TB/s: a block of 4096²
# similarities hides the start, and a larger one would only take more memory (about ten such blocks
# live at once). The chunk of a larger batch has as many. A look waits for the queue, some 10 to
# 1000 µs. At 16384 rows the passes that narrow windows and cells save take tens of milliseconds, so
# from there on a look pays. Float64 products run at 1/64 of the speed on consumer cards: pairs stay
# in float32, and only their sums are float64.
_CUDA = Limits(
    one_block=4096,
    chunk_bytes=64 << 20,
    chunk_rows=(256, 4096),
    pairs=1 << 24,
    matrix=16384,
    windows=16384,
    scalars=torch.float64,
    compile_chunks=True,
)
# 70 to 800 GB/s and memory shared with the host: a quarter of CUDA's block. There is no float64, so
# FairKL never counts cells, whose moments cancel in float32.
_MPS = Limits(
    one_block=2048,
    chunk_bytes=16 << 20,
    chunk_rows=(256, 2048),
    pairs=1 << 22,
    matrix=NEVER,
    windows=16384,
)
LIMITS = {"cpu": _CPU, "cuda": _CUDA, "mps": _MPS}
# Nothing is known of other devices: blocks as on "mps", no float64, and no look whatever the size
# (on XLA a look breaks the graph).
OTHER = replace(_MPS, windows=NEVER)


def limits_of(x: Tensor) -> Limits:
    """Return the row of the table for the device of a tensor."""
    # This first question is five times as fast as the name of the device.
    return LIMITS["cpu"] if x.is_cpu else LIMITS.get(x.device.type, OTHER)


def pair_dtype(x: Tensor) -> torch.dtype:
    """Return the type that FairKL computes pairs in: float64 where it is fast, else that of `x`."""
    return torch.float64 if limits_of(x).host else x.dtype
