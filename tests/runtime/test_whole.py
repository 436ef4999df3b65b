"""Files that are written whole: what must not be put in the place of something else."""

import os
import stat

import pytest

from fairmargin.runtime.whole import WriteError, write_atomically, write_bytes


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("write", [write_atomically, write_bytes])
@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_stays_what_it_is(write, linked, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    given = tmp_path / "link" if linked else pipe
    if linked:
        given.symlink_to(pipe)
    with pytest.raises(WriteError, match="it is a device or a pipe; give the name of a file"):
        write(given, b"content")
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert given.is_symlink() is linked
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted({"pipe", given.name})


def test_nothing_is_put_beside_devices(monkeypatch, tmp_path):
    """As root, a file would take the place of /dev/null or of the link /dev/stdout."""
    monkeypatch.setattr(os, "replace", lambda *paths: pytest.fail(f"replaced {paths}"))
    monkeypatch.setattr(os.path, "realpath", lambda path: "/dev")
    with pytest.raises(WriteError, match="it is a device or a pipe"):
        write_bytes(tmp_path / "stdout", b"content")
