"""Errors that say that memory ran out become one sentence, whoever raised them."""

import errno
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

from fairmargin.cli.errors import LOST, exit_on_user_error
from fairmargin.runtime.exhausted import cause, resume_advice

HUGE = 1 << 50
WORKER = "DataLoader worker (pid 71) is killed by signal: Killed. "
LOST_WORKER = "DataLoader worker (pid(s) 71) exited unexpectedly"
CUDA = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 8 GiB"
MPS = "MPS backend out of memory (MPS allocated: 9 GB). Tried to allocate 256.00 MB on private pool"


def raised(action):
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        action()
    return caught.value


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (raised(lambda: torch.empty(HUGE, dtype=torch.uint8)), "memory (1,048,576.0 GiB more"),
        (raised(lambda: np.empty(1 << 48)), "memory (2.00 PiB more were needed)"),
        (MemoryError(), "there is not enough memory"),
        (torch.OutOfMemoryError(CUDA), "memory (20.00 GiB more were needed)"),
        (RuntimeError(MPS), "memory (256.00 MB more were needed)"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "not enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "there is not enough memory"),
        (RuntimeError(WORKER), "a process that reads images was ended by the system (Killed)"),
        (RuntimeError(LOST_WORKER), "a process that reads images ended, most often because"),
        (BrokenProcessPool("abruptly"), "a process that reads images ended, most often because"),
    ],
)
def test_every_shortage_is_one_sentence_and_an_exit_code(error, said, capsys):
    """Before, each but OSError ended with a traceback."""
    with pytest.raises(typer.Exit) as left, exit_on_user_error():
        raise error
    assert left.value.exit_code == LOST
    found = capsys.readouterr().err
    assert said in found
    assert "Free some memory" in found
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize(
    "error", [ValueError("3"), RuntimeError("shape mismatch"), OSError(errno.EACCES, "no")]
)
def test_other_errors_are_left_alone(error):
    assert cause(error) is None


def test_a_run_that_was_saved_says_how_it_goes_on():
    settings = {"train.batch_size": 256, "train.workers": 2}
    said = resume_advice(MemoryError(), Path("runs/a b"), 120, settings)
    assert "with train.batch_size=256, train.workers=2" in said
    assert "from step 120 with: fairmargin train --resume 'runs/a b' --set train.workers=0." in said
    alone = resume_advice(MemoryError(), Path("runs/a"), 120, settings | {"train.workers": 0})
    assert "--resume runs/a. If" in alone
    assert "nothing was saved yet" in resume_advice(MemoryError(), Path("runs/a"), 0, settings)
