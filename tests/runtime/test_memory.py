"""How much memory is free: the least of what system, container and limits say."""

import pytest

from fairmargin.runtime import memory

GIB = 1 << 30


def proc(tmp_path, *, available=8 * GIB, group=None, used=0, files=0):
    """The files in which Linux says how much memory there is."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available // 1024} kB\n")
    own = tmp_path / "self"
    own.mkdir()
    (own / "statm").write_text("100 50 0 0 0 0 0")
    folder = tmp_path / "groups" / "box"
    folder.mkdir(parents=True)
    (own / "cgroup").write_text("0::/box\n")
    (folder / "memory.max").write_text("max\n" if group is None else f"{group}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {files}\n")
    return tmp_path / "meminfo", tmp_path / "groups", own


class TestFreeMemory:
    def test_is_what_the_system_has(self, tmp_path):
        assert memory.free_memory(*proc(tmp_path)) == 8 * GIB

    def test_is_what_the_container_leaves(self, tmp_path):
        files = proc(tmp_path, group=4 * GIB, used=3 * GIB, files=GIB // 2)
        assert memory.free_memory(*files) == 3 * GIB // 2

    def test_is_never_below_nothing(self, tmp_path):
        assert memory.free_memory(*proc(tmp_path, group=GIB, used=2 * GIB)) == 0

    def test_is_what_ulimit_leaves(self, tmp_path, monkeypatch):
        resource = pytest.importorskip("resource")
        monkeypatch.setattr(resource, "getrlimit", lambda what: (GIB, GIB))
        used = 100 * resource.getpagesize()
        assert memory.free_memory(*proc(tmp_path)) == GIB - used

    def test_is_unknown_where_nothing_says(self, tmp_path):
        nowhere = tmp_path / "nowhere"
        assert memory.free_memory(nowhere, nowhere, nowhere) is None


class TestCheckFits:
    def test_says_what_is_needed_what_is_free_and_what_to_do(self, monkeypatch):
        monkeypatch.setattr(memory, "free_memory", lambda: GIB)
        with pytest.raises(ValueError, match="are free") as caught:
            memory.check_fits(3 * GIB, "the pictures need", "lower data.side")
        assert str(caught.value) == (
            "the pictures need about 3.0 GiB of memory and 1.0 GiB are free; lower data.side"
        )

    @pytest.mark.parametrize("free", [GIB, None])
    def test_lets_pass_what_fits(self, monkeypatch, free):
        monkeypatch.setattr(memory, "free_memory", lambda: free)
        memory.check_fits(GIB, "the pictures need", "")


def test_sizes_are_readable():
    assert [memory.in_gib(size) for size in (3 * GIB, 5 << 20, 3 << 41)] == [
        "3.0 GiB",
        "5.0 MiB",
        "6.0 TiB",
    ]
