"""What a run's network starts from, moves and remembers, over whole runs."""

import json
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

import fairmargin as fm
from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.export.onnx_file import export_onnx
from fairmargin.methods.base import Unsuited
from fairmargin.networks import build_encoder
from fairmargin.run import run
from fairmargin.runs import build
from tests import small_runs

SMALL = [
    "data.train=96", "data.test=64", "data.side=16", "train.steps=2", "train.batch_size=32",
    "train.device=cpu", "evaluate.resamples=10", 'evaluate.classifiers=["own"]',
]  # fmt: skip
RESNET = ["network.name=resnet20", "network.widths=[4, 8, 8]"]
METHODS = ["ce", "ce+fairkl", "eps-supinfonce+fairkl"]


def config(*changes, method="ce", dataset="planted"):
    return configuration.load(dataset=dataset, method=method, overrides=[*SMALL, *changes])


def silently(chosen, out):
    return run(chosen, out, console=Console(quiet=True))


def first_weights():
    torch.manual_seed(7)
    return build_encoder("resnet20", widths=(4, 8, 8)).state_dict()


@pytest.fixture
def weights(tmp_path):
    """A file as a FairMargin run writes it, with the encoder's weights under a prefix."""
    tensors = {f"encoder.{name}": value for name, value in first_weights().items()}
    file = tmp_path / "start.safetensors"
    save_file({**tensors, "encoder.fc.weight": torch.ones(2, 8), "head.0": torch.ones(1)}, file)
    return file


def encoder_of(folder):
    tensors = load_file(folder / "weights.safetensors")
    prefix = "encoder."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def moved(before, after):
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


class TestWeights:
    def test_a_run_starts_from_its_file_and_needs_it_no_more(self, weights, tmp_path):
        chosen = config(*RESNET, f"network.weights={weights}", "optimizer.lr=1e-12")
        out = tmp_path / "run"
        silently(chosen, out)
        parameters = dict(build_encoder("resnet20", widths=(4, 8, 8)).named_parameters())
        before, after = first_weights(), encoder_of(out)
        for name in parameters:
            assert torch.allclose(after[name], before[name], atol=1e-6), name
        recorded = json.loads((out / "network.json").read_text())
        assert recorded["weights"]["file"] == "start.safetensors"
        assert len(recorded["weights"]["sha256"]) == 64
        assert recorded["left_over"] == ["head.0"]
        result = json.loads((out / "result.json").read_text())
        assert any("no use for: head.0" in text for text in result["warnings"])
        weights.unlink()
        picture = np.zeros((16, 16, 3), np.uint8)
        assert len(fm.load(out).predict([picture]).labels) == 1
        assert silently(chosen, out).finished  # only read
        (out / "result.json").unlink()
        assert silently(chosen, out).finished  # evaluated again, from the checkpoint

    def test_a_resumed_run_equals_one_that_was_not_interrupted(self, weights, tmp_path):
        changes = ["network.name=resnet20", "network.widths=[4, 8, 8]"]
        changes = [f"network.weights={weights}", "train.epochs=1", *changes]
        # The options of the tests' usual network do not fit a ResNet.
        usual = [change for change in small_runs.SMALL if not change.startswith("network.")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_runs, "SMALL", usual)
            small_runs.silently(*changes, out=tmp_path / "whole")
            small_runs.interrupted(tmp_path / "parts", *changes, steps=(3, 7))
            weights.unlink()
            small_runs.silently(*changes, out=tmp_path / "parts")
        small_runs.assert_same_run(tmp_path / "whole", tmp_path / "parts")

    def test_other_weights_under_the_same_name_are_refused(self, weights, tmp_path):
        chosen = config(*RESNET, f"network.weights={weights}")
        silently(chosen, tmp_path / "run")
        save_file({name: value + 1 for name, value in first_weights().items()}, weights)
        with pytest.raises(ValueError, match="started from other weights"):
            silently(chosen, tmp_path / "run")

    def test_weights_of_another_network(self, weights, tmp_path):
        with pytest.raises(ValueError, match="does not fit resnet32"):
            silently(
                config("network.name=resnet32", f"network.weights={weights}"), tmp_path / "run"
            )

    def test_a_run_without_the_expected_weights_says_so(self, weights, tmp_path):
        expected = "network.pretrained_expected=imagenet"
        silently(config(*RESNET, expected), tmp_path / "without")
        silently(config(*RESNET, expected, f"network.weights={weights}"), tmp_path / "with")

        def said(name):
            return json.loads((tmp_path / name / "result.json").read_text())["warnings"]

        (warning,) = [text for text in said("without") if "ImageNet" in text]
        assert "this run from random ones" in warning
        assert not [text for text in said("with") if "ImageNet" in text]
        from fairmargin.export.card import model_card

        assert "trained on ImageNet" in model_card(tmp_path / "without")


