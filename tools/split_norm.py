"""Run a fairmargin command with batch norm over parts of each batch.

    python tools/split_norm.py 64 train --preset biased-mnist --out runs/split

`DataParallel` on four GPUs normalizes a batch of 256 in parts of 64, and keeps the running
statistics of the first part alone. This does the same on one device, for the question whether a
published number comes from it. Method, data and everything else stay as they are.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from fairmargin.cli.app import app
from fairmargin.networks.batch_norm import BatchNorm2d

WHOLE = BatchNorm2d.forward


def split(images: int) -> None:
    """Make every batch norm take this many images at a time while it trains."""

    def forward(norm: BatchNorm2d, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if not norm.training or len(x) <= images:
            return WHOLE(norm, x, *arguments, **options)
        if options.get("shortcut") is not None or len(arguments) > 1:
            raise ValueError("a network with shortcuts cannot be split")
        parts = []
        for part in x.split(images):
            # Samples last in memory, as the whole batch is.
            part = part.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
            before = {name: value.clone() for name, value in norm.named_buffers()}
            parts.append(WHOLE(norm, part, *arguments, **options))
            if len(parts) > 1:
                for name, value in norm.named_buffers():
                    value.copy_(before[name])
        whole = torch.cat([part.permute(2, 3, 1, 0) for part in parts], dim=3)
        return whole.permute(3, 2, 0, 1)

    BatchNorm2d.forward = forward  # type: ignore[method-assign]


if __name__ == "__main__":
    split(int(sys.argv.pop(1)))
    app()
