"""The cases of `make fuzz` with fixed seeds, and proof that a failure would be seen."""

import os
import signal

import pytest

from tests.fuzz import cases, sandbox
from tests.fuzz.cases import KINDS

# Cases of each kind: as many as end within a few seconds.
NUMBER = {"configuration": 24, "command line": 12, "table": 12, "archive": 60}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_cases_with_fixed_seeds_end_as_they_should(kind, tmp_path):
    failed = {}
    for seed in range(NUMBER.get(kind, 8)):
        _, ended = cases.run(kind, seed, tmp_path)
        if ended.failure:
            failed[f"{kind}:{seed}"] = f"{ended.failure}\n{ended.trace}"
    assert not failed, "\n".join(f"{name} {why}" for name, why in failed.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_its_seed(kind, tmp_path):
    made = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        trial = cases.make(kind, 3, folder)
        words = trial if isinstance(trial, list) else ["a function"]
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink() and "run" not in path.parts
        }
        made.append((words, files))
    assert made[0] == made[1]


class TestSandbox:
    def test_a_traceback_is_a_failure(self, tmp_path):
        def broken():
            raise RuntimeError("not ours")

        ended = sandbox.run(broken, tmp_path)
        assert ended.failure == "traceback: RuntimeError: not ours"
        assert "in broken" in ended.trace

    def test_an_error_with_a_message_is_none(self, tmp_path):
        def refuse():
            raise ValueError("say it differently")

        ended = sandbox.run(refuse, tmp_path)
        assert (ended.code, ended.failure) == (2, "")
        assert ended.output == "say it differently\n"

    def test_an_error_without_words_is_a_failure(self, tmp_path):
        def silent():
            raise ValueError

        assert sandbox.run(silent, tmp_path).failure == "exit code 2 without a message"

    def test_a_hang_is_a_failure(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sandbox, "CASE_SECONDS", 0.05)

        def endless():
            while True:
                pass

        assert sandbox.run(endless, tmp_path).failure == "hang"

    @pytest.mark.parametrize("how", ["open", "mkdir", "rename"])
    def test_a_write_elsewhere_is_a_failure(self, tmp_path, how):
        inside = tmp_path / "inside"
        inside.mkdir()

        def write():
            if how == "open":
                (tmp_path / "file").write_text("x")
            elif how == "mkdir":
                os.mkdir("../folder")
            else:
                (inside / "a").write_text("x")
                os.rename(inside / "a", tmp_path / "b")

        assert sandbox.run(write, inside).failure.startswith("wrote outside of its folder")

    def test_a_write_inside_is_none(self, tmp_path):
        ended = sandbox.run(lambda: (tmp_path / "file").write_text("x"), tmp_path)
        assert ended.failure == ""

    def test_there_is_no_network(self, tmp_path):
        import urllib.request

        ended = sandbox.run(lambda: urllib.request.urlopen("http://127.0.0.1:9"), tmp_path)
        assert "no network here" in ended.output

    def test_leaves_everything_as_it_was(self, tmp_path):
        here, home = os.getcwd(), os.environ.get("HOME")
        handler = signal.getsignal(signal.SIGPROF)
        sandbox.run(["list"], tmp_path)
        assert (os.getcwd(), os.environ.get("HOME")) == (here, home)
        assert signal.getsignal(signal.SIGPROF) is handler


def test_make_fuzz_names_the_seeds_of_what_failed(capsys):
    from tests.fuzz.__main__ import many

    class Broken:
        def run(self, kind, seed):
            bad = seed == 7
            return (
                ("traceback", "traceback: KeyError: 'x'", "words") if bad else ("refused", "", "")
            )

        def end(self):
            pass

    ticks = iter([0.0] * 6 + [1e9])
    assert many(Broken(), ["table"], 5, 1.0, clock=lambda: next(ticks)) == 1
    said = capsys.readouterr().out
    assert 'python -m tests.fuzz --replay "table:7"' in said
    assert "5 cases, 1 failed" in said
    assert "4 refused, 1 traceback" in said
