"""Weights as safetensors files, and what is wrong with a damaged one.

Reading one never executes code.
"""

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fairmargin.runtime.whole import write_atomically, write_failure


class CheckpointError(OSError):
    """A checkpoint could not be written, or none can be read."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number


class DamagedCheckpoint(CheckpointError):
    """This file is not a whole checkpoint."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be used: {why}")
        self.path, self.why = path, why


def save_weights(
    path: Path, state_dict: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write a safetensors file with each tensor's values and dtype, and return its path.

    Memory that tensors share is written for each of them.

    Args:
        metadata: texts to keep in the file's header.
    """
    for name, tensor in state_dict.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"weights must be tensors; {name!r} is {type(tensor).__name__}. Leave it out"
            )
    whole = {
        name: t.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, t in state_dict.items()
    }
    content = safetensors.torch.save(whole, dict(metadata or {}))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise CheckpointError(write_failure(error, path, len(content)), error.errno) from error
    return path


def load_weights(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return (tensors by name, metadata) of a safetensors file.

    Raises `DamagedCheckpoint` if it is missing or not whole.

    Args:
        path: of a safetensors file.
        device: where the tensors are put.
    """
    if not path.is_file():
        raise DamagedCheckpoint(path, "there is no such file")
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DamagedCheckpoint(path, f"it is not a whole safetensors file ({error})") from error
