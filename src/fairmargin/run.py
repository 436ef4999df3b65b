"""One run, from configuration to result: the table of contents of this library."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fairmargin.bias.visible import visible_bias
from fairmargin.config import Config
from fairmargin.loop import fit
from fairmargin.runs import build
from fairmargin.runs.folder import RunRecord
from fairmargin.runs.progress import Display
from fairmargin.runs.recorder import Journal
from fairmargin.runtime import distributed, memory
from fairmargin.runtime.signals import stop_requests


def run(
    config: Config,
    path: Path,
    *,
    command: Sequence[str] = ("fairmargin.run",),
    console: Console | None = None,
) -> RunRecord:
    """Train, evaluate and record in the folder `path`; an interrupted run goes on, a finished one is only read."""
    memory.keep_memory()
    device = build.device(config.train.device)
    with distributed.processes(device), build.folder(config, path) as folder:
        if distributed.from_first_rank(folder.finished):
            build.check_source(config, folder)
            return RunRecord.read(path)
        data = build.data(config)
        if not len(data.test):
            raise ValueError(
                f"{config.data.name} has no test samples here, so nothing could be said of the result; add some"
            )
        bias = visible_bias(config, data)
        method = build.method(config, data, bias=bias)
        training = build.training(config, method, data, device, bias=bias)
        epochs, steps = config.train.epochs, config.train.steps
        with stop_requests() as stop, Display(config, training, console) as display:
            journal = Journal(folder, config, data, training, display, stop)
            journal.begin(command)
            on_step, on_epoch = journal.after_step, journal.after_epoch
            fit(training, epochs, steps=steps, after_step=on_step, after_epoch=on_epoch)
            journal.conclude()
    return RunRecord.read(path)
