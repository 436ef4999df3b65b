"""`fairmargin predict` and `fairmargin card`, as a user types them."""

import csv

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.cli.app import app

runner = CliRunner()


def invoke(*words):
    return runner.invoke(app, [str(word) for word in words])


def rows(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_folder_into_a_table(run, pictures, tmp_path):
    out, features = tmp_path / "new" / "predictions.csv", tmp_path / "features.npz"
    result = invoke("predict", run, pictures, "--out", out, "--embeddings", features)
    assert result.exit_code == 0, result.output
    assert "10 of 10 pictures classified" in result.output
    files = sorted(pictures.glob("*.png"))
    wanted = fm.load(run).predict(files)
    found = rows(out)
    assert [row["path"] for row in found] == [str(file) for file in files]
    assert [row["class"] for row in found] == wanted.labels
    for row, probabilities in zip(found, wanted.probabilities, strict=True):
        each = [float(row[f"p({name})"]) for name in wanted.class_names]
        assert each == pytest.approx(probabilities.tolist(), abs=1e-5)
        assert float(row["probability"]) == max(each)
    with np.load(features) as arrays:
        assert arrays["features"].shape[0] == 10
        assert arrays["paths"].tolist() == [str(file) for file in files]


def test_files_patterns_and_tables_each_once(run, pictures, tmp_path):
    table = pictures / "table.csv"
    table.write_text("file,label\n3.png,x\n4.png,y\n")
    words = [pictures / "0.png", f"{pictures}/[01].png", table, "--path-column", "file"]
    result = invoke("predict", run, *words)
    table.unlink()
    assert result.exit_code == 0, result.output
    names = [line.split(",")[0].rpartition("/")[2] for line in result.output.splitlines()[1:]]
    assert names == ["0.png", "1.png", "3.png", "4.png"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(run, pictures, tmp_path):
    file = tmp_path / "a[b].png"
    file.write_bytes((pictures / "0.png").read_bytes())
    result = invoke("predict", run, file)
    assert result.exit_code == 0, result.output
    assert "a[b].png" in result.output


def test_a_broken_picture_in_the_middle_is_named_and_left_out(run, pictures, tmp_path):
    broken, out = pictures / "4a.png", tmp_path / "out.csv"
    broken.write_bytes(b"\x89PNG not really")
    result = invoke("predict", run, pictures, "--out", out)
    broken.unlink()
    assert result.exit_code == 1
    assert "skipped" in result.output
    assert "4a.png" in result.output
    assert "10 of 11 pictures classified" in result.output
    assert len(rows(out)) == 10


def test_nothing_that_can_be_read(run, tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    result = invoke("predict", run, tmp_path / "a.png", "--out", tmp_path / "out.csv")
    assert result.exit_code == 2
    assert "an empty file" in result.output
    assert "none of 1 files could be read" in result.output
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("https://example.org/a.png", "is a URL"),
        ("{empty}", "names no picture"),
        ("{empty}/*.png", "names no picture"),
    ],
)
def test_wrong_words(run, tmp_path, word, message):
    result = invoke("predict", run, word.format(empty=tmp_path))
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")


def test_a_card(run, tmp_path):
    out = tmp_path / "README.md"
    result = invoke("card", run, "--out", out, "--name", "my | model")
    assert result.exit_code == 0, result.output
    _, head, body = out.read_text("utf-8").split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts["library_name"] == "fairmargin"
    (model,) = facts["model-index"]
    assert model["name"] == "my | model"
    metrics = {metric["name"]: metric["value"] for metric in model["results"][0]["metrics"]}
    assert metrics.keys() >= {"plain", "worst-group"}
    for heading in ("Intended use", "Training data", "Accuracy", "Groups", "How to use it"):
        assert f"## {heading}\n" in body
    assert "fm.load(" in body


def test_a_card_of_an_unfinished_run(run, tmp_path):
    import shutil

    folder = shutil.copytree(run, tmp_path / "copy")
    (folder / "result.json").unlink()
    result = invoke("card", folder)
    assert result.exit_code == 2
    assert "is not finished" in result.output
