"""A run that goes on with more epochs: in a new folder, from the parent's state."""

import hashlib
import json
import shutil

import pytest
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.methods import METHODS
from fairmargin.methods.base import RunLength
from fairmargin.runs import extend
from fairmargin.runs.record import RunRecord
from tests.methods import tiny
from tests.small_runs import assert_same_run, checkpoint_steps, interrupted, silently

TINY = (
    "train.batch_size=50",
    "data.test=100",
    "evaluate.classifiers=['own']",
    "evaluate.resamples=10",
    "train.checkpoint_seconds=1e6",
)
CONSTANT = "schedule.name=constant"


def resume(*words):
    result = CliRunner().invoke(app, ["train", "--resume", *map(str, words)])
    return result.exit_code, " ".join(result.output.split())


def content(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def epochs_of(record):
    return [event["epoch"] for event in record.evaluations()]


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory):
    """A finished run of two epochs with a constant rate; only read."""
    out = tmp_path_factory.mktemp("parent") / "seed-0"
    silently(*TINY, CONSTANT, "train.epochs=2", out=out, method="ce")
    return out


@pytest.fixture
def parent(two_epochs, tmp_path):
    return shutil.copytree(two_epochs, tmp_path / "seed-0")


def test_a_finished_run_goes_on_where_it_was(parent, tmp_path):
    """With a constant rate it ends as the long run from the start does, bit by bit."""
    before = content(parent)
    code, said = resume(parent, "--set", "train.epochs=4")
    assert code == 0, said
    assert "note: the schedule of the learning rate is now that of 4 epochs" in said
    assert content(parent) == before
    child = tmp_path / "seed-0-epochs-4"
    old, new = RunRecord.read(parent), RunRecord.read(child)
    assert epochs_of(new) == [1, 2, 3, 4]
    assert new.metrics[: len(old.metrics)] == old.metrics
    assert new.config["train"]["epochs"] == 4
    assert new.outcome["epochs"] == 4
    facts = new.environment["parent"]
    weights = hashlib.sha256((parent / "weights.safetensors").read_bytes()).hexdigest()
    assert (facts["run"], facts["digest_of"], facts["sha256"]) == ("seed-0", "weights", weights)
    assert facts["epoch"] == 2
    assert str(tmp_path) not in json.dumps(new.environment)
    whole = tmp_path / "whole"
    silently(*TINY, CONSTANT, "train.epochs=4", out=whole, method="ce")
    assert_same_run(whole, child)
    # The same command again only reads.
    result = (child / "result.json").stat().st_mtime_ns
    code, said = resume(parent, "--set", "train.epochs=4")
    assert code == 0, said
    assert (child / "result.json").stat().st_mtime_ns == result


def test_a_killed_child_is_resumed(parent, tmp_path):
    child = tmp_path / "new"
    chosen = configuration.override(
        configuration.load_resolved(parent / "config.toml"), ["train.epochs=4"]
    )
    extend.extend(parent, chosen, child)
    start = checkpoint_steps(child)[0]
    changes = (*TINY, CONSTANT, "train.epochs=4")
    interrupted(child, *changes, steps=(start + 2, start + 5), method="ce")
    code, said = resume(child)
    assert code == 0, said
    assert f"continuing after step {start + 5}" in said
    record = RunRecord.read(child)
    assert epochs_of(record) == [1, 2, 3, 4]
    assert record.environment["parent"]["epoch"] == 2
    whole = tmp_path / "whole"
    silently(*changes, out=whole, method="ce")
    assert_same_run(whole, child)


def test_the_schedule_is_that_of_the_new_length(tmp_path):
    """Cosine, half way: the parent ended at a low rate, the child begins at half the rate."""
    out = tmp_path / "run"
    cosine = ("schedule.name=cosine", "optimizer.lr=0.01", "train.log_steps=1")
    silently(*TINY, *cosine, "train.epochs=2", out=out, method="ce")
    code, said = resume(out, "--set", "train.epochs=4", "--out", tmp_path / "longer")
    assert code == 0, said
    steps = RunRecord.read(tmp_path / "longer").steps()
    parent = RunRecord.read(out).steps()
    first = steps[len(parent)]
    assert first["lr"]["main"] == pytest.approx(0.005)
    assert steps[: len(parent)] == parent


def test_an_unfinished_run_goes_on_from_its_checkpoint(tmp_path):
    out = tmp_path / "run"
    interrupted(out, *TINY, CONSTANT, "train.epochs=2", steps=(3, 5), method="ce")
    before = content(out)
    code, said = resume(out, "--set", "train.epochs=3")
    assert code == 0, said
    assert content(out) == before
    child = RunRecord.read(tmp_path / "run-epochs-3")
    assert child.environment["parent"]["digest_of"] == "checkpoint"
    assert epochs_of(child) == [1, 2, 3]


