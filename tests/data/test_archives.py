import gzip
import io
import os
import stat
import tarfile
import zipfile

import pytest

from fairmargin.data.archives import BadArchive, extract, read_bare


def member(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def make_tar(path, *members, mode="w:gz"):
    with tarfile.open(path, mode) as file:
        for info, content in members:
            file.addfile(info, io.BytesIO(content))
    return path


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def refused(archive, tmp_path, match, **limits):
    """The archive is refused, and the file system is as before."""
    before = set(tmp_path.rglob("*"))
    with pytest.raises(BadArchive, match=match) as caught:
        extract(archive, tmp_path / "out" / "deep", **limits)
    assert str(archive) in str(caught.value)
    assert set(tmp_path.rglob("*")) - {tmp_path / "out"} == before - {tmp_path / "out"}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_arrives_whole(tmp_path, mode):
    archive = make_tar(
        tmp_path / "a.bin",
        member("./", type=tarfile.DIRTYPE),
        member("./d/a.txt", b"alpha"),
        member("b.txt", b"b" * 3_000_000),
        mode=mode,
    )
    extract(archive, tmp_path / "out")
    assert (tmp_path / "out/d/a.txt").read_bytes() == b"alpha"
    assert (tmp_path / "out/b.txt").stat().st_size == 3_000_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bin", "out"]
    umask = os.umask(0)
    os.umask(umask)
    assert (
        stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o777 & ~umask
    )  # others may read it too


def test_zip_arrives_whole_and_only_what_was_asked_for(tmp_path):
    archive = make_zip(
        tmp_path / "a.zip", [("d/", b""), ("d/a", b"alpha"), ("d/b", b"beta"), ("c", b"")]
    )
    extract(archive, tmp_path / "all")
    assert {
        p.relative_to(tmp_path / "all").as_posix()
        for p in (tmp_path / "all").rglob("*")
        if p.is_file()
    } == {
        "d/a",
        "d/b",
        "c",
    }
    extract(archive, tmp_path / "some", only={"d/b"})
    assert [p.name for p in (tmp_path / "some").rglob("*") if p.is_file()] == ["b"]
    refused(archive, tmp_path, "does not hold d/x", only={"d/b", "d/x"})


def test_existing_folder_is_left_alone(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("a", b"new")])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("old")
    with pytest.raises(FileExistsError, match="new folder"):
        extract(archive, tmp_path / "out")
    assert (tmp_path / "out" / "a").read_text() == "old"


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "C:/evil", "C:evil"]
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_paths_that_lead_outside(tmp_path, name, kind):
    if kind == "tar":
        archive = make_tar(tmp_path / "a", member("good", b"x"), member(name, b"evil"))
    else:
        archive = make_zip(tmp_path / "a", [("good", b"x"), (name, b"evil")])
    refused(archive, tmp_path, "outside")


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "device"),
        (tarfile.GNUTYPE_SPARSE, "special|damaged"),
    ],
)
def test_links_and_devices_in_a_tar(tmp_path, kind, match):
    archive = make_tar(
        tmp_path / "a.tar", member("good", b"x"), member("bad", type=kind, linkname="/etc/passwd")
    )
    refused(archive, tmp_path, match)


@pytest.mark.parametrize(
    ("mode", "match"), [(stat.S_IFLNK, "link"), (stat.S_IFCHR, "device"), (stat.S_IFIFO, "device")]
)
def test_links_and_devices_in_a_zip(tmp_path, mode, match):
    info = zipfile.ZipInfo("bad")
    info.external_attr = (mode | 0o777) << 16
    refused(make_zip(tmp_path / "a.zip", [("good", b"x"), (info, b"/etc/passwd")]), tmp_path, match)


