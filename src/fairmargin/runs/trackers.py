"""A run's numbers in TensorBoard, Weights & Biases, MLflow or Trackio: `train.trackers`.

    train/TERM, lr/PLAYER    at the steps of the log
    valid/NAME, test/NAME    accuracies at every evaluation
    group/LABEL, BIAS        the share that is right of each group of the test set, at the end
    summary                  the headline and the accuracies of every classifier, at the end
    mistakes                 a picture of the surest wrong answers on the test set, at the end

Where the numbers and the picture go, online or not, is decided by each tool's own environment
variables.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, Literal, Protocol, runtime_checkable
from uuid import uuid4

from fairmargin.batch import DataInfo
from fairmargin.config import Config, dataset_name, settings_of
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.mistakes import Picture
from fairmargin.runs.record import TRACKED, read_json

# The project that runs belong to where the environment names none.
PROJECT = "fairmargin"
# Settings of MLflow in one call; its servers refuse more.
MLFLOW_BATCH = 100
# What MLflow does not take in a name.
MLFLOW_REFUSES = re.compile(r"[^\w\-./: ]", re.ASCII)
# Settings that hold paths of this machine.
PLACES = ("data.root", "data.scores")

Kind = Literal["train", "evaluation"]
Value = float | str


@dataclass(frozen=True)
class Start:
    """What a tracker is told when a run begins or goes on.

    Args:
        name: of the run, for people.
        folder: the run folder.
        settings: the configuration by dotted key, such as "train.epochs".
        step: from which the run goes on; 0 for one that begins.
        id: by which the tool knows the run from before; None for a new one.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]
    step: int
    id: str | None = None


class Tracker(Protocol):
    """One tool that shows the numbers of a run while it trains.

    Attributes:
        id: by which the tool finds the run again.
        forgets: True if the tool hides what was logged after the step from which a run goes on.
    """

    id: str
    forgets: bool

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Show these numbers at a step.

        Args:
            values: by name.
            step: of the training.
        """

    def finish(self, summary: Mapping[str, Value] | None) -> None:
        """Show what came out, and end.

        Args:
            summary: by name; None if the run stops without a result, to be resumed or not.
        """


@runtime_checkable
class TakesImages(Protocol):
    """A tracker that also shows pictures."""

    def images(self, pictures: Mapping[str, Picture], step: int) -> None:
        """Show these pictures at a step.

        Args:
            pictures: by name.
            step: of the training.
        """


class TensorBoard(Tracker):
    """Event files in the folder's tensorboard/."""

    forgets = True

    def __init__(self, start: Start) -> None:
        writer = _package("tensorboard", "torch.utils.tensorboard").SummaryWriter
        path = start.folder / "tensorboard"
        self.id = path.name
        self._writer = writer(str(path), purge_step=start.step + 1)
        self._step = start.step

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars to the event file."""
        self._step = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        # Otherwise a killed process takes two minutes of numbers with it.
        self._writer.flush()

    def images(self, pictures: Mapping[str, Picture], step: int) -> None:
        """Write pictures, and their captions as texts, to the event file."""
        for name, picture in pictures.items():
            self._writer.add_image(name, picture.pixels, step, dataformats="HWC")
            if picture.caption:
                self._writer.add_text(f"{name}/caption", picture.caption, step)

    def finish(self, summary: Mapping[str, Value] | None) -> None:
        """Write the summary as scalars and texts, and close the file."""
        for name, value in (summary or {}).items():
            if isinstance(value, str):
                self._writer.add_text(f"summary/{name}", value, self._step)
            else:
                self._writer.add_scalar(f"summary/{name}", value, self._step)
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases."""

    forgets = False

    def __init__(self, start: Start) -> None:
        wandb = _package("wandb")
        self._image = wandb.Image
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=os.environ.get("WANDB_DIR", str(start.folder)),
            name=start.name,
            id=start.id,
            resume="allow",
            config=dict(start.settings),
            allow_val_change=True,
            # A run that the caller has open stays as it is.
            reinit="create_new",
        )
        self.id = str(self._run.id)
        # With `step=` wandb would keep each row until the next step, and lose it with the process.
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log one row, with the step as a value of its own."""
        self._run.log({**values, "step": step})

    def images(self, pictures: Mapping[str, Picture], step: int) -> None:
        """Log one row of pictures with their captions."""
        made = {name: self._image(x.pixels, caption=x.caption) for name, x in pictures.items()}
        self._run.log({**made, "step": step})

    def finish(self, summary: Mapping[str, Value] | None) -> None:
        """Fill in the run's summary and end it; without one it counts as failed."""
        self._run.summary.update(dict(summary or {}))
        self._run.finish(exit_code=int(summary is None))