def test_a_child_has_children_and_the_first_plan_stays(parent, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert resume(parent, "--set", "train.epochs=3", "--out", one)[0] == 0
    assert resume(one, "--set", "train.epochs=4", "--out", two)[0] == 0
    facts = RunRecord.read(two).environment["parent"]
    assert (facts["run"], facts["epoch"]) == ("one", 3)
    assert facts["planned"] == {"epochs": 2, "steps": None}
    assert epochs_of(RunRecord.read(two)) == [1, 2, 3, 4]


def test_dfa_stays_in_its_final_stage(tmp_path):
    """Its swap begins after a share of the run: the longer run must not stop swapping."""
    out = tmp_path / "run"
    swap = ("method.swap_start=0.5", "train.log_steps=1")
    silently(*TINY, *swap, "train.epochs=2", out=out, method="dfa")
    code, said = resume(out, "--set", "train.epochs=8", "--out", tmp_path / "new")
    assert code == 0, said
    later = [e for e in RunRecord.read(tmp_path / "new").evaluations() if e["epoch"] > 2]
    assert all(event["final_stage"] for event in later)


def test_more_steps(tmp_path):
    out = tmp_path / "run"
    silently(*TINY, CONSTANT, "train.epochs=9", "train.steps=5", out=out, method="ce")
    code, said = resume(out, "--set", "train.epochs=12")
    assert code == 2
    assert "train.steps=5 ends it there" in said
    code, said = resume(out, "--set", "train.steps=12")
    assert code == 0, said
    assert RunRecord.read(tmp_path / "run-steps-12").outcome["steps"] == 12


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("seed=1", "it decides the order of the samples"),
        ("data.rho=0.5", "other samples"),
        ("network.widths=[2, 2]", "old network"),
        ("method.name=gce", "old method"),
        ("optimizer.lr=0.5", "optimizers' state"),
        ("players.main.lr=0.5", "optimizers' state"),
        ("schedule.name=cosine", "the rates so far"),
        ("train.batch_size=5", "position in the data"),
    ],
)
def test_what_would_make_the_state_meaningless_is_refused(two_epochs, change, reason):
    code, said = resume(two_epochs, "--set", "train.epochs=4", "--set", change)
    assert code == 2
    assert reason in said
    assert change.split("=")[0] in said
    assert not two_epochs.with_name("seed-0-epochs-4").exists()


def test_every_section_has_its_reason():
    keys = [key.path.replace("NAME", "main") for key in configuration.all_keys()]
    for key in keys:
        assert key.startswith("evaluate.") or any(map(key.startswith, extend.REASONS)), key


def test_not_longer_is_refused(two_epochs):
    for change in ("train.epochs=2", "train.epochs=1", "evaluate.resamples=20"):
        code, said = resume(two_epochs, "--set", change, "--out", two_epochs.parent / "new")
        assert code == 2, change
        assert "more" in said
    assert not (two_epochs.parent / "new").exists()


def test_removed_checkpoints_are_an_error_that_says_so(parent):
    shutil.rmtree(parent / "checkpoints")
    code, said = resume(parent, "--set", "train.epochs=4")
    assert code == 2
    assert "has no checkpoint to go on from" in said
    assert "train from the start" in said


def test_a_folder_with_another_run_is_refused(parent, two_epochs, tmp_path):
    other = shutil.copytree(two_epochs, tmp_path / "other")
    code, said = resume(parent, "--set", "train.epochs=4", "--out", other)
    assert code == 2
    assert "does not go on from" in said
    code, said = resume(parent, "--set", "train.epochs=4", "--out", parent)
    assert code == 2
    assert "is the run itself" in said


def test_harmless_settings_go_on_in_the_same_folder(tmp_path):
    out = tmp_path / "run"
    interrupted(out, *TINY, "train.epochs=2", steps=(3, 5), method="ce")
    code, said = resume(out, "--set", "train.keep=1")
    assert code == 0, said
    assert RunRecord.read(out).finished
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_best_epochs_are_kept_only_with_their_weights(parent, tmp_path):
    (parent / "best.safetensors").unlink()
    code, said = resume(parent, "--set", "train.epochs=3", "--out", tmp_path / "new")
    assert code == 0, said
    records = RunRecord.read(tmp_path / "new").outcome["records"]
    assert records["best-on-validation"]["epoch"] == 3
    changes = ("--set", "train.epochs=3", "--set", "evaluate.select=plain")
    assert resume(parent, *changes, "--out", tmp_path / "plain")[0] == 0
    records = RunRecord.read(tmp_path / "plain").outcome["records"]
    assert records["best-on-test"]["epoch"] == 3


def test_methods_that_are_completed_at_the_end_are_known(tmp_path):
    """Their last checkpoint is from after that."""
    found = {name for name in METHODS if tiny.tamed(name).plan(RunLength(9, 90)).at_end}
    assert found == extend.COMPLETED_AT_THE_END


def test_a_finished_dfr_does_not_go_on(tmp_path):
    out = tmp_path / "run"
    silently(*TINY, "data.valid_fraction=0.3", "train.epochs=1", out=out, method="dfr")
    code, said = resume(out, "--set", "train.epochs=2")
    assert code == 2
    assert "after the last epoch" in said