def test_a_zip_under_a_password(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("a", b"x")])
    content = bytearray(archive.read_bytes())
    content[6] |= 1  # local header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # central directory
    archive.write_bytes(content)
    refused(archive, tmp_path, "password")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_name_twice(tmp_path):
    refused(make_tar(tmp_path / "a.tgz", member("a", b"1"), member("./a", b"2")), tmp_path, "twice")
    refused(make_zip(tmp_path / "a.zip", [("a", b"1"), ("a", b"2")]), tmp_path, "twice")


def test_a_name_that_is_both_file_and_folder(tmp_path):
    refused(make_tar(tmp_path / "a.tgz", member("a", b"1"), member("a/b", b"2")), tmp_path, "both")
    refused(make_tar(tmp_path / "b.tgz", member("a/b", b"1"), member("a", b"2")), tmp_path, "both")


def test_too_many_entries(tmp_path):
    refused(
        make_tar(tmp_path / "a.tgz", *(member(f"{i}") for i in range(11))),
        tmp_path,
        "10 entries",
        max_entries=10,
    )
    refused(
        make_zip(tmp_path / "a.zip", [(f"{i}", b"") for i in range(11)]),
        tmp_path,
        "10 entries",
        max_entries=10,
    )


def test_bombs(tmp_path):
    zeros = bytes(5_000_000)
    bomb = make_zip(tmp_path / "bomb.zip", [("a", zeros), ("b", zeros)])
    assert bomb.stat().st_size < 20_000
    refused(bomb, tmp_path, "larger than 8,000,000", max_bytes=8_000_000)
    tar = make_tar(tmp_path / "bomb.tgz", member("a", zeros), member("b", zeros))
    refused(tar, tmp_path, "larger than 8,000,000", max_bytes=8_000_000)
    refused(
        tar, tmp_path, "larger than 8,000,000", max_bytes=8_000_000, only={"b"}
    )  # skipping costs as much


def test_a_zip_that_lies_about_its_size(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("a", bytes(2_000_000))])
    content = archive.read_bytes().replace(
        (2_000_000).to_bytes(4, "little"), (1_000).to_bytes(4, "little")
    )
    archive.write_bytes(content)
    refused(archive, tmp_path, "damaged|declared", max_bytes=10_000)


def test_a_tar_whose_headers_are_the_bomb(tmp_path):
    info, _ = member("a")
    info.pax_headers = {"comment": "x" * 30_000_000}
    archive = tmp_path / "a.tgz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as file:
        file.addfile(info)
    refused(archive, tmp_path, "unpacks to more", max_bytes=1000, max_entries=10)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["tar", "tgz", "zip"])
def test_truncated(tmp_path, kind, share):
    random = os.urandom(200_000)
    archive = tmp_path / f"a.{kind}"
    if kind == "zip":
        make_zip(archive, [("a", random)])
    else:
        make_tar(archive, member("a", random), mode="w:gz" if kind == "tgz" else "w")
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * share)])
    if kind == "tar" and share == 0.99:  # only the padding behind the last file is lost
        extract(archive, tmp_path / "out")
        assert (tmp_path / "out" / "a").read_bytes() == random
    else:
        refused(archive, tmp_path, "truncated or damaged")


def test_a_changed_byte_is_noticed(tmp_path):
    archive = make_tar(tmp_path / "a.tgz", member("a", os.urandom(50_000)))
    content = bytearray(archive.read_bytes())
    content[25_000] ^= 1
    archive.write_bytes(content)
    refused(archive, tmp_path, "damaged")


def test_read_bare(tmp_path):
    content = os.urandom(3_000_000)
    plain, packed = tmp_path / "a", tmp_path / "b"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content, 1))
    assert b"".join(read_bare(plain)) == b"".join(read_bare(packed)) == content
    assert b"".join(read_bare(packed, unpack=False)) == packed.read_bytes()
    with pytest.raises(BadArchive, match="larger than 1,000"):
        list(read_bare(packed, max_bytes=1000))
    packed.write_bytes(packed.read_bytes()[:-100])
    with pytest.raises(BadArchive, match="truncated or damaged gzip"):
        list(read_bare(packed))
