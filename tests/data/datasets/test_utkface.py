import pytest
import torch
from PIL import Image

from fairmargin.bias import capture
from fairmargin.config import load
from fairmargin.data.datasets import utkface
from fairmargin.data.decode import UnreadableImage
from fairmargin.data.geometry import Geometry
from fairmargin.data.sources import MissingData
from fairmargin.data.split import FileSplit, as_evaluated
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runtime.files import load_weights

AGES = (5, 10, 11, 15, 19, 20, 40, 60)


def fill(folder, copies=5):
    """Every age of AGES, both genders, races 0 to 4; the two known shapes of file name."""
    folder.mkdir(parents=True)
    face = Image.new("RGB", (200, 200), "grey")
    face.save(folder.parent / "one.jpg")
    content = (folder.parent / "one.jpg").read_bytes()
    for i in range(copies):
        for age in AGES:
            for gender in (0, 1):
                for race in range(5):
                    end = ".jpg.chip.jpg" if race % 2 else ".jpg"
                    (folder / f"{age}_{gender}_{race}_2017{i}{end}").write_bytes(content)


@pytest.fixture
def root(tmp_path):
    fill(tmp_path / "UTKFace")
    return tmp_path


def fields(split):
    return [tuple(map(int, path.name.split("_")[:3])) for path in split.paths]


def test_race_is_white_or_not_and_gender_is_the_label(root):
    data = utkface.build(root)
    assert data.info.bias_names == ("white", "not white")
    for split in (data.train, data.valid, data.test):
        assert [(g, int(r != 0)) for _, g, r in fields(split)] == list(
            zip(split.labels.tolist(), split.bias.tolist(), strict=True)
        )


def test_age_drops_eleven_to_nineteen(root):
    data = utkface.build(root, bias="age")
    for split in (data.train, data.valid, data.test):
        assert {age for age, _, _ in fields(split)} == {5, 10, 20, 40, 60}
        assert [0 if age >= 20 else 1 for age, _, _ in fields(split)] == split.bias.tolist()


def test_eighty_ten_ten_without_overlap_and_by_seed(root):
    data = utkface.build(root, skew=0)
    assert (len(data.valid), len(data.test)) == (40, 40)  # of 400
    names = [{path.name for path in split.paths} for split in (data.train, data.valid, data.test)]
    assert len(names[0] | names[1] | names[2]) == sum(map(len, names))
    assert utkface.build(root, skew=0).test.paths == data.test.paths
    assert utkface.build(root, skew=0, seed=1).test.paths != data.test.paths


def test_only_training_is_thinned(root):
    data = utkface.build(root, skew=0.9)
    (a, b), (c, d) = data.info.counts.tolist()
    assert c == int(a * (1 - 0.9))  # women among the white, against all white men
    assert b == int(d * (1 - 0.9))
    assert len(data.valid) + len(data.test) == 80
    assert data.info.notes["train groups"] == f"{a} {b} {c} {d}"


def test_the_share_is_rounded_as_in_the_public_code():
    """1 − 0.9 is a little below 0.1, so for 100 majority samples the rule keeps 9 others."""
    labels = torch.tensor([0] * 100 + [1] * 50 + [1] * 31 + [0] * 2)
    bias = torch.tensor([0] * 150 + [1] * 33)
    kept = utkface._skewed(
        FileSplit([], labels, Geometry(8), bias), 0.9, torch.Generator().manual_seed(0)
    )
    cells = 2 * labels[kept] + bias[kept]
    assert cells.bincount().tolist() == [100, 2, 9, 31]  # int(31 · 0.1) = 3, and only 2 are there


@pytest.mark.parametrize(("size", "augment"), [(64, False), (128, True)])
def test_training_crops_come_from_the_file_and_evaluation_from_the_centre(root, size, augment):
    data = utkface.build(root, size=size, augment=augment)
    batch = data.train.images(torch.tensor([0, 1]))
    assert batch.shape == (2, 3, 200, 200)
    assert data.train_views(batch).shape == (2, 3, size, size)
    for split in (data.valid, data.test, as_evaluated(data.train)):
        assert split.images(torch.tensor([0])).shape == (1, 3, size, size)
        assert split.decode == data.test.decode


@pytest.mark.slow
def test_whatever_looks_at_training_data_sees_it_as_the_test(root, tmp_path):
    """JTT's error set, the probe and the neighbours: an MLP takes one size only."""
    changes = [
        f"data.root={root}",
        "train.epochs=2",
        "train.batch_size=64",
        "evaluate.resamples=10",
    ]
    config = load(dataset="utkface", method="jtt", network="mlp", overrides=changes)
    result = run(config, tmp_path / "run")
    assert result.result is not None
    assert set(result.result["test"]) == {"own", "probe", "knn"}
    data = build.data(config)
    captured = capture.configuration(dataset="utkface", overrides=[*changes, "train.epochs=1"])
    found = capture.make(captured, tmp_path / "scores")
    method = build.method(captured, data).eval()
    method.load_state_dict(load_weights(tmp_path / "scores/weights.safetensors")[0])
    with torch.inference_mode():
        h = method.encoder(data.eval_views(as_evaluated(data.train).images(torch.tensor([0, 5]))))
    torch.testing.assert_close(found.splits["train"].features[[0, 5]], h, rtol=1e-4, atol=1e-4)


def test_validation_from_training_is_biased_like_it_and_seen_like_the_test(root):
    data = utkface.build(root, valid="from-train")
    whole = utkface.build(root)
    assert len(data.train) + len(data.valid) == len(whole.train)
    assert data.test.paths == whole.test.paths
    assert data.valid.images(torch.tensor([0])).shape == (1, 3, 64, 64)


def test_names_without_four_fields_are_skipped_and_counted(root):
    before = utkface.build(root).info.notes["files"]
    for name in (
        "39_1_20170116174525125.jpg",
        "53__0_20170116184028385.jpg",
        "1_7_0_1.jpg",
        "a_0_0_1.jpg",
    ):
        Image.new("RGB", (4, 4)).save(root / "UTKFace" / name)
    (root / "UTKFace/readme.txt").write_text("x")
    assert before == "400 used, 0 skipped by name"
    assert utkface.build(root).info.notes["files"] == "400 used, 4 skipped by name"


@pytest.mark.parametrize("place", ["utkface/images", "images", "UTKFace/images"])
def test_folders_seen_in_the_wild(tmp_path, place):
    fill(tmp_path / place, copies=1)
    assert utkface.build(tmp_path).info.notes["files"] == "80 used, 0 skipped by name"


def test_missing_and_wrong_trees(tmp_path):
    with pytest.raises(MissingData, match="0 of the 0 images"):
        utkface.build(tmp_path)
    (tmp_path / "UTKFace").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "UTKFace/cat.jpg")
    with pytest.raises(MissingData, match=r"0 of the 1 images .*<age>_<gender>_<race>_<time>"):
        utkface.build(tmp_path)


def test_wrong_settings_are_named(root):
    with pytest.raises(ValueError, match="'race', 'age'"):
        utkface.build(root, bias="hair")
    with pytest.raises(ValueError, match="64, 128, 224; got 100"):
        utkface.build(root, size=100)
    with pytest.raises(ValueError, match="skew must lie"):
        utkface.build(root, skew=90)


def test_an_unreadable_image_is_named_when_decoded(root):
    data = utkface.build(root)
    data.test.paths[3].write_bytes(b"")
    with pytest.raises(UnreadableImage, match=data.test.paths[3].name):
        data.test.images(torch.arange(5))
