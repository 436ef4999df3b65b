"""`fairmargin audit` as people type it: on a dataset, a manifest, embeddings; the messages when it cannot be done."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli import app

runner = CliRunner()
QUICK = ("--permutations", "199", "--samples", "500")


def invoke(*words):
    return runner.invoke(app, ["audit", *map(str, words)], env={"COLUMNS": "100"})


def test_a_dataset_by_name(tmp_path):
    result = invoke("biased-mnist-mini", *QUICK, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "Background colour alone tells the label" in result.output
    assert "permuting labels: 199" in result.output  # progress, where there is no terminal
    found = json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))
    assert found["settings"]["samples"] == 500
    assert found["attributes"][0]["name"] == "background colour"
    assert "<h1>Background colour" in (tmp_path / "out" / "audit.html").read_text("utf-8")


def test_exit_code_for_continuous_integration(tmp_path):
    fails = ("--fail-on-shortcut", "--out", tmp_path)
    assert invoke("biased-mnist-mini", *QUICK, *fails).exit_code == 1
    assert invoke("biased-mnist-mini", *QUICK, *fails, "--set", "data.rho=0.1").exit_code == 0


def test_the_folder_is_named_after_the_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("planted", *QUICK, "--inject", "patch:0.9", "--set", "data.rho=0.25")  # its own tint says nothing
    assert result.exit_code == 0, result.output
    assert "planted patch:0.9: found, by border layout, rank 1, corrected p = 0.005" in result.output
    assert (tmp_path / "audit" / "planted-patch-0.9" / "audit.html").is_file()


@pytest.mark.slow
def test_cure_trains_both_methods(tmp_path):
    result = invoke("planted", *QUICK, "--inject", "patch:0.9", "--cure", "--out", tmp_path, "--set", "train.epochs=1")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "audit.json").read_text("utf-8"))
    assert set(found["cure"]) == {"ce", "eps-supinfonce+fairkl"}
    assert all(0 <= accuracy["conflicting"] <= 1 for accuracy in found["cure"].values())
    assert "eps-supinfonce+fairkl: plain" in result.output
    assert "Does training remove it?" in (tmp_path / "audit.html").read_text("utf-8")


@pytest.fixture
def manifest(tmp_path):
    """Noise of two classes; nine in ten of each come from their own scanner."""
    random = np.random.default_rng(0)
    rows = ["file,label,split,scanner,patient"]
    for i in range(120):
        Image.fromarray(random.integers(0, 256, (12, random.integers(10, 16), 3), dtype=np.uint8)).save(
            tmp_path / f"{i}.png"
        )
        y = i % 2
        rows.append(f"{i}.png,{'ab'[y]},{'test' if i % 6 > 3 else 'train'},{'AB'[y ^ (i % 10 > 8)]},p{i}")
    (tmp_path / "m.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "m.csv"


def test_a_manifest_with_its_other_columns(manifest, tmp_path):
    size = ("--set", "data.image_size=8", "--set", "data.path_column=file")
    result = invoke(manifest, *size, "--permutations", 199, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))
    names = {one["name"] for one in found["attributes"]}
    assert {"scanner", "picture size", "aspect ratio", "file size"} <= names
    assert not names & {"label", "split", "file"}
    assert found["shortcuts"] == ["scanner"]
    assert any("patient" in said for said in found["left_out"])


def test_embeddings(tmp_path):
    random = np.random.default_rng(0)
    labels = np.arange(200) % 2
    z = random.standard_normal((200, 4)) + 3 * labels[:, None]
    np.savez(tmp_path / "z.npz", embeddings=z, labels=labels, predicted=labels)
    result = invoke(tmp_path / "z.npz", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))["kind"] == "arrays"
    assert (tmp_path / "out" / "audit.html").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["biased-mnst"], "did you mean 'biased-mnist'"),
        (["planted", "--cure"], "plant one with --inject colour:0.95"),
        (["planted", "--inject", "color:0.9"], "did you mean 'colour'"),
        (["planted", "--inject", "colour"], 'such as "colour:0.95"'),
        (["planted", "--inject", "colour:0.9", "--set", "data.inject=patch:0.9"], "would both be planted; give one"),
        (["planted", "--permutations", "20"], "take at least 100"),
        (["planted", "--alpha", "0"], "alpha must lie between 0 and 1"),
        (["planted", "--set", "data.roh=0.5"], 'did you mean "data.rho"'),
        (["missing.npz"], "missing.npz"),
        (["missing.npz", "--inject", "colour:0.9"], "are for datasets"),
    ],
)
def test_messages(words, message, tmp_path):
    result = invoke(*words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_out_that_is_a_file(tmp_path):
    (tmp_path / "taken").write_text("")
    result = invoke("planted", *QUICK, "--out", tmp_path / "taken")
    assert result.exit_code == 2
    assert "cannot write into" in result.output
