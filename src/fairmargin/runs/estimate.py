"""How long a run will take, from one step that leaves nothing behind."""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fairmargin.batch import Batch
from fairmargin.loop import Training

MINUTE, HOUR = 60, 3600


def training_seconds(training: Training, steps: int) -> float | None:
    """Return the seconds that so many steps take, without evaluation; None if it cannot be told.

    A copy of the method makes two steps, of which the second is timed. Weights, optimizers, random
    numbers and the place among the batches stay as they are.

    Args:
        training: about to begin.
        steps: how many there are to do.
    """
    place = training.loader.state_dict()
    try:
        with _same_random_numbers(training.device):
            batch = next(iter(training.loader))
            method = copy.deepcopy(training.method)
            seconds = 0.0
            for _ in range(2):
                begun = time.monotonic()
                _step(method, batch)
                _wait(training.device)
                seconds = time.monotonic() - begun
    # A method may need what its first epoch prepares, or a second stream of batches.
    except Exception:
        return None
    finally:
        training.loader.load_state_dict(place)
    return steps * seconds


def _step(method: torch.nn.Module, batch: Batch) -> None:
    for _, loss in method.updates(batch, 0):  # type: ignore[operator]
        loss.backward()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        yield


def in_words(seconds: float) -> str:
    """Return "40 seconds", "3 minutes" or "2.5 hours".

    Args:
        seconds: from 0 up.
    """
    if seconds < MINUTE:
        return f"{max(round(seconds), 1)} seconds" if seconds >= 1.5 else "a second"
    if seconds < 1.5 * HOUR:
        minutes = round(seconds / MINUTE)
        return f"{minutes} minutes" if minutes > 1 else "a minute"
    return f"{seconds / HOUR:.1f} hours"
