import csv
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fairmargin.data.datasets.folder import build
from fairmargin.data.manifest import read_folder, read_manifest
from fairmargin.data.problems import BadManifest, RowProblem
from fairmargin.data.split import ArraySplit, FileSplit
from fairmargin.data.table import natural_order

FRACTIONS = {"valid_fraction": 0.2, "test_fraction": 0.2}


def picture(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (shade, 255 - shade, 7)).save(path)
    return path


def table(path, header, rows, delimiter=","):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def small(tmp_path, rows=40, minority=5):
    """`rows` pictures of two classes; every `minority`-th has the other class's bias."""
    lines = []
    for i in range(rows):
        picture(tmp_path / "images" / f"{i}.png", shade=i % 256)
        label = i % 2
        bias = 1 - label if i // 2 % minority == 0 else label
        lines.append([f"images/{i}.png", ("cat", "dog")[label], ("indoor", "outdoor")[bias]])
    return table(tmp_path / "m.csv", ["path", "label", "bias"], lines)


def files_below(path):
    return sorted(str(p) for p in path.rglob("*"))


def test_every_kind_of_problem_is_reported_at_once(tmp_path):
    root = tmp_path / "data"
    for name in ("a", "b", "c", "d", "e", "z"):
        picture(root / f"{name}.png")
    picture(tmp_path / "outside.png")
    (root / "text.png").write_text("hello")
    rows = [
        ["a.png", "cat", "0", "train"],
        ["b.png", "dog", "1", "Train"],
        ["gone.png", "cat", "0", "train"],  # row 4
        ["../outside.png", "cat", "0", "train"],
        ["c.png", "", "0", "train"],
        ["d.png", "cat", "0", "trian"],
        ["e.png", "cat", "0"],
        ["a.png", "cat", "0", "test"],
        ["./b.png", "cat", "1", "train"],
        ["text.png", "cat", "0", "train"],
        ["z.png", "zebra", "0", "test"],  # row 12
        [str(tmp_path / "outside.png"), "cat", "0", "train"],
        ["gone too.png", "", "", ""],
    ]
    manifest = table(root / "m.csv", ["path", "label", "bias", "split"], rows)
    before = files_below(tmp_path)
    with pytest.raises(BadManifest) as caught:
        read_manifest(manifest, root=root)
    expected = {
        4: "no such file",
        5: "outside the root",
        6: "empty label",
        7: 'unknown split "trian"',
        8: "3 cells where the header has 4",
        9: "the same file as row 2, which is in train: a leak",
        10: 'the same file as row 3, whose label is "dog"',
        11: "not an image",
        12: 'class "zebra" is in test but has no training sample',
        13: "absolute path",
        14: "empty label; empty split; no such file",
    }
    assert [problem.row for problem in caught.value.problems] == list(expected)
    for problem in caught.value.problems:
        assert expected[problem.row] in problem.reason
        assert problem.file == rows[problem.row - 2][0]
    message = str(caught.value)
    assert "11 problems" in message
    assert "row 4, gone.png: no such file" in message
    assert files_below(tmp_path) == before
    with pytest.raises(BadManifest):
        build(manifest, base=root)
    assert files_below(tmp_path) == before

    caught.value.write_problems(tmp_path / "problems.csv")
    with open(tmp_path / "problems.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [(int(w["row"]), w["file"], w["reason"]) for w in written] == [
        (p.row, p.file, p.reason) for p in caught.value.problems
    ]


def test_many_problems_of_a_kind_share_a_line(tmp_path):
    rows = [[f"gone-{i}.png", "cat", "train"] for i in range(30)]
    rows += [["", "dog", "train"], [f"../{tmp_path.name}-x.png", "dog", "train"]]
    rows += [[f"gone-{i}.png", "cat", "train"] for i in range(5)]
    manifest = table(tmp_path / "m.csv", ["path", "label", "split"], rows)
    with pytest.raises(BadManifest) as caught:
        read_manifest(manifest)
    assert caught.value.shortened
    head, missing, empty, outside, twice = str(caught.value).splitlines()
    assert head.endswith("37 problems, nothing was loaded")
    assert missing.strip() == (
        "no such file: 30 rows, such as row 2, gone-0.png; row 3, gone-1.png; row 4, gone-2.png"
    )
    assert empty.strip() == "row 32, (no file): empty path"
    assert "leads outside the root" in outside
    assert twice.strip().startswith("the same file as row …; no such file: 5 rows, such as row 34,")
    assert "all 37 are listed in all.csv" in caught.value.report(Path("all.csv"))


