"""The folder of a run: what was asked, on what machine and data, what happened, what came out. Reports read nothing else.

config.toml  environment.json  data.json  metrics.jsonl  checkpoints/  weights.safetensors  result.json  *.npz
"""

import contextlib
import errno
import io
import json
import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fairmargin.runtime.files import write_atomically

CONFIG, METRICS = "config.toml", "metrics.jsonl"
ENVIRONMENT, DATA, RESULT = "environment.json", "data.json", "result.json"


class RunError(OSError):
    """A run folder cannot be written or read; the message says which file, why, and what to do."""


class Locked(RunError):
    """Another process is writing into the folder."""


class RunFolder:
    """Where a run writes."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.metrics = Metrics(self.path / METRICS)
        self.checkpoints = self.path / "checkpoints"
        self.weights = self.path / "weights.safetensors"
        self.best = self.path / "best.safetensors"

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).is_file()

    def create(self) -> "RunFolder":
        """Make the folder, if need be, and see whether it can be written to."""
        probe = self.path / f".probe.{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"writable")
            probe.unlink()
        except OSError as error:
            with contextlib.suppress(OSError):
                probe.unlink()
            raise RunError(
                f"cannot write into {self.path}: {error.strerror}. Choose another folder with --out"
            ) from error
        return self

    def data_hashes(self) -> dict[str, str]:
        """Of the data that the run in this folder saw; empty if there is none, or nothing was recorded."""
        return dict((_parse(self.path / ENVIRONMENT) or {}).get("data") or {})

    def write_config(self, text: str) -> None:
        self._write(CONFIG, text)

    def write_environment(self, facts: Mapping[str, Any]) -> None:
        self._write(ENVIRONMENT, _json(facts, indent=1))

    def write_data(self, facts: Mapping[str, Any]) -> None:
        self._write(DATA, _json(facts, indent=1))

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Last of all: its presence means that the run is finished."""
        self._write(RESULT, _json(result, indent=1))

    def save_arrays(self, name: str, **arrays: np.ndarray | Tensor) -> Path:
        """`name`.npz with these arrays; nothing that would need pickle."""
        plain = {
            key: np.asarray(a.detach().cpu() if isinstance(a, Tensor) else a)
            for key, a in arrays.items()
        }
        for key, array in plain.items():
            if array.dtype.hasobject:
                raise TypeError(
                    f"{key} holds Python objects; give numbers, or text as an array of dtype str"
                )
        buffer = io.BytesIO()
        np.savez(buffer, **plain)  # type: ignore[arg-type]
        path = self.path / f"{name}.npz"
        self._replace(path, buffer.getbuffer())
        return path

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out of the folder; a lock goes away with its process, however that ends."""
        if os.name != "posix":  # nothing there goes away with its process
            yield
            return
        import fcntl

        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    file.seek(0)
                    who = f" (process {number})" if (number := file.read(20).strip()) else ""
                    raise Locked(
                        f"another process{who} is writing into {self.path}; wait for it, or choose another folder with --out"
                    ) from None
                # Some network file systems have no locks; a run there is still a run.
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def _write(self, name: str, text: str) -> None:
        self._replace(self.path / name, text.encode("utf-8"))

    def _replace(self, path: Path, content: bytes | memoryview) -> None:
        try:
            write_atomically(path, content)
        except OSError as error:
            raise RunError(
                f"cannot write {path}: {error.strerror}. Free some space or choose another folder"
            ) from error


class Metrics:
    """`metrics.jsonl`: one event per line. A line counts once its newline is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._continues = False  # the file is known to end with a whole line

    def append(self, event: Mapping[str, Any]) -> None:
        """One line; numbers that are not finite become null."""
        line = _json(event).encode("utf-8") + b"\n"
        if not self._continues:
            self.truncate(self._size())
        try:
            with self.path.open(
                "ab"
            ) as file:  # in one write, so that a reader never sees half of it for long
                file.write(line)
        except OSError as error:
            self._continues = False
            raise RunError(
                f"cannot write {self.path}: {error.strerror}. Free some space to go on"
            ) from error

    def position(self) -> int:
        """Bytes so far, all of them on the disk: what a checkpoint remembers."""
        if not self.path.exists():
            return 0
        with self.path.open("ab") as file:
            os.fsync(file.fileno())
        return self._size()

    def truncate(self, position: int) -> None:
        """Forget what was written after `position`, and half a line before it."""
        if self.path.exists():
            with self.path.open("r+b") as file:
                whole = file.read(position).rfind(b"\n") + 1
                file.truncate(whole)
        self._continues = True

    def read(self) -> list[dict[str, Any]]:
        """All events; a last line without its end is left out."""
        if not self.path.exists():
            return []
        *lines, _ = self.path.read_bytes().split(b"\n")
        events = []
        for number, line in enumerate(lines, 1):
            try:
                events.append(json.loads(line))
            except ValueError as error:
                raise RunError(
                    f"{self.path}, line {number} is not JSON ({error}); remove that line"
                ) from error
        return events

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


@dataclass(frozen=True)
class RunRecord:
    """A run folder, read."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]  # empty: the run ended before it wrote this
    data: dict[str, Any]  # likewise
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None  # None: not finished

    @staticmethod
    def read(path: Path) -> "RunRecord":
        path = Path(path)
        if not is_run(path):
            raise RunError(
                f"{path} is not the folder of a run: it has no {CONFIG} with a {METRICS} or {ENVIRONMENT}"
            )
        return RunRecord(
            path=path,
            config=_parse(path / CONFIG),
            environment=_parse(path / ENVIRONMENT) or {},
            data=_parse(path / DATA) or {},
            metrics=Metrics(path / METRICS).read(),
            result=_parse(path / RESULT),
        )

    @property
    def finished(self) -> bool:
        return self.result is not None

    def has_arrays(self, name: str) -> bool:
        return (self.path / f"{name}.npz").is_file()

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Those of `name`.npz, read now."""
        file = self.path / f"{name}.npz"
        if not file.is_file():
            raise RunError(f"{self.path} has no {file.name}; was the run finished?")
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
        except Exception as error:  # zip, array header, length: each has its own
            raise RunError(
                f"{file} is damaged ({type(error).__name__}: {error}); evaluate the run again"
            ) from error


def is_run(path: Path) -> bool:
    """A configuration alone may be anybody's."""
    signs = (ENVIRONMENT, METRICS, RESULT, "checkpoints")
    return (path / CONFIG).is_file() and any((path / sign).exists() for sign in signs)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Of each path: itself if it is a run, else the runs anywhere below it. Each once, in order."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise RunError(
                f"{path} is not a folder" if path.exists() else f"there is no folder {path}"
            )
        for folder, inner, _ in os.walk(path):
            inner.sort()
            if is_run(Path(folder)):
                inner.clear()  # what lies inside a run belongs to it
                found[Path(folder)] = None
    return list(found)


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    """The same in JSON's types, with None for numbers that are not finite."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _finite(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def _parse(file: Path) -> Any:
    """The content of a JSON or TOML file; None if there is none."""
    try:
        text = file.read_text("utf-8")
        return tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{file} is damaged: {error}") from error
