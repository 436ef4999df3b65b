"""People's own datasets and encoders, from Python and from the command line."""

import json
import pickle
import re
import shutil
import sys
from io import StringIO

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.config.code import (
    MissingPart,
    UntrustedCode,
    importable,
    is_import_path,
    source_hash,
)
from fairmargin.data import own
from fairmargin.data.preprocessing import Preprocessing, preprocessing_of
from fairmargin.data.views import Flip
from fairmargin.export import export_program
from fairmargin.networks.own import OwnEncoders
from fairmargin.runs.record import RunRecord

QUIET = Console(quiet=True)
SMALL = {
    "train.batch_size": 32,
    "train.device": "cpu",
    "evaluate.resamples": 20,
    "evaluate.classifiers": ["own"],
}


class Backbone(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten()
        )

    def forward(self, x):
        return self.layers(x)


class Bright(Dataset):
    """Squares whose brightness tells the class, mostly with the bias of their class."""

    def __init__(self, n, seed=0, side=6):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.arange(n) % 2
        self.b = torch.where(torch.rand(n, generator=g) < 0.8, self.y, 1 - self.y)
        self.x = torch.randint(0, 90, (n, 3, side, side), dtype=torch.uint8, generator=g)
        self.x += (90 * self.y).byte()[:, None, None, None]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i]), int(self.b[i])


def floats(n, seed=0):
    source = Bright(n, seed)
    return TensorDataset(source.x.float() / 100 - 1, source.y, source.b)


def train(out, **changes):
    given = {"train": Bright(80), "test": Bright(40, 1), "encoder": Backbone, "method": "ce"}
    given |= {"epochs": 1, "settings": SMALL, "console": QUIET}
    return fm.train(out=out, **(given | changes))


# Datasets

SQUARE = torch.zeros(3, 4, 4)


def one_of_each_kind():
    pixels = np.arange(2 * 5 * 7 * 3, dtype=np.uint8).reshape(2, 5, 7, 3)
    tensors = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    return {
        "tensor": list(tensors),
        "array": list(pixels),
        "picture": [Image.fromarray(one) for one in pixels],
        "transparent": [Image.fromarray(one).convert("RGBA") for one in pixels],
    }


@pytest.mark.parametrize("kind", ["tensor", "array", "picture", "transparent"])
def test_all_kinds_of_images_are_the_same_pixels(kind):
    kinds = one_of_each_kind()
    samples = [(image, y) for y, image in enumerate(kinds[kind])]
    data = own.from_datasets(samples, samples, samples)
    assert torch.equal(data.train.images(torch.arange(2)), torch.stack(kinds["tensor"]))
    assert data.info.image_shape == (3, 5, 7)
    assert data.info.class_names == ("0", "1")
    assert data.info.bias_names == ()


def test_uint8_images_are_prepared_as_a_folder_s_are():
    data = own.from_datasets(Bright(20), None, Bright(4))
    pixels = data.test.images(torch.arange(4))
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    torch.testing.assert_close(data.eval_views(pixels), (pixels / 255 - mean) / std)
    assert len(data.train_views.steps) == 2
    given = own.from_datasets(Bright(20), None, Bright(4), augment=[])
    assert given.train_views.steps == ()


def test_float_images_are_taken_as_they_are():
    data = own.from_datasets(floats(20), None, floats(4))
    index = torch.arange(4)
    assert torch.equal(data.eval_views(data.test.images(index)), floats(4).tensors[0])
    assert torch.equal(data.train_views(data.test.images(index)), floats(4).tensors[0])
    mirrored = own.from_datasets(floats(20), None, floats(4), augment=[Flip(1.0)])
    seen = mirrored.train_views(mirrored.test.images(index))
    assert torch.equal(seen, floats(4).tensors[0].flip(-1))


def test_a_tenth_of_every_cell_is_held_out_and_the_seed_says_which():
    data = [own.from_datasets(Bright(400), None, Bright(40), seed=seed) for seed in (0, 0, 1)]
    assert len(data[0].valid) == 40
    assert len(data[0].train) == 360
    assert data[0].hashes == data[1].hashes
    assert data[0].hashes["valid"] != data[2].hashes["valid"]
    for y in range(2):
        for b in range(2):
            n, of = (
                int(((split.labels == y) & (split.bias == b)).sum())
                for split in (data[0].valid, data[0].train)
            )
            assert n == pytest.approx(0.1 * (n + of), abs=1)
    assert "0.1 of every" in data[0].info.notes["valid"]


