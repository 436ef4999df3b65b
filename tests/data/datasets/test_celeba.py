import pytest
import torch
from PIL import Image

from fairmargin.data.datasets import celeba
from fairmargin.data.decode import UnreadableImage
from fairmargin.data.sources import MissingData
from fairmargin.data.split import as_evaluated

ATTRIBUTES = ["Smiling", "Blond_Hair", "Heavy_Makeup", "Male"]
GROUPS = {
    0: (20, 10, 9, 1),
    1: (4, 3, 2, 1),
    2: (3, 3, 2, 2),
}  # images of group 2·blond + male in each partition


def table():
    """(name, attributes, partition) of every image; make-up is worn by exactly the women."""
    rows = []
    for partition, sizes in GROUPS.items():
        for group, size in enumerate(sizes):
            for _ in range(size):
                blond, male = divmod(group, 2)
                signs = [2 * value - 1 for value in (0, blond, 1 - male, male)]
                rows.append((f"{len(rows) + 1:06d}.jpg", signs, partition))
    return rows


def write_text(folder, rows, header=ATTRIBUTES):
    lines = [f"{name}  " + "  ".join(f"{v:2d}" for v in values) for name, values, _ in rows]
    (folder / "list_attr_celeba.txt").write_text(
        "\n".join([str(len(rows)), " ".join(header) + " ", *lines]) + "\n"
    )
    (folder / "list_eval_partition.txt").write_text(
        "".join(f"{name} {part}\n" for name, _, part in rows)
    )


def write_comma(folder, rows):
    lines = [",".join([name, *map(str, values)]) for name, values, _ in rows]
    (folder / "list_attr_celeba.csv").write_text(
        "\n".join([",".join(["image_id", *ATTRIBUTES]), *lines]) + "\n"
    )
    lines = [f"{name},{part}" for name, _, part in rows]
    (folder / "list_eval_partition.csv").write_text(
        "\n".join(["image_id,partition", *lines]) + "\n"
    )


@pytest.fixture
def folder(tmp_path):
    images = tmp_path / "celeba/img_align_celeba"
    images.mkdir(parents=True)
    Image.new("RGB", (178, 218), "blue").save(tmp_path / "one.jpg")
    content = (tmp_path / "one.jpg").read_bytes()
    for name, _, _ in table():
        (images / name).write_bytes(content)
    write_text(tmp_path / "celeba", table())
    return tmp_path / "celeba"


def test_groups_of_the_official_partition(folder):
    data = celeba.build(folder.parent)
    assert data.info.class_names == ("no blond", "blond")
    assert data.info.bias_names == ("female", "male")
    assert data.info.counts.tolist() == [[20, 10], [9, 1]]
    assert data.info.notes["valid groups"] == "4 3 2 1"
    assert data.info.notes["test groups"] == "3 3 2 2"
    assert [path.name for path in data.train.paths] == [f"{i:06d}.jpg" for i in range(1, 41)]


def test_comma_and_text_files_say_the_same(folder):
    text = celeba.build(folder)
    for path in folder.glob("*.txt"):
        path.unlink()
    write_comma(folder, table())
    comma = celeba.build(folder)
    for a, b in ((text.train, comma.train), (text.valid, comma.valid), (text.test, comma.test)):
        assert a.paths == b.paths
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.bias, b.bias)


def test_a_nested_image_folder_is_found(folder):
    (folder / "img_align_celeba").rename(folder / "inner")
    (folder / "img_align_celeba").mkdir()
    (folder / "inner").rename(folder / "img_align_celeba/img_align_celeba")
    assert len(celeba.build(folder).train) == 40


def test_the_middle_square_is_what_the_network_sees(folder):
    """Of 178×218 the rows 20 to 197 remain."""
    image = Image.new("RGB", (178, 218), "red")
    image.paste("white", (0, 20, 178, 198))
    image.save(folder / "img_align_celeba/000001.jpg", quality=100, subsampling=0)
    data = celeba.build(folder)
    pixels = data.train.images(torch.tensor([0]))
    assert pixels.shape == (1, 3, 224, 224)
    assert pixels[:, 1].min() > 200  # no red row
    stretched = celeba.build_biascon(folder, valid_fraction=0).train.images(torch.tensor([0]))
    assert stretched.shape == (1, 3, 224, 224)
    assert stretched[0, 1, 0].max() < 50  # red at the top