class MLflow(Tracker):
    """A run of MLflow; inside the caller's, if one is open."""

    forgets = False

    def __init__(self, start: Start) -> None:
        self._mlflow = _package("mlflow")
        inside = self._mlflow.active_run() is not None
        run = self._mlflow.start_run(run_id=start.id, run_name=start.name, nested=inside)
        self.id = str(run.info.run_id)
        self._step = start.step
        # MLflow refuses other values for settings that a run already has.
        if start.id is None:
            texts = [(key, str(value)) for key, value in start.settings.items()]
            for first in range(0, len(texts), MLFLOW_BATCH):
                self._mlflow.log_params(dict(texts[first : first + MLFLOW_BATCH]))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics under names that MLflow takes."""
        self._step = step
        plain = {MLFLOW_REFUSES.sub("_", name): value for name, value in values.items()}
        self._mlflow.log_metrics(plain, step=step, run_id=self.id)

    def images(self, pictures: Mapping[str, Picture], step: int) -> None:
        """Log pictures as files of the run; their captions are drawn on them."""
        for name, picture in pictures.items():
            file = f"{MLFLOW_REFUSES.sub('_', name)}-step-{step}.png"
            self._mlflow.log_image(picture.pixels, file)

    def finish(self, summary: Mapping[str, Value] | None) -> None:
        """Log the summary as metrics and tags, and end the run."""
        if summary is None:
            self._mlflow.end_run("KILLED")
            return
        numbers = {f"summary/{k}": v for k, v in summary.items() if not isinstance(v, str)}
        self.log(numbers, self._step)
        self._mlflow.set_tags({k: v for k, v in summary.items() if isinstance(v, str)})
        self._mlflow.end_run("FINISHED")


class Trackio(Tracker):
    """A run of Trackio, which finds runs again by their names."""

    forgets = False

    def __init__(self, start: Start) -> None:
        # Runs in two folders may have one name.
        self.id = start.id or f"{start.name}-{uuid4().hex[:6]}"
        self._step = start.step
        trackio = _package("trackio")
        self._image = trackio.Image
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=self.id,
            config=dict(start.settings),
            resume="allow",
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log one row."""
        self._step = step
        self._run.log(dict(values), step=step)

    def images(self, pictures: Mapping[str, Picture], step: int) -> None:
        """Log one row of pictures with their captions."""
        made = {name: self._image(x.pixels, caption=x.caption) for name, x in pictures.items()}
        self._run.log(made, step=step)

    def finish(self, summary: Mapping[str, Value] | None) -> None:
        """Log the summary as metrics, and end the run."""
        if summary is not None:
            numbers = {f"summary/{k}": v for k, v in summary.items() if not isinstance(v, str)}
            self.log(numbers, self._step)
        self._run.finish()