def test_large_datasets_are_read_when_needed():
    kept = own.from_datasets(Bright(40), None, Bright(10))
    lazy = own.from_datasets(Bright(40), None, Bright(10), memory_limit=0)
    assert isinstance(lazy.train, own.DatasetSplit)
    assert lazy.hashes == kept.hashes
    index = torch.tensor([3, 1])
    assert torch.equal(lazy.valid.images(index), kept.valid.images(index))


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([(SQUARE, 0), (torch.zeros(3, 5, 4), 1)], r"sample 1 of train is \[3, 5, 4\]"),
        ([(SQUARE, 0), (SQUARE.byte(), 1)], "sample 1 of train is uint8"),
        ([(torch.zeros(4, 4), 0)], r"sample 0 of train: an image tensor .* got float32 \[4, 4\]"),
        ([(np.zeros((4, 4, 3)), 0)], "sample 0 of train: an array must be uint8"),
        ([("a.png", 0)], "sample 0 of train: an image must be a tensor"),
        ([torch.zeros(3, 4, 4)], r"each must be \(image, label\)"),
        ([{"image": 1}], r"sample 0 of train is a dict"),
        ([(torch.zeros(3, 4, 4), -1)], "sample 0 of train has the label -1"),
        ([(torch.zeros(3, 4, 4), "cat")], "has the label 'cat'; it must be a whole number"),
        ([(torch.zeros(3, 4, 4), 0, 0.5)], "has the bias 0.5"),
        ([(torch.full((3, 4, 4), torch.nan), 0)], "values that are not finite"),
        ([], "train has no samples"),
        (iter([]), "no __len__ and __getitem__"),
    ],
)  # fmt: skip
def test_bad_samples_are_named(samples, says):
    with pytest.raises(ValueError, match=says):
        own.from_datasets(samples, None, [])


def test_names_of_classes_and_biases():
    given = own.from_datasets(
        Bright(20), None, Bright(4), class_names=["dark", "bright"], bias_names=["a", "b", "c"]
    )
    assert given.info.class_names == ("dark", "bright")
    assert given.info.counts.shape == (2, 3)
    with pytest.raises(ValueError, match="class_names has 1 names and there is a label 1"):
        own.from_datasets(Bright(20), None, Bright(4), class_names=["dark"])
    unbiased = [(torch.zeros(3, 4, 4), i % 2) for i in range(20)]
    with pytest.raises(ValueError, match="no sample has a bias"):
        own.from_datasets(unbiased, None, [], bias_names=["a"])


def test_new_pictures_are_prepared_as_the_dataset_s():
    pixels = torch.arange(36, dtype=torch.uint8).view(1, 6, 6)
    grey = [(pixels, 0), (pixels, 1)]
    found = preprocessing_of(own.from_datasets(grey, grey, grey))
    assert found == Preprocessing.from_dict(json.loads(json.dumps(found.as_dict())))
    assert torch.equal(found.pixels(pixels), pixels)
    assert torch.equal(found.pixels(pixels[0].numpy()), pixels)
    colours = Image.fromarray(np.arange(108, dtype=np.uint8).reshape(6, 6, 3))
    assert torch.equal(found.pixels(colours)[0], torch.from_numpy(np.array(colours.convert("L"))))
    assert found.normalize(pixels[None]).shape == (1, 1, 6, 6)

    prepared = preprocessing_of(own.from_datasets(floats(8), None, floats(4)))
    assert prepared == Preprocessing.from_dict(json.loads(json.dumps(prepared.as_dict())))
    image = torch.randn(3, 6, 6)
    assert torch.equal(prepared.pixels(image), image)
    with pytest.raises(TypeError, match=r"float tensors \[3, 6, 6\]"):
        prepared.pixels("a.png")
    with pytest.raises(ValueError, match="got uint8"):
        prepared.pixels(image.byte())
    with pytest.raises(TypeError, match="give floats"):
        prepared.normalize(image[None].byte())


# Encoders

SHAPE = (3, 6, 6)


