"""Read a run folder: the names of its files, what they hold, and one clear error for each damage.

    record = RunRecord.read("runs/biased-mnist/ce/seed-0")
    record.result["test"]["own"]["accuracy"]["plain"]["value"]

    config.toml          every setting of the run
    environment.json     versions, machine, command, hashes of the data
    data.json            names of classes and biases, sizes, training samples of each group
    metrics.jsonl        one event a line: training steps and evaluations
    checkpoints/         what an interrupted run continues from
    weights.safetensors  the last weights; best.safetensors: those that are best on validation
    classifier.safetensors  the classifier that is reported, if it is not the method's own
    result.json          what was measured; written last, so it means that the run is finished
    test.npz             labels, predictions, logits and features of the test set; names of files
    examples.npz         some test images
    bias.npz             bias labels that were inferred, of each split (`data.bias`)
    trackers.json        under which names the tools of `train.trackers` know the run

`folder` writes these files. This module imports neither PyTorch nor anything that does, so reports
and checks start at once.
"""

import json
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmargin.runs import shapes
from fairmargin.runtime.limits import check_arrays
from fairmargin.runtime.whole import LinkError, refuse_links

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
DATA = "data.json"
NETWORK = "network.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
WEIGHTS = "weights.safetensors"
BEST = "best.safetensors"
HEAD = "classifier.safetensors"
RESULT = "result.json"
TRACKED = "trackers.json"
# Names of array files, without their ending .npz.
TEST = "test"
EXAMPLES = "examples"
BIAS = "bias"

AGAIN = "Copy the run folder again, or leave this run out"

Arrays = dict[str, NDArray[Any]]


class RunError(OSError):
    """A run folder cannot be written or read; the message names file, cause and remedy.

    Args:
        run: the folder, where that is known.
    """

    def __init__(self, *message: object, run: Path | None = None) -> None:
        super().__init__(*message)
        self.run = run


@dataclass(frozen=True)
class RunRecord:
    """What a run folder holds."""

    path: Path
    config: dict[str, Any]
    # Empty if the run ended before it wrote the file.
    environment: dict[str, Any]
    data: dict[str, Any]
    metrics: list[dict[str, Any]]
    # None if the run is not finished.
    result: dict[str, Any] | None
    config_text: str = ""

    @staticmethod
    def read(path: Path, *, begun: bool = False) -> "RunRecord":
        """Read the text files of a run folder. Arrays are read when they are asked for.

        Args:
            path: the run folder.
            begun: also accept a folder that holds config.toml alone, as a run leaves it that
                stopped before it wrote anything else.
        """
        path = Path(path)
        try:
            refuse_links(path)
        except LinkError as error:
            raise RunError(str(error)) from None
        config = path / CONFIG
        if not config.is_file():
            raise RunError(
                f"{path} is not a run folder: it has no {CONFIG}. "
                'Give a folder that "fairmargin train" wrote'
            )
        if not begun and not is_run(path):
            raise RunError(
                f"{path} is not a run folder: it has a {CONFIG}, but neither {METRICS} nor "
                f'{ENVIRONMENT}. Give a folder that "fairmargin train" wrote'
            )
        text = _read_text(config)
        data = _read_shaped(path / DATA, shapes.DATA) or {}
        result = _read_shaped(path / RESULT, shapes.RESULT)
        return RunRecord(
            path=path,
            config=_parse_toml(config, text),
            environment=_read_shaped(path / ENVIRONMENT, shapes.ENVIRONMENT) or {},
            data=data,
            metrics=read_events(path / METRICS),
            result=result,
            config_text=text,
        )

    @property
    def finished(self) -> bool:
        """True if the run has a result."""
        return self.result is not None

    @cached_property
    def outcome(self) -> dict[str, Any]:
        """The content of result.json; RunError if the run is not finished, or it is not whole."""
        if self.result is None:
            raise RunError(
                f"{self.path} is not finished; continue it: fairmargin train --resume {self.path}"
            )
        wrong = shapes.problem(self.result, shapes.RESULT)
        wrong = wrong or shapes.problem_between(self.result, self.data)
        if wrong:
            raise RunError(
                f"{self.path / RESULT} is damaged, or {DATA} is: {wrong}. {AGAIN}", run=self.path
            )
        return self.result

    def checked(self) -> "RunRecord":
        """Return this; a RunError if the run is not finished or result.json is damaged."""
        _ = self.outcome
        return self

    @property
    def method(self) -> str:
        """Name of the method, or "unknown method"."""
        named = self._settings("method").get("name", "unknown method")
        return str((self.result or {}).get("method") or named)

    @property
    def dataset(self) -> str:
        """Name of the dataset, or "unknown dataset"."""
        result = self.result or {}
        named = self.data.get("name") or result.get("dataset") or self._settings("data").get("name")
        return str(named or "unknown dataset")

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int((self.result or {}).get("seed", self.config.get("seed", 0)))

    @property
    def data_hashes(self) -> dict[str, str]:
        """Hashes of the data the run saw, by split; empty if none were recorded."""
        return dict(self.environment.get("data") or {})

    def evaluations(self) -> list[dict[str, Any]]:
        """Events written after an evaluation, in order."""
        return [event for event in self.metrics if event.get("event") == "evaluation"]

    def steps(self) -> list[dict[str, Any]]:
        """Events written after a training step, in order."""
        return [event for event in self.metrics if event.get("event") == "train"]

    @cached_property
    def test(self) -> Arrays:
        """Arrays of test.npz, read once; empty if there is no such file."""
        if not self.has_arrays(TEST):
            return {}
        arrays = self.arrays(TEST)
        wrong = shapes.problem_of_arrays(arrays, self.data)
        if wrong:
            file = self.path / f"{TEST}.npz"
            message = f"{file} is damaged: {wrong}; evaluate the run again"
            raise RunError(message, run=self.path)
        return arrays

    @cached_property
    def examples(self) -> Arrays:
        """Arrays of examples.npz, read once; empty if there is no such file."""
        return self.arrays(EXAMPLES) if self.has_arrays(EXAMPLES) else {}

    def has_arrays(self, name: str) -> bool:
        """True if the folder holds `name`.npz."""
        return (self.path / f"{name}.npz").is_file()

    def arrays(self, name: str) -> Arrays:
        """Read all arrays of `name`.npz; nothing that would need pickle.

        Args:
            name: of the file, without .npz.
        """
        file = self.path / f"{name}.npz"
        if not file.is_file():
            raise RunError(f"{self.path} has no {file.name}; was the run finished?")
        try:
            check_arrays(file)
            with np.load(file, allow_pickle=False) as stored:
                return {key: stored[key] for key in stored.files}
        # The zip file, the array's header and its length each raise errors of their own.
        except Exception as error:
            raise RunError(
                f"{file} is damaged ({type(error).__name__}: {error}); evaluate the run again",
                run=self.path,
            ) from error

    def _settings(self, section: str) -> dict[str, Any]:
        found = self.config.get(section)
        return found if isinstance(found, dict) else {}


