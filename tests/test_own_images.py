"""People's own images: their defaults, and how runs on different tables are kept apart."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.cli.app import app
from fairmargin.data.hashes import source_hash
from fairmargin.report.grouping import parts_of, read_runs
from fairmargin.runs.folder import RunRecord

QUICK = [
    word
    for change in (
        "data.image_size=16", "network.name=simple-conv-3", "network.widths=[4]",
        "train.epochs=2", "train.batch_size=8", "train.device=cpu", "evaluate.resamples=10",
    )
    for word in ("--set", change)
]  # fmt: skip


def table(
    file: Path,
    names: str = "cat,dog",
    shift: int = 0,
    bias: str = "",
    valid_bias: str | None = None,
    more: int = 0,
) -> Path:
    """24 pictures of two classes: 12 (and `more`) to train, 4 to validate and 8 to test."""
    rows = ["path,label,bias,split"]
    folder = file.parent / f"{file.stem} pictures"
    folder.mkdir()
    for i in range(24 + more):
        Image.new("RGB", (16, 16), (10 * i % 256, shift, i)).save(folder / f"{i}.png")
        split = "train" if i < 12 or i >= 24 else "valid" if i < 16 else "test"
        of = bias[i % len(bias)] if bias else ""
        of = valid_bias if split == "valid" and valid_bias is not None else of
        rows.append(
            f"{folder.name}/{i}.png,{names.split(',')[i % len(names.split(','))]},{of},{split}"
        )
    file.write_text("\n".join(rows))
    return file


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def say(*words: str):
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})


def train(file: Path, *more: str):
    return say("train", "--dataset", str(file), "--method", "ce", *QUICK, *more)


def test_a_finished_run_is_not_shown_for_other_images(here):
    a, b = table(here / "a.csv"), table(here / "b.csv", shift=99)
    assert train(a).exit_code == 0
    assert train(a).exit_code == 0  # shown again
    other = train(b, "--out", "runs/a/ce/seed-0")
    assert other.exit_code == 2
    assert "holds a finished run on other images: " in other.output
    a.write_text(a.read_text().replace("22.png,cat", "22.png,dog"))
    assert train(a).exit_code == 2  # the same table, edited
    assert train(b, "--out", "elsewhere").exit_code == 0


def test_images_that_moved_are_the_same(here):
    (here / "old").mkdir()
    table(here / "old/a.csv")
    assert train(here / "old/a.csv", "--out", "run").exit_code == 0
    os.rename("old", "new")
    again = train(here / "new/a.csv", "--out", "run")
    assert again.exit_code == 0, again.output


def test_runs_are_named_after_the_table_and_two_of_one_name_do_not_collide(here):
    for place in ("one", "two"):
        (here / place).mkdir()
        table(here / place / "my.csv", shift=len(place) + ord(place[0]))
    assert train(Path("one/my.csv")).exit_code == 0
    assert train(Path("two/my.csv")).exit_code == 0
    first, second = sorted(path.name for path in (here / "runs").iterdir())
    assert first == "my"
    assert re.fullmatch("my-[0-9a-f]{6}", second)
    again = train(Path("two/my.csv"))  # found again, and not trained
    assert f"run folder: runs/{second}/ce/seed-0" in again.output
    os.rename("one", "elsewhere")  # the same images, moved
    assert "run folder: runs/my/ce/seed-0" in train(Path("elsewhere/my.csv")).output


@pytest.mark.parametrize(("option", "classifier"), [("fitted", "probe"), ("knn", "knn")])
def test_the_reported_classifier_is_that_which_is_loaded_and_checked(here, option, classifier):
    file = table(here / "my.csv", bias="xxyx")
    change = ["--set", f"evaluate.report_classifier={option}", "--set", "train.epochs=1"]
    found = say("train", "--dataset", str(file), "--method", "eps-supinfonce", *QUICK, *change)
    assert found.exit_code == 0, found.output
    run = here / "runs/my/eps-supinfonce/seed-0"
    record = RunRecord.read(run)
    assert record.result["headline"]["classifier"] == classifier
    kept = record.arrays("test")
    model = fm.load(run)
    pictures = [here / "my pictures" / f"{i}.png" for i in range(16, 24)]
    said = model.predict(pictures)
    assert torch.allclose(said.probabilities, torch.tensor(kept["logits"]).softmax(1), atol=1e-5)
    own = model.method.method.predict(model.preprocessing.normalize(_pixels(model, pictures)))
    assert not torch.allclose(own.softmax(1), said.probabilities, atol=1e-3)
    plain = record.result["test"][classifier]["accuracy"]["plain"]["value"]
    assert (kept["predicted"] == kept["labels"]).mean() == pytest.approx(plain)
    checked = say("check", str(run), "--min-accuracy", f"plain={plain}")
    assert checked.exit_code == 0, checked.output
    again = say("evaluate", str(run))
    assert f"{100 * plain:.1f}" in again.output


def _pixels(model, pictures):
    return torch.stack([model.preprocessing.pixels(picture) for picture in pictures])


def test_a_fitted_classifier_leaves_with_an_exported_file(here):
    pytest.importorskip("onnxruntime")
    file = table(here / "my.csv")
    change = ["--set", "evaluate.report_classifier=fitted", "--set", "train.epochs=1"]
    assert train(file, *change).exit_code == 0
    # It compares the file with the loaded model before it is kept.
    exported = say("export", "runs/my/ce/seed-0", "--out", "model.onnx")
    assert exported.exit_code == 0, exported.output
    change[1] = "evaluate.report_classifier=knn"
    assert train(file, *change, "--out", "neighbors").exit_code == 0
    refused = say("export", "neighbors")
    assert refused.exit_code == 2
    assert "reports nearest neighbours" in refused.output


def test_a_table_alone_is_trained_and_compared(here):
    file = table(here / "my.csv", bias="xxyx")
    fitted = [*QUICK, "--set", "methods.fairmargin.evaluate.report_classifier=fitted"]
    trained = say("train", "--dataset", str(file), *fitted)
    assert trained.exit_code == 0, trained.output
    assert "method: fairmargin, with the bias that the table names (2 values)" in trained.output
    assert "training will take about " in trained.output
    assert (here / "runs/my/fairmargin/seed-0/classifier.safetensors").is_file()
    compared = say("compare", "--dataset", str(file), "--seeds", "1", *fitted)
    assert compared.exit_code == 0, compared.output
    assert "reported classifier" in compared.output
    methods = sorted(path.name for path in (here / "runs/my").iterdir() if path.is_dir())
    assert methods == ["ce", "fairmargin"]
    page = (here / "runs/my/report.html").read_text()
    assert "by the classifier that each run reports" in page


def test_methods_of_two_views_say_what_own_images_need_and_that_works(here):
    file = table(here / "my.csv")
    words = ["train", "--dataset", str(file), "--method", "simclr", *QUICK]
    refused = say(*words)
    assert refused.exit_code == 2
    assert "--set data.augment=supcon for your own images" in refused.output
    assert say(*words, "--set", "data.augment=supcon", "--out", "two").exit_code == 0


def test_names_of_folders_in_runs_are_not_taken(here):
    assert train(table(here / "scores.csv")).exit_code == 0
    assert (here / "runs/scores-images/ce/seed-0/result.json").is_file()
    trained = json.loads((here / "runs/scores-images/ce/seed-0/result.json").read_text())
    assert trained["dataset"] == "scores-images"


def test_an_interrupted_run_does_not_go_on_with_other_images(here, monkeypatch):
    a, b = table(here / "a.csv"), table(here / "b.csv", shift=99)
    out = ["--out", "run", "--set", "train.checkpoint_seconds=0"]
    assert train(a, *out).exit_code == 0
    (here / "run/result.json").unlink()  # as if killed before the end
    other = train(b, *out)
    assert other.exit_code == 2
    assert (
        "was begun on other data: its train and valid and test samples were others" in other.output
    )
    assert "a.csv" in (here / "run/config.toml").read_text()
    assert train(a, *out).exit_code == 0


def test_a_folder_of_images_is_told_by_names_and_sizes(here):
    for name in ("train/cat/a.png", "train/dog/b.png"):
        (here / name).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(here / name)
    before = source_hash(here / "train")
    assert source_hash(here / "train") == before
    Image.new("RGB", (8, 8)).save(here / "train/cat/c.png")
    assert source_hash(here / "train") != before


def test_trials_on_other_images_do_not_count(here):
    pytest.importorskip("optuna")
    a, b = table(here / "a.csv"), table(here / "b.csv", shift=99)
    search = lambda file: say(
        "tune", "--dataset", str(file), "--methods", "ce", "--trials", "1", "--seeds", "1", *QUICK
    )
    assert search(a).exit_code == 0
    assert search(b).exit_code == 0
    assert (here / "runs/tune/b/table.md").is_file()
    a.write_text(a.read_text().replace("22.png,cat", "22.png,dog"))
    other = search(a)
    assert other.exit_code == 2
    assert "holds trials of another configuration: seeds 0; images " in other.output
    head = (here / "runs/tune/a/tuned.toml").read_text().partition("\n")[0]
    given = shlex.join(QUICK)
    assert head == f"# fairmargin compare runs/tune/a/tuned.toml --dataset {a} --methods ce {given}"


def test_a_report_does_not_count_two_tables_as_two_seeds(here):
    for name, seed in (("a", 0), ("b", 1)):
        assert (
            train(
                table(here / f"{name}.csv", shift=seed), "--seed", str(seed), "--out", name
            ).exit_code
            == 0
        )
    sources = {RunRecord.read(here / name).environment["data"]["source"] for name in "ab"}
    assert len(sources) == 2
    assert len(parts_of(read_runs(here / name for name in "ab"))) == 2
    assert say("report", "a", "b", "--out", "both.html").exit_code == 0


@pytest.mark.parametrize(("bias", "valid_bias"), [("xyyx", ""), ("xy", None)])
def test_tuning_chooses_by_what_the_validation_samples_have(here, bias, valid_bias):
    pytest.importorskip("optuna")
    file = table(here / "a.csv", bias=bias, valid_bias=valid_bias)
    select = ["--set", "evaluate.select=conflicting"]
    found = say(
        "tune",
        "--dataset",
        str(file),
        "--methods",
        "ce",
        "--trials",
        "1",
        "--seeds",
        "1",
        *QUICK,
        *select,
    )
    assert found.exit_code == 0, found.output
    assert "| ce | 1 | plain |" in (here / "runs/tune/a/table.md").read_text()


def test_evaluation_on_other_data_needs_the_same_classes_and_network(here):
    a = table(here / "a.csv")
    assert train(a, "--out", "run").exit_code == 0
    same = say("evaluate", "run", "--set", f"data.root={table(here / 'same.csv', shift=50)}")
    assert same.exit_code == 0, same.output
    for number, names in enumerate(("bus,car", "ape,cat,dog")):
        other = say("evaluate", "run", "--set", f"data.root={table(here / f'{number}.csv', names)}")
        assert other.exit_code == 2
        assert "was trained to tell cat, dog, and these data have the classes" in " ".join(
            other.output.split()
        )
    for change in ("network.name=resnet20", "method.name=supcon", "train.epochs=9"):
        other = say("evaluate", "run", "--set", change)
        assert other.exit_code == 2
        assert "the weights were trained without it" in other.output


@pytest.mark.parametrize("method", ["lff", "jtt", "biasbal"])
def test_evaluation_on_more_samples_or_without_bias_labels(here, method):
    """What a method kept of each training sample, or of each bias, comes with its weights."""
    a = table(here / "a.csv", bias="xyyx")
    options = ["--set", "method.first_epochs=1"] if method == "jtt" else []
    trained = say(
        "train", "--dataset", str(a), "--method", method, *QUICK, *options, "--out", "run"
    )
    assert trained.exit_code == 0, trained.output
    other = say("evaluate", "run", "--set", f"data.root={table(here / 'b.csv', shift=50, more=3)}")
    assert other.exit_code == 0, other.output


def test_a_last_sample_alone_is_no_batch_for_batch_norm(here):
    """17 samples in batches of 8, through a network whose last maps are single pixels."""
    a = table(here / "a.csv", more=5)
    network = [
        word
        for change in ("network.name=resnet18", "data.image_size=32")
        for word in ("--set", change)
    ]
    quick = [*QUICK[:2], *network, *QUICK[6:]]
    found = say("train", "--dataset", str(a), "--method", "ce", *quick, "--set", "train.epochs=1")
    assert found.exit_code == 0, found.output


def test_a_mistyped_path_is_no_unknown_dataset(here):
    for words in (
        ["train", "--dataset", "nothere.csv"],
        ["audit", "nothere.csv"],
        ["data", "show", "nothere.csv"],
    ):
        assert "there is no file or folder nothere.csv" in say(*words).output
    assert "did you mean 'biased-mnist'" in say("train", "--dataset", "biased-mnst").output


def test_methods_and_seeds_count_once(here):
    size = [
        "--set",
        "data.train=60",
        "--set",
        "data.test=30",
        "--set",
        'evaluate.classifiers=["probe"]',
    ]
    network = [
        "network.name=simple-conv-3",
        "network.widths=[4]",
        "train.epochs=1",
        "train.device=cpu",
    ]
    size += [word for change in network for word in ("--set", change)]
    found = say("compare", "--dataset", "planted", "--methods", "ce, ce", "--seeds", "0,0", *size)
    assert found.exit_code == 0, found.output
    assert "linear probe" in found.output
    (row,) = [
        line
        for line in (here / "runs/planted/table.md").read_text().splitlines()
        if line.startswith("| ce ")
    ]
    assert row.split("|")[-3].strip() == "1"
    assert "±" not in row
    for command in ("compare", "tune"):
        empty = say(command, "--dataset", "planted", "--methods", ",")
        assert empty.exit_code == 2
        assert "--methods is empty" in empty.output


def test_a_comparison_goes_on_without_methods_that_would_never_begin(here, monkeypatch):
    from fairmargin.config import load
    from fairmargin.sweep.compare import compare

    size = [
        "data.train=60",
        "data.test=30",
        "network.widths=[4]",
        "train.epochs=2",
        "train.device=cpu",
    ]
    configs = [
        load(dataset="planted", network="simple-conv-3", method=m, overrides=size)
        for m in ("learned-mixin", "ce")
    ]
    left_out, ran = compare(configs, here / "runs", go_on=True)
    assert left_out.refused
    assert "begins after the first 5 epochs (method.pretrain_epochs=5)" in left_out.failure
    assert ran.result is not None
    assert json.loads((here / "runs/ce/seed-0/result.json").read_text())["epochs"] == 2


def test_without_test_samples_nothing_is_trained(here):
    file = table(here / "a.csv")
    file.write_text(
        "\n".join(line for line in file.read_text().splitlines() if not line.endswith("test"))
    )
    none = train(file, "--set", "data.test_fraction=0.001")
    assert none.exit_code == 2
    assert "has no test samples here" in none.output
    assert train(file, "--set", "data.test_fraction=0.25").exit_code == 0


def exchanged(picture: Path) -> None:
    """Put another picture of the same number of bytes in its place, with the same time."""
    before, content = picture.stat(), picture.read_bytes()
    for colour in range(256):
        Image.new("RGB", (16, 16), (255 - colour, 200, colour)).save(picture)
        if picture.stat().st_size == len(content) and picture.read_bytes() != content:
            break
    else:
        pytest.fail("no picture of this size")
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))


# Above the limit, samples are told by names and sizes.
IN_FILES = ["--set", "data.memory_limit=1"]


@pytest.mark.parametrize("more", [[], IN_FILES], ids=["in memory", "in files"])
@pytest.mark.parametrize("form", ["table", "folder"])
def test_an_image_exchanged_at_equal_size_is_noticed(here, form, more):
    if form == "table":
        source, picture = table(here / "a.csv"), here / "a pictures/3.png"
    else:
        source, picture = here / "photos", here / "photos/train/cat/3.png"
        for i in range(16):
            file = source / ("train" if i < 12 else "test") / ("cat", "dog")[i % 2] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (10 * i, 0, i)).save(file)
        os.rename(source / "train/dog/3.png", picture)
    out = ["--out", "run", "--set", "train.checkpoint_seconds=0", *more]
    assert train(source, *out).exit_code == 0
    assert train(source, *out).exit_code == 0
    assert "not the data" not in say("evaluate", "run").output
    exchanged(picture)
    finished = train(source, *out)
    assert finished.exit_code == 2
    assert "holds a finished run on other images: " in finished.output
    evaluated = say("evaluate", "run", "--out", "found.json")
    assert evaluated.exit_code == 0
    assert "these are not the data that run was trained and tested on: " in evaluated.output
    assert "not the data" in json.loads((here / "found.json").read_text())["warnings"][0]
    (here / "run/result.json").unlink()  # as if killed before the end
    resumed = say("train", "--resume", "run")
    assert resumed.exit_code == 2
    assert "was begun on other data: " in resumed.output
