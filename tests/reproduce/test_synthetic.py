"""Stand-in data: every loader reads them, they are marked, and never mixed with real data."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from fairmargin import config
from fairmargin.data import build, sources
from fairmargin.data.datasets import imagenet
from fairmargin.report.page import write_report
from fairmargin.reproduce import synthetic
from fairmargin.run import run
from fairmargin.runs.folder import RunRecord

DATASETS = [
    "biased-mnist",
    "corrupted-cifar10",
    "cifar10",
    "cifar100",
    "imagenet100",
    "imagenet9",
    "bffhq",
]
NOTE = "generated stand-in data: accuracies mean nothing"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("standin") / "data"
    for name in DATASETS:
        synthetic.make(folder, name)
    return folder


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_there_is_one_for_every_dataset_of_the_paper():
    assert sorted(synthetic.PARTS) == sorted(DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_it_builds_with_the_options_of_its_preset(root, name):
    options = config.load(dataset=name).data.options
    data = build(name, root, **options)
    assert data.info.notes["stand-in"] == NOTE
    classes = set(range(data.info.num_classes))
    for split in (data.train, data.test):
        assert set(split.labels.tolist()) == classes
    assert len(data.valid) > 0
    for split in (data.train, data.valid, data.test, *data.extra_tests.values()):
        images = split.images(torch.tensor([0, len(split) - 1]))
        assert data.eval_views(images).shape[1] == 3


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("biased-mnist", {"rho": rho}) for rho in (0.99, 0.995, 0.997, 0.999)),
        *(("corrupted-cifar10", {"ratio": ratio}) for ratio in (0.5, 1, 2, 5)),
        ("bffhq", {}),
    ],
)
@pytest.mark.parametrize("valid_fraction", [0.0, 0.1])
def test_conflicting_samples_are_left_at_every_strength_of_the_paper(
    root, name, options, valid_fraction
):
    data = build(name, root, **options, valid_fraction=valid_fraction)
    assert (
        0 < int(data.info.counts.sum() - data.info.counts.trace()) < int(data.info.counts.trace())
    )
    test = data.extra_tests.get("all", data.test)
    cells = torch.bincount(
        test.labels * data.info.num_biases + test.bias, minlength=data.info.counts.numel()
    )
    assert cells.min() >= 2


def test_a_class_can_be_learnt_and_looks_alike_in_training_and_test(root):
    data = build("cifar10", root, valid_fraction=0)
    flat = lambda split: split.pixels.float().flatten(1)
    centres = torch.stack([flat(data.train)[data.train.labels == y].mean(0) for y in range(10)])
    nearest = torch.cdist(flat(data.test), centres).argmin(1)
    assert (nearest == data.test.labels).float().mean() > 0.9


def test_nine_classes_come_with_imagenet_a_stylised_copies_and_textures(root):
    plain = build("imagenet9", root)
    data = build("imagenet9", root, imagenet_a=root / "imagenet-a", stylized=root / "sin")
    adversarial = data.extra_tests["imagenet-a"]
    assert len(adversarial) == 42
    assert set(adversarial.labels.tolist()) == set(range(9)) - {tuple(imagenet.NINE).index("crab")}
    assert len(data.train) == 2 * len(plain.train)  # no copies of validation images
    clusters = imagenet.texture_clusters(root / "clusters" / "9class_imagenet_val.csv")
    textures = imagenet.clusters_of(data.test.paths, clusters)
    for j in range(3):
        cells = torch.bincount(data.test.labels * 9 + textures[:, j], minlength=81).view(9, 9)
        assert (cells >= 10).any(1).all()  # each class counts in the unbiased accuracy
    assert imagenet.unbiased_accuracy(torch.ones(len(data.test)), data.test.labels, textures) == 1


def test_a_finished_one_is_left_alone_and_an_interrupted_one_made_anew(tmp_path, monkeypatch):
    synthetic.make(tmp_path / "a", "cifar100")
    before = {name: (tmp_path / "a" / name).stat().st_mtime_ns for name in names(tmp_path / "a")}
    synthetic.make(tmp_path / "a", "cifar100")
    assert {
        name: (tmp_path / "a" / name).stat().st_mtime_ns for name in names(tmp_path / "a")
    } == before

    def interrupted(folder):
        (folder / "train.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    root = tmp_path / "b"
    with monkeypatch.context() as patch:
        patch.setitem(synthetic.PARTS, "cifar100", {"cifar-100-binary": interrupted})
        with pytest.raises(KeyboardInterrupt):
            synthetic.make(root, "cifar100")
    assert names(root) == ["STANDIN"]
    synthetic.make(root, "cifar100")
    assert names(root) == names(tmp_path / "a")
    for name in ("train.bin", "test.bin"):  # and the same each time
        place = Path("cifar-100-binary") / name
        assert (root / place).read_bytes() == (tmp_path / "a" / place).read_bytes()


def test_two_processes_may_make_the_same_one(tmp_path, monkeypatch):
    draw = synthetic.PARTS["cifar100"]["cifar-100-binary"]

    def overtaken(folder):
        draw(folder)
        monkeypatch.undo()
        synthetic.make(tmp_path / "data", "cifar100")

    monkeypatch.setitem(synthetic.PARTS, "cifar100", {"cifar-100-binary": overtaken})
    synthetic.make(tmp_path / "data", "cifar100")
    assert [name for name in names(tmp_path / "data") if name.startswith(".")] == []
    assert len(build("cifar100", tmp_path / "data").test) == 100


def test_another_process_may_mark_the_root_at_the_same_moment(tmp_path, monkeypatch):
    """Between the search for the mark and the search for anything else."""
    listed = Path.iterdir

    def while_it_looks(folder):
        if folder == tmp_path:
            (tmp_path / synthetic.STANDIN).write_text(synthetic.MARK)
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", while_it_looks)
    synthetic.make(tmp_path, "cifar100")
    monkeypatch.undo()
    assert len(build("cifar100", tmp_path).test) == 100


def test_it_is_not_made_beside_real_data(tmp_path):
    (tmp_path / "mnist").mkdir()
    with pytest.raises(
        ValueError,
        match=r"holds mnist and is not marked as stand-in data; name a folder that is empty",
    ):
        synthetic.make(tmp_path, "cifar10")
    assert names(tmp_path) == ["mnist"]
    with pytest.raises(ValueError, match="unknown stand-in 'cifar': did you mean 'cifar10'"):
        synthetic.make(tmp_path / "other", "cifar")
    assert not (tmp_path / "other").exists()


def test_checksums_still_tell_it_from_the_real_one(root):
    for name in ("mnist", "cifar10"):
        assert not any(right for _, right, _ in sources.verify(name, root))


def test_only_what_is_read_from_a_marked_root_is_called_a_stand_in(root, tmp_path):
    assert "stand-in" not in build("biased-mnist-mini", root).info.notes  # digits of its own
    real = tmp_path / "imagenet9"
    for split in ("train", "val"):
        (real / split).mkdir(parents=True)
        (real / split / "n02085620").symlink_to(root / "imagenet9" / split / "n02085620")
    assert "stand-in" not in build("imagenet9", tmp_path).info.notes
    assert (
        build("imagenet9", tmp_path, imagenet_a=root / "imagenet-a").info.notes["stand-in"] == NOTE
    )
    assert build("imagenet9", root / "imagenet9").info.notes["stand-in"] == NOTE


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("biased-mnist", ["network.widths=[4, 8]", "network.stride=2"]),
        (
            "imagenet9",
            [
                "data.size=32",
                "network.name=simple-conv-3",
                "network.widths=[4, 8]",
                "network.stride=2",
            ],
        ),
    ],
)
def test_two_steps_of_training(root, tmp_path, name, small):
    changes = [
        f"data.root={root}",
        "train.steps=2",
        "train.batch_size=32",
        "train.device=cpu",
        "evaluate.resamples=10",
    ]
    chosen = config.load(
        dataset=name, method="ce", overrides=[*changes, *small, 'evaluate.classifiers=["own"]']
    )
    record = run(chosen, tmp_path / "run", console=Console(quiet=True))
    assert record.result["steps"] == 2
    assert RunRecord.read(tmp_path / "run").data["notes"]["stand-in"] == NOTE
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text("utf-8")
    assert "accuracies mean nothing" in page
