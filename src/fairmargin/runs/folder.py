"""Write a run folder; `record` names its files and reads them.

A file is written whole or not at all, and result.json comes last. What reads a folder can be
imported from here too.
"""

import contextlib
import errno
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fairmargin.runs.record import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    DATA,
    ENVIRONMENT,
    HEAD,
    METRICS,
    NETWORK,
    RESULT,
    TRACKED,
    WEIGHTS,
    RunError,
    RunRecord,
    find_runs,
    is_run,
    read_events,
    read_json,
)
from fairmargin.runtime.whole import (
    PART,
    LinkError,
    open_plain,
    refuse_links,
    remove,
    write_atomically,
)

LOCK = ".lock"

__all__ = [
    "CONFIG",
    "Locked",
    "Metrics",
    "RunError",
    "RunFolder",
    "RunRecord",
    "find_runs",
    "is_run",
]


class Locked(RunError):
    """Another process is writing into the folder."""


class RunFolder:
    """The folder that a run writes into.

    Args:
        path: the folder; `create` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.metrics = Metrics(self.path / METRICS)
        self.checkpoints = self.path / CHECKPOINTS
        self.weights = self.path / WEIGHTS
        self.best = self.path / BEST
        self.head = self.path / HEAD

    @property
    def finished(self) -> bool:
        """True if the run in this folder has a result."""
        return (self.path / RESULT).is_file()

    def create(self) -> "RunFolder":
        """Make the folder if it does not exist, and check that files can be written into it."""
        probe = self.path / f".probe.{os.getpid()}.part"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_links(self.path)
            self.metrics.refuse_links()
            remove([probe])
            with open_plain(probe, "xb") as file:
                file.write(b"writable")
            probe.unlink()
        except LinkError as error:
            raise RunError(str(error)) from None
        except OSError as error:
            with contextlib.suppress(OSError):
                probe.unlink()
            raise RunError(
                f"cannot write into {self.path}: {error.strerror}. Choose another folder with --out"
            ) from error
        return self

    def data_hashes(self) -> dict[str, str]:
        """Hashes of the data that the run in this folder saw; empty if none were recorded."""
        environment = read_json(self.path / ENVIRONMENT) or {}
        return dict(environment.get("data") or {})

    def environment(self) -> dict[str, Any]:
        """What the run in this folder wrote about its environment; empty if it wrote nothing."""
        return read_json(self.path / ENVIRONMENT) or {}

    def parent(self) -> dict[str, Any] | None:
        """Facts about the run that this one goes on from (`runs.extend`); None if there is none."""
        environment = read_json(self.path / ENVIRONMENT) or {}
        return environment.get("parent")

    def bias(self) -> dict[str, Any]:
        """What the run in this folder inferred about the bias; empty if it wrote nothing."""
        return (read_json(self.path / DATA) or {}).get("bias") or {}

    def write_config(self, text: str) -> None:
        """Write config.toml.

        Args:
            text: TOML.
        """
        self._replace(CONFIG, text.encode("utf-8"))

    def write_environment(self, facts: Mapping[str, Any]) -> None:
        """Write environment.json.

        Args:
            facts: of `environment.environment`.
        """
        self._write_json(ENVIRONMENT, facts)

    def write_data(self, facts: Mapping[str, Any]) -> None:
        """Write data.json.

        Args:
            facts: names, sizes and counts of the dataset.
        """
        self._write_json(DATA, facts)

    def write_network(self, facts: Mapping[str, Any]) -> None:
        """Write network.json.

        Args:
            facts: of `network.Network`.
        """
        self._write_json(NETWORK, facts)

    def network(self) -> dict[str, Any]:
        """What the run in this folder wrote about its network; empty if it wrote nothing."""
        return read_json(self.path / NETWORK) or {}

    def write_trackers(self, known: Mapping[str, Any]) -> None:
        """Write trackers.json.

        Args:
            known: how each tool of `train.trackers` finds the run again.
        """
        self._write_json(TRACKED, known)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write result.json. Call this last: the file means that the run is finished.

        Args:
            result: what was measured.
        """
        self._write_json(RESULT, result)

    def save_arrays(self, name: str, **arrays: np.ndarray | Tensor) -> Path:
        """Write `name`.npz with these arrays and return its path; refuse what would need pickle.

        Args:
            name: of the file, without .npz.
            **arrays: by their names in the file.
        """
        plain = {key: _to_numpy(array) for key, array in arrays.items()}
        for key, array in plain.items():
            if array.dtype.hasobject:
                raise TypeError(
                    f"{key} holds Python objects; give numbers, or text as an array of dtype str"
                )
        buffer = io.BytesIO()
        np.savez(buffer, **plain)  # type: ignore[arg-type]
        return self._replace(f"{name}.npz", buffer.getbuffer())

    @contextlib.contextmanager
    def removed_if_unused(self, fresh: bool) -> Iterator[None]:
        """Remove the folder after an error inside, if nothing but the lock's file is in it.

        Args:
            fresh: whether it was made just now; another one stays.
        """
        try:
            yield
        except BaseException:
            if fresh and {file.name for file in self.path.iterdir()} <= {LOCK}:
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()
            raise

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out of the folder while inside; the lock ends with its process."""
        # Other systems have no lock that the death of a process releases.
        if os.name != "posix":
            yield
            return
        import fcntl

        with open_plain(self.path / LOCK, "a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                # Some network file systems have no locks; a run there goes on without one.
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    file.seek(0)
                    number = file.read(20).strip().decode("ascii", "replace")
                    process = f"another process (process {number})" if number else "another process"
                    raise Locked(
                        f"{process} is writing into {self.path}; "
                        "wait for it, or choose another folder with --out"
                    ) from None
            # What killed processes left, which may be all that fills the disk.
            self._clean_up()
            try:
                file.truncate(0)
                file.write(f"{os.getpid()}\n".encode())
                file.flush()
            except OSError as error:
                raise _unwritable(self.path / LOCK, error) from error
            yield

    def _clean_up(self) -> None:
        """Remove what processes left that were killed while they wrote into this folder."""
        for place in (self.path, self.checkpoints):
            remove(place.glob(f".*{PART}"))

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._replace(name, to_json(content, indent=1).encode("utf-8"))

    def _replace(self, name: str, content: bytes | memoryview) -> Path:
        path = self.path / name
        try:
            write_atomically(path, content)
        except OSError as error:
            raise _unwritable(path, error) from error
        return path


class Metrics:
    """`metrics.jsonl`, one event a line. A line counts once its newline is written.

    Args:
        path: the file; the first event makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # True once the file is known to end with a whole line.
        self._continues = False

    def refuse_links(self) -> None:
        """Raise a LinkError if lines would be written into a file that has other names, too."""
        if self.path.exists():
            open_plain(self.path, "r+b").close()

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one line; numbers that are not finite become null.

        Args:
            event: with its kind under "event".
        """
        line = to_json(event).encode("utf-8") + b"\n"
        if not self._continues:
            self.truncate(self._size())
        try:
            # A single write, so that a reader hardly ever sees half a line.
            with open_plain(self.path, "ab") as file:
                file.write(line)
        except OSError as error:
            self._continues = False
            raise RunError(
                f"cannot write {self.path}: {error.strerror}. Free some space to go on"
            ) from error

    def position(self) -> int:
        """Flush the file to disk and return its length in bytes, for a checkpoint to remember."""
        if not self.path.exists():
            return 0
        with open_plain(self.path, "ab") as file:
            os.fsync(file.fileno())
        return self._size()

    def truncate(self, position: int) -> None:
        """Remove what stands after `position`, and half a line before it.

        Args:
            position: of `position`, in bytes.
        """
        if self.path.exists():
            with open_plain(self.path, "r+b") as file:
                whole = file.read(position).rfind(b"\n") + 1
                file.truncate(whole)
        self._continues = True

    def read(self) -> list[dict[str, Any]]:
        """Read all events; a last line without its end is left out."""
        return read_events(self.path)

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot write {path}: {error.strerror}. Free some space or choose another folder"
    )


def to_json(value: Any, indent: int | None = None) -> str:
    """Encode tensors, arrays, paths and plain values; numbers that are not finite become null.

    Args:
        value: nested dicts and lists of these.
        indent: None for one line.
    """
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _finite(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def _to_numpy(array: np.ndarray | Tensor) -> np.ndarray:
    if isinstance(array, Tensor):
        array = array.detach().cpu().numpy()
    return np.asarray(array)
