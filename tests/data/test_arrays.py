"""The names that arrays may have; most of the reader is tested with the audit."""

import numpy as np
import pytest

from fairmargin.data.arrays import read, read_vectors

X = np.arange(12.0).reshape(6, 2) + 1
Y = np.array(["a", "b"] * 3)


def test_short_names_mean_the_same():
    short, long = read({"X": X, "y": Y}), read({"embeddings": X, "labels": Y})
    assert np.array_equal(short.embeddings, long.embeddings)
    assert short.labels.tolist() == long.labels.tolist()
    assert short.warnings == ()


def test_two_names_for_one_thing_are_refused():
    with pytest.raises(ValueError, match='both "y" and "labels"'):
        read({"X": X, "y": Y, "labels": Y})
    with pytest.raises(ValueError, match='both "embeddings" and "features"'):
        read({"X": X, "embeddings": X, "y": Y})


def test_the_split_is_text_for_each_row():
    assert read({"X": X, "y": Y, "split": np.array(["train"] * 6)}).split == ("train",) * 6
    for wrong in (np.array(["train"] * 5), np.zeros(6, int)):
        with pytest.raises(ValueError, match=r"split must be text \[6\]"):
            read({"X": X, "y": Y, "split": wrong})


def test_vectors_alone_need_no_labels(tmp_path):
    np.savez(tmp_path / "x.npz", X=X)
    assert read_vectors(tmp_path / "x.npz").shape == (6, 2)
    np.savez(tmp_path / "y.npz", y=Y)
    with pytest.raises(ValueError, match="needs one array"):
        read_vectors(tmp_path / "y.npz")


@pytest.mark.parametrize("key", ["X", "y", "bias", "split", "logits", "predicted"])
@pytest.mark.parametrize("kind", ["M8[D]", "m8[s]", "c8", [("a", "i4")], "V4"])
def test_what_is_neither_number_nor_text_is_refused(key, kind):
    given = {"X": X, "y": Y} | {key: np.zeros(6, kind)}
    with pytest.raises(ValueError, match="give numbers, or text as dtype=str"):
        read(given)
