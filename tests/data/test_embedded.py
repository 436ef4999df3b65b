"""Parquet and Arrow tables with images inside."""

import io
import json
import os

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.data import build, embedded
from fairmargin.data.drafts import Columns
from fairmargin.data.embedded import _batches, embedded_drafts, holds_images
from fairmargin.data.problems import BadManifest

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRMARGIN_DATA", str(tmp_path / "cache"))


def png(k: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (12, 12), (10 * k % 256, 20, 30)).save(stream, "PNG")
    return stream.getvalue()


def rows(n: int, start: int = 0, names: bool = True, **more):
    images = [{"bytes": png(start + k), "path": f"{k}.png"} for k in range(n)]
    columns = {"image": images, "label": [k % 2 for k in range(n)], **more}
    made = pyarrow.table(columns)
    if names:
        features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
        note = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
        made = made.replace_schema_metadata(note)
    return made


def test_a_downloaded_folder(tmp_path):
    folder = tmp_path / "beans"
    (folder / "data").mkdir(parents=True)
    parquet.write_table(rows(8, bias=["x", "y"] * 4), folder / "data/train-00000-of-00002.parquet")
    parquet.write_table(
        rows(4, 8, bias=["x", "y"] * 2), folder / "data/train-00001-of-00002.parquet"
    )
    parquet.write_table(
        rows(4, 20, bias=["y", "x"] * 2), folder / "data/test-00000-of-00001.parquet"
    )
    data = build("folder", folder, image_size=12, valid_fraction=0)
    assert (len(data.train), len(data.test)) == (12, 4)
    assert data.info.class_names == ("cat", "dog")
    assert data.info.bias_names == ("x", "y")
    red = data.train.images(torch.arange(12))[:, 0, 0, 0]
    assert red.tolist() == [10 * k for k in range(12)]
    assert data.test.bias.tolist() == [1, 0, 1, 0]
    words = ["data", "show", f"hf:{folder}", "--image-size", "12", "--out", str(tmp_path / "p.png")]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert "unpacked: " in said.output


def test_the_layout_of_save_to_disk(tmp_path):
    for split, number in (("train", 6), ("test", 4)):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        table = rows(number)
        with pyarrow.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table)
        (folder / "state.json").write_text("{}")
    data = build("folder", tmp_path / "saved", image_size=12, valid_fraction=0)
    assert (len(data.train), len(data.test)) == (6, 4)
    assert data.info.class_names == ("cat", "dog")


def test_one_file_of_bytes_with_its_own_columns(tmp_path):
    table = pyarrow.table(
        {
            "picture": [png(k) for k in range(10)],
            "kind": ["a", "b"] * 5,
            "split": ["train"] * 6 + ["test"] * 4,
        }
    )
    parquet.write_table(table, tmp_path / "mine.parquet")
    with pytest.raises(BadManifest, match='no column "label"'):
        build("folder", tmp_path / "mine.parquet")
    data = build("folder", tmp_path / "mine.parquet", label_column="kind", memory_limit=0)
    assert len(data.test) == 4
    assert data.info.class_names == ("a", "b")
    assert data.test.images(torch.tensor([0]))[0, 0, 0, 0] == 60


def test_numbers_without_names(tmp_path):
    parquet.write_table(rows(8, names=False), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="marks no usable test samples"):
        build("folder", tmp_path / "x.parquet")
    data = build("folder", tmp_path / "x.parquet", test_fraction=0.5)
    assert data.info.class_names == ("0", "1")


def test_bad_rows_are_reported_together(tmp_path):
    table = rows(8).to_pydict()
    table["image"][1] = {"bytes": b"broken", "path": None}
    table["image"][2] = None
    table["image"][3] = {"bytes": None, "path": "../../secret.png"}
    table["label"][4] = None
    file = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table(table), file)
    with pytest.raises(BadManifest) as caught:
        build("folder", file, test_fraction=0.5)
    said = str(caught.value)
    for part in (
        "4 problems",
        "image 2: not an image",
        "image 3: no image",
        "leads outside",
        "empty label",
    ):
        assert part in said
    data = build("folder", file, test_fraction=0.5, skip_bad=True)
    assert len(data.info.notes["skipped"].splitlines()) == 4


def test_files_whose_split_nobody_knows(tmp_path):
    parquet.write_table(rows(4), tmp_path / "extra-0.parquet")
    with pytest.raises(BadManifest, match="does not tell its split"):
        build("folder", tmp_path)


