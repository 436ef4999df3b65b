import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmargin.runs import folder as folder_module
from fairmargin.runs.folder import Metrics, RunError, RunFolder, RunRecord, find_runs, is_run


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run").create()


def names(path):
    return sorted(entry.name for entry in path.iterdir())


class TestFolder:
    def test_create_is_harmless_when_it_exists(self, folder):
        folder.write_config("seed = 1\n")
        RunFolder(folder.path).create()
        assert names(folder.path) == ["config.toml"]

    def test_create_where_a_file_is(self, tmp_path):
        (tmp_path / "taken").write_text("mine")
        for path in (tmp_path / "taken", tmp_path / "taken" / "run"):
            with pytest.raises(
                RunError, match=r"cannot write into .*taken.* Choose another folder with --out"
            ):
                RunFolder(path).create()
        assert (tmp_path / "taken").read_text() == "mine"

    def test_create_where_nothing_can_be_written(self, tmp_path, monkeypatch):
        def refuses(path, mode):
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(folder_module, "open_plain", refuses)
        with pytest.raises(RunError, match="Read-only file system"):
            RunFolder(tmp_path / "run").create()

    def test_all_that_is_written_is_read(self, folder):
        folder.write_config('seed = 3\n[data]\nname = "ä"\n')
        folder.write_environment({"torch": "2"})
        folder.write_data({"name": "ä", "counts": torch.tensor([[1, 2]]), "root": Path("x/y")})
        folder.metrics.append({"event": "train", "step": 1})
        running = RunRecord.read(folder.path)
        assert not running.finished
        assert running.result is None
        folder.write_result({"seconds": 1.5, "seed": np.int64(3)})
        run = RunRecord.read(folder.path)
        assert run.finished
        assert run.config == {"seed": 3, "data": {"name": "ä"}}
        assert run.environment == {"torch": "2"}
        assert run.data == {"name": "ä", "counts": [[1, 2]], "root": "x/y"}
        assert run.metrics == [{"event": "train", "step": 1}]
        assert run.result == {"seconds": 1.5, "seed": 3}

    def test_a_failed_write_leaves_what_was_there(self, folder, monkeypatch):
        folder.write_result({"a": 1})

        def full(*arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"cannot write .*result\.json: No space left on device"):
            folder.write_result({"a": 2})
        assert json.loads((folder.path / "result.json").read_text()) == {"a": 1}
        assert names(folder.path) == ["result.json"]

    def test_numbers_that_are_not_finite_become_null(self, folder):
        given = {
            "a": math.nan,
            "b": [math.inf, (1.0, np.float32("nan"))],
            "c": {"d": torch.tensor([-math.inf, 2.0])},
        }
        folder.write_result(given)
        text = (folder.path / "result.json").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text
        assert json.loads(text) == {"a": None, "b": [None, [1.0, None]], "c": {"d": [None, 2.0]}}


class TestArrays:
    def test_round_trip(self, folder):
        given = {
            "labels": torch.arange(3),
            "logits": torch.randn(3, 2, requires_grad=True),
            "kind": np.array(["aligned", "mistake"]),
            "images": np.zeros((1, 3, 2, 2), np.uint8),
        }
        folder.write_config("")
        folder.metrics.append({})
        assert folder.save_arrays("test", **given).name == "test.npz"
        run = RunRecord.read(folder.path)
        assert run.has_arrays("test")
        back = run.arrays("test")
        assert back.keys() == given.keys()
        for name, array in given.items():
            expected = array.detach().numpy() if isinstance(array, torch.Tensor) else array
            assert back[name].dtype == expected.dtype
            assert np.array_equal(back[name], expected)

    def test_nothing_pickled_is_written_or_read(self, folder):
        with pytest.raises(TypeError, match="names holds Python objects"):
            folder.save_arrays("test", names=np.array(["a", None], dtype=object))
        np.savez(folder.path / "evil.npz", names=np.array([{}], dtype=object))
        run = RunRecord(folder.path, {}, {}, {}, [], None)
        with pytest.raises(RunError, match=r"evil\.npz is damaged"):
            run.arrays("evil")

    def test_absent_and_damaged(self, folder):
        run = RunRecord(folder.path, {}, {}, {}, [], None)
        assert not run.has_arrays("test")
        with pytest.raises(RunError, match=r"has no test\.npz"):
            run.arrays("test")
        path = folder.save_arrays("test", a=np.arange(1000))
        os.truncate(path, 500)
        with pytest.raises(RunError, match=r"test\.npz is damaged"):
            run.arrays("test")


