"""Files that are written whole or not at all, and weights as safetensors.

Reading one never executes code.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor


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


def write_atomically(path: Path, *parts: bytes | memoryview) -> None:
    """Write the parts, one after another, to the file `path`.

    Afterwards the file holds all of them, or what it held before.

    Args:
        path: in a folder that exists.
        parts: contents of the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove([temporary])
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make sure that a rename has reached the disk; some file systems cannot be asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove(paths: Iterable[Path]) -> None:
    """Remove files; what cannot be removed now is left for another save."""
    for path in list(paths):
        with contextlib.suppress(OSError):
            path.unlink()


def write_failure(error: OSError, path: Path, size: int) -> str:
    """Return a message about a file of `size` bytes that could not be written.

    Args:
        error: what the system said.
        path: of the file.
        size: of the file in bytes.
    """
    space = _free_bytes(path.parent)
    free = "" if space is None else f", {_in_units(space)} are free"
    return f"cannot write {path}: {error.strerror or error} (it needs {_in_units(size)}{free})"


def _free_bytes(folder: Path) -> int | None:
    """Free bytes in the nearest folder that exists."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def _in_units(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
