"""Where and with what a run ran: versions, device, commit, command."""

import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch

from fairmargin.version import __version__


def environment(
    device: torch.device | str,
    threads: int,
    world_size: int,
    command: Sequence[str],
    data_hashes: Mapping[str, str],
) -> dict[str, Any]:
    """Facts that a repetition needs. Nothing in them says who ran it, on which host or where on its disk."""
    device = torch.device(device)
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return {
        "fairmargin": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": f"{device}{name}",
        "threads": threads,
        "world_size": world_size,
        "git": _git_state(),
        "command": shlex.join(
            [*(PurePath(name).name for name in command[:1]), *map(_without_places, command[1:])]
        ),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": dict(data_hashes),
    }


def _git_state() -> dict[str, Any] | None:
    """Of the checkout this package runs from, else of the current folder."""
    package = Path(__file__).parent
    # A package installed into somebody's project is not part of that project.
    own = _git(package, "ls-files", "--error-unmatch", Path(__file__).name) is not None
    folder = package if own else Path.cwd()
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    # Files git does not know, such as the folders of runs, do not change what was run.
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _without_places(word: str) -> str:
    """Absolute paths cut to their last part: --set data.root=/home/me/x.csv becomes --set data.root=…/x.csv."""
    key, equals, value = word.rpartition("=")
    bare = value.strip("\"'")
    if bare.startswith(("/", "~")):
        return f"{key}{equals}…/{PurePosixPath(bare).name}"
    if PureWindowsPath(bare).is_absolute():
        return f"{key}{equals}…/{PureWindowsPath(bare).name}"
    return re.sub(
        r"(?<![\w.…])[/~](?:[^\s\"',\]]*/)?([^\s\"',/\]]+)", r"…/\1", word
    )  # inside a list
