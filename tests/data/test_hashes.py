import hashlib

import numpy as np
import pytest
import torch

from fairmargin.data import hashes
from fairmargin.data.hashes import data_hash
from fairmargin.data.split import ArraySplit, FileSplit


class TestDataHash:
    def split(self, **changed):
        generator = torch.Generator().manual_seed(0)
        parts = {
            "pixels": torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8, generator=generator),
            "labels": torch.tensor([0, 1, 0, 1, 2]),
            "bias": torch.tensor([0, 0, 1, 1, -1]),
        }
        return ArraySplit(**{**parts, **changed})

    def test_by_hand(self):
        split = self.split()
        digest = hashlib.sha256()
        digest.update(b"labels 5\n" + np.array([0, 1, 0, 1, 2], "<i8").tobytes())
        digest.update(b"bias 5\n" + np.array([0, 0, 1, 1, -1], "<i8").tobytes())
        digest.update(b"[3, 4, 4]\n" + bytes(split.pixels.flatten().tolist()))
        assert data_hash(split) == digest.hexdigest()

    def test_depends_on_everything_and_on_nothing_else(self, monkeypatch):
        base = data_hash(self.split())
        assert data_hash(self.split()) == base
        pixels = self.split().pixels.clone()
        assert (
            data_hash(self.split(pixels=pixels.contiguous(memory_format=torch.channels_last)))
            == base
        )
        pixels[4, 2, 3, 3] ^= 1
        others = [
            self.split(pixels=pixels),
            self.split(labels=torch.tensor([0, 1, 0, 1, 1])),
            self.split(bias=torch.tensor([0, 0, 1, 1, 1])),
            self.split(bias=None),
            self.split().subset(torch.tensor([1, 0, 2, 3, 4])),
            self.split().subset(torch.tensor([], dtype=torch.long)),
        ]
        assert len({base, *map(data_hash, others)}) == 1 + len(others)

    def test_streamed_in_parts(self, monkeypatch):
        sizes = []

        class Counted(ArraySplit):
            def images(self, index):
                sizes.append(len(index))
                return super().images(index)

        monkeypatch.setattr(hashes, "HASHED_AT_ONCE", 2)
        data_hash(Counted(**vars(self.split())))
        assert sizes == [2, 2, 1]

    def files(self, root, content=b"xx"):
        paths = [root / "train" / name for name in ("cat/1.png", "dog/ä.png")]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return FileSplit(paths, torch.tensor([0, 1]), lambda path: pytest.fail("decoded"))

    def test_files_by_name_and_size_wherever_they_are(self, tmp_path):
        base = data_hash(self.files(tmp_path / "here"))
        assert data_hash(self.files(tmp_path / "somewhere" / "else")) == base
        assert data_hash(self.files(tmp_path / "larger", b"xxx")) != base
        swapped = self.files(tmp_path / "here")
        assert data_hash(FileSplit(swapped.paths[::-1], swapped.labels, swapped.decode)) != base
        assert data_hash(FileSplit([], torch.tensor([], dtype=torch.long), swapped.decode)) != base

    def test_relative_paths_are_the_same_files(self, tmp_path, monkeypatch):
        split = self.files(tmp_path)
        monkeypatch.chdir(tmp_path)
        relative = [path.relative_to(tmp_path) for path in split.paths]
        assert data_hash(FileSplit(relative, split.labels, split.decode)) == data_hash(split)
