"""Say in one sentence that a run ended for lack of memory, and how it goes on."""

from collections.abc import Iterator
from contextlib import contextmanager

from fairmargin.config import Config
from fairmargin.runs import checkpoint
from fairmargin.runs.folder import RunFolder
from fairmargin.runtime.exhausted import Exhausted, is_shortage, release, resume_advice


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
        settings = {
            "train.batch_size": config.train.batch_size,
            "evaluate.batch_size": config.evaluate.batch_size,
            "train.workers": config.train.workers,
        }
        release(error)
        step = checkpoint.newest_step(folder.checkpoints)
        raise Exhausted(resume_advice(error, folder.path, step, settings)) from error
