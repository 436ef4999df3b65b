import json
import platform
import subprocess
from pathlib import Path

import pytest

from fairmargin.runs import environment as module
from fairmargin.runs.environment import environment


class TestEnvironment:
    command = (
        "/home/somebody/.venv/bin/fairmargin", "train", "--dataset=/home/somebody/my data.csv",
        "--out", "~/runs/x", "--set", "data.root='/home/somebody/x.csv'",
        "--set", 'data.many=["/home/somebody/a.csv", "b.csv"]', "--set", "data.rho=0.9",
        "--set", "data.frost_dir=C:\\Users\\somebody\\frost", "relative/kept.toml",
    )  # fmt: skip

    def test_has_what_the_contract_lists(self):
        facts = environment("cpu", 2, 1, ["fairmargin", "train"], {"train": "00"})
        assert list(facts) == [
            "fairmargin", "python", "torch", "numpy", "platform", "device", "threads",
            "native", "deterministic", "world_size", "git", "command", "started", "data",
        ]  # fmt: skip
        assert facts["python"] == platform.python_version()
        assert facts["device"] == "cpu"
        assert (facts["threads"], facts["world_size"], facts["data"]) == (2, 1, {"train": "00"})
        assert facts["started"].endswith("+00:00")
        json.dumps(facts)

    def test_says_nothing_about_people_hosts_and_places(self):
        text = json.dumps(environment("cpu", 1, 1, self.command, {}), ensure_ascii=False)
        assert "somebody" not in text
        assert platform.node() not in text or len(platform.node()) < 4
        assert str(Path.home()) not in text or str(Path.home()) == "/"
        assert str(Path.cwd()) not in text
        for kept in (
            '"command": "fairmargin train ',
            "…/my data.csv",
            "…/x.csv",
            "…/a.csv",
            "b.csv",
            "data.rho=0.9",
            "…/frost",
        ):
            assert kept in text
        assert "relative/kept.toml" in text

    def test_git_state(self, tmp_path, monkeypatch):
        def git(*words):
            identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(
                ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True
            )

        monkeypatch.setattr(module, "__file__", str(tmp_path / "a.txt"))
        try:
            git("init")
        except FileNotFoundError:
            pytest.skip("git is not installed")
        assert module._git_state() is None  # no commit yet
        (tmp_path / "a.txt").write_text("1")
        git("add", "a.txt")
        git("commit", "-m", "a")
        state = module._git_state()
        assert len(state["commit"]) == 40
        assert state["dirty"] is False
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "x").write_text("")
        assert module._git_state()["dirty"] is False  # only files that git knows
        (tmp_path / "a.txt").write_text("2")
        assert module._git_state()["dirty"] is True

    def test_package_inside_a_repository_that_does_not_know_it(self, tmp_path, monkeypatch):
        calls = []
        monkeypatch.setattr(module, "_git", lambda folder, *words: calls.append((folder, words[0])))
        assert module._git_state() is None
        assert calls == [(Path(module.__file__).parent, "ls-files")]

    def test_a_hostile_repository_runs_nothing(self, tmp_path, monkeypatch):
        """Git starts the program that a repository's core.fsmonitor names."""
        trace = tmp_path / "it-ran"
        monitor = tmp_path / "monitor"
        monitor.write_text(f"#!/bin/sh\ntouch {trace}\n")
        monitor.chmod(0o755)
        try:
            for words in (["init"], ["config", "core.fsmonitor", str(monitor)]):
                subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("git is not installed")
        monkeypatch.chdir(tmp_path)
        environment("cpu", 1, 1, [], {})
        assert not trace.exists()
        # Not even if the package itself lies there.
        (tmp_path / "a.txt").write_text("1")
        subprocess.run(["git", "add", "a.txt"], cwd=tmp_path, check=True, capture_output=True)
        trace.unlink(missing_ok=True)
        monkeypatch.setattr(module, "__file__", str(tmp_path / "a.txt"))
        module._git(tmp_path, "status")
        assert not trace.exists()
        subprocess.run(["git", "status"], cwd=tmp_path, check=True, capture_output=True)
        assert trace.exists(), "the monitor of this test does not work"

    def test_without_git(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        assert environment("cpu", 1, 1, [], {})["git"] is None
