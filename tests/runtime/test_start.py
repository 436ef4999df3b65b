import json
import math
import os
import subprocess
import sys

import pytest

from fairmargin.runtime.start import cpu_quota, prepare, settings


def in_groups(tmp_path, own, **files):
    """Control groups with these files, {path: content}, and a process in the groups `own`."""
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    (tmp_path / "own").write_text(own)
    return cpu_quota(tmp_path, tmp_path / "own")


def test_quota_of_version_2_is_the_tightest_of_the_groups_around(tmp_path):
    assert (
        in_groups(
            tmp_path,
            "0::/a/b\n",
            **{"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "400000 100000\n"},
        )
        == 1.5
    )


def test_quota_of_version_1(tmp_path):
    files = {"cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    assert in_groups(tmp_path, "3:memory:/x\n1:cpu,cpuacct:/job\n", **files) == 2.5


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}),
        ("0::/gone\n", {}),
        ("2:memory:/\n", {"cpu.max": "100000 100000\n"}),
    ],
)
def test_no_limit(tmp_path, own, files):
    assert in_groups(tmp_path, own, **files) == math.inf


def test_no_control_groups_at_all(tmp_path):
    assert cpu_quota(tmp_path, tmp_path / "missing") == math.inf


def test_what_the_user_has_chosen_stays(monkeypatch):
    monkeypatch.setattr("fairmargin.runtime.start.cpu_quota", lambda: 1.0)
    monkeypatch.setattr("fairmargin.runtime.start._cores", lambda: 8)
    monkeypatch.setattr("fairmargin.runtime.start.load", lambda: 3.0)
    assert settings({}) == {
        "OMP_WAIT_POLICY": "passive",
        "THP_MEM_ALLOC_ENABLE": "1",
        "OMP_NUM_THREADS": "1",
    }
    assert "OMP_WAIT_POLICY" not in settings({"GOMP_SPINCOUNT": "5"})
    assert "OMP_NUM_THREADS" not in settings({"MKL_NUM_THREADS": "3"})
    assert "THP_MEM_ALLOC_ENABLE" not in settings({"THP_MEM_ALLOC_ENABLE": "0"})


@pytest.mark.parametrize(
    ("busy", "waiting"), [(0.1, {"GOMP_SPINCOUNT": "1000"}), (2.0, {"OMP_WAIT_POLICY": "passive"})]
)
def test_threads_spin_for_a_moment_where_no_one_else_needs_the_core(monkeypatch, busy, waiting):
    monkeypatch.setattr("fairmargin.runtime.start.load", lambda: busy)
    found = settings({"OMP_NUM_THREADS": "2", "THP_MEM_ALLOC_ENABLE": "1"})
    assert found == waiting
    assert (
        settings({"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "2", "THP_MEM_ALLOC_ENABLE": "1"})
        == {}
    )


@pytest.mark.parametrize(
    ("quota", "threads"), [(0.3, "1"), (1.9, "1"), (3.0, "3"), (4.0, None), (math.inf, None)]
)
def test_threads_fit_the_quota(monkeypatch, quota, threads):
    """PyTorch counts the four cores itself; only a tighter quota needs a number."""
    monkeypatch.setattr("fairmargin.runtime.start.cpu_quota", lambda: quota)
    monkeypatch.setattr("fairmargin.runtime.start._cores", lambda: 4)
    assert settings({}).get("OMP_NUM_THREADS") == threads


def test_nothing_is_set_once_pytorch_is_imported(monkeypatch):
    assert "torch" in sys.modules
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    prepare()
    assert "OMP_WAIT_POLICY" not in os.environ
    assert "GOMP_SPINCOUNT" not in os.environ


def test_the_command_sets_them_before_it_imports_pytorch():
    script = """
import json, os, sys
from typer.testing import CliRunner
from fairmargin.cli.app import app
before = "torch" in sys.modules
result = CliRunner().invoke(app, ["list", "networks"])
set_ = [os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")]
print(json.dumps([before, result.exit_code, set_]))
"""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=kept, check=True
    )
    before, code, waiting = json.loads(done.stdout.splitlines()[-1])
    assert (before, code) == (False, 0)
    assert waiting in (["passive", None], [None, "1000"])  # by the load of this machine
