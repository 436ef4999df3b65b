"""Smaller ONNX files: compared on the run's own test pictures, and refused where they differ."""

import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.cli.app import app
from fairmargin.export import export_onnx, onnx_file, precision

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")


@pytest.fixture(autouse=True, scope="module")
def one_network(run):
    """The exporter takes seconds: of each kind, it runs once."""
    made = {}
    export = onnx_file._network

    def network(package, model, embeddings):
        if embeddings not in made:
            made[embeddings] = export(package, model, embeddings).SerializeToString()
        return package.load_from_string(made[embeddings])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_file, "_network", network)
        yield


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def probabilities(file, pixels):
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["probabilities"], {"pixels": pixels})[0]


def large_weights(file):
    tensors = onnx.load(file).graph.initializer
    return [onnx.numpy_helper.to_array(t).tobytes() for t in tensors if np.prod(t.dims) > 64]


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_a_smaller_file_with_the_model_s_answers(run, tmp_path, kind):
    full = tmp_path / "full.onnx"
    file = tmp_path / "small.onnx"
    export_onnx(run, full)
    found = export_onnx(run, file, precision=kind, min_agreement=0.8)
    assert found.pictures == 64
    assert 0.8 <= found.share <= 1
    # Of so small a network the graph itself is most of the file, so weights are compared.
    share = sum(map(len, large_weights(file))) / sum(map(len, large_weights(full)))
    assert share == (0.5 if kind == "fp16" else 0.25)
    model = onnx.load(file)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert facts["precision"] == kind
    assert json.loads(facts["class_names"]) == list(fm.load(run).class_names)
    # What was said of the file holds for the file: pictures of any size, float32 out.
    data = precision.own_pictures(run, None, False)
    answers = probabilities(file, data.test.permute(0, 2, 3, 1).contiguous().numpy())
    own = fm.load(run)(data.test).softmax(1).detach().numpy()
    assert answers.dtype == np.float32
    assert np.mean(answers.argmax(1) == own.argmax(1)) == pytest.approx(found.share)
    assert np.abs(answers - own).max() == pytest.approx(found.probabilities, abs=1e-6)
    assert np.mean(answers.argmax(1) == data.labels.numpy()) == pytest.approx(found.accuracy)
    large = np.random.default_rng(0).integers(0, 256, (2, 40, 30, 3), dtype=np.uint8)
    assert probabilities(file, large).shape == (2, len(fm.load(run).class_names))


def test_half_precision_hardly_moves_probabilities(run, tmp_path):
    found = export_onnx(run, tmp_path / "m.onnx", precision="fp16")
    assert 0 < found.probabilities < 0.01


def test_the_command_says_sizes_and_agreement(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    said = invoke("export", copy, "--precision", "int8", "--min-agreement", "0.5")
    assert said.exit_code == 0, said.output
    assert (copy / "model-int8.onnx").is_file()
    text = " ".join(said.output.split())
    assert " kB, in float32 " in text
    assert "on 64 test pictures" in text
    assert "% of its answers are the model's, accuracy" in text


def test_too_many_other_answers_leave_no_file(run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        precision, "_normalized", lambda model, pictures: 1e-3 * torch.rand(8, 3, 16, 16).numpy()
    )
    file = tmp_path / "m.onnx"
    said = invoke("export", run, "--precision", "int8", "--out", file, "--min-agreement", "0.999")
    assert said.exit_code == 2
    assert "was not written: in int8" in said.output
    assert "--min-agreement allows less" in said.output
    assert not file.exists()


def test_answers_that_are_no_numbers_agree_with_nothing(run):
    model = fm.load(run)
    pictures = precision.own_pictures(run, None, False)
    broken = {"probabilities": torch.full((64, len(model.class_names)), torch.nan)}
    found = precision.agreement(model, lambda pixels: broken, pictures, 0)
    assert (found.share, found.accuracy, found.probabilities) == (0, 0, 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--precision", "int4"), "precision"),
        (("--precision", "fp16", "--format", "torch"), "are for ONNX files"),
        (("--min-agreement", "0.9"), "leave --min-agreement out"),
        (("--precision", "fp16", "--min-agreement", "99"), "a share from 0 to 1"),
    ],
)
def test_words_that_make_no_sense(run, tmp_path, words, says):
    said = invoke("export", run, "--out", tmp_path / "m.onnx", *words)
    assert said.exit_code == 2
    assert says in said.output
    assert not (tmp_path / "m.onnx").exists()


def test_data_that_are_gone(run, tmp_path, monkeypatch):
    def gone(*given):
        raise FileNotFoundError("photos.csv: no such file")

    monkeypatch.setattr(precision.build, "data", gone)
    said = invoke("export", run, "--precision", "fp16", "--out", tmp_path / "m.onnx")
    assert said.exit_code == 2
    assert "put the data back" in said.output
    assert "photos.csv" in said.output
