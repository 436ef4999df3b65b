"""Networks of other libraries as encoders: features, options, origins and errors."""

import json
import sys
import types

import pytest
import torch
from torch import nn

from fairmargin.networks import BACKBONES, Encoder, build_encoder
from fairmargin.networks.pretrained import Origin, build_backbone, describe, split_name


class TinyNet(nn.Module):
    """What the fakes of timm and torchvision build."""

    def __init__(self, classes, least=8):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, least, stride=least)
        self.fc = nn.Linear(6, classes) if classes else nn.Identity()
        self.pretrained_cfg = {
            "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5), "input_size": (3, 32, 32),
        }  # fmt: skip

    def forward(self, images):
        return self.fc(self.conv(images).mean((2, 3)))


@pytest.fixture
def timm(monkeypatch):
    fake = types.ModuleType("timm")
    fake.asked = []

    def create_model(name, *, pretrained, num_classes):
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        fake.asked.append(pretrained)
        model = TinyNet(num_classes)
        if pretrained:
            nn.init.constant_(model.conv.weight, 0.25)
        return model

    fake.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", fake)
    return fake


@pytest.fixture
def torchvision(monkeypatch):
    package, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")

    def get_model(name, *, weights):
        model = TinyNet(1000)
        if weights == "DEFAULT":
            nn.init.constant_(model.conv.weight, 0.25)
        if name == "no_classifier":
            model.fc = nn.Identity()
        return model

    def get_model_weights(name):
        if name == "strange":
            raise ValueError("Unknown model strange")
        prepared = types.SimpleNamespace(mean=[0.4, 0.4, 0.4], std=[0.2, 0.2, 0.2], crop_size=[32])
        default = types.SimpleNamespace(transforms=lambda: prepared)
        return types.SimpleNamespace(DEFAULT=default)

    models.get_model, models.get_model_weights = get_model, get_model_weights
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return models


def test_timm(timm):
    encoder = build_encoder("timm:tiny", image_shape=(3, 16, 16))
    assert isinstance(encoder, Encoder)
    assert (encoder.dim, encoder(torch.zeros(5, 3, 16, 16)).shape) == (6, (5, 6))
    assert torch.all(encoder.model.conv.weight == 0.25)
    origin = describe("timm:tiny")
    assert (origin.mean, origin.std, origin.side) == ((0.1, 0.2, 0.3), (0.5, 0.5, 0.5), 32)
    timm.asked.clear()
    build_backbone("timm:tiny", origin=origin, image_shape=(3, 16, 16), pretrained=False)
    assert timm.asked == [False]
    with pytest.raises(ValueError, match=r"timm:huge cannot be built: Unknown model \(huge\)"):
        build_encoder("timm:huge")


def test_torchvision(torchvision):
    encoder = build_encoder("torchvision:tiny", image_shape=(3, 16, 16))
    assert (encoder.dim, encoder(torch.zeros(5, 3, 16, 16)).shape) == (6, (5, 6))
    assert isinstance(encoder.model.fc, nn.Identity)
    assert torch.all(encoder.model.conv.weight == 0.25)
    origin = describe("torchvision:tiny")
    assert (origin.mean, origin.side) == ((0.4, 0.4, 0.4), 32)
    with pytest.raises(ValueError, match="Unknown model strange"):
        describe("torchvision:strange")
    with pytest.raises(ValueError, match="no linear classifier"):
        build_encoder("torchvision:no_classifier")


def test_images_that_are_too_small_and_activations_it_has_not(timm):
    with pytest.raises(
        ValueError, match=r"timm:tiny cannot take images of 3×4×4 .*made for 32×32.*image_size=32"
    ):
        build_encoder("timm:tiny", image_shape=(3, 4, 4))
    with pytest.raises(ValueError, match="keeps its own last activation"):
        build_encoder("timm:tiny", last_activation="tanh")


def test_a_network_that_draws_random_numbers_is_refused(timm):
    class Masked(TinyNet):
        def forward(self, images):
            return super().forward(images * (torch.rand(1) < 2) + torch.rand(1))

    timm.create_model = lambda name, *, pretrained, num_classes: Masked(num_classes)
    with pytest.raises(ValueError, match="different features for the same images"):
        build_encoder("timm:tiny")


@pytest.mark.parametrize("library", BACKBONES)
def test_a_missing_package_names_what_to_install(library, monkeypatch):
    wanted = {"hf": "transformers", "timm": "timm", "torchvision": "torchvision.models"}[library]
    monkeypatch.setitem(sys.modules, wanted, None)
    install = {"hf": r'"fairmargin\[hf\]"', "timm": "timm", "torchvision": "torchvision"}[library]
    with pytest.raises(ValueError, match=rf"{library}:any needs .*pip install {install}$"):
        describe(f"{library}:any")


def test_names():
    assert split_name("hf:some/model") == ("hf", "some/model")
    with pytest.raises(ValueError, match="did you mean 'timm'"):
        split_name("tim:resnet18")
    with pytest.raises(ValueError, match="needs the name of a network after hf:"):
        split_name("hf:")