def test_the_number_of_features_is_found_and_the_module_left_as_it_was():
    module = Backbone().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    encoder = OwnEncoders(module, SHAPE, name="mine")()
    assert encoder.dim == 64
    assert encoder.training
    assert encoder.module is not module
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (nn.Conv2d(3, 2, 1), r"it gave float32 \[2, 2, 6, 6\]; end it with .flatten"),
        (nn.Flatten(0), r"it gave float32 \[216\]"),
        (nn.Conv2d(1, 2, 1), r"mine cannot take images \[2, 3, 6, 6\]"),
        (nn.LSTM(6, 2), "mine cannot take images"),
        (lambda: 3, "mine returned a int"),
        (3, "mine is a int; an encoder is"),
        (nn.Linear, "mine needs in_features; set network.in_features"),
    ],
)
def test_what_is_no_encoder_is_refused(source, says):
    with pytest.raises(ValueError, match=says):
        OwnEncoders(source, SHAPE, name="mine")()


def test_options_go_to_the_class():
    assert OwnEncoders(Backbone, SHAPE, name="mine", options={"width": 2})().dim == 32
    with pytest.raises(
        ValueError, match=r"network.depth: mine has no keyword depth; its keywords:"
    ):
        OwnEncoders(Backbone, SHAPE, name="mine", options={"depth": 2})
    with pytest.raises(ValueError, match=r"network.width\s+has no effect; give its class"):
        OwnEncoders(Backbone(), SHAPE, name="mine", options={"width": 2})


def test_a_second_encoder_has_new_weights():
    module = Backbone()
    make = OwnEncoders(module, SHAPE, name="mine")
    weights = [make().module.layers[0].weight for _ in range(3)]
    assert torch.equal(weights[0], module.layers[0].weight)
    assert not torch.equal(weights[1], weights[0])
    assert not torch.equal(weights[2], weights[1])


def test_a_second_encoder_that_cannot_be_started_anew_is_refused():
    class Scaled(Backbone):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    make = OwnEncoders(Scaled(), SHAPE, name="mine")
    make()
    with pytest.raises(ValueError, match=r"builds several encoders.*give its class"):
        make()
    several = OwnEncoders(Scaled, SHAPE, name="mine")
    assert several().dim == several().dim == 64


def test_features_of_own_encoders_stay_as_they_are():
    make = OwnEncoders(Backbone, SHAPE, name="mine")
    with pytest.raises(ValueError, match=r'set method.last_activation="auto"'):
        make(last_activation="tanh")


# Training


@pytest.mark.parametrize("method", ["ce+fairkl", "eps-supinfonce", "lff", "rebias"])
def test_methods_train_on_own_parts(method, tmp_path):
    done = train(tmp_path / "run", method=method, encoder=Backbone())
    assert 0 <= done.accuracy["worst-group"] <= 1
    assert done.model.predict([Bright(1).x[0]]).labels[0] in "01"


def test_floats_give_a_model_that_takes_floats(tmp_path):
    done = train(tmp_path / "run", train=floats(80), test=floats(40, 1))
    images = floats(3).tensors[0]
    assert len(done.model.predict(list(images))) == 3
    assert done.model.embed([images[0]]).shape == (1, 64)
    assert RunRecord.read(done.path).examples["images"].dtype == np.uint8
    assert done.report(tmp_path / "report.html").is_file()
    assert fm.audit.run(done.path).verdict
    with pytest.raises(ValueError, match="an exported file takes pictures"):
        export_program(done.path, tmp_path / "model.pt2", encoder=Backbone)


def test_grey_images_and_a_network_by_name(tmp_path):
    samples = [(x[:1], y, b) for x, y, b in Bright(80)]
    settings = SMALL | {"network.widths": [4]}
    done = train(
        tmp_path / "run",
        train=samples,
        test=samples,
        encoder="simple-conv-3",
        settings=settings,
        class_names=["dark", "bright"],
        bias_names=["left", "right"],
    )
    assert done.record.data["class_names"] == ["dark", "bright"]
    assert done.record.data["image_shape"] == [1, 6, 6]
    assert done.model.predict([samples[0][0]]).labels[0] in ("dark", "bright")
    assert fm.load(done.path).class_names == ("dark", "bright")


def test_the_folder_tells_what_was_given(tmp_path):
    done = train(tmp_path / "run", augment=[Flip()])
    text = (done.path / "config.toml").read_text()
    assert 'name = "own"' in text
    assert f'object = "{__name__}:Bright"' in text
    assert 'augment = "Flip(p=0.5)"' in text
    assert f'name = "{__name__}:Backbone"' in text
    code = json.loads((done.path / "environment.json").read_text())["code"]
    assert code["network"] == {"path": f"{__name__}:Backbone", "sha256": source_hash(Backbone)}
    assert code["data"]["sha256"] == source_hash(Bright)


