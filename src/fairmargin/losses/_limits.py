"""Sizes that depend on the device, in one table: how much is held at a time, and when a loss may look at a value.

The row of the CPU is measured (docs/performance.md). The other rows are reasoned and not measured: no GPU was at hand.
A *look* is anything that makes Python wait for a number of the device: `.item()`, `.tolist()`, `bool(x)`, `unique`, a
mask as an index. On the CPU it costs nothing. A GPU has to finish all the work that was queued before it.
"""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

NEVER = sys.maxsize


@dataclass(frozen=True)
class Limits:
    """What one device likes."""

    # Rows up to which the ε-losses are one N×N block; above, chunks of anchors.
    one_block: int
    # Similarities held at a time in a chunk, in bytes, and between so many anchors.
    chunk_bytes: int
    chunk_rows: tuple[int, int]
    # Distances that FairKL holds at a time.
    pairs: int
    # Rows up to which FairKL with bias labels visits all pairs; above, it counts (label, bias) cells, which is a look.
    matrix: int
    # Rows above which the ε-losses look at the labels, sort by them and handle positives in narrow windows.
    windows: int
    # Values lie in the host's memory: looks are free, and float64 takes twice the time of float32, not 64 times.
    host: bool
    # Of sums over pairs, and of what is computed from them: a few numbers, for which any float64 is fast enough.
    scalars: torch.dtype
    # Chunks go through the default compiler when the caller is compiled (operators.py).
    compile_chunks: bool


LIMITS = {
    # Large enough for fast products, small enough for the cache and for narrow windows.
    "cpu": Limits(
        one_block=512,
        chunk_bytes=16 << 20,
        chunk_rows=(64, 256),
        pairs=1 << 21,
        matrix=1536,
        windows=0,
        host=True,
        scalars=torch.float64,
        compile_chunks=False,
    ),
    # A kernel takes some 5 µs to start, and a pass over 64 MiB some 100 µs at 1 TB/s: a block of 4096² similarities
    # hides the start, and a larger one would only take more memory (about ten such blocks live at once). The chunk of
    # a larger batch has as many. A look waits for the queue, some 10 to 1000 µs. At 16384 rows the passes that narrow
    # windows and cells save take tens of milliseconds, so from there on a look pays. Float64 products run at 1/64 of
    # the speed on consumer cards: pairs stay in float32, and only their sums are float64.
    "cuda": Limits(
        one_block=4096,
        chunk_bytes=64 << 20,
        chunk_rows=(256, 4096),
        pairs=1 << 24,
        matrix=16384,
        windows=16384,
        host=False,
        scalars=torch.float64,
        compile_chunks=True,
    ),
    # 70 to 800 GB/s and memory shared with the host: a quarter of the block. There is no float64, so FairKL never
    # counts cells, whose moments cancel in float32.
    "mps": Limits(
        one_block=2048,
        chunk_bytes=16 << 20,
        chunk_rows=(256, 2048),
        pairs=1 << 22,
        matrix=NEVER,
        windows=16384,
        host=False,
        scalars=torch.float32,
        compile_chunks=False,
    ),
}

# Nothing is known of it: blocks as on "mps", no float64, and no look whatever the size (on XLA one breaks the graph).
OTHER = Limits(
    one_block=2048,
    chunk_bytes=16 << 20,
    chunk_rows=(256, 2048),
    pairs=1 << 22,
    matrix=NEVER,
    windows=NEVER,
    host=False,
    scalars=torch.float32,
    compile_chunks=False,
)


def limits_of(x: Tensor) -> Limits:
    """The row of the table for the device of a tensor."""
    # This first question is five times as fast as the name of the device.
    return LIMITS["cpu"] if x.is_cpu else LIMITS.get(x.device.type, OTHER)
