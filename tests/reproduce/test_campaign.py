import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.reproduce import ledger, measures
from fairmargin.reproduce.campaign import perform, plan, run_tasks
from fairmargin.reproduce.cells import cells
from fairmargin.reproduce.estimate import estimates
from fairmargin.runs.folder import RunRecord
from fairmargin.runtime import threads
from fairmargin.sweep.local import Local

# Left out of the inner loop.
pytestmark = pytest.mark.slow

# A cell for each dataset and each thing that only some cells need.
ONE_OF_EACH = {
    "3": "end:rho=0.999",
    "4": "bffhq/eps-supinfonce+fairkl:ratio_pct=0.5@authors",
    "10": "eps-supinfonce+fairkl:with_head:ratio_pct=2.0@paper",
    "12": "*rho=0.99;lambda=1;alpha=0.1;eps=0@authors",
    "figure5": "eps-supcon:rho=0.999;eps=0.1",
    "fairkl": "*sampler=bias-aware",
}
SLOW = [pytest.param(what, marks=pytest.mark.slow) for what in ONE_OF_EACH if what != "fairkl"]


@pytest.mark.parametrize("what", ["fairkl", *SLOW])
def test_a_cell_runs_on_generated_data(what: str, tmp_path: Path) -> None:
    (task,) = plan(cells(what, pattern=ONE_OF_EACH[what]), "smoke", [0], tmp_path)
    outcome = perform(task)
    assert not outcome.failure
    record = RunRecord.read(task.folder)
    found = measures.measured(record)
    assert found is not None
    assert 0 <= found.last <= 100
    assert task.finished
    if task.cell.dataset != "biased-mnist-mini":
        assert "mean nothing" in record.data["notes"]["stand-in"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("9", "eps-supcon:eps=0.25"),
        ("5", "sin"),
        ("5", "lm"),
    ],
)
def test_a_cell_of_photographs_runs_on_generated_data(
    what: str, pattern: str, tmp_path: Path
) -> None:
    (task,) = plan(cells(what, pattern=pattern), "smoke", [0], tmp_path)
    assert not perform(task).failure
    record = RunRecord.read(task.folder)
    for number in task.cell.published:
        assert measures.measured(record, number.measure) is not None


def test_a_run_that_several_tables_show_is_there_once(tmp_path: Path) -> None:
    wanted = [
        *cells("4", pattern="corrupted-cifar10/*fairkl*@paper"),
        *cells("11", pattern="corrupted-cifar10/*_full*@paper"),
    ]
    assert len(wanted) == 8
    assert len(plan(wanted, "paper", [0, 1], tmp_path)) == 8


