import io
import signal
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from fairmargin import config
from fairmargin.runs import progress
from fairmargin.runs.progress import Display, Now
from fairmargin.runtime import memory
from fairmargin.runtime.signals import stop_requests

CONFIG = config.load(dataset="biased-mnist-mini", method="ce", seed=3, overrides=["train.epochs=4"])
TRAINING = SimpleNamespace(loader=range(10))  # ten steps an epoch
NOW = Now(
    epoch=1,
    step=12,
    rate=1234.5,
    terms={"ce": 0.51234},
    pairs=[30, 4, 8, 900],
    accuracy="valid plain 50.0%",
)


def display(terminal):
    file = io.StringIO()
    return Display(CONFIG, TRAINING, Console(file=file, force_terminal=terminal, width=160)), file


def test_a_terminal_gets_a_panel_with_everything(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    shown, file = display(terminal=True)
    with shown:
        shown.begin(2)
        shown.show(NOW)
    text = file.getvalue()
    for part in (
        "ce, seed 3",
        "epoch 2/4",
        "step 12/40",
        "1,234 images/s",
        "left",
        "ce 0.5123",
        "valid plain 50.0%",
    ):
        assert part in text
    assert "same label 30 aligned 4 conflicting, other label 8 aligned 900 conflicting" in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_narrow_terminal_cuts_nothing(monkeypatch, width):
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    file = io.StringIO()
    config_of = config.load(method="class-reweighted+fairkl", overrides=["train.epochs=100"])
    training = SimpleNamespace(loader=range(2345))
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    shown = Display(config_of, training, console)
    with shown:
        shown.show(Now(epoch=99, step=234_000, rate=12_345, terms={"ce": 0.5}))
    text = " ".join(file.getvalue().split())
    for part in ("class-reweighted+fairkl, seed 0", "epoch 100/100", "step 234,000/234,500"):
        assert part in text
    assert "12,345 images/s" in text
    assert "…" not in text


def test_on_a_terminal_the_line_of_a_finished_epoch_stays(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    shown, file = display(terminal=True)
    with shown:
        shown.show(NOW)
        shown.epoch_done()
    # The panel is redrawn and removed; the line is printed once, above it.
    line = "epoch 1/4  valid plain 50.0%  ce 0.5123"
    screen = file.getvalue()
    assert screen.count(line) == 1
    assert screen.index("\x1b[2K") < screen.index(line)


def test_in_a_log_the_line_of_an_epoch_has_everything():
    shown, file = display(terminal=False)
    shown.show(NOW)
    shown.epoch_done()
    assert file.getvalue() == f"{shown.line()}  valid plain 50.0%\n"


def test_elsewhere_nothing_is_drawn_and_lines_are_plain():
    shown, file = display(terminal=False)
    with shown:
        shown.begin(0)
        shown.show(NOW)
        assert not shown.due()
        shown.say(shown.line())
    text = file.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert text.startswith("epoch 1/4 step 12/40  ce 0.5123  FairKL pairs: same label 30 aligned")


def test_beside_other_processes_a_run_says_when_it_begins_and_ends_and_what_is_wrong(monkeypatch):
    monkeypatch.setattr(progress, "_shared", False)
    progress.share_the_terminal()
    shown, file = display(terminal=True)
    with shown:
        shown.begin(0)
        shown.show(NOW)
        shown.detail(shown.line())
        shown.say("warning: embeddings are collapsing")
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["ce, seed 3: begins", "ce, seed 3: warning: embeddings are collapsing"]
    assert lines[2:] == ["ce, seed 3: done in 0:00, valid plain 50.0%"]
    again, file = display(terminal=True)
    again.begin(12)
    again.__exit__(ValueError)
    assert (
        file.getvalue() == "ce, seed 3: continuing after step 12\n"
    )  # whoever hears of the error says it


def test_time_left_comes_from_the_steps_of_this_process(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    shown, _ = display(terminal=False)
    shown.begin(10)  # resumed there
    clock[0] = 104.0
    shown.show(Now(step=12))
    assert "0:56 left" in shown.line()  # 2 s a step, 28 steps
    shown.show(Now(step=10))
    assert "? left" in shown.line()


@pytest.mark.parametrize(("seconds", "said"), [(59.6, "1:00"), (3661, "1:01:01"), (0, "0:00")])
def test_clock(seconds, said):
    assert progress._clock(seconds) == said


def test_a_signal_is_a_request_and_the_second_ctrl_c_does_not_wait():
    before = signal.getsignal(signal.SIGINT)
    with stop_requests() as stop:
        assert not stop
        signal.raise_signal(signal.SIGTERM)
        assert stop
        assert stop.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_train_without_listening():
    heard = []

    def work():
        with stop_requests() as stop:
            heard.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]


def test_the_allocator_is_asked_only_where_it_can_be(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert not memory.keep_memory()


def test_what_comes_after_training_is_shown_below_the_panel(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    shown, file = display(terminal=True)
    with shown:
        shown.show(NOW)
        shown.stage("linear evaluation", 1234, 9800)
    assert "linear evaluation: 1,234 of 9,800 batches" in file.getvalue()


@pytest.mark.parametrize(
    ("of", "percent"),
    [(1, [100]), (3, [33, 67, 100]), (20, range(10, 101, 10)), (1000, range(10, 101, 10))],
)
def test_elsewhere_it_is_a_line_at_each_tenth(of, percent):
    shown, file = display(terminal=False)
    for done in range(1, of + 1):
        shown.stage("linear evaluation", done, of)
    assert file.getvalue().splitlines() == [f"linear evaluation: {share}%" for share in percent]
