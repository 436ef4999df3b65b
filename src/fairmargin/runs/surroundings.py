"""What a run happens in: its processes, its folder, its kind of arithmetic, and how it may end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fairmargin.config import Config
from fairmargin.runs import build, checkpoint
from fairmargin.runs.folder import RunFolder
from fairmargin.runtime import distributed, memory
from fairmargin.runtime.deterministic import deterministic
from fairmargin.runtime.exhausted import Exhausted, is_shortage, release, resume_advice


@contextmanager
def surroundings(config: Config, path: Path, device: torch.device) -> Iterator[RunFolder]:
    """Join the other processes and open the run folder; everything is left again at the end.

    Args:
        config: of the run.
        path: the folder.
        device: where training happens.
    """
    memory.keep_memory()
    with (
        distributed.processes(device, config.train.timeout_seconds),
        build.folder(config, path) as folder,
        explained(config, folder),
        deterministic(config.train.deterministic, device),
    ):
        yield folder


@contextmanager
def explained(config: Config, folder: RunFolder) -> Iterator[None]:
    """Raise `Exhausted` for an error inside that says that memory ran out.

    Args:
        config: of the run.
        folder: of the run.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, Exhausted) or not is_shortage(error):
            raise
        release(error)
        settings = {
            "train.batch_size": config.train.batch_size,
            "evaluate.batch_size": config.evaluate.batch_size,
            "train.workers": config.train.workers,
        }
        step = checkpoint.newest_step(folder.checkpoints)
        raise Exhausted(resume_advice(error, folder.path, step, settings)) from error