TRACKERS: dict[str, Callable[[Start], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def chosen(config: Config) -> list[str]:
    """Return the names of a run's trackers; `train.tensorboard` adds one."""
    first = ["tensorboard"] if config.train.tensorboard else []
    return list(dict.fromkeys([*first, *config.train.trackers]))


class Trackers:
    """All trackers of a run. One that fails is warned of once, and the run goes on without it.

    After an interruption, steps are trained again that a tool has seen already; they are not
    logged twice. What each tool has seen is kept in the folder's trackers.json.

    Args:
        config: of the run.
        folder: its folder; metrics.jsonl still has what was logged before an interruption.
        step: from which the run goes on; 0 for one that begins.
        say: prints a line.
    """

    def __init__(
        self, config: Config, folder: RunFolder, step: int, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._running: dict[str, Tracker] = {}
        # The last step that each tool has seen, by kind.
        self._seen: dict[str, dict[str, int]] = {}
        names = chosen(config)
        if not names:
            return
        known = read_json(folder.path / TRACKED) or {}
        last = _last_steps(folder)
        for name in names:
            before = known.get(name)
            start = Start(
                name=run_name(config, folder.path),
                folder=folder.path,
                settings=_settings(config),
                step=step,
                id=None if before is None else before["id"],
            )
            tracker = self._start(name, start)
            if tracker is None:
                continue
            seen: dict[str, int] = {}
            if before is not None:
                seen = {kind: max(last[kind], before["seen"].get(kind, 0)) for kind in last}
            if tracker.forgets:
                seen = {kind: min(number, step) for kind, number in seen.items()}
            self._running[name] = tracker
            self._seen[name] = seen
            known[name] = {"id": tracker.id, "seen": seen}
        folder.write_trackers(known)

    def _start(self, name: str, start: Start) -> Tracker | None:
        try:
            return TRACKERS[name](start)
        except MissingPackage:
            raise
        except Exception as error:
            # A run that begins has nothing to lose; one that goes on must not fail for this.
            if start.step == 0:
                raise ValueError(
                    f"the tracker {name} could not be started ({_reason(error)}); mend that, or "
                    "leave it out of train.trackers"
                ) from error
            self._warn(name, error)
            return None

    def log(self, kind: Kind, values: Mapping[str, float], step: int) -> None:
        """Log numbers of a training step or of an evaluation, except what a tool has seen.

        Args:
            kind: what the numbers are of.
            values: by name.
            step: of the training.
        """
        for name, tracker in list(self._running.items()):
            if step > self._seen[name].get(kind, 0):
                self._guarded(name, tracker.log, values, step)

    def __bool__(self) -> bool:
        """True if there is a tracker that runs."""
        return bool(self._running)

    def conclude(
        self, result: Mapping[str, Any], info: DataInfo, pictures: Mapping[str, Picture]
    ) -> None:
        """Log what came out, and end all trackers.

        Args:
            result: what result.json holds.
            info: names of classes and biases.
            pictures: by name, for the trackers that take any.
        """
        groups = group_accuracies(result, info)
        for name, tracker in list(self._running.items()):
            if groups:
                self._guarded(name, tracker.log, groups, result["steps"])
            if pictures and isinstance(tracker, TakesImages):
                self._guarded(name, tracker.images, pictures, result["steps"])
            self._guarded(name, tracker.finish, summary_of(result))
        self._running.clear()

    def close(self) -> None:
        """End the trackers of a run that has no result; nothing happens after `conclude`."""
        for name, tracker in list(self._running.items()):
            self._guarded(name, tracker.finish, None)
        self._running.clear()

    def _guarded(self, name: str, act: Callable[..., None], *arguments: Any) -> None:
        if name not in self._running:
            return
        try:
            act(*arguments)
        except Exception as error:
            del self._running[name]
            self._warn(name, error)

    def _warn(self, name: str, error: Exception) -> None:
        self._say(
            f"warning: the tracker {name} failed ({_reason(error)}); the run goes on without it, "
            "and metrics.jsonl has every number"
        )


class MissingPackage(ValueError):
    """A tracker was asked for whose package is not installed."""


def _package(name: str, module: str | None = None) -> ModuleType:
    """Import the package of a tracker."""
    try:
        return import_module(module or name)
    except ImportError as error:
        raise MissingPackage(
            f'the tracker {name} needs an extra package: pip install "fairmargin[{name}]"'
        ) from error


def run_name(config: Config, folder: Path) -> str:
    """Return DATASET/METHOD/FOLDER, such as biased-mnist/ce/seed-0.

    Args:
        config: of the run.
        folder: of the run; only its last part is used.
    """
    return f"{dataset_name(config)}/{config.method.name}/{folder.resolve().name}"


def summary_of(result: Mapping[str, Any]) -> dict[str, Value]:
    """Return the headline and all accuracies of a result, by name.

    Args:
        result: what result.json holds.
    """
    headline = result["headline"]
    classifier, accuracy = headline["classifier"], headline["accuracy"]
    found: dict[str, Value] = {
        "headline": float(result["test"][classifier]["accuracy"][accuracy]["value"]),
        "headline_accuracy": accuracy,
        "headline_classifier": classifier,
        "reported": result["reported"],
        "seconds": float(result["seconds"]),
    }
    for classifier, judged in result["test"].items():
        for name, interval in judged["accuracy"].items():
            found[f"{classifier}/{name}"] = float(interval["value"])
    return found


def group_accuracies(result: Mapping[str, Any], info: DataInfo) -> dict[str, float]:
    """Return the accuracy of each group of the test set that has samples, as "group/cat, green".

    Args:
        result: what result.json holds.
        info: names of classes and biases.
    """
    groups = result["test"][result["headline"]["classifier"]]["groups"]
    found: dict[str, float] = {}
    if not groups:
        return found
    for y, label in enumerate(info.class_names):
        for b, bias in enumerate(info.bias_names):
            n = int(groups["n"][y][b])
            if n:
                found[f"group/{label}, {bias}"] = int(groups["correct"][y][b]) / n
    return found


def _settings(config: Config) -> dict[str, Any]:
    """Every setting by its dotted key; of a path only its last part, which names no place."""
    found = settings_of(config)
    for key in PLACES:
        if key in found:
            found[key] = PurePath(str(found[key])).name
    return found


def _last_steps(folder: RunFolder) -> dict[str, int]:
    """The last step of each kind that metrics.jsonl has."""
    last = {"train": 0, "evaluation": 0}
    for event in folder.metrics.read():
        if event.get("event") in last:
            last[event["event"]] = max(last[event["event"]], int(event["step"]))
    return last


def _reason(error: Exception) -> str:
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first}"