def test_augmentation_changes_training_only(folder):
    for data in (celeba.build(folder, augment=True), celeba.build_biascon(folder, augment=True)):
        batch = data.train.images(torch.tensor([0]))
        assert batch.shape == (1, 3, 256, 256)
        assert data.train_views(batch).shape == (1, 3, 224, 224)
        for split in (data.valid, as_evaluated(data.train)):
            assert split.images(torch.tensor([0])).shape == (1, 3, 224, 224)


def test_validation_from_training(folder):
    data = celeba.build(folder, valid="from-train", valid_fraction=0.25)
    assert (len(data.train), len(data.valid), len(data.test)) == (30, 10, 10)
    assert (data.info.counts > 0).all()


def test_biascon_thins_women_who_are_not_blond(folder):
    """Its bias is 0 male, 1 female.

    The cells are (not blond: 10 men, 5 of 20 women), (blond: 1 man, 9 women).
    """
    data = celeba.build_biascon(folder, keep=5, valid_fraction=0)
    assert data.info.bias_names == ("male", "female")
    assert data.info.counts.tolist() == [[10, 5], [1, 9]]
    other = celeba.build_biascon(folder, keep=5, valid_fraction=0, seed=1)
    assert other.info.counts.tolist() == [[10, 5], [1, 9]]
    assert other.train.paths != data.train.paths


def test_biascon_holds_out_a_fifth_and_tests_on_the_validation_partition(folder):
    data = celeba.build_biascon(folder, keep=5)
    assert (len(data.train), len(data.valid)) == (20, 5)
    assert data.info.notes["test groups"] == "3 4 1 2"  # not thinned
    assert len(data.extra_tests["official"]) == 10
    batch = data.train.images(torch.tensor([0]))
    assert data.train_views(batch).shape == (1, 3, 224, 224)


def test_biascon_makeup_is_not_thinned(folder):
    data = celeba.build_biascon(folder, target="makeup", keep=0, valid_fraction=0)
    assert data.info.class_names == ("no makeup", "makeup")
    assert data.info.counts.tolist() == [[11, 0], [0, 29]]


def test_missing_tables_and_images(folder, tmp_path):
    with pytest.raises(
        MissingData, match=r"neither list_attr_celeba\.txt nor list_attr_celeba\.csv"
    ):
        celeba.build(tmp_path / "nowhere")
    (folder / "img_align_celeba/000003.jpg").unlink()
    with pytest.raises(MissingData, match=r"1 of 60 listed images are not in .*000003\.jpg"):
        celeba.build(folder)
    (folder / "list_eval_partition.txt").unlink()
    with pytest.raises(MissingData, match="list_eval_partition"):
        celeba.build(folder)


def test_missing_columns(folder):
    write_text(folder, table(), header=["Smiling", "Blond_Hair", "Heavy_Makeup", "Man"])
    with pytest.raises(MissingData, match="lacks Male; its columns are Smiling"):
        celeba.build(folder)


def test_damaged_tables(folder):
    path = folder / "list_attr_celeba.txt"
    whole = path.read_text()
    path.write_text(whole.replace("\n000060.jpg", "\n\n000060.jpg").rsplit("000060.jpg")[0])
    with pytest.raises(MissingData, match="announces 60 rows and has 59"):
        celeba.build(folder)
    path.write_text(whole.replace("000001.jpg  -1", "000001.jpg  "))  # one value short
    with pytest.raises(MissingData, match="damaged"):
        celeba.build(folder)
    path.write_text("")
    with pytest.raises(MissingData, match="damaged"):
        celeba.build(folder)


def test_tables_of_different_images(folder):
    path = folder / "list_eval_partition.txt"
    path.write_text(path.read_text().replace("000001.jpg", "999999.jpg"))
    with pytest.raises(MissingData, match="of the partition"):
        celeba.build(folder)
    write_text(folder, [(name, values, 0) for name, values, _ in table()])
    with pytest.raises(MissingData, match=r"0, 1 and 2; found \[0\]"):
        celeba.build(folder)


def test_an_unreadable_image_is_named_when_decoded(folder):
    (folder / "img_align_celeba/000001.jpg").write_bytes(b"broken")
    train = celeba.build(folder).train
    with pytest.raises(UnreadableImage, match=r"000001\.jpg"):
        train.images(torch.tensor([0]))


def test_wrong_choices(folder):
    with pytest.raises(ValueError, match="did you mean 'blond'"):
        celeba.build_biascon(folder, target="blonde")
    with pytest.raises(ValueError, match="'own', 'from-train'"):
        celeba.build(folder, valid="official")