def test_finished_cells_are_only_read(tmp_path: Path) -> None:
    (task,) = plan(cells("3", pattern="ce:rho=0.99"), "smoke", [0], tmp_path)
    perform(task)
    before = (task.folder / "result.json").stat().st_mtime_ns
    assert not perform(task).failure
    assert (task.folder / "result.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_cells_that_need_the_same_scores_wait_for_each_other(tmp_path: Path) -> None:
    smaller = ["data.size=32"]
    wanted = cells("5", pattern="eps-supinfonce+fairkl@*")
    tasks = plan(wanted, "smoke", [0], tmp_path, extra=smaller)
    assert [task.cell.reading for task in tasks] == ["paper", "recommended"]
    assert not [
        outcome.failure for outcome in run_tasks(tasks, engine=Local(jobs=2)) if outcome.failure
    ]
    record = RunRecord.read(tasks[0].folder)
    assert all(measures.measured(record, name) for name in ("", "unb", "imagenet-a"))


@pytest.mark.slow
def test_several_at_a_time_give_the_same_as_one_after_the_other(tmp_path: Path) -> None:
    wanted = cells("fairkl", pattern="*:divergence=kl*")[:2]
    one, two = (plan(wanted, "smoke", [0], tmp_path / name) for name in ("one", "two"))
    assert len(one) == 2
    with threads.one_thread():  # as many as each of several has
        assert not [outcome for outcome in run_tasks(one) if outcome.failure]
        assert not [outcome for outcome in run_tasks(two, engine=Local(jobs=2)) if outcome.failure]
    for a, b in zip(one, two, strict=True):
        assert (RunRecord.read(a.folder).result or {})["test"] == (
            RunRecord.read(b.folder).result or {}
        )["test"]


def test_without_the_data_a_cell_says_how_to_get_them(tmp_path: Path) -> None:
    changes = [f"data.root={tmp_path / 'nothing'}"]
    (task,) = plan(cells("3", pattern="ce:rho=0.99"), "laptop", [0], tmp_path, extra=changes)
    outcome = perform(task)
    assert "fairmargin data get mnist" in outcome.failure


@pytest.mark.slow
def test_a_killed_campaign_goes_on(tmp_path: Path) -> None:
    """After SIGKILL during a run, the same command gives what an undisturbed one gives."""
    command = [sys.executable, "-m", "fairmargin", "reproduce", "fairkl"]
    command += ["--cell", "*:moments", "--budget", "smoke"]
    changes = []
    for change in ("train.steps=60", "train.epochs=2", "train.checkpoint_seconds=0"):
        changes += ["--set", change]
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}
    (task,) = plan(cells("fairkl", pattern="*:moments"), "smoke", [0], tmp_path / "killed")
    with subprocess.Popen(
        [*command, *changes, "--out", str(tmp_path / "killed")], env=quiet
    ) as process:
        deadline = time.monotonic() + 240
        while not list(task.folder.glob("checkpoints/*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert list(task.folder.glob("checkpoints/*")), "it was killed before its first checkpoint"
    assert not task.finished
    for out in ("killed", "whole"):
        subprocess.run(
            [*command, *changes, "--out", str(tmp_path / out)],
            env=quiet,
            check=True,
            capture_output=True,
        )
    found = [
        RunRecord.read(tmp_path / out / task.folder.relative_to(tmp_path / "killed"))
        for out in ("killed", "whole")
    ]
    assert found[0].result is not None
    assert found[1].result is not None
    assert found[0].result["test"] == found[1].result["test"]


@pytest.mark.slow
def test_dfa_is_timed_on_fewer_images_than_its_first_stage_needs(tmp_path: Path) -> None:
    """With few generated images, 400 epochs are fewer steps than come before the swap."""
    wanted = cells("4", pattern="corrupted-cifar10/dfa:ratio_pct=5.0")
    (task,) = plan(wanted, "paper", [0], tmp_path)
    assert task.cell.config("paper", 0).method.options["swap_start"] == 10_000
    found = estimates([task], tmp_path / "stand-in")[task]
    assert found.images == 50_000 * 256
    assert found.seconds > 0


@pytest.mark.parametrize("budget", ["laptop", "smoke"])
def test_a_reduced_dfa_swaps_after_the_published_share(budget: str) -> None:
    (cell,) = cells("4", pattern="corrupted-cifar10/dfa:ratio_pct=5.0")
    assert cell.config(budget, 0).method.options["swap_start"] == 0.2


def test_an_estimate_grows_with_the_images(tmp_path: Path) -> None:
    wanted = cells("3", pattern="ce:rho=0.99")
    tasks = [*plan(wanted, "paper", [0], tmp_path), *plan(wanted, "laptop", [0], tmp_path)]
    found = estimates(tasks, tmp_path / "stand-in")
    assert [found[task].images for task in tasks] == [80 * 60_000, 24 * 60_000]
    assert all(one.seconds > 0 for one in found.values())
    (shorter,) = plan(wanted, "laptop", [0], tmp_path, extra=["train.epochs=1"])
    assert estimates([shorter], tmp_path / "stand-in")[shorter].images == 60_000


def test_what_could_not_run_is_said_and_is_no_success(tmp_path: Path) -> None:
    nothing = ["--set", f"data.root={tmp_path / 'nothing'}", "--budget", "paper"]
    nothing += ["--out", str(tmp_path / "out")]
    for what in (
        ["3", "--cell", "ce:rho=0.99", "--seeds", "1"],
        ["figure5", "--cell", "eps-supcon:*eps=0", "--seeds", "1"],
    ):
        result = CliRunner().invoke(app, ["reproduce", *what, *nothing])
        assert result.exit_code == 3, result.output
        if what[0] == "3":
            assert "not run: Table 3: biased-mnist/ce:rho=0.99, seed 0" in result.output
            assert "fairmargin data get mnist" in result.output
        else:
            assert "not run: figure5: Figure 5 has no runs to draw" in result.output
        assert (tmp_path / "out" / "ledger.csv").is_file()


def test_the_command_line(tmp_path: Path) -> None:
    run = lambda *words: CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path)])
    shown = run("3", "--cell", "ce:rho=0.99", "--budget", "smoke")
    assert shown.exit_code == 0, shown.output
    assert "90.8 ± 0.3" in shown.output
    assert not (tmp_path / "ledger.csv").exists()  # accuracies on generated data are no results
    planned = run("3", "--cell", "ce:rho=0.99*", "--budget", "smoke", "--dry-run")
    assert "finished" in planned.output
    assert "3 of 4 runs" in planned.output
    assert run("ledger").exit_code == 0
    assert not [line for line in ledger.read(tmp_path / "ledger.csv") if line.budget]
    misspelt = run("3", "--cell", "ce:rho=0.99", "--dry-run", "--set", "train.epoch=1")
    assert misspelt.exit_code == 2
    assert "train.epochs" in misspelt.output
    wrong = run("7")
    assert wrong.exit_code == 2
    assert "figure5" in wrong.output
