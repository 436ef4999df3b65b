"""Have PyTorch choose algorithms whose result is the same every time, or refuse to compute.

docs/reliability.md says what that promises on which device, and what it costs.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# cuBLAS reads it when it is first used. Eight buffers of 4 MiB: the larger of two values under
# which its results do not depend on timing.
CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def deterministic(wanted: bool, device: torch.device) -> Iterator[None]:
    """Compute deterministically while inside; afterwards everything is as it was.

    Args:
        wanted: False leaves everything as the caller has it.
        device: of the run, for the message.
    """
    if not wanted:
        yield
        return
    cudnn = torch.backends.cudnn
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    flags = cudnn.deterministic, cudnn.benchmark
    name, value = CUBLAS
    chosen = os.environ.get(name)
    os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    except RuntimeError as error:
        if "use_deterministic_algorithms" not in str(error):
            raise
        operation = str(error).partition(" does not have")[0].splitlines()[0][:80]
        raise ValueError(
            f"train.deterministic=true: {operation} has no deterministic version on {device.type}; "
            "choose another method or network, train with train.device=cpu, or leave it out"
        ) from error
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark = flags
        if chosen is None:
            os.environ.pop(name, None)
