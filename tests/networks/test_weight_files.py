"""Files of weights: what fits is loaded whole, what does not is said in one message."""

import pickle

import pytest
import torch
from safetensors.torch import save_file

from fairmargin.networks import BasicBlock, ResNet
from fairmargin.networks.weight_files import load_file, read_weights
from fairmargin.runtime.whole import digest


def small(**options):
    return ResNet(BasicBlock, (1, 1), widths=(4, 8), **options)


def saved(tensors, file):
    if file.suffix == ".safetensors":
        save_file(tensors, file)
    else:
        torch.save(tensors, file)
    return file


def same(a, b):
    return all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
@pytest.mark.parametrize(
    "prefix", ["", "module.", "encoder.", "backbone.", "module.encoder.", "anything.else."]
)
def test_prefixes_are_recognised_and_classifiers_dropped(tmp_path, suffix, prefix):
    source, target = small(), small()
    tensors = {prefix + name: value for name, value in source.state_dict().items()}
    tensors |= {f"{prefix}fc.weight": torch.ones(3, 8), f"{prefix}fc.bias": torch.ones(3)}
    file = read_weights(saved(tensors, tmp_path / f"weights{suffix}"))
    assert load_file(target, file, "small") == []
    assert same(source.state_dict(), target.state_dict())
    assert file.sha256 == digest(file.path)
    assert len(file.sha256) == 64


@pytest.mark.parametrize("container", ["state_dict", "model"])
def test_what_training_scripts_save(tmp_path, container):
    source, target = small(), small()
    content = {container: source.state_dict(), "epoch": 3}
    load_file(target, read_weights(saved(content, tmp_path / "checkpoint.pth")), "small")
    assert same(source.state_dict(), target.state_dict())


def test_old_files_have_no_counters(tmp_path):
    source, target = small(), small()
    tensors = {k: v for k, v in source.state_dict().items() if "num_batches" not in k}
    assert load_file(target, read_weights(saved(tensors, tmp_path / "old.pth")), "small") == []
    assert same(tensors, target.state_dict())


def test_of_two_encoders_the_one_called_encoder_is_taken(tmp_path):
    source, other, target = small(), small(), small()
    tensors = {f"bias_encoder.{k}": v for k, v in other.state_dict().items()}
    tensors |= {f"encoder.{k}": v for k, v in source.state_dict().items()}
    left_over = load_file(target, read_weights(saved(tensors, tmp_path / "w.pt")), "small")
    assert same(source.state_dict(), target.state_dict())
    assert all(name.startswith("bias_encoder.") for name in left_over)
    assert len(left_over) == len(other.state_dict())


def test_everything_that_is_wrong_is_in_one_message(tmp_path):
    target = small()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    tensors = dict(small().state_dict())
    del tensors["layer1.0.conv1.weight"]
    tensors["conv1.weight"] = torch.ones(4, 3, 3, 3)
    tensors["stranger.weight"] = torch.ones(2)
    file = read_weights(saved(tensors, tmp_path / "w.safetensors"))
    with pytest.raises(ValueError, match="does not fit resnet-small") as error:
        load_file(target, file, "resnet-small")
    said = str(error.value)
    assert "missing: layer1.0.conv1.weight" in said
    assert "conv1.weight [4, 3, 3, 3], not [4, 3, 7, 7]" in said
    assert "left over: stranger.weight" in said
    assert same(before, target.state_dict())


def test_files_that_are_no_weights(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read_weights(tmp_path / "missing.pth")
    (tmp_path / "weights.h5").write_bytes(b"")
    with pytest.raises(ValueError, match=r"must be \.safetensors"):
        read_weights(tmp_path / "weights.h5")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        read_weights(tmp_path / "broken.safetensors")
    with pytest.raises(ValueError, match="holds no state dict"):
        read_weights(saved({"epoch": 3}, tmp_path / "empty.pth"))


class Harmful:
    def __reduce__(self):
        return print, ("code of the file was run",)


@pytest.mark.parametrize("plain", [True, False])
def test_no_code_of_a_file_is_run(tmp_path, capsys, plain):
    file = tmp_path / "harmful.pth"
    if plain:
        file.write_bytes(pickle.dumps({"w": Harmful()}))
    else:
        torch.save({"w": Harmful()}, file)
    with pytest.raises(ValueError, match="cannot be read without running code"):
        read_weights(file)
    assert "was run" not in capsys.readouterr().out
