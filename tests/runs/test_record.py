"""Reading a run folder: what it gives, one clear error for each damage, and without PyTorch."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fairmargin.runs.record import RunError, RunRecord, read_events, read_json


@pytest.fixture
def run(tmp_path):
    """A folder with one event and no result."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text('seed = 3\n[method]\nname = "ce"\n[data]\nname = "mnist"\n')
    (path / "metrics.jsonl").write_text('{"event": "train", "step": 1}\n')
    return path


def test_names_come_from_the_configuration_until_there_is_a_result(run):
    record = RunRecord.read(run)
    assert (record.method, record.dataset, record.seed) == ("ce", "mnist", 3)
    assert record.config_text == (run / "config.toml").read_text()
    result = {"method": "supcon", "dataset": "other", "seed": 5}
    (run / "result.json").write_text(json.dumps(result))
    record = RunRecord.read(run)
    assert (record.method, record.dataset, record.seed) == ("supcon", "other", 5)
    (run / "data.json").write_text('{"name": "named"}')
    assert RunRecord.read(run).dataset == "named"


def test_events_by_kind(run):
    events = [{"event": "train", "step": 1}, {"event": "evaluation", "epoch": 1}, {"event": "else"}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    record = RunRecord.read(run)
    assert record.metrics == events
    assert record.steps() == events[:1]
    assert record.evaluations() == events[1:2]


def test_an_unfinished_run_has_no_outcome(run):
    record = RunRecord.read(run)
    assert record.result is None
    with pytest.raises(RunError, match=r"is not finished; continue it: fairmargin train --resume"):
        _ = record.outcome
    (run / "result.json").write_text("{}")
    record = RunRecord.read(run)
    assert record.finished
    with pytest.raises(RunError, match=r"result\.json is damaged.*test is missing"):
        _ = record.outcome


def test_a_folder_with_a_configuration_alone_may_be_a_run_that_has_begun(run):
    (run / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match=r"has a config\.toml, but neither metrics\.jsonl nor"):
        RunRecord.read(run)
    record = RunRecord.read(run, begun=True)
    assert record.method == "ce"
    assert record.metrics == []


def test_arrays_are_read_once_and_may_be_absent(run):
    record = RunRecord.read(run)
    assert record.test == {}
    assert record.examples == {}
    np.savez(run / "test.npz", labels=np.arange(3))
    record = RunRecord.read(run)
    assert record.test["labels"].tolist() == [0, 1, 2]
    assert record.test is record.test


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.toml", b"seed =", r"config\.toml is not valid TOML.*leave this run out"),
        ("config.toml", b"\xff", r"config\.toml is not UTF-8 text"),
        ("environment.json", b"{", r"environment\.json is not valid JSON.*leave this run out"),
        ("data.json", b"[1]", r"data\.json holds a list and should hold an object"),
        ("result.json", b'{"a": ', r"result\.json is not valid JSON"),
        ("metrics.jsonl", b"{}\nbroken\n", r"metrics\.jsonl, line 2 is not JSON.*remove that line"),
        ("metrics.jsonl", b"{}\n7\n", r"metrics\.jsonl, line 2 is not a JSON object"),
    ],
)
def test_each_damage_is_named(run, name, content, said):
    (run / name).write_bytes(content)
    with pytest.raises(RunError, match=said):
        RunRecord.read(run)


def test_files_that_are_not_there(tmp_path):
    assert read_json(tmp_path / "nothing.json") is None
    assert read_events(tmp_path / "nothing.jsonl") == []
    with pytest.raises(RunError, match=r"it has no config\.toml"):
        RunRecord.read(tmp_path)


@pytest.mark.parametrize(
    "module",
    ["runs.record", "report", "report.page", "audit", "audit.check", "cli.report", "cli.check"],
)
def test_reading_loads_no_torch(module):
    code = f"import sys, fairmargin.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_read_without_torch(run):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fairmargin.report.grouping import read_runs\n"
        "from fairmargin.report.page import render\n"
        "assert 'No run has finished yet' in render(read_runs([Path(sys.argv[1])]))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(run)], check=True)
