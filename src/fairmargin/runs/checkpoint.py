"""Save and load checkpoints. A file is whole or absent, and reading one never executes code.

    fairmargin checkpoint 1 sha256 <hex> <bytes>↵ torch.save's bytes

A file is written under a temporary name, flushed to disk and then renamed, so older checkpoints
stay whatever happens.
"""

import hashlib
import io
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairmargin.runtime.files import CheckpointError, DamagedCheckpoint
from fairmargin.runtime.whole import remove, write_atomically, write_failure

FORMAT = 1
MAGIC = b"fairmargin checkpoint "
HEADER = re.compile(rb"fairmargin checkpoint ([0-9]+) sha256 ([0-9a-f]{64}) ([0-9]+)\n")
LONGEST_HEADER = 200
NAME = re.compile(r"step-([0-9]{8,})\.ckpt")
# Types that `torch.load(weights_only=True)` reads. Others could be saved but never be read again.
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that is whole."""

    path: Path
    step: int
    state: dict[str, Any]
    # Newer files that cannot be used, and why.
    damaged: list[tuple[Path, str]] = field(default_factory=list)


def save(folder: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> Path:
    """Write `state` as the checkpoint of this step and remove older ones.

    Args:
        folder: where checkpoints go; made if it does not exist.
        step: of the training.
        state: nested dicts, lists and tuples of tensors, numbers and strings.
        keep: checkpoints that stay, this one included.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"step must be at least 0 and keep at least 1; got {step} and {keep}")
    _check_plain(state, "state")
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    digest = hashlib.sha256(content).hexdigest().encode()
    header = b"%s%d sha256 %s %d\n" % (MAGIC, FORMAT, digest, len(content))
    path = folder / f"step-{step:08d}.ckpt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Processes that were killed leave these.
        remove(folder.glob(".step-*.part"))
        write_atomically(path, header, content)
    except OSError as error:
        message = _what_now(error, path, len(header) + len(content))
        raise CheckpointError(message, error.errno) from error
    older = [other for number, other in _all(folder) if number < step]
    remove(older[: max(len(older) - (keep - 1), 0)])
    return path


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read the state that was saved; `DamagedCheckpoint` if the file is not a whole checkpoint.

    Args:
        path: the file.
        device: where its tensors go.
    """
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
    # Damaged bytes raise errors of many kinds.
    except Exception as error:
        why = "it holds something other than tensors and plain values, which is never executed"
        raise DamagedCheckpoint(path, f"{why} ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise DamagedCheckpoint(path, f"it holds a {type(state).__name__}, not a state")
    return state


def newest(folder: Path, device: torch.device | str = "cpu") -> Found | None:
    """Read the newest checkpoint that is whole; None if the folder has none at all.

    Args:
        folder: of the checkpoints.
        device: where its tensors go.
    """
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


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint, which is not read; 0 if there is none.

    Args:
        folder: of the checkpoints; it need not exist.
    """
    return max((step for step, _ in _all(folder)), default=0)


def damaged(folder: Path) -> list[tuple[Path, str]]:
    """Return the checkpoints that are not whole, and why.

    Args:
        folder: of the checkpoints; it need not exist.
    """
    found = []
    for _, path in _all(folder):
        try:
            load(path)
        except DamagedCheckpoint as error:
            found.append((path, error.why))
    return found


def _all(folder: Path) -> list[tuple[int, Path]]:
    """List (step, path) of all checkpoints, by step."""
    if not folder.is_dir():
        return []
    named = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in named if match)


def _verified(path: Path, header: bytes, content: bytes) -> bytes:
    """Return the content if it is what the header says."""
    if not header:
        raise DamagedCheckpoint(path, "it is empty")
    if not header.startswith(MAGIC):
        if MAGIC.startswith(header):
            raise DamagedCheckpoint(path, "it is truncated")
        raise DamagedCheckpoint(path, "it is not a checkpoint of fairmargin")
    match = HEADER.fullmatch(header)
    version = re.match(rb"[0-9]+", header[len(MAGIC) :])
    if version and int(version[0]) > FORMAT:
        raise DamagedCheckpoint(
            path, f"its format is {int(version[0])} and this fairmargin reads {FORMAT}: update it"
        )
    if not match or int(match[1]) != FORMAT:
        raise DamagedCheckpoint(path, "its first line is damaged or truncated")
    if len(content) != int(match[3]):
        wrong = "truncated" if len(content) < int(match[3]) else "too long"
        raise DamagedCheckpoint(path, f"it is {wrong}: {len(content):,} bytes of {int(match[3]):,}")
    if hashlib.sha256(content).hexdigest().encode() != match[2]:
        raise DamagedCheckpoint(
            path, "its checksum is wrong: bytes have changed since it was written"
        )
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


def _what_now(error: OSError, path: Path, size: int) -> str:
    there = _all(path.parent)
    start = "the beginning: there is none yet"
    if there:
        start = f"step {there[-1][0]}, whose checkpoint is untouched"
    return (
        f"{write_failure(error, path, size)}. Training can go on; if it is interrupted now it "
        f"resumes from {start}. Free some space or make the folder writable"
    )
