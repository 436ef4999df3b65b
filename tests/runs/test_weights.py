"""`data.weight_column`: training draws its samples in proportion to their weights."""

import io
import json
import tarfile

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.data import build
from fairmargin.data.loader import Loader
from fairmargin.data.problems import BadManifest
from fairmargin.data.samplers import InProportion
from fairmargin.runs import build as runs_build

PICTURE = io.BytesIO()
Image.new("RGB", (8, 8), (200, 30, 90)).save(PICTURE, "PNG")


def table(folder, weights, name="t.csv"):
    """A manifest of 8 × 8 pictures with these weights for the training rows, and 8 test rows."""
    rows = ["path,label,bias,split,weight"]
    for k, weight in enumerate([*weights, *[""] * 8]):
        (folder / f"{k}.png").write_bytes(PICTURE.getvalue())
        split = "train" if k < len(weights) else "test"
        rows.append(f"{k}.png,{'cat' if k % 2 else 'dog'},{'xy'[k // 2 % 2]},{split},{weight}")
    (folder / name).write_text("\n".join(rows) + "\n")
    return folder / name


def weighted(file, **more):
    return build("folder", file, image_size=8, weight_column="weight", valid_fraction=0, **more)


def test_weights_of_a_table(tmp_path):
    file = table(tmp_path, [0, 1, 2.5, 3, 1, 1, 1, 1])
    data = weighted(file)
    assert data.train.weights.tolist() == [0, 1, 2.5, 3, 1, 1, 1, 1]
    assert data.test.weights is None
    said = data.info.notes["weights"]
    assert said.startswith('column "weight": 0 to 3, 1 of them 0; 8 samples, worth ')
    assert build("folder", file, image_size=8).train.weights is None
    # Files that are read when they are needed, and a part that is held out, keep theirs.
    files = weighted(file, memory_limit=0)
    assert files.train.weights.tolist() == data.train.weights.tolist()
    assert files.train.subset(torch.tensor([3, 0])).weights.tolist() == [3, 0]
    assert (
        data.hashes["train"]
        != build("folder", file, image_size=8, valid_fraction=0).hashes["train"]
    )


@pytest.mark.parametrize("bad", ["-1", "nan", "inf", "much", ""])
def test_weights_that_are_none(tmp_path, bad):
    file = table(tmp_path, [1, bad, 1, 1])
    with pytest.raises(BadManifest, match=f'row 3, 1.png: the weight "{bad}" is no finite number'):
        weighted(file)


def test_weights_that_leave_nothing_to_learn(tmp_path):
    with pytest.raises(ValueError, match="every training sample has weight 0"):
        weighted(table(tmp_path, [0, 0, 0, 0]))
    with pytest.raises(ValueError, match="every training sample of class cat has weight 0"):
        weighted(table(tmp_path, [1, 0, 1, 0]))
    file = table(tmp_path, [1, 1, 1, 1])
    with pytest.raises(BadManifest, match='no column "wait": did you mean "weight"'):
        build("folder", file, image_size=8, weight_column="wait")
    (tmp_path / "f/train/a").mkdir(parents=True)
    with pytest.raises(ValueError, match="is a folder of images, which has none"):
        build("folder", tmp_path / "f", weight_column="weight")


def test_weights_of_tars_and_parquet(tmp_path):
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for k in range(6):
            fields = json.dumps({"label": "ab"[k % 2], "w": k / 2}).encode()
            for ending, content in (("png", PICTURE.getvalue()), ("json", fields)):
                info = tarfile.TarInfo(f"{k}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    data = build(
        "folder", tmp_path / "train-0.tar", image_size=8, weight_column="w", test_needed=False,
        valid_fraction=0,
    )  # fmt: skip
    assert data.train.weights.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"image": [PICTURE.getvalue()] * 4, "label": ["a", "b"] * 2, "w": [1, 2, 3, 4]}
    pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "train.parquet")
    data = build(
        "folder", tmp_path / "train.parquet", image_size=8, weight_column="w", test_needed=False,
        valid_fraction=0,
    )  # fmt: skip
    assert data.train.weights.tolist() == [1, 2, 3, 4]


