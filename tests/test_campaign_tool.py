"""tools/campaign.py: runs are saved into the repository and taken up again elsewhere."""

import importlib.util
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fairmargin.reproduce import ledger
from fairmargin.reproduce.campaign import plan
from fairmargin.reproduce.cells import cells
from fairmargin.reproduce.command import chosen

TOOL = Path(__file__).parents[1] / "tools" / "campaign.py"


@pytest.fixture(scope="module")
def campaign():
    spec = importlib.util.spec_from_file_location("campaign", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_run(folder, *, steps, finished=False):
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("config.toml", "data.json", "environment.json"):
        (folder / name).write_text(name)
    events = [
        {"event": "train", "step": steps, "images_per_second": 90.0},
        {"event": "evaluation", "step": steps, "test": {"plain": 0.5}},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for step in (steps - 1, steps):
        (folder / "checkpoints" / f"step-{step:08d}.ckpt").write_bytes(b"%d" % step)
    if finished:
        (folder / "result.json").write_text("{}")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_every_cell_is_one_of_the_paper_s(campaign):
    for job in campaign.JOBS.values():
        if job.budget == "paper":
            assert len(cells(job.table, pattern=job.cell)) == 1, job.cell


def test_a_cell_that_is_changed_has_a_folder_of_its_own(campaign, tmp_path):
    usual, changed = (campaign.JOBS[number].command(tmp_path) for number in (5, 7))
    assert usual[usual.index("--out") + 1] == str(tmp_path)
    assert "--set" not in usual
    assert changed[changed.index("--out") + 1] == str(tmp_path / "method.second=weighted")
    assert changed[-2:] == ["--set", "method.second=weighted"]
    (cell,) = cells("3", pattern="biascon+ce:rho=0.999")
    assert cell.config("paper", 0, changed[-1:]).method.options["second"] == "weighted"


def test_what_the_reduced_protocol_runs(campaign, tmp_path):
    job = campaign.JOBS[11]
    wanted = chosen(job.table, job.cell, "authors,recommended")
    tasks = plan(wanted, job.budget, [0], tmp_path)
    number = Counter(task.cell.table for task in tasks)
    # Table 3: 11 methods at two ρ, four at the other two, and the recommended form at all four;
    # Figure 2: two methods, two ρ, and the three ε that Table 3 does not have.
    assert number == {"3": 22 + 8 + 4, "12": 6, "figure2": 12, "4": 8}
    assert [task.cell.setting for task in tasks[:11]] == ["rho=0.99"] * 11


def test_save_and_restore(campaign, tmp_path):
    out, saved, elsewhere = tmp_path / "runs", tmp_path / "saved", tmp_path / "elsewhere"
    make_run(out / "a" / "seed-0", steps=7)
    make_run(out / "b" / "seed-0", steps=9, finished=True)
    campaign.save(out, saved)
    facts = ["config.toml", "data.json", "environment.json", "metrics.jsonl"]
    wanted = ["a/seed-0/checkpoints/step-00000007.ckpt", *(f"a/seed-0/{name}" for name in facts)]
    # Of a finished run the record, not the weights.
    wanted += [f"b/seed-0/{name}" for name in (*facts, "result.json")]
    assert files(saved) == sorted(wanted)
    campaign.restore(elsewhere, saved)
    assert files(elsewhere) == files(saved)


def test_restore_keeps_what_is_there(campaign, tmp_path, capsys):
    out, saved = tmp_path / "runs", tmp_path / "saved"
    make_run(saved / "a", steps=7)
    make_run(out / "a", steps=8)
    campaign.restore(out, saved)
    assert "left as it is" in capsys.readouterr().out
    assert (out / "a" / "checkpoints" / "step-00000008.ckpt").is_file()


def test_status_says_how_far(campaign, tmp_path, capsys):
    make_run(tmp_path / "a", steps=7)
    campaign.status(tmp_path)
    assert "step 7, 90 images/s; test accuracy 50.0" in capsys.readouterr().out


def test_status_says_which_cells_run(campaign, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(campaign, "_alive", lambda pid: pid == 1)
    (tmp_path / "pids.json").write_text('{"2": 1, "5": 99}')
    campaign.status(tmp_path)
    said = capsys.readouterr().out
    assert "cell 2: runs, process 1" in said
    assert "cell 5: has ended, see cell-5.log" in said


def test_from_the_command_line(campaign, tmp_path, capsys, monkeypatch):
    make_run(tmp_path / "a", steps=7)
    monkeypatch.setattr("sys.argv", ["campaign.py", "status", "--out", str(tmp_path)])
    campaign.main()
    assert "step 7" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["campaign.py", "start", "99", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        campaign.main()
    assert "there is no cell 99" in capsys.readouterr().err


def test_cells_that_run_already_are_not_forgotten(campaign, tmp_path, monkeypatch, capsys):
    class Process:
        pid = 2

        def __init__(self, *arguments, **options):
            pass

    monkeypatch.setattr(campaign.subprocess, "Popen", Process)
    monkeypatch.setattr(campaign, "_alive", lambda pid: pid != 99)
    (tmp_path / "pids.json").write_text('{"1": 1, "5": 99}')
    campaign.start([2], tmp_path, tmp_path)
    assert json.loads((tmp_path / "pids.json").read_text()) == {"1": 1, "2": 2}
    campaign.start([1], tmp_path, tmp_path)
    assert "cell 1: runs already" in capsys.readouterr().out
    assert json.loads((tmp_path / "pids.json").read_text()) == {"1": 1, "2": 2}


def test_what_others_saved_stays(campaign, tmp_path):
    out, saved = tmp_path / "runs", tmp_path / "saved"
    make_run(saved / "a", steps=7)
    make_run(saved / "b", steps=7)
    make_run(out / "b", steps=9, finished=True)
    campaign.save(out, saved)
    assert (saved / "a" / "checkpoints" / "step-00000007.ckpt").is_file()
    assert not (saved / "b" / "checkpoints").exists()
    assert (saved / "b" / "result.json").is_file()


def test_what_the_ledger_has_is_not_run_again(campaign, tmp_path):
    job = campaign.JOBS[11]
    everything = campaign.missing(job, tmp_path / "none.csv")
    assert len(everything) == 60
    epochs = {"biasbal": "24 of 24", "eps-supcon": "24 of 24", "end": "3 of 24"}
    lines = [
        replace(line, budget="laptop", epochs=epochs[line.method])
        for line in ledger.merged([], [])
        if line.table == "3" and line.setting == "rho=0.99" and line.method in epochs
    ]
    (tmp_path / "ledger.csv").write_text(ledger.text(lines))
    left = campaign.missing(job, tmp_path / "ledger.csv")
    assert set(everything) - set(left) == {"biased-mnist/biasbal:rho=0.99"}
    # One that is known stays if a figure shows it, as the last.
    assert left[-1] == "biased-mnist/eps-supcon:rho=0.99"
    assert len(left) == 59


def test_a_process_that_is_not_ours_is_not_a_run(campaign):
    assert not campaign._alive(1)
    assert not campaign._alive(2**22 + 1)