def test_few_problems_have_a_line_each(tmp_path):
    problems = [RowProblem(None, f"{i}.png", "no such file") for i in range(3)]
    error = BadManifest(problems, "pictures")
    assert not error.shortened
    assert [line.strip() for line in str(error).splitlines()[1:]] == [str(p) for p in problems]
    assert BadManifest([*problems, RowProblem(None, "x", "no such file")]).shortened
    kinds = [RowProblem(2, "a.png", f"kind {'x' * i}") for i in range(25)]
    assert "… and 5 more" in str(BadManifest(kinds))


@pytest.mark.parametrize(
    "problem", [RowProblem(3, "a, b.png", "no such file: gone"), RowProblem(None, "c.png", "empty")]
)
def test_a_problem_is_read_from_its_line(problem):
    assert RowProblem.from_line(str(problem)) == problem


@pytest.mark.parametrize(("word", "named"), [("test", "fold"), ("evening", "NAME")])
def test_no_test_samples_names_the_column_that_marks_them(tmp_path, word, named):
    rows = [[f"{i}.png", "cat", word] for i in range(4)]
    manifest = table(tmp_path / "m.csv", ["path", "label", "fold"], rows)
    option = rf"data\.split_column={named} .*--split-column {named}"
    with pytest.raises(ValueError, match=option):
        build(manifest)


def test_no_test_samples_in_a_folder_asks_for_a_folder_of_them(tmp_path):
    (tmp_path / "folder" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "folder" / "cat" / "a.png")
    with pytest.raises(ValueError, match='folder "test"'):
        build(tmp_path / "folder")


def test_skip_bad_keeps_the_good_rows_and_records_the_others(tmp_path):
    manifest = small(tmp_path)
    (tmp_path / "images" / "7.png").write_bytes(b"broken")
    (tmp_path / "images" / "9.png").unlink()
    checked = read_manifest(manifest, skip_bad=True)
    assert [problem.row for problem in checked.skipped] == [9, 11]
    assert [sample.row for sample in checked.samples] == [
        r for r in range(2, 42) if r not in (9, 11)
    ]
    data = build(manifest, skip_bad=True, **FRACTIONS)
    assert len(data.train) + len(data.valid) + len(data.test) == 38
    skipped = data.info.notes["skipped"].splitlines()
    assert [line.split(":")[0] for line in skipped] == [
        "row 9, images/7.png",
        "row 11, images/9.png",
    ]
    assert "skipped" not in build(small(tmp_path), **FRACTIONS).info.notes


def test_skip_bad_cannot_skip_everything(tmp_path):
    manifest = table(tmp_path / "m.csv", ["path", "label"], [["gone.png", "cat"]])
    with pytest.raises(BadManifest, match="no such file"):
        read_manifest(manifest, skip_bad=True)
    empty = table(tmp_path / "empty.csv", ["path", "label"], [])
    with pytest.raises(BadManifest, match="no training samples"):
        read_manifest(empty)


def test_a_class_whose_training_rows_are_all_bad_leaves_the_test_too(tmp_path):
    for name in "abc":
        picture(tmp_path / f"{name}.png")
    rows = [
        ["a.png", "cat", "train"],
        ["gone.png", "dog", "train"],
        ["b.png", "dog", "test"],
        ["c.png", "cat", "test"],
    ]
    checked = read_manifest(
        table(tmp_path / "m.csv", ["path", "label", "split"], rows), skip_bad=True
    )
    assert checked.class_names == ("cat",)
    assert [sample.file for sample in checked.samples] == ["a.png", "c.png"]
    assert checked.warnings == ('class "cat" has only one training sample',)


