import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.data.sources import data_root
from fairmargin.networks.native import library
from fairmargin.reproduce import ledger, weights
from fairmargin.reproduce.campaign import Task, perform, plan
from fairmargin.reproduce.cells import cells
from fairmargin.reproduce.readings import READINGS

# Left out of the inner loop.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "results" / "weights").glob("*/result.json"))


def evaluated(folder: Path, out: Path) -> dict:
    done = CliRunner().invoke(app, ["evaluate", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return json.loads(out.read_text())["test"]["own"]["accuracy"]


def finished_run(out: Path) -> Task:
    out.mkdir()
    (task,) = plan(cells("3", pattern="ce:rho=0.99"), "smoke", [0], out)
    assert not perform(task).failure
    return task


def test_kept_weights_give_the_numbers_of_their_run(tmp_path: Path) -> None:
    task = finished_run(tmp_path / "runs")
    said: list[str] = []
    (place,) = weights.keep(tmp_path / "runs", tmp_path / "kept", said.append, budget="smoke")
    assert place.name == "biased-mnist-ce-rho=0.99-seed-0"
    assert said == [f"kept: {place}"]
    assert {file.name for file in place.iterdir()} == {
        "README.md",
        "config.toml",
        "data.json",
        "environment.json",
        "metrics.jsonl",
        "result.json",
        "weights.safetensors",
    }
    measured = json.loads((task.folder / "result.json").read_text())["test"]["own"]["accuracy"]
    assert evaluated(place, tmp_path / "again.json") == measured
    verified = CliRunner().invoke(app, ["verify", str(place)])
    assert verified.exit_code == 0, verified.output


def test_runs_of_another_budget_or_without_a_result_are_not_kept(tmp_path: Path) -> None:
    task = finished_run(tmp_path / "runs")
    assert not weights.keep(tmp_path / "runs", tmp_path / "kept", lambda _: None)
    (task.folder / "result.json").unlink()
    assert not weights.keep(tmp_path / "runs", tmp_path / "kept", lambda _: None, budget="smoke")
    assert not (tmp_path / "kept").exists()


def test_the_command_says_when_nothing_is_finished(tmp_path: Path) -> None:
    words = ["reproduce", "weights", "--out", str(tmp_path), "--weights", str(tmp_path / "kept")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert "no run at the published protocol is finished" in done.output


def in_ledger(folder: Path) -> float:
    """The number that the ledger has for a kept run of seed 0."""
    lines = ledger.read(ROOT / "docs" / "results" / "ledger.csv")
    known = {
        (line.dataset, line.method, line.setting, line.reading): line.ours
        for line in lines
        if line.budget == "paper" and line.whole and line.seeds == 1
    }
    (name,) = {
        (cell.dataset, cell.row, cell.setting, cell.reading)
        for cell in cells("all", readings=tuple(READINGS))
        if weights.name(cell, 0) == folder.name
    }
    return known[name]


@pytest.mark.skipif(not KEPT, reason="results/weights holds no run yet")
@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.parent.name)
def test_a_kept_run_is_whole_and_in_the_ledger(file: Path) -> None:
    accuracy = json.loads(file.read_text())["test"]["own"]["accuracy"]["plain"]["value"]
    assert f"{100 * accuracy:.2f}" == f"{in_ledger(file.parent):.2f}"
    done = CliRunner().invoke(app, ["verify", str(file.parent)])
    assert done.exit_code == 0, done.output


@pytest.mark.skipif(not KEPT, reason="results/weights holds no run yet")
def test_the_first_kept_run_is_what_the_ledger_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library.can_compile():
        # It takes a third of the time, and gives the same number.
        monkeypatch.setenv(library.VARIABLE, "1")
    folder = KEPT[0].parent
    name = json.loads((folder / "data.json").read_text())["name"]
    if name != "biased-mnist" or not (data_root() / "mnist").is_dir():
        pytest.skip(f"{folder.name} needs {name}, which is not in the data root")
    ours = 100 * evaluated(folder, tmp_path / "again.json")["plain"]["value"]
    assert f"{ours:.2f}" == f"{in_ledger(folder):.2f}"
