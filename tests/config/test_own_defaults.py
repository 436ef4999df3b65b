"""What people's own images are trained with when nothing is said."""

import pytest
from PIL import Image

from fairmargin.config import load
from fairmargin.config.own_images import METHOD, epochs_for, kind_of


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
