import errno
import os

import pytest
import torch
from torch import nn

from fairmargin.runtime.files import CheckpointError, DamagedCheckpoint, load_weights, save_weights


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestWeights:
    def test_values_dtypes_and_metadata(self, tmp_path):
        base = torch.randn(4, 6)
        weights = {
            "a": base,
            "shared": base,
            "view": base[1:3],
            "transposed": base.T,
            "image": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
            "half": torch.randn(3).half(),
            "brain": torch.randn(3).bfloat16(),
            "count": torch.tensor(7),
            "flag": torch.tensor([True]),
            "parameter": nn.Parameter(torch.ones(2)),
            "none": torch.empty(0),
        }
        path = save_weights(tmp_path / "deep" / "weights.safetensors", weights, {"method": "ε"})
        back, metadata = load_weights(path)
        assert metadata == {"method": "ε"}
        assert back.keys() == weights.keys()
        for name, tensor in weights.items():
            assert back[name].dtype == tensor.dtype
            assert torch.equal(back[name], tensor.detach())
        assert names(path.parent) == ["weights.safetensors"]
        assert torch.equal(base, weights["a"])

    def test_a_network_with_tied_weights(self, tmp_path):
        network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        network[1].weight = network[0].weight
        back, metadata = load_weights(
            save_weights(tmp_path / "w.safetensors", network.state_dict())
        )
        assert metadata == {}
        network.load_state_dict(back)

    def test_damage_and_absence(self, tmp_path):
        path = save_weights(tmp_path / "w.safetensors", {"a": torch.ones(100)})
        content = path.read_bytes()
        for length in (0, 4, 20, len(content) - 1):
            path.write_bytes(content[:length])
            with pytest.raises(DamagedCheckpoint, match="not a whole safetensors file"):
                load_weights(path)
        with pytest.raises(DamagedCheckpoint, match="there is no such file"):
            load_weights(tmp_path / "other.safetensors")

    def test_failure_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = save_weights(tmp_path / "w.safetensors", {"a": torch.ones(1)})

        def full(*arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            save_weights(path, {"a": torch.zeros(1)})
        assert load_weights(path)[0]["a"] == 1
        assert names(tmp_path) == ["w.safetensors"]

    def test_only_tensors(self, tmp_path):
        with pytest.raises(TypeError, match="'extra' is int"):
            save_weights(tmp_path / "w.safetensors", {"extra": 3})
