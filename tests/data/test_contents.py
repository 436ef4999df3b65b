"""Digests of image files, and the cache that saves reading them again."""

import hashlib
import io
import json
import os
import tarfile

import pytest
from PIL import Image

from fairmargin.data import contents
from fairmargin.data.contents import VARIABLE, contents_hash, read_seen
from fairmargin.data.datasets.folder import build, images_hash


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


@pytest.fixture
def files(tmp_path):
    """Three files that were written a while ago."""
    paths = [tmp_path / "data" / f"{name}.png" for name in "abc"]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(path.name.encode() * 10)
    return paths


@pytest.fixture
def reads(monkeypatch):
    """The names of files whose content is read."""
    found = []
    original = contents.read_seen

    def counted(path):
        found.append(path.name)
        return original(path)

    monkeypatch.setattr(contents, "read_seen", counted)
    return found


@pytest.fixture
def settled(monkeypatch):
    """Files count as unchanged for long, though the test has just written them."""
    monkeypatch.setattr(contents, "SETTLED_NS", -(10**18))


def of(files):
    return contents_hash(files, files[0].parent, {})


def test_by_hand(files, cache):
    lines = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert of(files) == hashlib.sha256("".join(f"{x}\n" for x in lines).encode()).hexdigest()
    assert of(files[::-1]) != of(files)


def test_unchanged_files_are_not_read_again(files, cache, reads, settled):
    first = of(files)
    assert reads == ["a.png", "b.png", "c.png"]
    assert of(files) == first
    assert len(reads) == 3
    assert len(list(cache.iterdir())) == 1
    files[1].write_bytes(b"B.png" * 10)
    assert of(files) != first
    assert reads[3:] == ["b.png"]


def test_a_file_exchanged_with_size_and_time_is_read_again(files, cache, reads, settled):
    first, before = of(files), files[1].stat()
    files[1].write_bytes(b"B.png" * 10)
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files[1].stat().st_size == before.st_size
    assert of(files) != first


def test_what_was_written_a_moment_ago_is_not_kept(files, cache, reads):
    of(files)
    of(files)
    assert len(reads) == 6


def test_what_is_given_is_not_read(files, cache, reads):
    seen = {file: read_seen(file)[1] for file in files}
    assert contents_hash(files, files[0].parent, seen) == of(files)
    assert len(reads) == 3


def test_without_a_cache_everything_is_read(files, cache, reads, settled, monkeypatch):
    monkeypatch.setenv(VARIABLE, "none")
    of(files)
    of(files)
    assert len(reads) == 6
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_done_without(files, tmp_path, settled, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with_none = of(files)
    assert of(files) == with_none


BAD = {
    "empty": "",
    "another type": "[1, 2]",
    "another format": '{"format": 99, "files": {}}',
    "no digest": '{"format": 1, "files": {"%s": ["x", 3]}}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("harm", BAD)
def test_a_damaged_cache_counts_as_none(files, cache, reads, settled, harm):
    first = of(files)
    next(cache.iterdir()).write_text(BAD[harm].replace("%s", str(files[0])))
    assert of(files) == first
    assert len(reads) == 6


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
@pytest.mark.parametrize("harm", ["writable", "linked"])
def test_a_cache_that_others_could_write_is_not_believed(files, cache, reads, settled, harm):
    of(files)
    file = next(cache.iterdir())
    assert file.stat().st_mode & 0o777 == 0o600
    lie = json.loads(file.read_text())
    for entry in lie["files"].values():
        entry[1] = "0" * 64
    if harm == "writable":
        file.write_text(json.dumps(lie))
        file.chmod(0o666)
    else:
        (cache / "other").write_text(json.dumps(lie))
        file.unlink()
        file.symlink_to(cache / "other")
    lines = [hashlib.sha256(one.read_bytes()).hexdigest() for one in files]
    assert of(files) == hashlib.sha256("".join(f"{x}\n" for x in lines).encode()).hexdigest()


def test_a_missing_file_is_another_content(files, cache):
    first = of(files)
    files[1].unlink()
    assert of(files) != first


def test_building_and_looking_later_agree_and_read_once(tmp_path, cache, reads, settled):
    for i in range(6):
        split = "test" if i > 3 else "train"
        file = tmp_path / "photos" / split / "ab"[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, i, i)).save(file)
    data = build(tmp_path / "photos", image_size=8, workers=0)
    assert data.hashes["images"] == data.images == images_hash(tmp_path / "photos", {})
    assert not reads  # each was hashed as it was decoded
    assert build(tmp_path / "photos", image_size=8, check_files="exists").images is None


def test_members_of_tars(tmp_path, cache, settled):
    pictures = {}
    for i in range(8):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(buffer, "BMP")
        pictures[f"{i}.bmp"] = buffer.getvalue()
        pictures[f"{i}.cls"] = str(i % 2).encode()

    def packed():
        with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
            for name, content in pictures.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        options = {"image_size": 8, "test_fraction": 0.25, "workers": 0}
        return build(tmp_path / "train-0.tar", **options).images

    first = packed()
    assert first == packed() == images_hash(tmp_path / "train-0.tar", {})
    pictures["3.bmp"] = pictures["3.bmp"][:-1] + b"\7"
    assert packed() != first
    assert packed() == images_hash(tmp_path / "train-0.tar", {})
