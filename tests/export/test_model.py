"""A model from its folder: the run's own answers, on any picture, without its data."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import fairmargin as fm
from fairmargin.data.decode import Decoder, UnreadableImage
from fairmargin.data.geometry import Geometry
from fairmargin.data.preprocessing import Preprocessing
from fairmargin.runs.folder import RunError, RunRecord


def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def test_it_gives_the_answers_that_the_run_recorded(run):
    model = fm.load(run)
    kept, test = RunRecord.read(run).arrays("examples"), RunRecord.read(run).arrays("test")
    wanted = torch.from_numpy(test["logits"][kept["index"]])
    logits = model(torch.from_numpy(kept["images"]))
    assert torch.allclose(logits, wanted, atol=1e-5)
    found = model.predict([image.transpose(1, 2, 0) for image in kept["images"]])
    assert torch.allclose(found.probabilities, wanted.softmax(1), atol=1e-5)
    assert found.labels == [model.class_names[k] for k in wanted.argmax(1)]
    assert torch.equal(found.confidence, found.probabilities.max(1).values)


def test_paths_images_and_arrays_of_one_picture_are_the_same(run, pictures):
    model, file = fm.load(str(run)), pictures / "0.png"
    image = Image.open(file)
    given = [
        str(file),
        file,
        image,
        np.asarray(image),
        torch.from_numpy(np.array(image)).permute(2, 0, 1),
    ]
    found = model.predict(given, batch_size=2)
    assert len(found) == 5
    # A row's last bit may depend on how many rows are multiplied at once.
    assert torch.allclose(found.probabilities, found.probabilities[:1].expand(5, -1), atol=1e-6)
    assert model.embed(given).shape == (5, model.method.encoder.dim)


def test_modes_and_sizes(run, pictures):
    files = sorted(pictures.glob("*.png"))
    found = fm.load(run).predict(files)
    assert len(found.labels) == 10
    assert torch.allclose(found.probabilities.sum(1), torch.ones(10))


def test_nothing_to_predict(run):
    model = fm.load(run)
    assert model.predict([]).labels == []
    assert model.embed([]).shape == (0, model.method.encoder.dim)


def test_the_mode_of_training_is_put_back(run, pictures):
    model = fm.load(run).train()
    model.predict([pictures / "0.png"])
    assert model.training


@pytest.mark.parametrize(
    ("picture", "kind", "message"),
    [
        ("https://example.org/a.png", ValueError, "is a URL"),
        ("missing.png", UnreadableImage, "no such file"),
        (np.zeros((4, 4, 2), np.uint8), ValueError, "must be uint8"),
        (np.zeros((4, 4, 3)), ValueError, "float64"),
        (torch.zeros(4, 4, 3), ValueError, "must be uint8"),
        (7, TypeError, "got int"),
    ],
)
def test_what_is_no_picture_is_said(run, picture, kind, message):
    with pytest.raises(kind, match=message):
        fm.load(run).predict([picture])


def test_one_path_is_not_a_list(run):
    with pytest.raises(TypeError, match=r"give a list of pictures: \['a.png'\]"):
        fm.load(run).predict("a.png")


def test_a_folder_without_weights(run, tmp_path):
    folder = copied(run, tmp_path)
    (folder / "weights.safetensors").unlink()
    with pytest.raises(RunError, match=r"has no weights.safetensors; copy the whole folder"):
        fm.load(folder)
    (folder / "result.json").unlink()
    with pytest.raises(RunError, match=r"continue it with: fairmargin train --resume"):
        fm.load(folder)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        fm.load(tmp_path)


def test_weights_of_another_network(run, tmp_path):
    folder = copied(run, tmp_path)
    config = (folder / "config.toml").read_text()
    assert "widths = [" in config
    narrow = config.replace("widths = [", "widths = [3, ", 1)
    (folder / "config.toml").write_text(narrow)
    with pytest.raises(RunError, match="does not fit the network"):
        fm.load(folder)


def test_an_older_folder_without_preprocessing(run, tmp_path):
    folder = copied(run, tmp_path)
    data = json.loads((folder / "data.json").read_text())
    written = Preprocessing.from_dict(data.pop("preprocessing"))
    (folder / "data.json").write_text(json.dumps(data))
    assert fm.load(folder).preprocessing == written


def test_a_run_made_on_a_gpu_is_loaded_on_the_cpu(run, tmp_path):
    folder = copied(run, tmp_path)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('device = "cpu"', 'device = "cuda:3"'))
    assert fm.load(folder).device.type == "cpu"


@pytest.mark.parametrize(
    "decoder",
    [
        Decoder(20, "crop"),
        Decoder((12, 30), "pad"),
        Geometry(resize=20, crop=16),
        Geometry(resize=16, stretch=True, square=18),
    ],
)
def test_preprocessing_is_written_and_read(decoder, pictures):
    one = Preprocessing(decoder, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    again = Preprocessing.from_dict(json.loads(json.dumps(one.as_dict())))
    assert again == one
    pixels = one.pixels(pictures / "0.png")
    assert pixels.shape == (3, *one.size)
    assert torch.equal(pixels, one.pixels(Image.open(pictures / "0.png")))
    normal = one.normalize(pixels[None])[0]
    by_hand = (pixels / 255 - torch.tensor(one.mean)[:, None, None]) / torch.tensor(one.std)[
        :, None, None
    ]
    assert torch.allclose(normal, by_hand, atol=1e-5)