class TestMoving:
    @pytest.mark.parametrize("method", METHODS)
    def test_a_frozen_encoder_stays(self, method, weights, tmp_path):
        head = ["method.head=mlp"] if method == "eps-supinfonce+fairkl" else []
        out = tmp_path / "run"
        chosen = config(
            *RESNET, *head, f"network.weights={weights}", "network.freeze=true", method=method
        )
        silently(chosen, out)
        # Running means and counters of batch norms too.
        assert moved(first_weights(), encoder_of(out)) == set()
        data = build.data(chosen)
        fresh = build.method(chosen, data).state_dict()
        trained = load_file(out / "weights.safetensors")
        rest = {name: value for name, value in fresh.items() if not name.startswith("encoder.")}
        assert "classifier.weight" in moved(rest, trained)
        warned = any("frozen" in text for text in result_of(out)["warnings"])
        assert warned == ("fairkl" in method)

    def test_a_frozen_encoder_leaves_a_contrastive_loss_nothing(self, tmp_path):
        chosen = config(*RESNET, "network.freeze=true", method="eps-supinfonce+fairkl")
        with pytest.raises(Unsuited, match="leaves nothing to train for the player main"):
            silently(chosen, tmp_path / "run")

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_the_backbone_moves_at_its_own_rate(self, method, optimizer):
        changes = [*RESNET, f"optimizer.name={optimizer}", "optimizer.weight_decay=0"]
        found = {}
        for rate in (None, 1e-8):
            more = [] if rate is None else [f"optimizer.backbone_lr={rate}"]
            chosen = config(*changes, *more, "schedule.name=constant", method=method)
            data = build.data(chosen)
            built = build.method(chosen, data)
            before = {name: p.detach().clone() for name, p in built.named_parameters()}
            training = build.training(chosen, built, data, torch.device("cpu"))
            built.train()
            training.advance(next(iter(training.loader)), 0.0)
            found[rate] = {
                name: float((p.detach() - before[name]).abs().max())
                for name, p in built.named_parameters()
            }
        encoder = [name for name in found[None] if name.startswith("encoder.")]
        others = [name for name in found[None] if not name.startswith("encoder.")]
        usual = max(found[None][name] for name in encoder)
        slow = max(found[1e-8][name] for name in encoder)
        assert usual > 1e-5
        assert slow < 1e-3 * usual
        assert others
        assert {name: found[None][name] for name in others} == {
            name: found[1e-8][name] for name in others
        }

    def test_the_schedule_scales_both_rates(self):
        chosen = config(*RESNET, "optimizer.backbone_lr=1e-5", "schedule.name=cosine")
        data = build.data(chosen)
        training = build.training(chosen, build.method(chosen, data), data, torch.device("cpu"))
        player = training.players["main"]
        share = player.rate(0.5)
        assert player.set_rate(0.5) == pytest.approx(player.lr * share)
        rates = {bool(g.get("backbone")): g["lr"] for g in player.optimizer.param_groups}
        assert rates == pytest.approx({False: player.lr * share, True: 1e-5 * share})

    def test_a_rate_for_a_player_without_encoder(self):
        chosen = config(*RESNET, "players.probe.backbone_lr=1e-5", method="eps-supinfonce+fairkl")
        data = build.data(chosen)
        method = build.method(chosen, data)
        with pytest.raises(Unsuited, match="this player moves no encoder"):
            build.training(chosen, method, data, torch.device("cpu"))


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A tiny ResNet and a DINOv2-like transformer, saved as transformers saves them."""
    hf = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("hub")
    configs = {
        "resnet": hf.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1]),
        "dinov2": hf.Dinov2Config(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=4
        ),
    }
    torch.manual_seed(0)
    for name, chosen in configs.items():
        hf.AutoModel.from_config(chosen).save_pretrained(root / name)
    return root


@pytest.fixture
def images(tmp_path):
    """An image folder with two classes, and noise that differs in brightness."""
    from PIL import Image

    random = np.random.default_rng(0)
    for split, number in (("train", 12), ("test", 6)):
        for label, low in (("dark", 0), ("light", 120)):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for i in range(number):
                pixels = random.integers(low, low + 120, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "images"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "dinov2"])
@pytest.mark.parametrize("own_images", [False, True])
def test_a_run_with_a_model_of_transformers_outlives_its_folder(
    name, own_images, hub, images, tmp_path
):
    from typer.testing import CliRunner

    folder = tmp_path / "model"
    shutil.copytree(hub / name, folder)
    facts = {"do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.3, 0.3, 0.3]}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    out = tmp_path / "run"
    changes = [change for change in SMALL if not (own_images and change.startswith("data."))]
    if own_images:
        changes += ["data.image_size=16", "train.batch_size=8"]
    options = [word for change in changes for word in ("--set", change)]
    dataset = str(images) if own_images else "planted"
    words = ["train", "--dataset", dataset, "--method", "ce", "--network", f"hf:{folder}"]
    done = CliRunner().invoke(app, [*words, "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    differs = any("is normalized with" in text for text in result_of(out)["warnings"])
    # Own images follow the network; other datasets keep their numbers, and say so.
    assert differs != own_images
    shutil.move(folder, tmp_path / "moved")
    model = fm.load(out)
    if own_images:
        assert model.preprocessing.mean == (0.5, 0.4, 0.3)
    found = model.predict([np.full((20, 20, 3), 200, np.uint8)])
    assert found.labels[0] in model.class_names
    trained = load_file(out / "weights.safetensors")
    assert all(torch.equal(trained[key], value) for key, value in model.method.state_dict().items())
    pytest.importorskip("onnxruntime")
    difference = export_onnx(out, tmp_path / "model.onnx")
    assert difference.probabilities < 1e-4
    evaluated = CliRunner().invoke(app, ["evaluate", str(out)])
    assert evaluated.exit_code == 0, evaluated.output
    (out / "result.json").unlink()
    resumed = CliRunner().invoke(app, ["train", "--resume", str(out)])
    assert resumed.exit_code == 0, resumed.output
    (out / "network.json").unlink()
    with pytest.raises(OSError, match=r"no network\.json that describes hf:"):
        fm.load(out)


@pytest.mark.parametrize(
    ("network", "change", "says"),
    [
        ("simple-conv-3", "network.in_channels=4096", "is 4096 and the data have 3; leave it out"),
        ("mlp", "network.in_features=7", "is 7 and the data have 192; leave it out"),
    ],
)
def test_inputs_that_the_data_do_not_have_are_refused(network, change, says):
    small = ["data.train=48", "data.test=16", "data.side=8", change]
    chosen = configuration.load(
        None, dataset="planted", network=network, method="ce", overrides=small
    )
    with pytest.raises(ValueError, match=says):
        build.method(chosen, build.data(chosen))
