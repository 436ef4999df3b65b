"""`fairmargin suite` from the command to its files."""

import csv
import json

import pytest
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.runs import recorder

# Left out of the inner loop.
pytestmark = pytest.mark.slow

runner = CliRunner()
# The two tasks with the smallest samples.
SMALL = ["--tasks", "control,embeddings", "--seeds", "1", "--set", "train.steps=4"]


def suite(out, *words):
    return runner.invoke(app, ["suite", "--out", str(out), *words], env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("suite")
    result = suite(out, "--methods", "ce,group-dro", *SMALL)
    assert result.exit_code == 0, result.output
    return out, result.output


def test_terminal_and_files_say_the_same(done):
    out, output = done
    assert max(map(len, output.replace(str(out), "").splitlines())) <= 80
    assert "bias labels known in training" in output
    assert "bias labels unknown" in output
    rows = list(csv.DictReader((out / "suite.csv").open(encoding="utf-8")))
    assert {(row["regime"], row["entry"], row["task"]) for row in rows} == {
        ("unknown", "ce", "control"),
        ("unknown", "ce", "embeddings"),
        ("known", "group-dro", "control"),
        ("known", "group-dro", "embeddings"),
    }
    kept = json.loads((out / "suite.json").read_text("utf-8"))
    assert [one["regime"] for one in kept["rankings"]] == ["known", "unknown"]
    assert [one["unbiased"] for one in kept["runs"]] == pytest.approx(
        [float(row["unbiased"]) for row in rows], abs=1e-3
    )
    page = (out / "suite.html").read_text("utf-8")
    assert "Bias labels known in training" in page
    assert "http://" not in page
    assert "https://" not in page


def test_the_same_command_repeats_no_run(done, monkeypatch):
    out, output = done

    def refuse(*args, **kwargs):
        raise AssertionError("a finished run began again")

    monkeypatch.setattr(recorder.Recorder, "begin", refuse)
    again = suite(out, "--methods", "ce,group-dro", *SMALL)
    assert again.exit_code == 0, again.output
    assert again.output == output


def test_a_method_that_does_not_suit_a_task_stops_no_other(tmp_path):
    words = ["--methods", "ce,hex", "--tasks", "embeddings", "--seeds", "1"]
    result = suite(tmp_path, *words, "--set", "train.steps=4")
    assert result.exit_code == 3, result.output
    assert "these samples are vectors" in result.output
    assert "hex: not ranked: no result on embeddings" in result.output
    assert "Only ce ran" in result.output


@pytest.mark.slow
def test_every_method_has_the_same_number_of_trials(tmp_path):
    pytest.importorskip("optuna")
    words = ["--methods", "ce,dfr", "--tasks", "embeddings", "--seeds", "2", "--tune", "2"]
    result = suite(tmp_path, *words, "--set", "train.steps=4")
    assert result.exit_code == 0, result.output
    trials = sorted(tmp_path.glob("tune-2/unknown/embeddings/ce/ce/trial-*"))
    assert [path.name for path in trials] == ["trial-000", "trial-001"]
    # It learns from its validation samples, so these cannot choose its settings.
    assert "dfr on embeddings was not tuned" in result.output
    assert len(list(tmp_path.glob("runs-tune-2/*/embeddings/*/seed-*"))) == 4


def test_a_mistake_shows_before_any_run(tmp_path):
    result = suite(tmp_path / "new", "--methods", "ce,lff@method.nonsense=1", *SMALL)
    assert result.exit_code == 2
    assert "nonsense" in result.output
    assert not (tmp_path / "new").exists()
