"""What is sent to worker processes and back, and requests to stop."""

import pickle
import signal
from pathlib import Path

import pytest

from fairmargin.runtime.files import CheckpointError, DamagedCheckpoint
from fairmargin.runtime.signals import Interrupted, stop_requests
from fairmargin.sweep.local import Local
from fairmargin.sweep.workers import portable
from tests.sweep.many import no_threes


class TestExceptionsTravel:
    def test_interrupted_keeps_its_number(self):
        again = pickle.loads(pickle.dumps(Interrupted("stopped at step 3", 15)))
        assert (str(again), again.number) == ("stopped at step 3", 15)

    def test_what_cannot_be_sent_becomes_its_nearest_kind(self):
        sent = portable(DamagedCheckpoint(Path("a.ckpt"), "it is empty"))
        assert type(sent) is CheckpointError
        assert str(pickle.loads(pickle.dumps(sent))) == "a.ckpt cannot be used: it is empty"

        class Local(ValueError):
            pass

        assert type(portable(Local("here"))) is ValueError

    def test_the_traceback_comes_along(self):
        try:
            no_threes(3)
        except ValueError as error:
            sent = pickle.loads(pickle.dumps(portable(error)))
        assert "in no_threes" in sent.__notes__[0]


def test_a_task_that_cannot_be_sent_is_an_error():
    with pytest.raises(TypeError, match=r"functions and classes of a module.*jobs=1"):
        list(Local(2).map(lambda task: task, [1]))


def test_a_request_to_a_worker_reaches_its_runs_and_the_next_ones():
    with stop_requests() as worker:
        with stop_requests() as run:
            assert run is worker
            signal.raise_signal(signal.SIGTERM)
        with stop_requests() as following:
            assert following
    with stop_requests() as later:
        assert not later


def test_a_request_while_a_run_concludes_lets_it_finish_and_starts_no_other():
    begun, finished = [], []

    def conclude(task):
        begun.append(task)
        signal.raise_signal(signal.SIGINT)  # heard by nobody inside: the last step is over
        return task

    with pytest.raises(Interrupted, match="the same command goes on") as error:
        finished.extend(found for _, found in Local().map(conclude, [1, 2]))
    assert (begun, finished, error.value.number) == ([1], [1], signal.SIGINT)