def is_run(path: Path) -> bool:
    """True if the folder holds config.toml and at least one file that only a run writes.

    Args:
        path: any folder; it need not exist.
    """
    signs = (ENVIRONMENT, METRICS, RESULT, CHECKPOINTS)
    return (path / CONFIG).is_file() and any((path / sign).exists() for sign in signs)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Find run folders, each once, in the order given.

    Args:
        paths: folders. One that is a run stands for itself, any other for all runs below it.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise RunError(f"there is no folder {path}")
        if not path.is_dir():
            raise RunError(f"{path} is not a folder")
        for folder, inner, _ in os.walk(path):
            inner.sort()
            if is_run(Path(folder)):
                # A folder inside a run belongs to that run.
                inner.clear()
                found[Path(folder)] = None
    return list(found)


def _read_shaped(file: Path, shape: shapes.Shape) -> dict[str, Any] | None:
    """Read a JSON file that has to have this shape; None if there is no such file."""
    content = read_json(file)
    wrong = None if content is None else shapes.problem(content, shape, partial=True)
    if wrong:
        raise RunError(f"{file} is damaged: {wrong}. {AGAIN}")
    return content


def read_json(file: Path) -> dict[str, Any] | None:
    """Read a JSON file that holds an object; None if there is no such file.

    Args:
        file: environment.json, data.json or result.json of a run.
    """
    if not file.is_file():
        return None
    try:
        content = _parsed(_read_text(file))
    except ValueError as error:
        raise RunError(f"{file} is not valid JSON: {error}. {AGAIN}") from error
    if not isinstance(content, dict):
        raise RunError(
            f"{file} holds a {type(content).__name__} and should hold an object. {AGAIN}"
        )
    return content


def read_events(file: Path) -> list[dict[str, Any]]:
    """Read the events of metrics.jsonl; empty if there is no such file.

    A last line without its end is left out: the run was killed while writing it, or still writes.

    Args:
        file: metrics.jsonl of a run.
    """
    if not file.is_file():
        return []
    *lines, _ = file.read_bytes().split(b"\n")
    events = []
    for number, line in enumerate(lines, 1):
        try:
            event = _parsed(line.decode("utf-8"))
        except ValueError as error:
            raise RunError(
                f"{file}, line {number} is not JSON ({error}); remove that line"
            ) from error
        if not isinstance(event, dict):
            raise RunError(f"{file}, line {number} is not a JSON object; remove that line")
        wrong = shapes.problem_of_event(event)
        if wrong:
            raise RunError(f"{file}, line {number} is damaged: {wrong}; remove that line")
        events.append(event)
    return events


def _parsed(text: str) -> Any:
    """JSON as the standard has it: without NaN and Infinity, and not too deep to be read."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _parse_toml(file: Path, text: str) -> dict[str, Any]:
    try:
        content = tomllib.loads(text)
    # ValueError: no TOML, or a number of more digits than Python reads.
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{file} is not valid TOML: {error}. Run the training again, or leave this run out"
        ) from error
    wrong = shapes.problem(content, shapes.CONFIG, partial=True)
    if wrong:
        raise RunError(f"{file} is damaged: {wrong}. {AGAIN}")
    return content


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunError(
            f"{file} is not UTF-8 text. Copy the run folder again, or leave this run out"
        ) from error
