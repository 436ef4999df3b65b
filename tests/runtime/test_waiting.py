"""Who is waited for, for how long, and what ends the wait; no process is needed for this."""

import threading

import pytest

from fairmargin.runtime import waiting
from fairmargin.runtime.waiting import Lookout, State, Watch

TIMEOUT = 100.0


class Ranks:
    """A lookout of rank 0, and states of the others that tests move."""

    def __init__(self, size=3, host=None):
        self.lookout = Lookout(0, size, TIMEOUT, host)
        self.mine = State(0, 10, free=False)
        self.states = {rank: State(0, 10, free=False) for rank in range(1, size)}
        self.stopped = set()
        self.heard = True

    def move(self, rank, **changes):
        self.states[rank] = State(**(vars(self.states[rank]) | changes))

    def wait(self, seconds):
        for _ in range(int(seconds)):
            for rank, state in self.states.items():
                if rank not in self.stopped:
                    self.move(rank, beat=state.beat + 1)
            self.lookout.look(1.0, self.mine, self.states, self.heard)
        return self.lookout.late(TIMEOUT)


def test_a_process_that_goes_on_is_never_late():
    ranks = Ranks()
    for step in range(300):
        ranks.mine = State(0, 10 + step, free=False)
        for rank in (1, 2):
            ranks.move(rank, marks=10 + step)
        assert ranks.wait(1) == {}
    assert not ranks.lookout.stuck


def test_a_stopped_process_is_named():
    ranks = Ranks()
    ranks.stopped = {2}
    assert ranks.wait(TIMEOUT - 1) == {}
    assert ranks.lookout.late(ranks.lookout.notice) == {2: False}
    assert ranks.wait(3) == {2: False}


def test_a_process_that_lives_and_does_not_come_is_named():
    """A mount hangs: its thread beats, and its main thread does not come to the next mark."""
    ranks = Ranks()
    ranks.wait(1)
    ranks.mine = State(0, 11, free=False)
    ranks.move(1, marks=11)
    assert ranks.wait(TIMEOUT - 1) == {}
    assert ranks.wait(3) == {2: True}


@pytest.mark.parametrize("why", ["evaluates", "prepares"])
def test_a_process_that_may_take_its_time_is_waited_for(why):
    ranks = Ranks()
    ranks.mine = State(0, 11, free=False)
    ranks.move(1, marks=11)
    ranks.move(2, free=True)
    assert ranks.wait(50 * TIMEOUT) == {}
    assert ranks.lookout.late(ranks.lookout.notice) == {}
    assert not ranks.lookout.stuck
    # Afterwards the clock begins.
    ranks.move(2, free=False)
    assert ranks.wait(TIMEOUT - 1) == {}
    assert ranks.wait(3) == {2: True}


def test_one_that_is_stopped_while_it_may_take_its_time_is_named():
    ranks = Ranks()
    ranks.mine = State(0, 11, free=False)
    ranks.move(1, marks=11)
    ranks.move(2, free=True)
    ranks.wait(10)
    ranks.stopped = {2}
    assert ranks.wait(1.3 * TIMEOUT) == {2: False}


def test_a_process_that_takes_its_time_itself_waits_for_nobody():
    ranks = Ranks()
    ranks.stopped = {1, 2}
    ranks.mine = State(0, 10, free=True)
    assert ranks.wait(50 * TIMEOUT) == {}


def test_a_process_that_comes_back_is_not_late():
    ranks = Ranks()
    ranks.stopped = {2}
    ranks.wait(0.9 * TIMEOUT)
    ranks.stopped = set()
    ranks.mine = State(0, 11, free=False)
    for rank in (1, 2):
        ranks.move(rank, marks=11)
    assert ranks.wait(0.5 * TIMEOUT) == {}


def test_when_all_have_arrived_and_nobody_goes_on_no_rank_is_named():
    ranks = Ranks()
    assert ranks.wait(1.1 * TIMEOUT) == {}
    assert ranks.lookout.stuck


@pytest.mark.parametrize(("host", "named"), [(1, {1: False}), (None, {})])
def test_without_an_answer_of_the_store_its_rank_is_named(host, named):
    ranks = Ranks(host=host)
    ranks.wait(10)
    ranks.heard = False
    ranks.stopped = {1, 2}
    assert ranks.wait(1.3 * TIMEOUT) == named
    assert ranks.lookout.stuck == (host is None)


def test_one_that_has_left_is_not_missed():
    ranks = Ranks(size=2)
    ranks.states[1] = State(-1, 10, free=True)
    ranks.stopped = {1}
    assert ranks.wait(3 * TIMEOUT) == {}


class Shelf(dict):
    """A store in this process."""

    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)

    def get(self, key):
        return self[key]


class Silent(Shelf):
    """A store that never answers, like one whose process is stopped."""

    def set(self, key, value):
        threading.Event().wait()


@pytest.fixture
def at_step():
    """This process waits inside step 7."""
    waiting.at_step(7)
    waiting.prepared()
    with waiting.arrival:
        yield
    waiting.arrival.preparing = True


def ended(store, host):
    """What a watch over rank 1 says, and the sentence it ends with."""
    said, end = [], threading.Event()

    def farewell(text):
        said.append(text)
        end.set()

    watch = Watch(store, Lookout(0, 2, 0.5, host), said.append, farewell)
    watch.start()
    assert end.wait(60)
    watch.stop(orderly=False)
    return said


def test_a_watch_says_who_is_late_and_ends_with_one_sentence(at_step):
    said = ended(Shelf(), None)
    assert said[0].startswith("rank 1 has not arrived at step 7; waited 0 s, giving up after 0.5 s")
    farewell = next(text for text in said if "did not arrive" in text)
    assert farewell.startswith("rank 1 did not arrive at step 7 within 0.5 s; it is stopped")


def test_a_store_that_does_not_answer_does_not_stop_the_watch(at_step):
    said = ended(Silent(), 1)
    assert any("rank 1 did not arrive at step 7 within 0.5 s" in text for text in said)


def test_a_stretch_without_a_limit_ends_with_its_block():
    waiting.prepared()
    assert not waiting.arrival.free
    with waiting.unlimited():
        assert waiting.arrival.free
        with waiting.arrival:
            assert not waiting.arrival.free
    assert not waiting.arrival.free
