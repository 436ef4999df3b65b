"""Checkpoints that are whole or not there, and weights to share. Reading one never executes code.

    fairmargin checkpoint 1 sha256 <hex> <bytes>↵ torch.save's bytes

A file is written beside its place, reaches the disk, and is then renamed: whatever happens, the older checkpoints stay.
"""

import contextlib
import errno
import hashlib
import io
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

FORMAT = 1
MAGIC = b"fairmargin checkpoint "
HEADER = re.compile(rb"fairmargin checkpoint ([0-9]+) sha256 ([0-9a-f]{64}) ([0-9]+)\n")
LONGEST_HEADER = 200
NAME = re.compile(r"step-([0-9]{8,})\.ckpt")
# What `torch.load(weights_only=True)` gives back. Anything else would be saved and never be read again.
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


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


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that is whole, and those newer than it that are not."""

    path: Path
    step: int
    state: dict[str, Any]
    damaged: list[tuple[Path, str]] = field(default_factory=list)


def save(folder: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> Path:
    """Write `state` as the checkpoint of this step and remove older ones, except the last `keep` − 1.

    Args:
        state: nested dicts, lists and tuples of tensors, numbers and strings.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"step must be at least 0 and keep at least 1; got {step} and {keep}")
    _check_plain(state, "state")
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    header = b"%s%d sha256 %s %d\n" % (MAGIC, FORMAT, hashlib.sha256(content).hexdigest().encode(), len(content))
    path = folder / f"step-{step:08d}.ckpt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove(folder.glob(".step-*.part"))  # of processes that were killed
        write_atomically(path, header, content)
    except OSError as error:
        raise CheckpointError(_what_now(error, path, len(header) + len(content)), error.errno) from error
    older = [other for number, other in _all(folder) if number < step]
    _remove(older[: max(len(older) - (keep - 1), 0)])
    return path


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state that was saved; `DamagedCheckpoint` if the file is anything but a whole checkpoint."""
    try:
        with path.open("rb") as file:
            content = _verified(path, file.readline(LONGEST_HEADER), file.read())
    except FileNotFoundError:
        raise DamagedCheckpoint(path, "there is no such file") from None
    except OSError as error:
        if isinstance(error, DamagedCheckpoint):
            raise
        raise DamagedCheckpoint(path, f"it cannot be read ({error.strerror})") from error
    try:
        state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except Exception as error:  # many kinds, by what the bytes happen to say
        why = "it holds something other than tensors and plain values, which is never executed"
        raise DamagedCheckpoint(path, f"{why} ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise DamagedCheckpoint(path, f"it holds a {type(state).__name__}, not a state")
    return state


def newest(folder: Path, device: torch.device | str = "cpu") -> Found | None:
    """The newest checkpoint that is whole; None if there is none at all."""
    damaged: list[tuple[Path, str]] = []
    for step, path in reversed(_all(folder)):
        try:
            return Found(path, step, load(path, device), damaged)
        except DamagedCheckpoint as error:
            damaged.append((path, error.why))
    if not damaged:
        return None
    each = "\n".join(f"  {path.name}: {why}" for path, why in damaged)
    raise CheckpointError(
        f"no checkpoint in {folder} can be used:\n{each}\n"
        "Put a whole copy back, or remove these files to train from the beginning"
    )


def save_weights(path: Path, state_dict: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    """A safetensors file with each tensor's values and dtype; memory that tensors share is written for each."""
    for name, tensor in state_dict.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"weights must be tensors; {name!r} is {type(tensor).__name__}. Leave it out")
    whole = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in state_dict.items()}
    content = safetensors.torch.save(whole, dict(metadata or {}))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise CheckpointError(_failure(error, path, len(content)), error.errno) from error
    return path


def load_weights(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a safetensors file."""
    if not path.is_file():
        raise DamagedCheckpoint(path, "there is no such file")
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DamagedCheckpoint(path, f"it is not a whole safetensors file ({error})") from error


def write_atomically(path: Path, *parts: bytes | memoryview) -> None:
    """The parts, one after another, as the file `path`: all of them on the disk, or what was there before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        _remove([temporary])
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """The rename itself reaches the disk; some file systems cannot be asked."""
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


def _all(folder: Path) -> list[tuple[int, Path]]:
    """(step, path), by step."""
    if not folder.is_dir():
        return []
    named = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in named if match)


def _remove(paths: Any) -> None:
    """What cannot be removed now is removed at another save."""
    for path in list(paths):
        with contextlib.suppress(OSError):
            path.unlink()


def _verified(path: Path, header: bytes, content: bytes) -> bytes:
    """The content, if it is what the header says."""
    if not header:
        raise DamagedCheckpoint(path, "it is empty")
    if not header.startswith(MAGIC):
        cut = MAGIC.startswith(header)
        raise DamagedCheckpoint(path, "it is truncated" if cut else "it is not a checkpoint of fairmargin")
    match = HEADER.fullmatch(header)
    version = re.match(rb"[0-9]+", header[len(MAGIC) :])
    if version and int(version[0]) > FORMAT:
        raise DamagedCheckpoint(path, f"its format is {int(version[0])} and this fairmargin reads {FORMAT}: update it")
    if not match or int(match[1]) != FORMAT:
        raise DamagedCheckpoint(path, "its first line is damaged or truncated")
    if len(content) != int(match[3]):
        wrong = "truncated" if len(content) < int(match[3]) else "too long"
        raise DamagedCheckpoint(path, f"it is {wrong}: {len(content):,} bytes of {int(match[3]):,}")
    if hashlib.sha256(content).hexdigest().encode() != match[2]:
        raise DamagedCheckpoint(path, "its checksum is wrong: bytes have changed since it was written")
    return content


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, Tensor):
        fine = type(value) in (Tensor, nn.Parameter)
    elif type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _check_plain(key, f"a key of {where}")
            _check_plain(item, f"{where}[{key!r}]")
        fine = True
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):
            _check_plain(item, f"{where}[{i}]")
        fine = True
    else:
        fine = type(value) in PLAIN
    if not fine:
        raise TypeError(
            f"{where} is a {type(value).__name__}, which a checkpoint cannot hold; "
            "keep tensors, numbers, strings, lists, tuples and dicts"
        )


def _failure(error: OSError, path: Path, size: int) -> str:
    free = f", {_in_units(space)} are free" if (space := _free(path.parent)) is not None else ""
    return f"cannot write {path}: {error.strerror or error} (it needs {_in_units(size)}{free})"


def _what_now(error: OSError, path: Path, size: int) -> str:
    there = _all(path.parent)
    from_where = f"step {there[-1][0]}, whose checkpoint is untouched" if there else "the beginning: there is none yet"
    return (
        f"{_failure(error, path, size)}. Training can go on; if it is interrupted now it resumes from {from_where}. "
        "Free some space or make the folder writable"
    )


def _free(folder: Path) -> int | None:
    """Bytes, in the nearest folder that exists."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def _in_units(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
