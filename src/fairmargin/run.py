"""One run, from configuration to result: the table of contents of this library."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fairmargin.bias.visible import visible_bias
from fairmargin.config import Config
from fairmargin.loop import fit
from fairmargin.runs import build
from fairmargin.runs.progress import Display
from fairmargin.runs.record import RunRecord
from fairmargin.runs.recorder import Recorder
from fairmargin.runs.surroundings import surroundings
from fairmargin.runtime import distributed
from fairmargin.runtime.signals import stop_requests


def run(
    config: Config,
    path: Path,
    *,
    command: Sequence[str] = ("fairmargin.run",),
    console: Console | None = None,
) -> RunRecord:
    """Train, evaluate and record one run: continue an interrupted one, only read a finished one.

    Args:
        path: the run folder, made if it does not exist.
        command: the command line, kept in environment.json.
        console: where progress is shown; the terminal by default.
    """
    device = build.device(config.train.device)
    with surroundings(config, path, device) as folder:
        if distributed.from_first_rank(folder.finished):
            build.check_source(config, folder)
            return RunRecord.read(path).checked()
        network = build.network(config, folder)
        data = build.data(config, network)
        build.check_testable(config, data)
        bias = visible_bias(config, data, distributed.from_first_rank(folder.bias()))
        method = build.method(config, data, bias=bias, network=network)
        parent = distributed.from_first_rank(folder.parent())
        training = build.training(config, method, data, device, bias=bias, parent=parent)
        with (
            stop_requests() as stop,
            Display(config, training, console) as display,
            Recorder(folder, config, bias.grouped(data), training, display, stop) as recorder,
        ):
            recorder.begin(command, bias)
            epochs, steps = config.train.epochs, config.train.steps
            on_step, on_epoch = recorder.after_step, recorder.after_epoch
            fit(training, epochs, steps=steps, after_step=on_step, after_epoch=on_epoch)
            recorder.conclude()
    return RunRecord.read(path)
