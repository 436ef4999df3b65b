"""Exported files: the model's own answers, from pictures of any size, or no file."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.batch import DataInfo
from fairmargin.cli.app import app
from fairmargin.data.decode import Decoder
from fairmargin.data.geometry import Geometry
from fairmargin.data.preprocessing import Preprocessing
from fairmargin.export import checked, onnx_file
from fairmargin.export.model import Model
from fairmargin.methods import build_method
from fairmargin.networks import build_encoder

# Left out of the inner loop.
pytestmark = pytest.mark.slow

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")
runner = CliRunner()


def invoke(*words):
    return runner.invoke(app, [str(word) for word in words])


def answers(file, pixels):
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"pixels": pixels}), strict=True))


def test_onnx_gives_the_model_s_answers(run, tmp_path):
    file = tmp_path / "deep" / "model.onnx"
    result = invoke("export", run, "--out", file, "--embeddings")
    assert result.exit_code == 0, result.output
    assert "probabilities differ from the model's by at most" in result.output.replace("\n", " ")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    found = answers(file, pixels)
    model = fm.load(run)
    features, logits = model.inspect(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert np.allclose(found["logits"], logits.detach(), atol=1e-5)
    assert np.allclose(found["probabilities"], logits.softmax(1).detach(), atol=1e-5)
    assert np.allclose(found["embeddings"], features.detach(), atol=1e-5)


def test_onnx_says_what_it_is(run, tmp_path):
    fm_export = invoke("export", run, "--out", tmp_path / "m.onnx")
    assert fm_export.exit_code == 0, fm_export.output
    model = onnx.load(tmp_path / "m.onnx")
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(facts["class_names"]) == list(fm.load(run).class_names)
    assert 0 <= json.loads(facts["accuracy"])["plain"] <= 1
    assert Preprocessing.from_dict(json.loads(facts["preprocessing"])) == fm.load(run).preprocessing
    (pixels,) = model.graph.input
    assert [axis.dim_param or axis.dim_value for axis in pixels.type.tensor_type.shape.dim] == [
        "batch",
        "height",
        "width",
        3,
    ]
    assert [output.name for output in model.graph.output] == ["logits", "probabilities"]


def test_a_torch_program_gives_the_model_s_answers(run, tmp_path):
    file = tmp_path / "model.pt2"
    result = invoke("export", run, "--format", "torch", "--out", file)
    assert result.exit_code == 0, result.output
    facts = {"fairmargin.json": ""}
    program = torch.export.load(file, extra_files=facts).module()
    pixels = torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8)
    logits, probabilities = program(pixels)
    assert torch.allclose(logits, fm.load(run)(pixels), atol=1e-5)
    assert torch.allclose(probabilities, logits.softmax(1))
    assert json.loads(facts["fairmargin.json"])["method"] == "ce+fairkl"


def test_a_file_that_differs_is_not_kept(run, tmp_path, monkeypatch):
    # As if the exporter had forgotten half of the pixels.
    monkeypatch.setattr(Preprocessing, "normalize", lambda self, pixels: pixels.float() / 300)
    file = tmp_path / "model.onnx"
    result = invoke("export", run, "--out", file)
    assert result.exit_code == 2
    assert "was not written: its logits differ" in result.output.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_without_the_packages(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    result = invoke("export", run)
    assert result.exit_code == 2
    assert 'pip install "fairmargin[onnx]"' in result.output


def test_another_format(run):
    result = invoke("export", run, "--format", "onxx")
    assert result.exit_code == 2
    assert "did you mean 'onnx'?" in result.output


@pytest.mark.parametrize(
    "decoder",
    [
        Decoder((16, 16), "stretch"),
        Decoder((16, 16), "crop"),
        Decoder((16, 24), "crop"),
        Decoder((16, 16), "pad"),
        Decoder((12, 20), "pad"),
        Geometry(resize=20, crop=16),
        Geometry(resize=16, stretch=True),
        Geometry(resize=16, square=18),
        Geometry(resize=12, crop=16),
    ],
)
def test_the_graph_prepares_pictures_as_pillow_does(decoder, pictures):
    given = Preprocessing(decoder, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    graph = onnx_file.preprocessing_graph(onnx, given, onnx_file.OPSET, 10)
    session = runtime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for file in sorted(pictures.glob("*.png")):
        image = Image.open(file).convert("RGB")
        (found,) = session.run(None, {"pixels": np.asarray(image)[None]})
        wanted = given.pixels(image).numpy() / 255
        assert found[0].shape == wanted.shape
        assert np.abs(found[0] - wanted).mean() < 0.03, file
    exact = given.pixels(image)
    if isinstance(decoder, Decoder):
        (found,) = session.run(None, {"pixels": exact.permute(1, 2, 0).numpy()[None]})
        assert np.abs(found[0] - exact.numpy() / 255).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", ["simple-conv-7", "resnet18-cifar", "resnet18", "bagnet18", "resnet20"]
)
def test_every_kind_of_network(network, tmp_path):
    torch.manual_seed(0)
    info = DataInfo("d", ("a", "b"), (), (3, 32, 32), torch.zeros(2, 0, dtype=torch.long))
    method = build_method("ce", lambda **given: build_encoder(network, **given), info)
    # Batch norms that have seen something.
    method.train()
    method.encoder(torch.randn(64, 3, 32, 32))
    model = Model(
        method, Preprocessing(Decoder((32, 32)), (0.5,) * 3, (0.5,) * 3), info.class_names
    )
    graph = onnx_file._with_preprocessing(onnx, onnx_file._network(onnx, model, False), model)
    file = tmp_path / "model.onnx"
    onnx.save(graph, file)
    pixels = torch.randint(0, 256, (65, 3, 32, 32), dtype=torch.uint8)

    def ask(pixels):
        found = answers(file, pixels.permute(0, 2, 3, 1).contiguous().numpy())
        return {name: torch.from_numpy(value) for name, value in found.items()}

    assert checked.compared(model, ask, pixels, file).probabilities < 1e-5