@pytest.mark.slow
def test_ten_thousand_rows_with_a_hundred_broken(tmp_path):
    originals = [picture(tmp_path / f"{k}.png", shade=k).read_bytes() for k in range(4)]
    (tmp_path / "images").mkdir()
    broken = set(range(50, 10_000, 100))
    rows = []
    for i in range(10_000):
        target = tmp_path / "images" / f"{i}.png"
        if i in broken and i % 200 == 50:
            target.write_bytes(originals[0][:50])
        elif i not in broken:
            os.link(tmp_path / f"{i % 4}.png", target)
        rows.append([f"images/{i}.png", str(i % 4), str(i % 3), "test" if i % 5 == 0 else "train"])
    manifest = table(tmp_path / "m.csv", ["path", "label", "bias", "split"], rows)
    with pytest.raises(BadManifest) as caught:
        read_manifest(manifest, workers=2)
    problems = caught.value.problems
    assert [problem.row for problem in problems] == [i + 2 for i in sorted(broken)]
    assert sum("no such file" in problem.reason for problem in problems) == 50
    assert sum("cannot be decoded" in problem.reason for problem in problems) == 50
    assert "100 problems" in str(caught.value)
    assert "no such file: 50 rows" in str(caught.value)
    assert "cannot be decoded: image file is truncated: 50 rows" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 + 2 + 1
    assert len(pickle.loads(pickle.dumps(caught.value)).problems) == 100
    with pytest.raises(BadManifest) as caught:
        read_manifest(manifest, check_files="exists")
    assert len(caught.value.problems) == 50
    checked = read_manifest(manifest, skip_bad=True, workers=2)
    assert (len(checked.samples), len(checked.skipped)) == (9900, 100)


def test_processes_decode_the_same_pixels_in_the_same_order(tmp_path):
    manifest = small(tmp_path, rows=300)
    alone, together = (build(manifest, image_size=8, workers=n, **FRACTIONS) for n in (0, 2))
    for one, other in ((alone.train, together.train), (alone.test, together.test)):
        assert torch.equal(one.pixels, other.pixels)
    everything = torch.cat([alone.train.pixels, alone.valid.pixels, alone.test.pixels])
    shades = [i % 256 for i in range(300)]
    assert sorted(everything[:, 0, 0, 0].tolist()) == sorted(shades)


def test_several_bias_columns_become_one_attribute(tmp_path):
    rows = []
    for i, (place, light) in enumerate(
        [("sea", "2"), ("sea", "10"), ("land", "2"), ("", "2"), ("sea", "?"), ("sea", "NaN")]
    ):
        picture(tmp_path / f"{i}.png")
        rows.append([f"{i}.png", "x", place, light])
    manifest = table(tmp_path / "m.csv", ["path", "label", "place", "light"], rows)
    checked = read_manifest(manifest, bias_columns=("place", "light"))
    assert checked.bias_names == ("land×2", "sea×2", "sea×10")
    assert [sample.bias for sample in checked.samples] == ["sea×2", "sea×10", "land×2", "", "", ""]
    one = read_manifest(manifest, bias_columns=["light"])
    assert one.bias_names == read_manifest(manifest, bias_columns="light").bias_names == ("2", "10")
    data = build(manifest, bias_columns=("place", "light"), valid_fraction=0, test_fraction=0.17)
    known = torch.cat(
        [
            s.bias if s.bias is not None else torch.full((len(s),), -1)
            for s in (data.train, data.test)
        ]
    )
    assert sorted(known.tolist()) == [-1, -1, -1, 0, 1, 2]