def configured(file, method, *changes):
    words = ["data.image_size=8", "data.weight_column=weight", "data.valid_fraction=0", *changes]
    return configuration.load(dataset=str(file), method=method, overrides=words)


def loader_of(file, method, *changes):
    config = configured(file, method, *changes)
    data = runs_build.data(config)
    made = runs_build.method(config, data)
    return runs_build.training(config, made, data, torch.device("cpu")).loader


@pytest.mark.parametrize("method", ["ce", "eps-supinfonce", "eps-supinfonce+fairkl"])
def test_every_method_draws_by_weight(tmp_path, method):
    file = table(tmp_path, [0, 4, 1, 1, 1, 1, 0, 4])
    sampler = loader_of(file, method, "data.sampler=shuffled").sampler
    assert isinstance(sampler, InProportion)
    drawn = torch.bincount(torch.cat([sampler.indices(e) for e in range(300)]), minlength=8)
    assert drawn.tolist()[0] == drawn.tolist()[6] == 0
    assert abs(drawn[1] / drawn.sum() - 4 / 12) < 0.01


def test_balanced_batches_follow_the_weights_within_a_group(tmp_path):
    file = table(tmp_path, [1, 1, 1, 1, 3, 1, 3, 1])
    sampler = loader_of(file, "ce", "data.sampler=group-balanced").sampler
    drawn = torch.bincount(torch.cat([sampler.indices(e) for e in range(400)]), minlength=8)
    # Groups are {0, 4}, {1, 5}, {2, 6}, {3, 7}: a quarter each, 1 to 3 within the first.
    assert torch.allclose(
        drawn / drawn.sum(), torch.tensor([1, 2, 1, 2, 3, 2, 3, 2]) / 16, atol=0.01
    )
    by_class = loader_of(file, "ce", "data.sampler=class-balanced").sampler
    drawn = torch.bincount(torch.cat([by_class.indices(e) for e in range(400)]), minlength=8)
    assert abs(drawn[::2].sum() / drawn.sum() - 0.5) < 0.01


@pytest.mark.parametrize("sampler", ["bias-aware", "weighted"])
def test_samplers_with_rules_of_their_own_are_refused(tmp_path, sampler):
    file = table(tmp_path, [1, 2, 1, 1, 3, 1, 3, 1])
    with pytest.raises(ValueError, match=f"the sampler {sampler} has a rule of its own"):
        loader_of(file, "ce", f"data.sampler={sampler}")


def test_batches_are_the_same_after_a_stop_and_in_parts(tmp_path):
    data = weighted(table(tmp_path, [1, 5, 2, 1, 3, 1, 3, 1]))

    def loader(**more):
        sampler = InProportion(data.train.weights, seed=4)
        return Loader(data.train, data.eval_views, sampler, 3, **more)

    def epochs(made):
        return [batch.index.tolist() for _ in range(3) for batch in made]

    whole = epochs(loader())
    stopped = loader()
    begun = [next(iter(stopped)).index.tolist()]
    again = loader()
    again.load_state_dict(stopped.state_dict())
    assert begun + epochs(again) == whole
    parts = [epochs(loader(rank=rank, world_size=2)) for rank in range(2)]
    assert [a + b for a, b in zip(*parts, strict=True)] == whole


@pytest.mark.slow
def test_a_run_records_its_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = table(tmp_path, [1, 5, 2, 1, 3, 1, 3, 1] * 4)
    settings = {"data.image_size": 8, "data.weight_column": "weight", "train.batch_size": 8}
    run = fm.train(dataset=file, method="ce", epochs=1, out="run", settings=settings)
    noted = json.loads((run.path / "data.json").read_text())["notes"]["weights"]
    assert noted.startswith('column "weight": 1 to 5')
    said = CliRunner().invoke(app, ["card", "run"])
    assert "drew its samples by weight" in said.output
    words = ["data", "show", str(file), "--weight-column", "weight", "--image-size", "8"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert 'weights: column "weight": 1 to 5' in said.output
    # Other weights are other data.
    table(tmp_path, [5, 1, 2, 1, 3, 1, 3, 1] * 4)
    with pytest.raises(ValueError, match="on other images"):
        fm.train(dataset=file, method="ce", epochs=1, out="run", settings=settings)
