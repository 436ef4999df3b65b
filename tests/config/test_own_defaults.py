"""What people's own images are trained with when nothing is said."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.config import load
from fairmargin.config.own_images import METHOD, epochs_for, kind_of
from fairmargin.runs import build


def table(folder, bias="xy", side=28, n=40, column="bias"):
    rows = [f"path,label,{column},split" if bias else "path,label,split"]
    for i in range(n):
        Image.new("RGB", (side, side + 5)).save(folder / f"{i}.png")
        of = f"{bias[i % len(bias)]}," if bias else ""
        rows.append(f"{i}.png,{'ab'[i // 2 % 2]},{of}{'train' if i % 4 else 'test'}")
    file = folder / "my.csv"
    file.write_text("\n".join(rows))
    return str(file)


@pytest.mark.parametrize(
    ("bias", "options", "how"),
    [
        ("xy", {}, "with the bias that the table names (2 values)"),
        ("x", {}, "as plain cross-entropy: the bias column has one value only"),
        ("", {}, "as plain cross-entropy: the table has no bias column"),
        ("xy", {"bias": "none"}, "as plain cross-entropy: --bias none hides"),
        ("", {"bias": "scores"}, "with the bias scores"),
        ("", {"bias": "clusters"}, "with the bias labels of --bias clusters"),
    ],
)
def test_it_is_said_what_the_default_makes_of_the_bias(tmp_path, bias, options, how):
    chosen = load(dataset=table(tmp_path, bias), **options)
    assert chosen.method.name == METHOD == "fairmargin"
    assert chosen.notes[0].startswith(f"method: fairmargin, {how}")


def test_a_method_that_was_named_is_not_explained(tmp_path):
    chosen = load(dataset=table(tmp_path), method="ce")
    assert chosen.method.name == "ce"
    assert not [note for note in chosen.notes if note.startswith("method")]
    assert "30 training images of about 28 pixels" in chosen.notes[0]


def test_columns_of_another_name_count(tmp_path):
    file = table(tmp_path, column="camera")
    assert "no bias column" in load(dataset=file).notes[0]
    named = load(dataset=file, overrides=["data.bias_columns=camera"])
    assert "that the table names (2 values)" in named.notes[0]


@pytest.mark.parametrize(
    ("side", "kind", "network", "size"),
    [(28, "tiny", "resnet20", 28), (64, "small", "resnet18", 64), (200, "photographs", None, 96)],
)
def test_network_and_size_follow_the_images(tmp_path, side, kind, network, size):
    chosen = load(dataset=table(tmp_path, side=side))
    assert kind_of(side) == kind
    assert chosen.network.name == (network or "resnet18")
    assert chosen.data.options.get("image_size", 64) == size
    assert f'preset "folder-{kind}"' in chosen.notes[1]


def test_the_user_decides(tmp_path):
    changes = ["data.image_size=48", "train.epochs=3", "network.name=simple-conv-3"]
    chosen = load(dataset=table(tmp_path), overrides=changes)
    assert chosen.data.options["image_size"] == 48
    assert chosen.network.name == "simple-conv-3"
    assert chosen.network.options == {}
    assert chosen.train.epochs == 3


def test_fairkl_is_in_its_recommended_form_with_balanced_batches(tmp_path):
    chosen = load(dataset=table(tmp_path), method="eps-supinfonce+fairkl")
    assert chosen.method.options["divergence"] == "moments"
    assert chosen.method.options["negatives"] is True
    assert chosen.data.sampler == "group-balanced"
    without = load(dataset=table(tmp_path), method="eps-supinfonce+fairkl", bias="scores")
    assert without.data.sampler == "auto"


def test_epochs_follow_the_number_of_images():
    assert [epochs_for(n) for n in (100, 1000, 2000, 4000, 10**6)] == [60, 60, 30, 15, 8]


def test_a_table_that_cannot_be_read_leaves_the_error_to_the_dataset(tmp_path):
    file = tmp_path / "my.csv"
    file.write_text("file,class\na.png,x\n")
    assert "no bias column" in load(dataset=str(file)).notes[0]


def test_an_audit_looks_at_images_as_ever(tmp_path):
    from fairmargin.config.loading import load as load_with

    chosen = load_with(dataset=table(tmp_path), first_look=False)
    assert chosen.data.options == {}
    assert chosen.notes == ()


def without_split(file, name=None):
    """The same table with the column `split` under another name, or left out."""
    path = Path(file)
    rows = path.read_text().splitlines()
    if name is None:
        rows = [row.rpartition(",")[0] for row in rows]
    else:
        rows[0] = rows[0].rpartition(",")[0] + f",{name}"
    path.write_text("\n".join(rows))
    return file


def test_where_no_image_is_for_the_test_a_fifth_is_held_out_and_it_is_said(tmp_path):
    file = without_split(table(tmp_path))
    chosen = load(dataset=file)
    assert chosen.data.options["test_fraction"] == 0.2
    assert "no image is marked for it, so 20% of every class" in chosen.notes[-1]
    sizes = [len(split) for split in splits_of(chosen)]
    assert sum(sizes) == 40
    # A fifth of each of the four pairs of class and bias.
    assert sizes[2] == 8
    # The same ones in every run.
    held_out = [split.labels.tolist() for split in splits_of(load(dataset=file, seed=3))][2]
    assert held_out == splits_of(chosen)[2].labels.tolist()


def test_marked_test_images_stay_the_only_ones(tmp_path):
    chosen = load(dataset=table(tmp_path))
    assert "test_fraction" not in chosen.data.options
    assert not [note for note in chosen.notes if note.startswith("test")]
    assert len(splits_of(chosen)[2]) == 10


def test_who_says_where_test_images_come_from_is_obeyed(tmp_path):
    file = without_split(table(tmp_path))
    chosen = load(dataset=file, overrides=["data.test_fraction=0.5"])
    assert len(splits_of(chosen)[2]) == 20
    assert not [note for note in chosen.notes if note.startswith("test")]
    none = load(dataset=file, overrides=["data.test_needed=false"])
    assert len(splits_of(none)[2]) == 0


def test_a_column_that_seems_to_mark_test_images_is_named_and_not_ignored(tmp_path):
    file = without_split(table(tmp_path), "fold")
    chosen = load(dataset=file)
    assert "test_fraction" not in chosen.data.options
    with pytest.raises(ValueError, match=r'column "fold".*--set data\.split_column=fold'):
        splits_of(chosen)
    named = load(dataset=file, overrides=["data.split_column=fold"])
    assert len(splits_of(named)[2]) == 10


def test_a_folder_for_each_class_is_enough(tmp_path):
    for i in range(20):
        place = tmp_path / "photos" / "ab"[i % 2] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (10 * i, 0, 0)).save(place)
    chosen = load(dataset=str(tmp_path / "photos"))
    assert len(splits_of(chosen)[2]) == 4


@pytest.mark.parametrize("words", [None, ["train", "test"], [b"Train", b"TEST"], ["train", "val"]])
def test_vectors_without_a_test_are_held_out_too(tmp_path, words):
    file = tmp_path / "vectors.npz"
    arrays = {"embeddings": np.random.default_rng(0).normal(size=(40, 3)), "labels": [0, 1] * 20}
    if words is not None:
        arrays["split"] = np.repeat(words, 20)
    np.savez(file, **arrays)
    marked = words is not None and words[1] in ("test", b"TEST")
    chosen = load(dataset=str(file))
    assert chosen.data.options.get("test_fraction") == (None if marked else 0.2)
    assert any("no vector is marked" in note for note in chosen.notes) is not marked
    assert len(splits_of(chosen)[2]) == (20 if marked else 4 if words else 8)


def splits_of(config):
    data = build.data(config)
    return data.train, data.valid, data.test


def test_a_picture_of_the_data_shows_what_training_would_hold_out(tmp_path):
    file = without_split(table(tmp_path))
    result = CliRunner().invoke(app, ["data", "show", file, "--out", str(tmp_path / "a.png")])
    assert result.exit_code == 0, result.output
    assert "no image is marked for it, so 20% of every class" in result.output
    assert ", 8 test" in result.output
    told = ["data", "show", file, "--test-fraction", "0.5", "--out", str(tmp_path / "b.png")]
    assert "20 test" in CliRunner().invoke(app, told).output