def test_a_changed_table_is_unpacked_again(tmp_path):
    file = tmp_path / "x.parquet"
    parquet.write_table(rows(4), file)
    first = build("folder", file, test_fraction=0.5).info.notes["unpacked"]
    assert build("folder", file, test_fraction=0.5).info.notes["unpacked"] == first
    parquet.write_table(rows(6), file)
    assert build("folder", file, test_fraction=0.5).info.notes["unpacked"] != first


def test_a_table_exchanged_at_equal_size_and_time_is_unpacked_again(tmp_path):
    file = tmp_path / "x.parquet"
    parquet.write_table(rows(4), file, compression="none")
    before = file.stat()
    first = build("folder", file, test_fraction=0.5).train.images(torch.arange(2))
    parquet.write_table(rows(4, start=4), file, compression="none")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    again = build("folder", file, test_fraction=0.5).train.images(torch.arange(2))
    assert not torch.equal(first, again)


def test_a_small_table_of_many_long_values_is_not_unpacked(tmp_path, monkeypatch):
    """One image of zeros, which the table names five hundred times."""
    monkeypatch.setenv("FAIRMARGIN_LARGEST_ARRAYS", "0.01")
    file = tmp_path / "x.parquet"
    images = pyarrow.array([bytes(100_000)] * 500, pyarrow.binary())
    table = pyarrow.table({"image": images, "label": ["a"] * 500})
    parquet.write_table(table, file, compression="zstd")
    assert file.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"unpacks to .* raise the limit with FAIRMARGIN_LARGEST"):
        embedded_drafts(file, Columns())
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_rows_in_memory_are_fewer_where_a_value_may_be_long(tmp_path, monkeypatch):
    file = tmp_path / "x.parquet"
    parquet.write_table(rows(40), file)
    assert [len(batch) for batch in _batches(file, ["label"])] == [40]
    monkeypatch.setattr(embedded, "AT_ONCE", 1)
    assert [len(batch) for batch in _batches(file, ["label"])] == [1] * 40


def test_a_date_that_python_cannot_hold_is_said(tmp_path):
    days = pyarrow.array([2**31 - 1] * 4, pyarrow.date32())
    file = tmp_path / "x.parquet"
    parquet.write_table(rows(4, names=False).set_column(1, "label", days), file)
    with pytest.raises(BadManifest, match=r"x\.parquet: a value of it cannot be read"):
        build("folder", file, test_fraction=0.5)


def test_other_tables_and_folders_stay_what_they_were(tmp_path):
    parquet.write_table(pyarrow.table({"path": ["a.png"], "label": ["x"]}), tmp_path / "p.parquet")
    assert not holds_images(tmp_path / "p.parquet")
    (tmp_path / "f/cat").mkdir(parents=True)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "f/cat/a.png")
    parquet.write_table(rows(2), tmp_path / "f/train-0.parquet")
    assert not holds_images(tmp_path / "f")


def test_a_folder_that_is_not_there(tmp_path):
    said = CliRunner().invoke(app, ["train", "--dataset", f"hf:{tmp_path / 'none'}"])
    assert said.exit_code == 2
    assert "huggingface-cli download" in said.output


def test_audit_and_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    colour = ["x", "y"] * 30
    parquet.write_table(rows(60, bias=colour, split=["train"] * 48 + ["test"] * 12), "x.parquet")
    size = ["--set", "data.image_size=12"]
    said = CliRunner().invoke(app, ["audit", "x.parquet", *size, "--permutations", "110"])
    assert said.exit_code == 0, said.output
    quick = ["network.widths=[4]", "train.epochs=1", "train.device=cpu", "evaluate.resamples=10"]
    changes = [word for change in quick for word in ("--set", change)]
    words = ["train", "--dataset", "x.parquet", "--method", "ce", "--network", "simple-conv-3"]
    said = CliRunner().invoke(app, [*words, "--out", "run", *size, *changes])
    assert said.exit_code == 0, said.output
    said = CliRunner().invoke(app, ["evaluate", "run", "--data", "x.parquet"])
    assert said.exit_code == 0, said.output
    assert "x.parquet: 12 samples" in said.output


def test_training_rows_are_never_evaluated(tmp_path):
    parquet.write_table(rows(4, split=["train"] * 4), tmp_path / "a.parquet")
    parquet.write_table(rows(4), tmp_path / "b.parquet")
    parquet.write_table(rows(4), tmp_path / "train.parquet")
    files = [tmp_path / f"{name}.parquet" for name in ("a", "b", "train")]
    assert [embedded_drafts(file, Columns()).marked for file in files] == [True, False, True]