def test_the_same_call_resumes_and_another_is_refused(tmp_path):
    module = Backbone()
    first = train(tmp_path / "run", encoder=module)
    weights = (first.path / "weights.safetensors").read_bytes()
    again = train(tmp_path / "run", encoder=module)
    assert again.accuracy == first.accuracy
    (first.path / "result.json").unlink()
    train(tmp_path / "run", encoder=module)
    assert (first.path / "weights.safetensors").read_bytes() == weights

    with pytest.raises(ValueError, match=r"another version of .*Backbone"):
        train(tmp_path / "run", encoder=Backbone(8))
    with pytest.raises(ValueError, match=r"network.object"):
        train(tmp_path / "run", encoder=nn.Flatten())
    with pytest.raises(ValueError, match="finished run on other data: its test samples"):
        train(tmp_path / "run", encoder=module, test=Bright(40, 2))
    (first.path / "result.json").unlink()
    with pytest.raises(ValueError, match="begun on other data: its train and valid samples"):
        train(tmp_path / "run", encoder=module, train=Bright(80, 2))


def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path):
    often = SMALL | {"train.checkpoint_seconds": 0, "train.keep": 9}
    whole = train(tmp_path / "whole", epochs=2, settings=often)
    part = tmp_path / "part"
    shutil.copytree(whole.path, part)
    (part / "result.json").unlink()
    saved = sorted((part / "checkpoints").iterdir())
    assert len(saved) > 3
    for checkpoint in saved[2:]:
        checkpoint.unlink()
    (part / "weights.safetensors").unlink()
    again = train(part, epochs=2, settings=often)
    one, other = (folder / "weights.safetensors" for folder in (whole.path, again.path))
    assert one.read_bytes() == other.read_bytes()


def test_the_given_module_is_not_trained(tmp_path):
    module = Backbone()
    before = module.layers[0].weight.clone()
    train(tmp_path / "run", encoder=module)
    assert torch.equal(module.layers[0].weight, before)


