"""The environment of a run: versions, device, commit, command."""

import os
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

from fairmargin.networks.native import library
from fairmargin.version import __version__

# Settings of git under which a repository's own settings start no program.
HARMLESS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


def environment(
    device: torch.device | str,
    threads: int,
    world_size: int,
    command: Sequence[str],
    data_hashes: Mapping[str, str],
) -> dict[str, Any]:
    """Return what it takes to repeat a run, without user name, host name or folders of the machine.

    Args:
        device: where the run trains.
        threads: of each process.
        world_size: number of processes.
        command: words of the command line; absolute paths in it are cut to their last part.
        data_hashes: of the splits.
    """
    device = torch.device(device)
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    program = [PurePath(word).name for word in command[:1]]
    arguments = [_without_places(word) for word in command[1:]]
    return {
        "fairmargin": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": f"{device}{name}",
        "threads": threads,
        "native": library.is_wanted(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "world_size": world_size,
        "git": _git_state(),
        "command": shlex.join(program + arguments),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": dict(data_hashes),
    }


def _git_state() -> dict[str, Any] | None:
    """Return the commit of the checkout that this package runs from; None if it runs from none.

    The current folder is never asked about: it may belong to anybody, and git runs commands that a
    repository's settings name.
    """
    package = Path(__file__).resolve().parent
    # A package installed inside another project's checkout is not part of that project.
    if _git(package, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = _git(package, "rev-parse", "HEAD")
    if commit is None:
        return None
    # Untracked files, such as run folders, do not change the code that ran.
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    return {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    """What git says about a folder; None if it says nothing. It runs no hook and no monitor."""
    command = ["git", "--no-optional-locks", *HARMLESS, "-C", str(folder), *words]
    # Variables such as GIT_DIR would name another repository.
    variables = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, env=variables
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _without_places(word: str) -> str:
    """Cut absolute paths to their last part: data.root=/home/me/x.csv becomes data.root=…/x.csv."""
    key, equals, value = word.rpartition("=")
    bare = value.strip("\"'")
    if bare.startswith(("/", "~")):
        return f"{key}{equals}…/{PurePosixPath(bare).name}"
    if PureWindowsPath(bare).is_absolute():
        return f"{key}{equals}…/{PureWindowsPath(bare).name}"
    # What is left are paths inside a list.
    return re.sub(r"(?<![\w.…])[/~](?:[^\s\"',\]]*/)?([^\s\"',/\]]+)", r"…/\1", word)
