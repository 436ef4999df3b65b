"""What compare() makes of outcomes that arrive in another order, without training."""

from pathlib import Path

import pytest

from fairmargin.loop import Diverged
from fairmargin.methods.base import Unsuited
from fairmargin.sweep import compare as comparing
from fairmargin.sweep.compare import compare
from tests.sweep.many import Backwards, configs


@pytest.fixture
def run(monkeypatch):
    def run(config, folder, *, command):
        if config.method.name == "simclr":
            raise Unsuited("simclr compares views")
        if (config.method.name, config.seed) == ("supcon", 1):
            raise Diverged("step 3: the loss is nan")
        if config.method.name == "gce":
            raise OSError(f"no room for seed {config.seed}")
        return type("Record", (), {"result": {"seed": config.seed}})

    monkeypatch.setattr(comparing, "run", run)


def test_outcomes_are_in_the_order_of_the_configurations(run, tmp_path):
    said = []
    chosen = configs(methods=("ce", "simclr", "supcon"))
    alone = compare(chosen, tmp_path, go_on=True)
    several = compare(chosen, tmp_path, go_on=True, engine=Backwards(), say=said.append)
    assert [(o.method, o.seed, o.result, o.refused) for o in several] == [
        ("ce", 0, {"seed": 0}, False),
        ("ce", 1, {"seed": 1}, False),
        ("simclr", 0, None, True),  # once, not for each seed
        ("supcon", 0, {"seed": 0}, False),
        ("supcon", 1, None, False),
    ]
    assert several == alone
    assert said[:2] == ["[1/6] supcon, seed 1", "step 3: the loss is nan"]


def test_a_named_method_that_does_not_suit_is_an_error_at_the_end(run, tmp_path):
    backwards = Backwards()
    with pytest.raises(Unsuited):
        compare(configs(methods=("simclr", "ce")), tmp_path, engine=backwards)
    assert len(backwards.asked) == 4


def test_other_errors_wait_for_the_rest(run, tmp_path):
    backwards = Backwards()
    with pytest.raises(OSError, match="no room for seed 0"):
        compare(configs(methods=("gce", "ce")), tmp_path, engine=backwards)
    assert len(backwards.asked) == 4


def test_workers_get_absolute_folders_and_outcomes_keep_those_that_were_given(
    run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    backwards = Backwards()
    (outcome,) = compare(configs(methods=("ce",), seeds=(0,)), Path("runs"), engine=backwards)
    assert backwards.asked[0].out == tmp_path / "runs"
    assert outcome.folder == Path("runs/ce/seed-0")
