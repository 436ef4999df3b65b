"""A model of embeddings, from its run folder to use."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.cli.app import app
from fairmargin.data.preprocessing import Preprocessing
from fairmargin.export import export_onnx, export_program
from fairmargin.export.card import model_card
from fairmargin.report import write_report
from tests.vectors import LENGTH, embeddings

QUICK = {
    "train.epochs": 2,
    "train.batch_size": 30,
    "train.device": "cpu",
    "evaluate.resamples": 10,
    "network.widths": [8],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    file = embeddings(folder / "e.npz")
    run = fm.train(dataset=file, method="ce+fairkl", settings=QUICK, out=folder / "run")
    return file, run


def test_answers_are_those_of_the_evaluation(trained):
    file, run = trained
    raw = np.load(file)["embeddings"]
    test = run.record.arrays("test")
    model = fm.load(run.path)
    found = model.predict(raw[72:])
    assert [model.class_names.index(name) for name in found.labels] == test["predicted"].tolist()
    assert np.allclose(model.embed(raw[72:]), test["features"], atol=1e-5)
    logits = model(torch.from_numpy(raw[72:]).float())
    assert np.allclose(logits.detach(), test["logits"], atol=1e-5)


def test_the_preprocessing_is_written_down(trained):
    _, run = trained
    written = run.record.data["preprocessing"]
    assert written["vector"] == {"length": LENGTH}
    assert Preprocessing.from_dict(written).as_dict() == written


def test_other_samples_are_refused(trained):
    model = fm.load(trained[1].path)
    with pytest.raises(ValueError, match=r"\[N, 8\] of them; one is float64 \[5\]"):
        model.predict(np.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"one is float64 \[\]"):
        model.predict(np.zeros(8))
    with pytest.raises(TypeError, match="not images"):
        model.predict(["a.jpg"])


def test_predict_names_the_rows(trained, tmp_path):
    file, run = trained
    out, features = tmp_path / "p.csv", tmp_path / "f.npz"
    words = [str(run.path), str(file), "--out", str(out), "--embeddings", str(features)]
    said = CliRunner().invoke(app, ["predict", *words])
    assert said.exit_code == 0, said.output
    lines = out.read_text().splitlines()
    assert len(lines) == 91
    assert lines[1].startswith(f"{file}:0,")
    assert np.load(features)["features"].shape == (90, 8)
    wrong = CliRunner().invoke(app, ["predict", str(run.path), "a.jpg"])
    assert wrong.exit_code == 2
    assert "trained on embeddings and a.jpg is no .npz" in wrong.output


def test_files_for_production(trained, tmp_path):
    _, run = trained
    found = export_program(run.path, tmp_path / "m.pt2", embeddings=True)
    assert found.logits < 1e-4
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    export_onnx(run.path, tmp_path / "m.onnx", embeddings=True)
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    vectors = np.random.default_rng(0).normal(size=(3, LENGTH)).astype(np.float32)
    logits = session.run(["logits"], {"vectors": vectors})[0]
    expected = fm.load(run.path)(torch.from_numpy(vectors)).detach()
    assert np.allclose(logits, expected, atol=1e-4)


def test_pages_about_it(trained, tmp_path):
    _, run = trained
    assert write_report([run.path], tmp_path / "r.html").is_file()
    card = model_card(run.path)
    assert "pipeline_tag: tabular-classification" in card
    assert "model.predict(vectors)  # [N, 8]" in card
    audited = CliRunner().invoke(app, ["audit", str(run.path), "--out", str(tmp_path / "a")])
    assert audited.exit_code == 0, audited.output
