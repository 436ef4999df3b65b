"""Write the features that a test wants as a score file, without training a model."""

import torch

from fairmargin.bias import score_file
from fairmargin.bias.score_file import FILE, Answers
from fairmargin.data.hashes import data_hash


def write_scores(folder, data, features_of, *, seed=0, **facts):
    """`features_of` gives [N, G] of a split."""
    splits = {"train": data.train, "valid": data.valid, "test": data.test}
    said = {
        name: Answers(
            features_of(split), torch.zeros(len(split), data.info.num_classes), split.labels
        )
        for name, split in splits.items()
    }
    hashes = {name: data_hash(split) for name, split in splits.items()}
    about = {"dataset": data.info.name, "seed": seed, "hashes": hashes, **facts}
    return score_file.write(folder / FILE, said, about)