def test_no_known_bias_is_no_bias(tmp_path):
    manifest = table(tmp_path / "m.csv", ["path", "label", "bias"], [])
    with open(manifest, "a") as file:
        for i in range(10):
            picture(tmp_path / f"{i}.png")
            file.write(f"{i}.png,{i % 2},{('', 'unknown', 'Unknown', '?', ' nan ')[i % 5]}\n")
    data = build(manifest, **FRACTIONS)
    assert data.train.bias is None
    assert data.info.bias_names == ()
    assert data.info.counts.shape == (2, 0)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_as_spreadsheets_write_it(tmp_path, delimiter):
    """With a byte-order mark, a blank line in front, and perhaps semicolons.

    Spreadsheets write semicolons where the comma is the decimal point.
    """
    picture(tmp_path / "a.png")
    lines = [
        "",
        delimiter.join(["path", "label", "bias"]),
        delimiter.join(["a.png", '"owl; barn, old\tone"', "1"]),
    ]
    (tmp_path / "m.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    (sample,) = read_manifest(tmp_path / "m.csv").samples
    assert (sample.file, sample.label, sample.bias, sample.row) == (
        "a.png",
        "owl; barn, old\tone",
        "1",
        3,
    )


def test_columns_go_by_any_name_and_a_wrong_name_gets_a_hint(tmp_path):
    picture(tmp_path / "a.png")
    header = ["file", "species", "habitat", "fold"]
    manifest = table(tmp_path / "m.csv", header, [["a.png", "owl", "wood", "TRAIN"]])
    names = {
        "path_column": "file",
        "label_column": "species",
        "bias_columns": ["habitat"],
        "split_column": "fold",
    }
    (sample,) = read_manifest(manifest, **names).samples
    assert (sample.label, sample.bias, sample.split) == ("owl", "wood", "train")
    with pytest.raises(
        BadManifest,
        match=r'no column "specie": did you mean "species"\? .*file, species, habitat, fold',
    ):
        read_manifest(manifest, **{**names, "label_column": "specie"})
    with pytest.raises(
        BadManifest,
        match=r'no column "path"[^$]*--set data.path_column=… \("data show": --path-column …',
    ):
        read_manifest(manifest)
    with pytest.raises(BadManifest, match='no column "folds"'):
        read_manifest(manifest, **{**names, "split_column": "folds"})
    near = table(tmp_path / "near.csv", ["path", "label", "Bias"], [["a.png", "owl", "wood"]])
    with pytest.raises(BadManifest, match='did you mean "Bias"'):  # not silently without bias
        read_manifest(near)
    assert read_manifest(near, bias_columns=()).bias_names == ()
    twice = table(tmp_path / "twice.csv", ["path", "label", "label"], [["a.png", "owl", "owl"]])
    with pytest.raises(BadManifest, match="more than once"):
        read_manifest(twice)


def test_tab_separated_byte_order_mark_and_blank_lines(tmp_path):
    picture(tmp_path / "a, b.png")
    tsv = table(tmp_path / "m.TSV", ["path", "label"], [["a, b.png", "owl"]], delimiter="\t")
    assert read_manifest(tsv).samples[0].file == "a, b.png"
    marked = tmp_path / "m.csv"
    marked.write_bytes(
        '\ufeffpath,label\r\n\r\n"a, b.png",Käuzchen\r\n\r\ngone.png,owl\r\n'.encode()
    )
    assert read_manifest(marked, skip_bad=True).class_names == ("Käuzchen",)
    with pytest.raises(BadManifest) as caught:
        read_manifest(marked)
    assert [problem.row for problem in caught.value.problems] == [5]


def test_text_that_is_not_utf8_and_tables_that_break_off(tmp_path):
    picture(tmp_path / "a.png")
    manifest = tmp_path / "m.csv"
    manifest.write_bytes(b"path,label\na.png,K\xe4uzchen\n")
    with pytest.raises(BadManifest, match=r"row 2, a\.png: not UTF-8"):
        read_manifest(manifest)
    manifest.write_bytes("path,label\na.png,x\n".encode("utf-16"))
    with pytest.raises(BadManifest, match="save it as UTF-8"):
        read_manifest(manifest)
    manifest.write_text('path,label\na.png,x\n"a.png,x\na.png,x\n')
    with pytest.raises(BadManifest, match=r"row 3, .*breaks off"):
        read_manifest(manifest, skip_bad=True)  # the rest is lost: nothing to skip to
    manifest.write_text("")
    with pytest.raises(BadManifest, match="no header"):
        read_manifest(manifest)
    with pytest.raises(BadManifest, match="no such file"):
        read_manifest(tmp_path / "absent.csv")
    with pytest.raises(ValueError, match=r"\.csv, \.tsv"):
        read_manifest(picture(tmp_path / "a.png"))


def test_absolute_paths_are_fine_without_a_root(tmp_path):
    there = picture(tmp_path / "elsewhere" / "a.png")
    (tmp_path / "lists").mkdir()
    manifest = table(
        tmp_path / "lists" / "m.csv",
        ["path", "label"],
        [[there, "owl"], [tmp_path / "gone.png", "owl"]],
    )
    with pytest.raises(BadManifest) as caught:
        read_manifest(manifest)
    assert [(p.row, p.reason) for p in caught.value.problems] == [(3, "no such file")]
    relative = table(tmp_path / "lists" / "r.csv", ["path", "label"], [["a.png", "owl"]])
    assert read_manifest(relative, root=tmp_path / "elsewhere").samples[0].path == there


def test_parquet_gives_what_csv_gives(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="Parquet manifests need pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in "abc":
        picture(tmp_path / f"{name}.png")
    columns = {
        "path": ["a.png", "b.png", "gone.png"],
        "label": [10, 2, 2],
        "bias": [1.0, None, float("nan")],
    }
    parquet.write_table(pa.table(columns), tmp_path / "m.parquet")
    checked = read_manifest(tmp_path / "m.parquet", skip_bad=True)
    assert checked.class_names == ("2", "10")
    assert [sample.bias for sample in checked.samples] == ["1", ""]
    assert [problem.row for problem in checked.skipped] == [3]
    (tmp_path / "bad.parquet").write_text("hello")
    with pytest.raises(BadManifest, match="not a Parquet table"):
        read_manifest(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("kind", "value"), [("timestamp[us]", 2**62), ("date32[day]", 2**31 - 1), ("string", b"\xff")]
)
def test_values_of_parquet_that_python_cannot_hold_are_named(kind, value, tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    kinds = {"timestamp[us]": pa.timestamp("us"), "date32[day]": pa.date32()}
    column = pa.array([value], kinds.get(kind, pa.binary()))
    if kind == "string":
        column = pa.Array.from_buffers(pa.string(), 1, column.buffers())
    file = tmp_path / "m.parquet"
    parquet.write_table(pa.table({"path": ["a.png"], "label": column}), file)
    with pytest.raises(BadManifest, match=r'row 1, .*column "label" has a .* that cannot be read'):
        read_manifest(file)


@pytest.mark.parametrize("long", ["value", "table"])
def test_a_small_parquet_table_that_unpacks_to_much_is_refused(long, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("FAIRMARGIN_LARGEST_ARRAYS", "0.05")
    label, rows = ("x" * 1_000_000, 100) if long == "value" else ("x", 1_000_000)
    places = pa.array([0] * rows, pa.int32())
    column = pa.DictionaryArray.from_arrays(places, pa.array([label]))
    file = tmp_path / "m.parquet"
    parquet.write_table(pa.table({"path": column, "label": column}), file, compression="zstd")
    assert file.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"m\.parquet unpacks to .* if you trust it, raise"):
        read_manifest(file)


def test_a_name_may_have_more_digits_than_an_int():
    assert natural_order(["a" + "9" * 5000, "a10", "a2"]) == ("a2", "a10", "a" + "9" * 5000)


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "m.parquet").touch()
    with pytest.raises(ValueError, match=r'pip install "fairmargin\[parquet\]"'):
        read_manifest(tmp_path / "m.parquet")


def test_parquet_values_become_text(tmp_path):
    """Numbers, missing values and rows that count from 1."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    picture(tmp_path / "a.png")
    columns = {"path": ["a.png", "gone.png"], "label": [3, 3], "bias": [float("nan"), 2.0]}
    parquet.write_table(pa.table(columns), tmp_path / "m.parquet")
    checked = read_manifest(tmp_path / "m.parquet", skip_bad=True)
    assert [(s.row, s.label, s.bias) for s in checked.samples] == [(1, "3", "")]
    assert [problem.row for problem in checked.skipped] == [2]


def test_names_are_in_natural_order():
    assert natural_order(["10", "9", "-1", "1.5"]) == ("-1", "1.5", "9", "10")
    assert natural_order(["a10", "a9", "B1", "a9"]) == ("a9", "a10", "B1")
    assert natural_order(["10", "nan", "9"]) == ("9", "10", "nan")


def test_image_folder_with_splits(tmp_path):
    for name in (
        "train/dog/1.PNG",
        "train/dog/deep/2.png",
        "train/cat/3.jpg",
        "train/cat/4.png",
        "Val/cat/5.png",
    ):
        picture(tmp_path / name)
    picture(tmp_path / "test" / "dog" / "6.png")
    picture(tmp_path / "train" / "dog" / ".hidden.png")
    picture(tmp_path / ".cache" / "x" / "y.png")
    (tmp_path / "train" / "dog" / "notes.txt").write_text("not an image, not a problem")
    checked = read_folder(tmp_path)
    assert [(s.file, s.label, s.split) for s in checked.samples] == [
        ("Val/cat/5.png", "cat", "valid"),
        ("test/dog/6.png", "dog", "test"),
        ("train/cat/3.jpg", "cat", "train"),
        ("train/cat/4.png", "cat", "train"),
        ("train/dog/1.PNG", "dog", "train"),
        ("train/dog/deep/2.png", "dog", "train"),
    ]
    data = build(tmp_path)
    assert (len(data.train), len(data.valid), len(data.test)) == (4, 1, 1)
    assert data.info.class_names == ("cat", "dog")
    picture(tmp_path / "loose.png")
    picture(tmp_path / "extra" / "dog" / "7.png")
    picture(tmp_path / "test" / "eel" / "8.png").write_bytes(b"broken")
    with pytest.raises(BadManifest) as caught:
        read_folder(tmp_path)
    assert {problem.file for problem in caught.value.problems} == {
        "loose.png",
        "extra/dog/7.png",
        "test/eel/8.png",
    }
    assert all(problem.row is None for problem in caught.value.problems)


def test_image_folder_of_classes_with_a_level_for_the_bias(tmp_path):
    for i in range(20):
        picture(tmp_path / "cat" / ("sofa" if i % 4 else "grass") / f"{i}.png")
        picture(tmp_path / "dog" / ("grass" if i % 4 else "sofa") / f"{i}.png")
    picture(tmp_path / "dog" / "nowhere.png")
    with pytest.raises(ValueError, match="test_fraction"):
        build(tmp_path)
    data = build(tmp_path, bias_level=True, **FRACTIONS)
    assert data.info.bias_names == ("grass", "sofa")
    known = read_folder(tmp_path, bias_level=True).samples
    assert [sample.bias for sample in known if sample.file == "dog/nowhere.png"] == [""]
    assert build(tmp_path, **FRACTIONS).info.bias_names == ()


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="this system has no links")
def test_linked_class_folders_are_read_and_circles_end(tmp_path):
    picture(tmp_path / "store" / "a.png")
    root = tmp_path / "root"
    picture(root / "cat" / "b.png")
    (root / "dog").symlink_to(tmp_path / "store")
    (root / "cat" / "circle").symlink_to(root)
    assert [sample.file for sample in read_folder(root).samples] == ["cat/b.png", "dog/a.png"]


def test_splits_are_a_function_of_the_seed_and_never_overlap(tmp_path):
    manifest = small(tmp_path, rows=200)
    one, same, other = (
        build(manifest, memory_limit=0, seed=seed, **FRACTIONS) for seed in (1, 1, 2)
    )
    assert one.train.paths == same.train.paths
    assert one.valid.paths == same.valid.paths
    assert one.valid.paths != other.valid.paths
    assert one.test.paths == other.test.paths  # trials are tested on the same samples
    parts = [set(split.paths) for split in (one.train, one.valid, one.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 200


def test_conflicting_samples_are_held_out_in_proportion(tmp_path):
    data = build(small(tmp_path, rows=200), **FRACTIONS)  # a fifth of each class conflicts
    for split, size in ((data.train, 128), (data.valid, 32), (data.test, 40)):
        assert len(split) == size
        assert (split.labels != split.bias).float().mean() == pytest.approx(0.2, abs=0.02)
    assert data.info.counts.sum() == 128


def test_marked_splits_stay_as_marked(tmp_path):
    rows = []
    for i in range(12):
        picture(tmp_path / f"{i}.png", shade=i)
        rows.append([f"{i}.png", i % 2, ("train", "train", "dev", "Test")[i // 2 % 4]])
    manifest = table(tmp_path / "m.csv", ["path", "label", "split"], rows)
    data = build(manifest, image_size=6)
    assert data.valid.pixels[:, 0, 0, 0].tolist() == [4, 5]
    assert data.test.pixels[:, 0, 0, 0].tolist() == [6, 7]
    assert data.info.notes["valid"] == data.info.notes["test"] == "as marked"
    with pytest.raises(ValueError, match=r"leave test_fraction=0\.2 out"):
        build(manifest, test_fraction=0.2)


def test_where_no_test_is_needed_there_may_be_none(tmp_path):
    manifest = small(tmp_path)
    with pytest.raises(
        ValueError, match=r"marks no usable test samples.*--set data\.test_fraction=0\.2"
    ):
        build(manifest)
    whole = build(manifest, test_needed=False, valid_fraction=0)
    assert (len(whole.train), len(whole.valid), len(whole.test)) == (40, 0, 0)
    assert len(build(manifest, test_needed=False, **FRACTIONS).test) == 8
    with pytest.raises(ValueError, match="marks no usable test samples"):
        build(manifest, test_fraction=0)


def test_large_sets_stay_in_files_with_the_same_pixels(tmp_path):
    manifest = small(tmp_path)
    kept, filed = (
        build(manifest, image_size=8, memory_limit=limit, **FRACTIONS)
        for limit in (2**20, 40 * 8 * 8 * 3 - 1)
    )
    assert isinstance(kept.train, ArraySplit)
    assert isinstance(filed.train, FileSplit)
    index = torch.tensor([3, 0])
    assert torch.equal(kept.train.images(index), filed.train.images(index))
    assert torch.equal(kept.train.bias, filed.train.bias)
    revived = pickle.loads(pickle.dumps(filed.train))  # as worker processes get it
    assert torch.equal(revived.images(index), filed.train.images(index))
    batch = filed.train_views(filed.train.images(index))
    assert batch.shape == (2, *filed.info.image_shape) == (2, 3, 8, 8)
    assert np.isfinite(batch.numpy()).all()
