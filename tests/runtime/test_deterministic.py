"""`train.deterministic`: what it switches on, what it refuses, and that this ends."""

import os

import pytest
import torch
from torch import nn

from fairmargin import loop
from fairmargin.runs.record import RunRecord
from fairmargin.runtime.deterministic import CUBLAS, deterministic
from tests.small_runs import config, silently

CPU = torch.device("cpu")


def state():
    cudnn = torch.backends.cudnn
    flags = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    return *flags, os.environ.get(CUBLAS[0])


def refused():
    """An operation that has no deterministic version on any device."""
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


def test_everything_is_on_inside_and_as_before_afterwards(monkeypatch):
    monkeypatch.delenv(CUBLAS[0], raising=False)
    before = state()
    with deterministic(True, CPU):
        assert state() == (True, True, False, ":4096:8")
    assert state() == before
    with pytest.raises(KeyError), deterministic(True, CPU):
        raise KeyError
    assert state() == before


def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv(CUBLAS[0], ":16:8")
    with deterministic(True, CPU):
        assert os.environ[CUBLAS[0]] == ":16:8"
    assert os.environ[CUBLAS[0]] == ":16:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic(False, CPU), deterministic(True, CPU):
            pass
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_operation_without_such_a_version_is_one_sentence():
    wanted = r"put_ has no deterministic version on cpu"
    with pytest.raises(ValueError, match=wanted) as caught, deterministic(True, CPU):
        refused()
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match="of a linear layer"), deterministic(True, CPU):
        raise RuntimeError("of a linear layer")


@pytest.mark.slow
def test_a_run_is_deterministic_inside_and_records_it(tmp_path, monkeypatch):
    inside = []
    original = loop.Training.advance

    def advance(self, batch, epoch):
        inside.append(torch.are_deterministic_algorithms_enabled())
        original(self, batch, epoch)

    monkeypatch.setattr(loop.Training, "advance", advance)
    short = ("train.epochs=1", "train.batch_size=250", 'evaluate.classifiers=["own"]')
    for name, wanted in (("usual", False), ("same", True), ("again", True)):
        text = f"train.deterministic={str(wanted).lower()}"
        silently(*short, text, out=tmp_path / name)
        assert RunRecord.read(tmp_path / name).environment["deterministic"] is wanted
    assert set(inside[:2]) == {False}
    assert set(inside[2:]) == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    same, again = ((tmp_path / name / "weights.safetensors") for name in ("same", "again"))
    assert same.read_bytes() == again.read_bytes()


@pytest.mark.slow
def test_a_run_with_such_an_operation_is_refused(tmp_path, monkeypatch):
    class Stubborn(nn.Identity):
        def forward(self, x):
            refused()
            return x

    def advance(self, batch, epoch):
        Stubborn()(batch.images)

    monkeypatch.setattr(loop.Training, "advance", advance)
    with pytest.raises(ValueError, match=r"^train\.deterministic=true: put_ has no"):
        silently("train.deterministic=true", out=tmp_path / "run")


def test_a_run_that_was_begun_without_it_is_not_continued_with_it():
    from fairmargin.runs.build import changed

    before, after = config(), config("train.deterministic=true")
    assert changed(before, after) == ["train.deterministic false → true"]
