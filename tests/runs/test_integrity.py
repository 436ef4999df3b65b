"""What a finished run wrote is what is used later: every changed bit is noticed."""

import json
import random

import pytest
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.export.model import load
from fairmargin.runs import checkpoint, provenance
from fairmargin.runs.integrity import COVERED, verify
from fairmargin.runs.record import RunError, RunRecord
from tests.small_runs import silently

runner = CliRunner()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    silently("train.epochs=1", method="ce", out=out)
    return out


@pytest.fixture
def run(trained, tmp_path):
    """A copy that may be damaged."""
    import shutil

    return shutil.copytree(trained, tmp_path / "run")


def flip(file, bit):
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def test_the_result_names_every_file(trained):
    named = set(RunRecord.read(trained).outcome["sha256"])
    there = {name for name in COVERED if (trained / name).is_file()}
    assert named == there
    assert {"weights.safetensors", "test.npz", "config.toml", "metrics.jsonl"} <= named
    done = runner.invoke(app, ["verify", str(trained)])
    assert done.exit_code == 0
    assert f"{len(there)} files are whole" in done.output


def test_any_flipped_bit_of_weights_is_noticed(run):
    file = run / "weights.safetensors"
    whole = file.read_bytes()
    generator = random.Random(0)
    for _ in range(40):
        flip(file, generator.randrange(8 * len(whole)))
        with pytest.raises(RunError, match="has changed since the run was finished"):
            load(run)
        file.write_bytes(whole)
    assert load(run)


@pytest.mark.parametrize(
    "command", [["evaluate"], ["export"], ["predict"], ["card"]], ids=lambda words: words[0]
)
def test_commands_refuse_changed_weights(command, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flip(run / "weights.safetensors", 8 * 900)
    extra = ["picture.png"] if command == ["predict"] else []
    done = runner.invoke(app, [*command, str(run), *extra])
    if command == ["card"]:  # needs no weights
        assert done.exit_code == 0
        return
    assert done.exit_code == 2
    assert "has changed since" in " ".join(done.output.split())


def test_verify_names_what_changed(run):
    flip(run / "test.npz", 8 * 300)
    flip(run / "metrics.jsonl", 8 * 12)
    (run / "examples.npz").unlink()
    newest = sorted((run / "checkpoints").iterdir())[-1]
    flip(newest, 8 * 2000)
    found = {one.name: one.verdict for one in verify(run) if one.bad}
    assert found["examples.npz"] == "missing"
    assert found["test.npz"] in ("changed", "damaged")
    done = runner.invoke(app, ["verify", str(run)])
    assert done.exit_code == 1
    for said in ("MISSING  examples.npz", "test.npz", "metrics.jsonl", newest.name):
        assert said in done.output


def test_older_folders_are_read_as_they_are(run):
    result = json.loads((run / "result.json").read_text())
    del result["sha256"]
    (run / "result.json").write_text(json.dumps(result))
    assert load(run)
    done = runner.invoke(app, ["verify", str(run)])
    assert done.exit_code == 0
    assert "without a checksum" in done.output


def test_a_checkpoint_of_another_configuration_is_not_continued(run):
    """Where config.toml is lost, nothing else says what the checkpoint belongs to."""
    (run / "result.json").unlink()
    (run / "config.toml").unlink()
    with pytest.raises(ValueError, match=r"checkpoints of a run with another configuration.*lr"):
        silently("train.epochs=1", "players.main.lr=0.5", method="ce", out=run)
    assert not (run / "result.json").exists()


def test_a_resumed_run_keeps_how_it_began(run, monkeypatch):
    before = json.loads((run / "environment.json").read_text())
    state = checkpoint.newest(run / "checkpoints").state
    assert state["training"]["step"]
    (run / "result.json").unlink()
    before["threads"] = before["threads"] + 1
    (run / "environment.json").write_text(json.dumps(before))
    silently("train.epochs=1", method="ce", out=run)
    after = json.loads((run / "environment.json").read_text())
    assert after["threads"] == before["threads"]
    assert after["started"] == before["started"]
    assert [part["from_step"] for part in after["parts"]] == [0, state["training"]["step"]]
    assert after["parts"][1]["threads"] == before["threads"] - 1
    (said,) = [text for text in RunRecord.read(run).outcome["warnings"] if "threads" in text]
    assert "threads changed from" in said


def test_what_does_not_change_numbers_is_not_said():
    facts = dict.fromkeys(provenance.OF_A_PART, "same")
    now = facts | {"command": "other", "started": "later"}
    whole, changes = provenance.appended(facts, now, 7)
    assert changes == ""
    assert whole["command"] == "same"
    assert whole["parts"][1]["command"] == "other"
    assert provenance.appended({}, now, 0) == (now, "")
    _, changes = provenance.appended(facts, now | {"git": {"commit": "a" * 40, "dirty": True}}, 7)
    assert changes == "the code changed from same to aaaaaaaaaa with changes"


def test_runs_from_before_kernels_could_be_compiled_had_none():
    facts = dict.fromkeys(provenance.OF_A_PART, "same") | {"native": None}
    _, changes = provenance.appended(facts, facts | {"native": False}, 7)
    assert changes == ""
    _, changes = provenance.appended(facts, facts | {"native": True}, 7)
    assert changes == "compiled kernels changed from False to True"