class TestMetrics:
    def test_one_line_each(self, folder):
        for step in range(3):
            folder.metrics.append({"event": "train", "step": step, "terms": {"ε": float("nan")}})
        lines = (folder.path / "metrics.jsonl").read_bytes().splitlines()
        assert [json.loads(line) for line in lines] == [
            {"event": "train", "step": step, "terms": {"ε": None}} for step in range(3)
        ]
        assert folder.metrics.read() == [json.loads(line) for line in lines]

    def test_resume_forgets_what_came_after_the_position(self, folder):
        metrics = folder.metrics
        assert metrics.position() == 0
        metrics.append({"step": 1})
        position = metrics.position()
        assert position == (folder.path / "metrics.jsonl").stat().st_size
        metrics.append({"step": 2})
        again = Metrics(metrics.path)
        again.truncate(position)
        again.append({"step": "2 again"})
        assert again.read() == [{"step": 1}, {"step": "2 again"}]

    def test_torn_last_line(self, folder):
        folder.metrics.append({"step": 1, "name": "é"})
        folder.metrics.append({"step": 2, "name": "é"})
        content = folder.metrics.path.read_bytes()
        first = content.index(b"\n") + 1
        for length in range(first, len(content)):
            folder.metrics.path.write_bytes(content[:length])
            assert Metrics(folder.metrics.path).read() == [{"step": 1, "name": "é"}]
            Metrics(folder.metrics.path).append({"step": 3})
            assert Metrics(folder.metrics.path).read() == [{"step": 1, "name": "é"}, {"step": 3}]

    def test_truncate_inside_a_line_beyond_the_end_and_without_a_file(self, folder):
        folder.metrics.truncate(100)
        assert folder.metrics.read() == []
        folder.metrics.append({"step": 1})
        folder.metrics.append({"step": 2})
        folder.metrics.truncate(10**9)
        assert len(folder.metrics.read()) == 2
        folder.metrics.truncate(folder.metrics.position() - 2)
        assert folder.metrics.read() == [{"step": 1}]
        folder.metrics.truncate(0)
        assert folder.metrics.position() == 0

    def test_a_broken_line_in_the_middle_is_named(self, folder):
        folder.metrics.path.write_text('{"a": 1}\nbroken\n{"a": 2}\n')
        with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is not JSON"):
            folder.metrics.read()

    def test_an_event_that_is_not_json_writes_nothing(self, folder):
        folder.metrics.append({"a": 1})
        with pytest.raises(TypeError):
            folder.metrics.append({"a": object()})
        assert folder.metrics.read() == [{"a": 1}]


HOLDS = """
import sys, time
from pathlib import Path
from fairmargin.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("locked", flush=True)
    time.sleep(60)
"""


class TestLock:
    def test_second_writer_is_told(self, folder):
        told = pytest.raises(
            RunError, match=rf"another process \(process {os.getpid()}\) is writing into .*run"
        )
        with folder.lock(), told, RunFolder(folder.path).lock():
            pass
        with RunFolder(folder.path).lock():
            assert (folder.path / ".lock").read_text() == f"{os.getpid()}\n"

    def test_released_after_an_error(self, folder):
        with pytest.raises(KeyError), folder.lock():
            raise KeyError
        with folder.lock():
            pass

    @pytest.mark.slow
    def test_goes_away_with_a_killed_process(self, folder):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(folder.path)], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(RunError, match=f"process {process.pid}"), folder.lock():
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with folder.lock():
            pass


def make_run(path):
    run = RunFolder(path).create()
    run.write_config("seed = 1\n")
    run.metrics.append({"event": "train"})
    return path


class TestReading:
    def test_what_is_a_run(self, tmp_path):
        assert is_run(make_run(tmp_path / "a"))
        (tmp_path / "project").mkdir()
        (tmp_path / "project" / "config.toml").write_text("")
        assert not is_run(tmp_path / "project")  # somebody's configuration
        assert not is_run(tmp_path / "nowhere")
        with pytest.raises(RunError, match=r"is not a run folder: it has a config\.toml, but"):
            RunRecord.read(tmp_path / "project")

    def test_damaged_files_are_named(self, tmp_path):
        path = make_run(tmp_path / "a")
        (path / "result.json").write_text('{"a": ')
        with pytest.raises(RunError, match=r"result\.json is not valid JSON"):
            RunRecord.read(path)
        (path / "result.json").unlink()
        (path / "config.toml").write_text("seed =")
        with pytest.raises(RunError, match=r"config\.toml is not valid TOML"):
            RunRecord.read(path)

    def test_find_runs(self, tmp_path):
        a, b, c = (make_run(tmp_path / "runs" / name) for name in ("a", "deep/b", "c"))
        make_run(a / "inside")
        (tmp_path / "runs" / "empty").mkdir()
        assert find_runs([tmp_path / "runs"]) == [a, c, b]
        assert find_runs([b, tmp_path / "runs", b]) == [b, a, c]
        assert find_runs([tmp_path / "runs" / "empty"]) == []
        with pytest.raises(RunError, match=r"there is no folder .*nowhere"):
            find_runs([tmp_path / "nowhere"])
        with pytest.raises(RunError, match="is not a folder"):
            find_runs([a / "config.toml"])
