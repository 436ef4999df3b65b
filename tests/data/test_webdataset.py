"""WebDataset tars: read in place, with nothing unpacked and nothing trusted."""

import csv
import io
import json
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.data import build
from fairmargin.data.archives import BadArchive
from fairmargin.data.datasets import is_own
from fairmargin.data.hashes import data_hash, source_hash
from fairmargin.data.members import is_member, shown
from fairmargin.data.problems import BadManifest
from fairmargin.data.split import FileSplit
from fairmargin.data.webdataset import plain_name, shards


def png(k: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (12, 12), (10 * k % 256, 20, 30)).save(stream, "PNG")
    return stream.getvalue()


def write(file, members):
    """A tar of (name, bytes or text or an object for JSON); a TarInfo is added as it is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, content in members:
            if isinstance(name, tarfile.TarInfo):
                tar.addfile(name)
                continue
            if not isinstance(content, bytes | str):
                content = json.dumps(content)
            raw = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return file


def samples(number, start=0, **fields):
    """Keys with a PNG and a cls; of each field, one value of its list."""
    made = []
    for k in range(number):
        made.append((f"{start + k:04d}.png", png(start + k)))
        made.append((f"{start + k:04d}.cls", str(k % 2)))
        if fields:
            chosen = {name: values[k % len(values)] for name, values in fields.items()}
            made.append((f"{start + k:04d}.json", chosen))
    return made


def folder_of_shards(folder):
    write(folder / "train-000.tar", samples(8, bias=["x", "y", "x"]))
    write(folder / "train-001.tar", samples(8, 8, bias=["y", "x", "x"]))
    write(folder / "val-000.tar", samples(4, 16, bias=["x", "y", "y"]))
    write(folder / "test-000.tar", samples(6, 20, bias=["x", "y", "y"]))
    return folder


def test_a_folder_of_shards(tmp_path):
    folder = folder_of_shards(tmp_path / "shards")
    data = build("folder", folder, image_size=12)
    assert (len(data.train), len(data.valid), len(data.test)) == (16, 4, 6)
    assert data.info.class_names == ("0", "1")
    assert data.info.bias_names == ("x", "y")
    assert data.info.name == "shards"
    red = data.train.images(torch.arange(16))[:, 0, 0, 0]
    assert red.tolist() == [10 * k for k in range(16)]
    assert data.test.bias.tolist() == [0, 1, 1, 0, 1, 1]


def test_images_are_read_from_their_places_when_they_are_needed(tmp_path):
    folder = folder_of_shards(tmp_path / "shards")
    before = sorted(path for path in tmp_path.rglob("*"))
    data = build("folder", folder, image_size=12, memory_limit=0)
    split = data.train
    assert isinstance(split, FileSplit)
    assert all(map(is_member, split.paths))
    assert shown(split.paths[9]) == folder / "train-001.tar" / "0009.png"
    assert split.images(torch.tensor([9, 3]))[:, 0, 0, 0].tolist() == [90, 30]
    assert data_hash(split) == data_hash(split)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_patterns(tmp_path, monkeypatch):
    for k in range(4):
        write(tmp_path / f"s-{k:03d}.tar", samples(4, 4 * k))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s-{000..002}.tar"
    assert [file.name for file in shards(path)] == ["s-000.tar", "s-001.tar", "s-002.tar"]
    assert [file.name for file in shards(tmp_path / "s-*.tar")] == [
        f"s-{k:03d}.tar" for k in range(4)
    ]
    assert [file.name for file in shards(tmp_path / "s-00{3,1}.tar")] == ["s-003.tar", "s-001.tar"]
    assert is_own("s-{000..002}.tar")
    assert is_own("s-*.tar")
    assert plain_name(path) == "s"
    data = build("folder", path, image_size=12, test_fraction=0.5, valid_fraction=0)
    assert len(data.train) + len(data.test) == 12
    with pytest.raises(ValueError, match=r"there is no s-004\.tar"):
        is_own("s-{003..004}.tar")
    with pytest.raises(ValueError, match=r"there is no t-\*\.tar"):
        is_own("t-*.tar")
    with pytest.raises(ValueError, match="more than 100,000 files"):
        shards(tmp_path / "s-{000..999}{0..999}.tar")
    with pytest.raises(ValueError, match="marks no usable test samples"):
        build("folder", path, image_size=12)


def test_labels_and_splits_in_json(tmp_path):
    fields = {
        "kind": ["cat", "dog"],
        "place": ["indoor", "outdoor", "?"],
        "camera": [1, 2.0],
        "part": ["train", "train", "dev", "train", "test"],
    }
    members = [
        (name, content) for name, content in samples(30, **fields) if not name.endswith(".cls")
    ]
    file = write(tmp_path / "all.tar", members)
    data = build(
        "folder",
        file,
        image_size=12,
        label_column="kind",
        bias_columns="place,camera",
        split_column="part",
    )
    assert data.info.class_names == ("cat", "dog")
    assert {"indoor×1", "outdoor×2"} <= set(data.info.bias_names)
    assert (len(data.train), len(data.valid), len(data.test)) == (18, 6, 6)
    with pytest.raises(BadManifest, match='no column "label"'):
        build("folder", file)
    with pytest.raises(BadManifest, match='no column "plase": did you mean "place"'):
        build("folder", file, label_column="kind", bias_columns="plase")


def test_text_members_are_columns_too(tmp_path):
    members = []
    for k in range(8):
        members += [(f"a/{k}.rgb.png", png(k)), (f"a/{k}.txt", ["cat", "dog"][k % 2] + "\n")]
        members += [(f"a/{k}.place", "in"), (f"a/{k}.pyd", pickle.dumps(k))]
    file = write(tmp_path / "x.tar", members)
    data = build("folder", file, image_size=12, bias_columns="place", test_fraction=0.5)
    assert data.info.class_names == ("cat", "dog")
    assert data.info.bias_names == ("in",)


def test_bad_samples_are_reported_together(tmp_path):
    link = tarfile.TarInfo("c.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
    device = tarfile.TarInfo("d.png")
    device.type = tarfile.CHRTYPE
    members = samples(6)
    members += [("a.png", png(1)), ("a.jpg", png(1)), ("a.cls", "0"), ("b.cls", "0")]
    members += [(link, None), ("c.cls", "0"), (device, None), ("d.cls", "0")]
    members += [("e.png", b"broken"), ("e.cls", "1"), ("f.png", png(2))]
    members += [("g.png", png(1)), ("g.png", png(2)), ("g.cls", "1")]
    members += [("../../h.png", png(1)), ("../../h.cls", "1"), ("/i.png", png(1)), ("/i.cls", "1")]
    members += [("j.png", png(1)), ("j.cls", b"\xff\xfe\x00"), ("k.png", b""), ("k.cls", "1")]
    members += [("l.png", png(1)), ("l.cls", "word " * 100)]
    members += [("m.png", png(1)), ("m.cls", "1"), ("m.json", "[1, 2]")]
    members += [("n.png", png(1)), ("n.cls", "1"), ("n.json", "{broken")]
    members += [("o.png", png(1)), ("o.cls", "1"), ("o.json", {"bias": [1]})]
    members += [("\x1b[31mp.png", png(1)), ("\x1b[31mp.cls", "1")]
    members += [("README", "no sample"), (".hidden.png", png(1)), ("__meta__.json", "{}")]
    file = write(tmp_path / "x.tar", members)
    with pytest.raises(BadManifest) as caught:
        build("folder", file, test_fraction=0.5, image_size=12)
    said = caught.value.report()
    for part in (
        "16 problems",
        "x.tar/a: 2 images (png, jpg) where one is wanted",
        "x.tar/b: no image; it has cls",
        "x.tar/c: no image; its png is a link or a device, which is not followed",
        "x.tar/d: no image; its png is a link",
        "x.tar/e.png: not an image that can be read",
        'x.tar/f.png: no label: "cls" is missing or empty',
        "x.tar/g.png: g.png is in it twice",
        "the path '../../h.png' leads outside the tar file",
        "the path '/i.png' leads outside",
        "x.tar/j.png: its cls is not UTF-8 text",
        "x.tar/k.png: an empty file",
        'x.tar/l.png: no label: "cls" is a text of 499 characters',
        "x.tar/m.png: its json holds no fields by name",
        "x.tar/n.png: its json cannot be read",
        '"bias" is a list, no text or number',
        "x.tar/�[31mp",
    ):
        assert part in said, f"{part}\n{said}"
    assert "\x1b" not in said
    data = build("folder", file, test_fraction=0.5, image_size=12, skip_bad=True)
    assert len(data.train) + len(data.valid) + len(data.test) == 6
    assert "no image" in data.info.notes["skipped"]


def test_a_test_class_without_training_samples(tmp_path):
    write(tmp_path / "d/train-0.tar", samples(8))
    write(tmp_path / "d/test-0.tar", [("a.png", png(1)), ("a.cls", "7"), *samples(2)])
    with pytest.raises(BadManifest, match='class "7" is in test but has no training sample'):
        build("folder", tmp_path / "d", image_size=12)


def test_splits_that_only_some_names_tell(tmp_path):
    write(tmp_path / "d/train-0.tar", samples(8))
    write(tmp_path / "d/other.tar", samples(8))
    with pytest.raises(BadManifest, match=r"other\.tar: its name does not tell its split"):
        build("folder", tmp_path / "d", image_size=12)


@pytest.mark.parametrize("cut", [100, 512, 700, 3000, -1024, -1536])
def test_truncated_tars(tmp_path, cut):
    file = write(tmp_path / "x.tar", samples(20))
    with tarfile.open(file) as tar:
        end = max(member.offset_data + member.size for member in tar)
    whole = file.read_bytes()
    # −1024: cut at the end of the last member, where only the end mark is missing.
    at = cut if cut > 0 else (end + 511) // 512 * 512 + 1024 + cut
    file.write_bytes(whole[:at])
    with pytest.raises(BadArchive, match="truncated"):
        build("folder", file, test_fraction=0.5)


def test_damaged_tars(tmp_path):
    file = write(tmp_path / "x.tar", samples(20))
    whole = bytearray(file.read_bytes())
    with tarfile.open(file) as tar:
        header = tar.getmembers()[9].offset
    # A damaged header, which the standard library takes for the end.
    whole[header + 148] ^= 0x55
    file.write_bytes(whole)
    with pytest.raises(BadArchive, match="damaged, there is no header at byte"):
        build("folder", file, test_fraction=0.5)
    write(tmp_path / "empty.tar", [])
    with pytest.raises(BadArchive, match="no samples in it"):
        build("folder", tmp_path / "empty.tar", test_fraction=0.5)
    (tmp_path / "zero.tar").touch()
    with pytest.raises(BadArchive, match="truncated or damaged"):
        build("folder", tmp_path / "zero.tar", test_fraction=0.5)
    write(tmp_path / "a.tar", samples(4))
    joined = (tmp_path / "a.tar").read_bytes() * 2
    (tmp_path / "a.tar").write_bytes(joined)
    with pytest.raises(BadArchive, match="more after its end"):
        build("folder", tmp_path / "a.tar", test_fraction=0.5)
    (tmp_path / "b.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(ValueError, match="is compressed"):
        build("folder", tmp_path / "b.tar.gz", test_fraction=0.5)


def test_a_header_that_asks_for_too_much(tmp_path):
    file = tmp_path / "x.tar"
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.png")
        info.pax_headers = {"comment": "x" * (2 << 20)}
        tar.addfile(info)
    with pytest.raises(BadArchive, match="a header asks for"):
        build("folder", file, test_fraction=0.5)


def test_a_tar_that_was_cut_after_it_was_read(tmp_path):
    file = write(tmp_path / "x.tar", samples(20))
    data = build(
        "folder", file, image_size=12, memory_limit=0, test_fraction=0.2, check_files="exists"
    )
    os.truncate(file, 600)
    with pytest.raises(ValueError, match=r"x\.tar/.*\.png: cannot be decoded: the tar file"):
        data.train.images(torch.arange(len(data.train)))


def test_images_beside_a_tar_are_an_image_folder(tmp_path):
    for split in ("train", "test"):
        for k in range(4):
            folder = tmp_path / "d" / split / str(k % 2)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{k}.png").write_bytes(png(k))
    write(tmp_path / "d/original.tar", samples(4))
    assert shards(tmp_path / "d") == []
    assert len(build("folder", tmp_path / "d", image_size=12, valid_fraction=0).train) == 4


def test_digests_see_another_label_of_the_same_size(tmp_path):
    file = write(tmp_path / "x.tar", samples(4))
    before = source_hash(file), source_hash(tmp_path / "?.tar")
    write(file, [(n, "7" if n.endswith("cls") else c) for n, c in samples(4)])
    assert source_hash(file) != before[0]
    assert source_hash(tmp_path / "?.tar") != before[1]


def colored(number, start=0):
    """Keys whose color tells the label, with a field that tells it too."""
    made = []
    rng = np.random.default_rng(start)
    for k in range(number):
        pixels = rng.integers(0, 60, (12, 12, 3), dtype=np.uint8)
        pixels[..., k % 2] += 150
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        made += [(f"{start + k:04d}.png", stream.getvalue()), (f"{start + k:04d}.cls", str(k % 2))]
        made.append((f"{start + k:04d}.json", {"bias": "xy"[k // 2 % 2], "site": "AB"[k % 2]}))
    return made


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.slow
def test_every_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "d/train-000.tar", colored(40))
    write(tmp_path / "d/train-001.tar", colored(40, 40))
    write(tmp_path / "d/test-000.tar", colored(20, 80))
    pattern = "d/{train-000,train-001,test-000}.tar"
    said = invoke("data", "show", pattern, "--image-size", "12", "--out", "p.png")
    assert said.exit_code == 0, said.output
    assert "20 test" in said.output
    said = invoke(
        "train", "--dataset", pattern, "--method", "ce", "--out", "run", "--set", "train.epochs=2",
        "--set", "data.image_size=12", "--set", "train.batch_size=16",
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    said = invoke("predict", "run", "d/test-000.tar", "--out", "p.csv")
    assert said.exit_code == 0, said.output
    with open("p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows][:2] == [
        "d/test-000.tar/0080.png",
        "d/test-000.tar/0081.png",
    ]
    assert len(rows) == 20
    said = invoke("evaluate", "run", "--data", "d")
    assert said.exit_code == 0, said.output
    assert "20" in said.output
    said = invoke("audit", pattern, "--permutations", "100")
    assert said.exit_code == 0, said.output
    assert "site" in said.output
    said = invoke("train", "--dataset", "nothing-{0..1}.tar", "--method", "ce")
    assert said.exit_code == 2
    assert "there is no nothing-0.tar" in said.output
