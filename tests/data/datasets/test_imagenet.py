"""ImageNet-style folders, texture clusters and the accuracy over them, on generated trees."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from fairmargin.data.datasets import imagenet
from fairmargin.data.decode import UnreadableImage
from fairmargin.data.sources import MissingData
from fairmargin.data.split import as_evaluated

DOGS, FROGS, CRABS = imagenet.NINE["dog"], imagenet.NINE["frog"], imagenet.NINE["crab"]
HEADER = "path,category,cluster1,cluster2,cluster3"


def fill(folder, wnid, names, size=(12, 9)):
    (folder / wnid).mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", size, "green").save(folder / wnid / name)


@pytest.fixture
def root(tmp_path):
    """Five of the 42 wnids and a foreign one: 10 training and 2 validation images each."""
    for wnid in (*DOGS[:2], FROGS[0], *CRABS[:2], "n09999999"):
        fill(tmp_path / "imagenet/train", wnid, [f"{wnid}_{i}.JPEG" for i in range(10)])
        fill(tmp_path / "imagenet/val", wnid, [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(2)])
    return tmp_path


def test_the_nine_classes_of_rebias():
    assert tuple(imagenet.NINE) == (
        "dog",
        "cat",
        "frog",
        "turtle",
        "bird",
        "monkey",
        "fish",
        "crab",
        "insect",
    )
    wnids = [wnid for group in imagenet.NINE.values() for wnid in group]
    assert len(wnids) == len(set(wnids)) == 42
    assert {name: 50 * len(group) for name, group in imagenet.NINE.items()} == {
        **dict.fromkeys(("dog", "cat", "turtle", "bird", "monkey", "fish", "insect"), 250),
        "crab": 200,
        "frog": 150,
    }
    assert 50 * len(wnids) == imagenet.CSV_ROWS


def test_the_hundred_classes_are_sorted_and_unique():
    assert len(imagenet.HUNDRED) == 100
    assert list(imagenet.HUNDRED) == sorted(set(imagenet.HUNDRED))
    every = [*imagenet.HUNDRED, *(wnid for group in imagenet.NINE.values() for wnid in group)]
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdecimal() for wnid in every)


def test_any_folder_ranks_its_classes(root):
    data = imagenet.build(root)
    assert list(data.info.class_names) == sorted((*DOGS[:2], FROGS[0], *CRABS[:2], "n09999999"))
    assert (len(data.train), len(data.valid), len(data.test)) == (54, 6, 12)
    assert data.valid.labels.tolist() == list(range(6))  # one of each class
    assert [data.info.class_names[y] for y in data.test.labels] == [
        path.parent.name for path in data.test.paths
    ]
    assert data.train.bias is None
    assert data.info.counts.shape == (6, 0)
    assert imagenet.build(root / "imagenet").test.paths == data.test.paths


def test_nine_classes_from_a_partial_copy(root):
    data = imagenet.build_9(root, valid_fraction=0)
    assert data.info.num_classes == 9
    assert data.train.labels.bincount(minlength=9).tolist() == [20, 0, 10, 0, 0, 0, 0, 20, 0]
    assert data.info.notes["test"] == "10 images of 5 of 42 wnids"
    assert data.train.paths == sorted(data.train.paths)  # the order of stored bias features


def test_a_hundred_classes_by_rank_in_the_full_list(root):
    data = imagenet.build_100(root, valid_fraction=0)
    present = {imagenet.HUNDRED[y] for y in data.train.labels.tolist()}
    assert present == {DOGS[0], CRABS[1]}  # of the tree's wnids, those in the list
    assert data.info.num_classes == 100


def test_training_is_decoded_to_256_and_everything_else_as_in_evaluation(root):
    data = imagenet.build_9(root, imagenet_a=root / "imagenet/val")
    one = torch.tensor([0])
    assert data.train.images(one).shape == (1, 3, 256, 256)
    assert data.train_views(data.train.images(one)).shape == (1, 3, 224, 224)
    for split in (as_evaluated(data.train), data.valid, data.test, data.extra_tests["imagenet-a"]):
        assert data.eval_views(split.images(one)).shape == (1, 3, 224, 224)


@pytest.mark.parametrize(
    ("views", "shape"),
    [
        ("crop-flip", (1, 3, 56, 56)),
        ("resized-crop-flip", (1, 3, 56, 56)),
        ("supcon", (1, 2, 3, 56, 56)),
    ],
)
def test_views_and_size(root, views, shape):
    data = imagenet.build_100(root, views=views, size=56)
    assert data.train_views(data.train.images(torch.tensor([0]))).shape == shape
    assert data.info.image_shape == (3, 56, 56)


def test_imagenet_a_keeps_the_nine_classes(root, tmp_path):
    fill(tmp_path / "a", FROGS[0], ["0.1_frog.jpg", "0.2_frog.jpg"])
    fill(tmp_path / "a", "n01498041", ["ray.jpg"])
    data = imagenet.build_9(root, imagenet_a=tmp_path / "a")
    assert data.extra_tests["imagenet-a"].labels.tolist() == [2, 2]
    assert data.info.notes["imagenet-a"] == "2 images of 1 of 42 wnids"
    assert imagenet.build_9(root).extra_tests == {}


@pytest.mark.parametrize("inside", ["", "train"])
@pytest.mark.parametrize("ending", ["", "-stylized-monet"])
def test_stylised_copies_join_training_but_not_those_of_validation_images(
    root, tmp_path, inside, ending
):
    for wnid in (DOGS[0], "n01498041"):
        fill(tmp_path / "sin" / inside, wnid, [f"{wnid}_{i}{ending}.JPEG" for i in range(10)])
    before = imagenet.build_9(root)
    data = imagenet.build_9(root, stylized=tmp_path / "sin")
    held_out = sum(path.parent.name == DOGS[0] for path in data.valid.paths)
    assert held_out > 0
    added = data.train.paths[len(before.train) :]
    assert data.train.paths[: len(before.train)] == before.train.paths
    assert len(added) == 10 - held_out
    assert {path.stem.split("-")[0] for path in added}.isdisjoint(
        path.stem for path in data.valid.paths
    )
    assert data.train.labels[len(before.train) :].tolist() == [0] * len(added)


def test_missing_trees_say_where_was_looked(tmp_path):
    with pytest.raises(
        MissingData, match=r"imagenet9.*imagenet; expected train/<wnid>/\* and val/<wnid>/\*"
    ):
        imagenet.build_9(tmp_path)


def test_flat_validation_images_are_recognised(root):
    fill(root / "imagenet", "other", ["ILSVRC2012_val_00000001.JPEG"])
    (root / "imagenet/val").rename(root / "imagenet/unused")
    (root / "imagenet/other").rename(root / "imagenet/val")
    with pytest.raises(MissingData, match="its images are in no class folders: sort them"):
        imagenet.build_9(root)


def test_a_tree_without_wanted_classes_is_an_error(tmp_path):
    fill(tmp_path / "train", "n09999999", ["a.JPEG"])
    fill(tmp_path / "val", "n09999999", ["a.JPEG"])
    with pytest.raises(MissingData, match="no images of the 100 wanted classes"):
        imagenet.build_100(tmp_path)


def test_other_files_are_ignored_and_unreadable_images_named(root):
    folder = root / "imagenet/val" / DOGS[0]
    (folder / "list.txt").write_text("x")
    (folder / "ILSVRC2012_val_00000000.JPEG").write_bytes(b"\xff\xd8\xff\xe0 broken")
    test = imagenet.build_9(root).test
    assert len(test) == 10
    index = torch.tensor([i for i, path in enumerate(test.paths) if path.parent == folder])
    with pytest.raises(UnreadableImage, match="ILSVRC2012_val_00000000"):
        test.images(index)


def test_unknown_views(root):
    with pytest.raises(ValueError, match="did you mean 'supcon'"):
        imagenet.build_9(root, views="supcom")


def test_texture_clusters_by_path(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text(f"{HEADER}\n{DOGS[0]}/a.JPEG,dog,1,2,3\n{DOGS[0]}/b.JPEG,dog,4,5,6\n")
    clusters = imagenet.texture_clusters(path, allow_partial=True)
    assert clusters == {f"{DOGS[0]}/a.JPEG": (1, 2, 3), f"{DOGS[0]}/b.JPEG": (4, 5, 6)}
    files = [Path("/anywhere/val") / DOGS[0] / name for name in ("b.JPEG", "a.JPEG")]
    assert imagenet.clusters_of(files, clusters).tolist() == [[4, 5, 6], [1, 2, 3]]
    with pytest.raises(ValueError, match=r"1 of 1 images have no texture cluster.*z\.JPEG"):
        imagenet.clusters_of([Path(f"{DOGS[0]}/z.JPEG")], clusters)


def test_a_whole_table_has_2100_rows(tmp_path):
    path = tmp_path / "c.csv"
    rows = [f"n0/{i}.JPEG,0,{i % 9},{i % 8},{i % 7}" for i in range(2100)]
    path.write_text("\n".join([HEADER, *rows]))
    assert len(imagenet.texture_clusters(path)) == 2100
    path.write_text("\n".join([HEADER, *rows[:-1]]))
    with pytest.raises(MissingData, match="2099 rows of 2099 images; expected 2100"):
        imagenet.texture_clusters(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with ''"),
        ("path,cluster1\n", "begins with 'path,cluster1'"),
        (f"{HEADER}\na,dog,1,2\n", "three numbers"),
        (f"{HEADER}\na,dog,1,2,x\n", "three numbers"),
        (f"{HEADER}\na,dog,1,2,3\na,dog,1,2,3\n", "2 rows of 1 images"),
    ],
)
def test_damaged_tables(tmp_path, text, message):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(MissingData, match=message):
        imagenet.texture_clusters(tmp_path / "c.csv", allow_partial=True)


def test_missing_table(tmp_path):
    with pytest.raises(MissingData, match="clovaai/rebias"):
        imagenet.texture_clusters(tmp_path / "c.csv")


def test_unbiased_accuracy_by_hand():
    """Cells (class, texture) of sizes 10, 10, 9 and 11. The 9 are left out.

    First clustering: 10/10 right, 5/10, 0/9, 11/11 → (1 + ½ + 1) / 3. Second: one texture for all,
    so the classes' accuracies 15/20 and 11/20. Third: as the first.
    """
    labels = torch.tensor([0] * 20 + [1] * 20)
    first = torch.tensor([0] * 10 + [1] * 10 + [0] * 9 + [1] * 11)
    correct = torch.tensor([1] * 10 + [1, 0] * 5 + [0] * 9 + [1] * 11)
    clusters = torch.stack([first, torch.full((40,), 4), first], 1)
    by_hand = (2.5 / 3 + (15 / 20 + 11 / 20) / 2 + 2.5 / 3) / 3
    assert imagenet.unbiased_accuracy(correct, labels, clusters) == pytest.approx(by_hand)
    assert imagenet.unbiased_accuracy(
        correct.bool(), labels, clusters[:, :1], min_cell=1
    ) == pytest.approx(2.5 / 4)


def test_unbiased_accuracy_agrees_with_loops():
    g = torch.Generator().manual_seed(0)
    labels, correct = torch.randint(9, (700,), generator=g), torch.randint(2, (700,), generator=g)
    clusters = torch.randint(9, (700, 3), generator=g)
    means = []
    for j in range(3):
        cells = [[] for _ in range(81)]
        for i in range(700):
            cells[9 * labels[i] + clusters[i, j]].append(correct[i].item())
        kept = [sum(cell) / len(cell) for cell in cells if len(cell) >= 10]
        means.append(sum(kept) / len(kept))
    assert imagenet.unbiased_accuracy(correct, labels, clusters) == pytest.approx(sum(means) / 3)


def test_unbiased_accuracy_without_a_large_cell_is_an_error():
    few = torch.zeros(5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"no .* cell has 10 images; the largest has 5"):
        imagenet.unbiased_accuracy(few, few, few[:, None])
