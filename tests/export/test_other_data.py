"""Evaluate a run on data that it has not seen."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.cli.app import app
from tests.test_own_images import table
from tests.vectors import embeddings

QUICK = {
    "data.image_size": 16,
    "network.widths": [4],
    "train.epochs": 1,
    "train.batch_size": 8,
    "train.device": "cpu",
    "evaluate.resamples": 10,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    images = table(folder / "a.csv", bias="xy")
    network = "simple-conv-3"
    return fm.train(
        dataset=images, network=network, method="ce", settings=QUICK, out=folder / "run"
    )


def say(*words):
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "160"})


def rows(folder, lines, header="path,label,bias"):
    for i in range(len(lines)):
        Image.new("RGB", (20, 12), (9 * i, 99, 200 - i)).save(folder / f"{i}.png")
    text = [header, *(f"{i}.png,{line}" for i, line in enumerate(lines))]
    file = folder / "test.csv"
    file.write_text("\n".join(text))
    return file


def test_its_own_test_rows_give_its_own_result(run, tmp_path):
    own = run.path.parent / "a.csv"
    found = say("evaluate", run.path, "--data", own, "--out", tmp_path / "found.json")
    assert found.exit_code == 0, found.output
    written = json.loads((tmp_path / "found.json").read_text())
    before = run.record.outcome["test"]["own"]
    assert written["samples"] == 8  # of 24: those marked test
    assert written["test"]["own"]["groups"] == before["groups"]
    assert written["test"]["own"]["accuracy"]["plain"] == before["accuracy"]["plain"]
    assert "% right by group" in found.output


def test_all_rows_without_a_split(run, tmp_path):
    file = rows(tmp_path, ["dog,y", "cat,x", "dog,", "cat,y"])
    out = tmp_path / "found.json"
    found = say("evaluate", run.path, "--data", file, "--out", out)
    assert found.exit_code == 0, found.output
    written = json.loads(out.read_text())
    assert written["samples"] == 4
    # The answers are those of the model for the same files, matched by name.
    labels = fm.load(run.path).predict([tmp_path / f"{i}.png" for i in range(4)]).labels
    right = np.mean([a == b for a, b in zip(labels, ["dog", "cat", "dog", "cat"], strict=True)])
    assert written["test"]["own"]["accuracy"]["plain"]["value"] == right
    assert written["test"]["own"]["groups"]["n"] == [[1, 1], [0, 1]]


def test_unknown_classes_are_named_and_missing_ones_said(run, tmp_path):
    found = say("evaluate", run.path, "--data", rows(tmp_path, ["cat,x", "lion,x", "emu,y"]))
    assert found.exit_code == 2
    assert "does not know: emu, lion. It knows cat, dog" in found.output
    found = say("evaluate", run.path, "--data", rows(tmp_path, ["cat,x", "cat,y"]))
    assert found.exit_code == 0, found.output
    assert "no samples of dog" in found.output


def test_biases_of_other_names(run, tmp_path):
    found = say("evaluate", run.path, "--data", rows(tmp_path, ["cat,p", "dog,q"]))
    assert found.exit_code == 0, found.output
    assert "no accuracy by group: the bias is p, q, and those of the run are x, y" in found.output
    found = say("evaluate", run.path, "--data", rows(tmp_path, ["cat,p", "dog,x", "dog,y"]))
    assert "does not know the bias p: 1 samples count in plain" in found.output


def test_bad_rows_are_reported_together(run, tmp_path):
    file = rows(tmp_path, ["cat,x", "dog,y", "cat,x", ",x"])
    (tmp_path / "0.png").write_bytes(b"broken")
    (tmp_path / "1.png").unlink()
    found = say("evaluate", run.path, "--data", file)
    assert found.exit_code == 2
    for part in ("3 problems", "row 2, 0.png: not an image", "no such file", "empty label"):
        assert part in found.output
    found = say("evaluate", run.path, "--data", file, "--set", "data.skip_bad=true")
    assert found.exit_code == 0, found.output
    assert "left out: 3 rows" in found.output


def test_a_folder_and_other_columns(run, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "f" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / "f" / name / "a.png")
    found = say("evaluate", run.path, "--data", tmp_path / "f")
    assert found.exit_code == 0, found.output
    assert "2 samples" in found.output
    file = rows(tmp_path, ["cat,x", "dog,y"], header="path,kind,bias")
    assert 'no column "label"' in say("evaluate", run.path, "--data", file).output
    found = say("evaluate", run.path, "--data", file, "--set", "data.label_column=kind")
    assert found.exit_code == 0, found.output


def test_no_test_samples(run, tmp_path):
    file = rows(tmp_path, ["cat,x,train", "dog,y,train"], header="path,label,bias,split")
    found = say("evaluate", run.path, "--data", file)
    assert found.exit_code == 2
    assert "has no test samples" in found.output


def test_embeddings(run, tmp_path):
    file = embeddings(tmp_path / "e.npz")
    quick = QUICK | {"data.image_size": None}
    settings = {key: value for key, value in quick.items() if value is not None}
    trained = fm.train(dataset=file, method="ce", settings=settings, out=tmp_path / "run")
    found = say("evaluate", trained.path, "--data", file, "--out", tmp_path / "found.json")
    assert found.exit_code == 0, found.output
    written = json.loads((tmp_path / "found.json").read_text())
    before = trained.record.outcome["test"]["own"]
    assert written["test"]["own"]["accuracy"]["plain"] == before["accuracy"]["plain"]
    assert written["test"]["own"]["groups"] == before["groups"]
    # One class and no split: all are tested.
    one = embeddings(tmp_path / "one.npz", split=None, labels=np.array(["bee"] * 90), bias=None)
    found = say("evaluate", trained.path, "--data", one)
    assert found.exit_code == 0, found.output
    assert "90 samples" in found.output
    short = tmp_path / "short.npz"
    np.savez(short, X=np.ones((4, 3)), y=np.array(["ant", "bee"] * 2))
    assert "vectors of 3 numbers" in say("evaluate", trained.path, "--data", short).output
    assert "give a table or folder" in say("evaluate", run.path, "--data", file).output
    assert "give embeddings" in say("evaluate", trained.path, "--data", tmp_path / "a.csv").output