def test_an_origin_survives_json():
    origin = Origin({"name": "x"}, (0.1, 0.2, 0.3), (1.0, 1.0, 1.0), 32, {"a": "b"})
    assert Origin.from_dict(json.loads(json.dumps(origin.as_dict()))) == origin
    bare = Origin({"name": "x"})
    assert Origin.from_dict(json.loads(json.dumps(bare.as_dict()))) == bare


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    hf = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("hub")
    vit = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "image_size": 16, "patch_size": 4,
    }  # fmt: skip
    configs = {
        "resnet": hf.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1]),
        "convnext": hf.ConvNextConfig(hidden_sizes=[4, 8], depths=[1, 1], num_stages=2),
        "vit": hf.ViTConfig(**vit),
        "dinov2": hf.Dinov2Config(**vit),
    }
    torch.manual_seed(0)
    for name, config in configs.items():
        hf.AutoModel.from_config(config).save_pretrained(root / name)
    hf.ViTForImageClassification(hf.ViTConfig(**vit)).save_pretrained(root / "classifier")
    return root


class TestHub:
    """Tiny models of transformers, built here from configurations."""

    @pytest.mark.parametrize(
        ("name", "dim"), [("resnet", 8), ("convnext", 8), ("vit", 16), ("dinov2", 16)]
    )
    def test_features_are_those_of_the_family(self, models, name, dim):
        import transformers

        encoder = build_encoder(f"hf:{models / name}", image_shape=(3, 16, 16)).eval()
        images = torch.randn(3, 3, 16, 16)
        with torch.no_grad():
            h = encoder(images)
            found = transformers.AutoModel.from_pretrained(models / name).eval()(images)
        wanted = found.last_hidden_state[:, 0] if name == "vit" else found.pooler_output.flatten(1)
        assert (encoder.dim, h.shape) == (dim, (3, dim))
        assert torch.allclose(h, wanted, atol=1e-6)

    def test_pooling_can_be_chosen(self, models):
        images = torch.randn(2, 3, 16, 16)
        found = {}
        for pooling in ("pooler", "cls", "mean"):
            encoder = build_encoder(
                f"hf:{models / 'vit'}", image_shape=(3, 16, 16), pooling=pooling
            )
            found[pooling] = encoder.eval()(images)
            assert ("model.pooler.dense.weight" in encoder.state_dict()) == (pooling == "pooler")
        assert not torch.allclose(found["cls"], found["mean"])
        assert not torch.allclose(found["cls"], found["pooler"])
        with pytest.raises(ValueError, match="no class token"):
            build_encoder(f"hf:{models / 'resnet'}", pooling="cls")

    def test_a_classifier_of_the_same_family_gives_its_backbone(self, models):
        encoder = build_encoder(f"hf:{models / 'classifier'}", image_shape=(3, 16, 16))
        assert sorted(encoder.left_over) == ["classifier.bias", "classifier.weight"]

    def test_other_sizes(self, models):
        encoder = build_encoder(f"hf:{models / 'vit'}", image_shape=(3, 24, 24))
        assert encoder(torch.zeros(2, 3, 24, 24)).shape == (2, 16)

    def test_rebuilt_from_its_origin_alone(self, models, tmp_path):
        encoder = build_encoder(f"hf:{models / 'dinov2'}", image_shape=(3, 16, 16)).eval()
        origin = json.loads(json.dumps(describe(f"hf:{models / 'dinov2'}").as_dict()))
        again = build_backbone(
            "hf:/moved/away", origin=Origin.from_dict(origin), image_shape=(3, 16, 16),
            pretrained=False,
        ).eval()  # fmt: skip
        images = torch.randn(2, 3, 16, 16)
        assert not torch.equal(again(images), encoder(images))
        again.load_state_dict(encoder.state_dict())
        assert torch.equal(again(images), encoder(images))

    def test_normalization_and_digests(self, models, tmp_path):
        import shutil

        folder = shutil.copytree(models / "resnet", tmp_path / "resnet")
        assert describe(f"hf:{folder}").mean is None
        facts = {"do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.2, 0.3]}
        (folder / "preprocessor_config.json").write_text(json.dumps(facts))
        origin = describe(f"hf:{folder}")
        assert (origin.mean, origin.std) == ((0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
        assert list(origin.sha256) == ["model.safetensors"]
        assert str(tmp_path) not in json.dumps(origin.as_dict())

    def test_folders_that_are_no_models(self, models, tmp_path):
        pytest.importorskip("transformers")
        with pytest.raises(ValueError, match=r"has no config\.json"):
            describe(f"hf:{tmp_path}")
        with pytest.raises(ValueError, match="there is no folder"):
            describe(f"hf:{tmp_path / 'nowhere'}")
        own_code = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
        (tmp_path / "config.json").write_text(json.dumps(own_code))
        (tmp_path / "mine.py").write_text("raise SystemExit('code of the folder was run')")
        with pytest.raises(ValueError, match="cannot be read"):
            describe(f"hf:{tmp_path}")

    def test_weights_that_lack_tensors(self, models, tmp_path):
        import shutil

        from safetensors.torch import load_file, save_file

        folder = shutil.copytree(models / "dinov2", tmp_path / "dinov2")
        tensors = load_file(folder / "model.safetensors")
        del tensors["layernorm.weight"]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=r"lack layernorm\.weight"):
            build_encoder(f"hf:{folder}", image_shape=(3, 16, 16))