def test_one_note_says_what_the_folder_cannot_rebuild(tmp_path):
    said = StringIO()
    train(tmp_path / "a", encoder=lambda: Backbone(2), console=Console(file=said, width=1000))
    notes = [line for line in said.getvalue().splitlines() if line.startswith("note:")]
    assert len(notes) == 1
    assert "the datasets" in notes[0]
    assert "the encoder" in notes[0]
    assert "fm.load(run, encoder=…)" in notes[0]
    with pytest.raises(MissingPart, match=r"given as a Python object .*<lambda>"):
        fm.load(tmp_path / "a")
    assert fm.load(tmp_path / "a", encoder=Backbone(2)).embed([Bright(1).x[0]]).shape == (1, 32)
    with pytest.raises(OSError, match="does not fit this encoder"):
        fm.load(tmp_path / "a", encoder=Backbone(3))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset": "planted"}, "both train and dataset='planted'"),
        ({"network": "mlp"}, "both encoder and network='mlp'"),
        ({"test": None}, "train was given without test"),
        ({"train": None}, "test belongs to datasets of your own; give train"),
        ({"config": configuration.load(), "epochs": None, "settings": None}, "a whole Config"),
        ({"encoder": "resnet-18"}, "did you mean 'resnet18'"),
    ],
)
def test_contradictions_are_refused(changes, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        train(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_the_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(train(None, seed=3).path) == "runs/own/ce/seed-3"


# Import paths

CODE = """
from pathlib import Path
import torch
from torch import nn

with Path(MARKER).open("a") as file:
    file.write("imported ")

class Backbone(nn.Sequential):
    def __init__(self, width: int = 4):
        super().__init__(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Flatten())

def samples(n):
    images = torch.arange(n * 108).view(n, 3, 6, 6).remainder(251).byte()
    return [(images[i], i % 2, i // 2 % 2) for i in range(n)]

def build(n: int = 80, *, seed: int = 0):
    return samples(n), None, samples(40)

def wrong():
    return 3
"""
NETWORK, DATASET = "own_code_of_tests:Backbone", "own_code_of_tests:build"


def words(*more, out):
    settings = {**SMALL, "train.epochs": 1, "evaluate.classifiers": '["own"]'}
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["train", "--method", "ce", "--out", str(out), *changes, *more]


def command(*given):
    return CliRunner().invoke(app, [str(word) for word in given])


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """(a run folder that names code, the folder of that code, its marker of imports)."""
    folder = tmp_path_factory.mktemp("stranger")
    marker = folder / "marker"
    file = folder / "own_code_of_tests.py"
    file.write_text(CODE.replace("MARKER", repr(str(marker))))
    sys.path.insert(0, str(folder))
    try:
        done = command(*words("--network", NETWORK, "--dataset", DATASET, out=folder / "run"))
    finally:
        sys.path.remove(str(folder))
    assert done.exit_code == 0, done.output
    return folder / "run", folder, marker


@pytest.fixture
def unseen(stranger, monkeypatch):
    """The same, with code that could be imported and has not been."""
    run, folder, marker = stranger
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("own_code_of_tests", None)
    marker.write_text("")
    yield run, folder, marker
    sys.modules.pop("own_code_of_tests", None)


def test_what_is_an_import_path():
    for name in ("a:b", "my_package.nets:Backbone", "a.b.c:D.e", "os:system"):
        assert is_import_path(name)
    for name in ("resnet18", "photos.csv", "/a:b", "a:", ":b", "a:b:c", "a b:c", "a:b()", "1:2", 3):
        assert not is_import_path(name)


def test_what_can_be_imported_again():
    def local():
        return Backbone()

    assert importable(Backbone)
    assert not importable(Backbone())
    assert not importable(local)
    assert not importable(lambda: Backbone())


def test_the_command_line_takes_import_paths(stranger):
    run = stranger[0]
    record = RunRecord.read(run)
    assert record.config["network"]["name"] == NETWORK
    assert record.config["data"]["name"] == DATASET
    assert record.environment["code"]["network"]["path"] == NETWORK
    assert record.data["image_shape"] == [3, 6, 6]
    assert record.data["sizes"]["test"] == 40


@pytest.fixture
def picture(tmp_path):
    file = tmp_path / "a.png"
    Image.new("RGB", (6, 6)).save(file)
    return file


def commands(run, picture, folder):
    """Every command that takes a run folder and needs its code, with what it is refused for."""
    return {
        "evaluate": ["evaluate", run],
        "predict": ["predict", run, picture],
        "export": ["export", run, "--format", "torch", "--out", folder / "model.pt2"],
        "audit": ["audit", run, "--out", folder / "audit"],
        "resume": ["train", "--resume", run],
        "train with its file": words(run / "config.toml", out=folder / "other"),
        "train with a link": words(link_to(run / "config.toml", folder), out=folder / "linked"),
    }


def link_to(file, folder):
    link = folder / "mine.toml"
    link.unlink(missing_ok=True)
    link.symlink_to(file)
    return link


def test_a_run_folder_never_makes_us_import_code(unseen, picture, tmp_path):
    run, _, marker = unseen
    for name, given in commands(run, picture, tmp_path).items():
        if name == "resume":
            # A finished run is only read, so it must be refused before.
            (run / "result.json").rename(tmp_path / "result.json")
        done = command(*given)
        if name == "resume":
            (tmp_path / "result.json").rename(run / "result.json")
        assert done.exit_code == 2, (name, done.output)
        assert "would import the module own_code_of_tests" in done.output, name
        assert "Nothing was imported" in done.output, name
        assert "--trust-code" in done.output, name
        assert marker.read_text() == "", name
    for given in (
        lambda: fm.load(run),
        lambda: fm.audit.run(run),
        lambda: fm.train(config=run / "config.toml", out=tmp_path / "other", console=QUIET),
        lambda: fm.train(
            config=configuration.load_resolved(run / "config.toml"),
            out=tmp_path / "other",
            console=QUIET,
        ),
    ):
        with pytest.raises(UntrustedCode, match="Nothing was imported"):
            given()
    assert marker.read_text() == ""
    assert "own_code_of_tests" not in sys.modules


def test_what_reads_files_only_works_without_the_code(unseen, tmp_path):
    run, _, marker = unseen
    for given in (
        ["report", run, "--out", tmp_path / "report.html"],
        ["check", run, "--min-accuracy", "plain=0"],
        ["card", run],
    ):
        done = command(*given)
        assert done.exit_code == 0, done.output
    assert marker.read_text() == ""


@pytest.mark.parametrize("how", ["named", "trusted"])
def test_code_that_the_user_names_is_imported(how, unseen, picture, tmp_path):
    run, _, marker = unseen
    network = ["--network", NETWORK] if how == "named" else ["--trust-code"]
    both = ["--network", NETWORK, "--dataset", DATASET] if how == "named" else ["--trust-code"]
    dataset = ["--dataset", DATASET] if how == "named" else ["--trust-code"]
    more = {"predict": network, "export": network, "audit": dataset}
    for name, given in commands(run, picture, tmp_path).items():
        done = command(*given, *more.get(name, both))
        assert done.exit_code == 0, (name, done.output)
    assert marker.read_text() == "imported "
    model = fm.load(run, encoder=NETWORK) if how == "named" else fm.load(run, trust_code=True)
    assert model.embed([picture]).shape == (1, 64)


def test_one_name_does_not_allow_the_other(unseen, tmp_path):
    run, _, marker = unseen
    done = command("evaluate", run, "--network", NETWORK)
    assert done.exit_code == 2
    assert 'data.name = "own_code_of_tests:build"' in done.output
    done = command("predict", run, tmp_path, "--network", "os:system")
    assert done.exit_code == 2
    assert marker.read_text() == ""
    with pytest.raises(ValueError, match=f"this run's encoder is {NETWORK}, not os:system"):
        fm.load(run, encoder="os:system")
    assert marker.read_text() == ""


def test_a_harmful_path_is_not_called(unseen, picture, tmp_path, monkeypatch):
    run, _, marker = unseen
    bad = tmp_path / "bad"
    shutil.copytree(run, bad)
    text = (bad / "config.toml").read_text()
    text = text.replace(f'"{NETWORK}"', f'"os:system"\ncommand = "touch {tmp_path}/harm"')
    (bad / "config.toml").write_text(text)
    for given in commands(bad, picture, tmp_path).values():
        assert command(*given).exit_code == 2
    assert not (tmp_path / "harm").exists()
    assert marker.read_text() == ""


def test_a_file_of_the_user_s_own_is_trusted(unseen, tmp_path):
    _, _, marker = unseen
    file = tmp_path / "mine.toml"
    file.write_text(
        f'[network]\nname = "{NETWORK}"\nwidth = 2\n[data]\nname = "{DATASET}"\nn = 60\n'
    )
    done = command(*words(file, out=tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert marker.read_text() == "imported "
    record = RunRecord.read(tmp_path / "run")
    assert record.data["sizes"]["train"] + record.data["sizes"]["valid"] == 60
    assert record.test["features"].shape == (40, 32)


def test_python_takes_import_paths(unseen, tmp_path):
    done = fm.train(
        dataset=DATASET,
        encoder=NETWORK,
        method="ce",
        epochs=1,
        settings=SMALL,
        out=tmp_path / "run",
        console=QUIET,
    )
    assert done.model.predict([torch.zeros(3, 6, 6).byte()]).labels[0] in "01"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--network", "no_such_module:Backbone"], "there is no no_such_module; install it"),
        (["--network", "own_code_of_tests:Nothing"], "own_code_of_tests has no Nothing"),
        (["--network", NETWORK, "--set", "network.depth=2"], "network.depth: .* has no keyword"),
        (["--dataset", DATASET, "--set", "data.m=2"], "data.m: .* has no keyword m"),
        (["--dataset", "own_code_of_tests:wrong"], "returned a int; it must return"),
        (["--network", "own_code_of_tests:wrong"], "returned a int; it must return"),
        (["--dataset", "own"], "were given as Python objects"),
        (["--method", "os:system"], "unknown method 'os:system'"),
    ],
)
def test_mistakes_on_the_command_line(given, says, unseen, tmp_path):
    done = command(*words("--dataset", "planted", *given, out=tmp_path / "run"))
    assert done.exit_code == 2, done.output
    assert re.search(says, done.output.replace("\n", " ")), done.output


def test_trust_is_no_setting_and_follows_the_configuration():
    chosen = configuration.load(network=NETWORK, dataset="planted")
    assert NETWORK in chosen._code.trusted
    changed = configuration.override(chosen, ["train.epochs=3"])
    assert NETWORK in changed._code.trusted
    assert NETWORK in pickle.loads(pickle.dumps(changed))._code.trusted
    assert chosen == configuration.Config(**chosen.model_dump())
