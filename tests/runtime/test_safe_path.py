"""Worker processes execute nothing that lies in the current folder."""

import os

from fairmargin.runtime.safe_path import VARIABLE, safe_path
from fairmargin.sweep.workers import map_tasks


def square(x):
    return x * x


def test_workers_import_nothing_from_the_current_folder(tmp_path, monkeypatch):
    trace = tmp_path / "it-ran"
    hostile = f"open({str(trace)!r}, 'w').close()\nraise SystemExit(1)\n"
    for name in ("multiprocessing", "pickle", "socket"):
        (tmp_path / f"{name}.py").write_text(hostile)
    monkeypatch.chdir(tmp_path)
    assert dict(map_tasks(square, [2, 3], jobs=1, retries=0)) == {0: 4, 1: 9}
    assert not trace.exists()


def test_the_users_variable_is_put_back(monkeypatch):
    for before in (None, "", "1"):
        if before is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, before)
        with safe_path():
            assert os.environ[VARIABLE] == "1"
        assert os.environ.get(VARIABLE) == before
