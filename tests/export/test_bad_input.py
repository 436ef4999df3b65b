"""Every command says what is wrong with bad input, and leaves nothing half-written behind."""

import shutil

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.cli.app import app
from fairmargin.runs.record import RunError

QUICK = {"evaluate.resamples": 5, "train.device": "cpu", "evaluate.classifiers": ["own"]}


def invoke(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "RUN", "a.png", "--out", "out.csv"),
        ("export", "RUN", "--out", "m.onnx"),
        ("export", "RUN", "--format", "torch", "--out", "m.pt2"),
        ("evaluate", "RUN", "--out", "found.json"),
    ],
)
def test_a_run_folder_without_weights(words, run, here):
    copy = shutil.copytree(run, here / "copy")
    (copy / "weights.safetensors").unlink()
    code, said = invoke(*(copy if word == "RUN" else word for word in words))
    assert code == 2
    assert "has no weights.safetensors; copy the whole folder" in said
    assert [file.name for file in here.iterdir()] == ["copy"]


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--method", "ce", "--out", "new", "--dataset"),
        ("audit",),
        ("data", "show"),
    ],
)
def test_a_url_is_no_dataset(words, here):
    code, said = invoke(*words, "https://example.org/photos.csv")
    assert code == 2
    assert "is a URL and data are read from files; download it first" in said
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "words", [("train", "--method", "ce", "--out", "new", "--dataset"), ("audit",)]
)
def test_an_empty_folder_is_no_dataset(words, here):
    (here / "photos").mkdir()
    code, said = invoke(*words, "photos")
    assert code == 2
    assert "no images in it; put them into one folder for each class" in said
    assert [file.name for file in here.iterdir()] == ["photos"]


def test_an_empty_folder_to_evaluate_on(run, here):
    (here / "photos").mkdir()
    code, said = invoke("evaluate", run, "--data", "photos", "--out", "found.json")
    assert code == 2
    assert "no images in it" in said
    assert not (here / "found.json").exists()


def flat(features):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, features))


def test_an_encoder_of_another_shape(here):
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8)
    samples = [(image, i % 2) for i, image in enumerate(pixels)]
    given = {"train": samples, "test": samples, "method": "ce", "epochs": 1, "settings": QUICK}
    fm.train(encoder=flat(4), out="mine", **given)
    before = sorted(here.rglob("*"))
    with pytest.raises(RunError, match="does not fit this encoder: size mismatch"):
        fm.load("mine", encoder=flat(6))
    with pytest.raises(ValueError, match=r"another version of .*Choose another folder"):
        fm.train(encoder=flat(6), out="mine", **given)
    with pytest.raises(ValueError, match=r"must turn images .* into floats \[2, D\]"):
        fm.train(encoder=nn.Conv2d(3, 4, 3), out="other", **given)
    assert sorted(here.rglob("*")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="here CUDA can be used")
def test_a_run_of_a_gpu_goes_on_only_where_its_device_is(run, here):
    """Its weights can be used anywhere: tests/export/test_model.py."""
    copy = shutil.copytree(run, here / "copy")
    words = ("--resume", copy, "--set", "train.epochs=3", "--set", "train.device=cuda")
    code, said = invoke("train", *words)
    assert code == 2
    assert "train.device=cuda cannot be used here" in said
    assert "Use cpu, or auto" in said
    assert [file.name for file in here.iterdir()] == ["copy"]


def test_a_folder_that_was_there_stays(here):
    (here / "new").mkdir()
    (here / "photos").mkdir()
    code, _ = invoke("train", "--method", "ce", "--out", "new", "--dataset", "photos")
    assert code == 2
    assert (here / "new").is_dir()
