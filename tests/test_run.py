"""Whole runs through the command line: what they write, refuse and say."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runs.record import RunRecord
from tests.small_runs import (
    SMALL,
    assert_same_run,
    config,
    interrupted,
    silently,
    train_in_process,
    words,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run from beginning to end, in a process of its own like those it is compared with."""
    return train_in_process(tmp_path_factory.mktemp("whole") / "run")


def test_a_run_folder_holds_everything(finished):
    record = RunRecord.read(finished)
    assert record.config["method"]["name"] == "eps-supinfonce+fairkl"
    assert configuration.load_resolved(finished / "config.toml") == config()
    assert record.environment["torch"] == str(torch.__version__)
    assert set(record.environment["data"]) == {"train", "valid", "test"}
    assert record.data["sizes"] == {"train": 450, "valid": 50, "test": 300}
    steps = 3 * 18  # 450 samples in batches of 25
    assert record.result["steps"] == steps
    evaluations = [event for event in record.metrics if event["event"] == "evaluation"]
    assert [event["epoch"] for event in evaluations] == [1, 2, 3]
    logged = [event for event in record.metrics if event["event"] == "train"]
    assert [event["step"] for event in logged] == list(range(5, steps + 1, 5))
    assert set(logged[0]["terms"]) == {"eps-supinfonce", "fairkl", "probe", "mean similarity"}
    assert len(logged[0]["pairs"]) >= 2
    assert list((finished / "checkpoints").iterdir())


def test_the_result_keeps_last_best_on_validation_and_best_on_test(finished):
    record = RunRecord.read(finished)
    records, evaluations = (
        record.result["records"],
        [e for e in record.metrics if e["event"] == "evaluation"],
    )
    by = lambda split: max(evaluations, key=lambda e: e[split]["cell-mean"])
    assert records["last"]["epoch"] == 3
    assert records["best-on-validation"]["epoch"] == by("valid")["epoch"]
    assert records["best-on-test"]["test"]["cell-mean"] == by("test")["test"]["cell-mean"]
    assert (
        record.result["test"]["own"]["accuracy"]["cell-mean"]["value"]
        == records["last"]["test"]["cell-mean"]
    )


# The first epoch in which a method is what its name says.
BEGINS = {
    "ce": ([], 1),
    "group-dro": ([], 1),
    "sin-proxy": ([], 1),
    "rubi": ([], 1),
    "jtt": (["method.first_epochs=1"], 2),
    "learned-mixin": (["method.pretrain_epochs=2"], 3),
    "hex": (["method.pretrain_epochs=1"], 2),
    "dfa": (["method.swap_start=0.34"], 2),  # of three epochs
    "dfr": (["method.source=train", "method.draws=2", "method.inverse_strength=1.0"], 3),
}
CHOSEN = [
    "data.valid_fraction=0.6",  # so that few are left to train on
    "data.test=100",
    "evaluate.report=best-on-validation",
    'evaluate.classifiers=["own"]',
    "evaluate.select=plain",
]


@pytest.fixture
def falling(monkeypatch):
    """Every evaluation finds less than the one before, so the first one that counts is the best."""
    from fairmargin import evaluate

    original, found = evaluate.quick_of, []

    def quick_of(outputs, info):
        found.append(original(outputs, info))
        return {name: 1 / (len(found) + 1) for name in found[-1]}

    monkeypatch.setattr(evaluate, "quick_of", quick_of)
    return found


@pytest.mark.parametrize("name", BEGINS)
def test_no_epoch_before_the_final_stage_is_the_best(falling, tmp_path, name):
    options, begins = BEGINS[name]
    record = silently(*CHOSEN, *options, out=tmp_path / "run", method=name)
    records = record.result["records"]
    assert records["best-on-validation"]["epoch"] == records["best-on-test"]["epoch"] == begins
    assert records["last"]["epoch"] == 3
    assert record.result["reported"] == "best-on-validation"
    events = [event for event in record.metrics if event["event"] == "evaluation"]
    assert [event["final_stage"] for event in events] == [epoch >= begins for epoch in (1, 2, 3)]
    assert all(event["valid"] and event["test"] for event in events)  # logged all the same
    # That epoch's model is reported: its accuracy on the test set is what was found then, of six
    # evaluations.
    own = record.result["test"]["own"]["accuracy"]["plain"]["value"]
    assert own == pytest.approx(falling[2 * begins - 1]["plain"])


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("jtt", (3, 6)),
        ("jtt", (10, 20)),
        ("learned-mixin", (10, 20)),
        ("dfr", (3, 20)),
        ("dfa", (10, 20)),
    ],
)
def test_resuming_keeps_the_best_out_of_earlier_stages(tmp_path, name, steps):
    changes = [*CHOSEN, *BEGINS[name][0]]
    silently(*changes, out=tmp_path / "whole", method=name)
    interrupted(tmp_path / "again", *changes, steps=steps, method=name)
    silently(*changes, out=tmp_path / "again", method=name)
    assert_same_run(tmp_path / "whole", tmp_path / "again")


@pytest.mark.parametrize(("name", "stage"), [("dfr", "retrained"), ("jtt", "second_stage")])
def test_what_is_best_on_validation_is_the_method_and_not_its_first_stage(tmp_path, name, stage):
    """Plain accuracy on biased samples is highest for the model that follows the shortcut."""
    options = {"dfr": BEGINS["dfr"][0], "jtt": ["method.first_epochs=2", "method.up_weight=100.0"]}[
        name
    ]
    small = [*CHOSEN, "data.train=1500", "train.epochs=4", "train.device=cpu", *options]
    chosen = configuration.load(None, dataset="planted", method=name, overrides=small)
    record = run(chosen, tmp_path / "run", console=Console(quiet=True))
    assert load_file(tmp_path / "run" / "best.safetensors")[stage]
    events = [event for event in record.metrics if event["event"] == "evaluation"]
    highest = max(events, key=lambda event: event["valid"]["plain"])
    assert record.result["records"]["best-on-validation"]["epoch"] > highest["epoch"]
    assert not highest["final_stage"]  # or there would have been nothing to avoid


def test_similarities_are_recorded_at_every_evaluation_when_asked(finished, tmp_path):
    assert all("similarity" not in event for event in RunRecord.read(finished).metrics)
    asked = ["evaluate.similarities=true", "evaluate.every=2", 'evaluate.classifiers=["own"]']
    record = silently(*asked, out=tmp_path / "run", method="eps-supcon")
    found = [event["similarity"] for event in record.metrics if event["event"] == "evaluation"]
    assert len(found) == 2  # epochs 2 and 3, the last
    assert found[-1] == record.result["similarity"]
    assert found[0]["sets"] != found[1]["sets"]
    pairs = {name: numbers["pairs"] for name, numbers in found[0]["sets"].items()}
    arrays = record.arrays("test")
    same_label = (arrays["labels"][:, None] == arrays["labels"]) & ~np.eye(
        300, dtype=bool
    )  # not with itself
    same_bias = arrays["bias"][:, None] == arrays["bias"]
    assert pairs["positive-aligned"] == (same_label & same_bias).sum()
    assert pairs["positive-conflicting"] == (same_label & ~same_bias).sum()
    for numbers in found[0]["sets"].values():
        assert len(numbers["counts"]) == len(found[0]["edges"]) - 1 == 64
        assert sum(numbers["counts"]) == numbers["pairs"]


def test_similarities_of_data_without_bias_labels_are_null(tmp_path):
    changes = ["data.name=mnist-mini", "train.steps=2", "train.batch_size=100", "train.device=cpu"]
    small = [
        "network.name=simple-conv-3",
        "network.stride=4",
        "network.widths=[4]",
        'evaluate.classifiers=["own"]',
    ]
    chosen = configuration.load(
        None, method="ce", overrides=[*changes, *small, "evaluate.similarities=true"]
    )
    record = run(chosen, tmp_path / "run", console=Console(quiet=True))
    (event,) = (event for event in record.metrics if event["event"] == "evaluation")
    assert event["similarity"] is None


def test_predictions_and_weights_reproduce_the_reported_accuracy(finished):
    record = RunRecord.read(finished)
    arrays = record.arrays("test")
    accuracy = (arrays["predicted"] == arrays["labels"]).mean()
    assert accuracy == pytest.approx(record.result["test"]["own"]["accuracy"]["plain"]["value"])
    assert np.array_equal(arrays["logits"].argmax(1), arrays["predicted"])
    weights = load_file(finished / "weights.safetensors")
    logits = (
        torch.nn.functional.normalize(torch.from_numpy(arrays["features"]))
        @ weights["classifier.weight"].T
    )
    assert torch.allclose(
        logits + weights["classifier.bias"], torch.from_numpy(arrays["logits"]), atol=1e-5
    )


def test_examples_are_of_the_kinds_they_claim(finished):
    record = RunRecord.read(finished)
    arrays, examples = record.arrays("test"), record.arrays("examples")
    labels, bias = arrays["labels"][examples["index"]], arrays["bias"][examples["index"]]
    wrong = (arrays["predicted"] != arrays["labels"])[examples["index"]]
    for kind, holds in (
        ("aligned", labels == bias),
        ("conflicting", labels != bias),
        ("mistake", wrong),
    ):
        assert (examples["kind"] == kind).any()
        assert holds[examples["kind"] == kind].all()
    assert len(set(labels[examples["kind"] == "aligned"])) == 10  # spread over the classes


def test_a_finished_run_is_not_trained_again(finished):
    before = {
        path: path.stat().st_mtime_ns
        for path in finished.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    result = CliRunner().invoke(app, words(out=finished))
    assert result.exit_code == 0, result.output
    assert "cell-mean" in result.output
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_another_configuration_in_the_same_folder_is_refused(finished):
    result = CliRunner().invoke(app, words("train.epochs=4", out=finished))
    assert result.exit_code == 2
    assert "train.epochs 3 → 4" in result.output


@pytest.mark.slow
def test_evaluate_repeats_the_result_and_looks_at_other_data(finished, tmp_path):
    runner, target = CliRunner(), tmp_path / "again.json"
    result = runner.invoke(app, ["evaluate", str(finished), "--out", str(target)])
    assert result.exit_code == 0, result.output
    again, first = json.loads(target.read_text("utf-8")), RunRecord.read(finished).result
    assert again["test"]["own"] == first["test"]["own"]
    assert again["similarity"] == first["similarity"]
    other = runner.invoke(
        app, ["evaluate", str(finished), "--set", "data.test_rho=0.9", "--out", str(target)]
    )
    assert other.exit_code == 0, other.output
    shifted = json.loads(target.read_text("utf-8"))["test"]["own"]["groups"]["n"]
    assert [row[y] for y, row in enumerate(shifted)] == [
        27
    ] * 10  # nine tenths of 30 stand on their own colour
    assert shifted != again["test"]["own"]["groups"]["n"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--method", "eps-supinfonc"], "did you mean 'eps-supinfonce'"),
        (["--dataset", "biased-mnst"], "did you mean 'biased-mnist'"),
        (["--network", "resnet19"], "did you mean 'resnet18'"),
        (["--set", "train.epoch=3"], 'did you mean "train.epochs"'),
        (["--set", "data.roh=0.9"], 'did you mean "data.rho"'),
        (["--set", "method.lamda=0.9"], 'did you mean "method.lambda"'),
        (["--set", "train.epochs=0"], "train.epochs must be at least 1; got 0"),
        (["--set", "train.epochs"], "KEY=VALUE"),
        (["--method", "group-dro", "--set", "data.bias=none"], "needs to know the bias"),
        (
            ["--set", "data.bias=none", "--method", "ce", "--set", "data.sampler=group-balanced"],
            "no bias labels",
        ),
        (["--set", "train.batch_size=1"], "compares samples with each other"),
        (["--set", "train.device=cuda:7"], "train.device=cuda:7 cannot be used here"),
        (["--set", "train.device=meta"], "train.device=meta cannot be used here"),
        (["--set", "train.device=hpu"], "train.device=hpu cannot be used here"),
        (["--set", "train.batch_size=9000", "--set", "train.drop_last=true"], "leaves no batch"),
        (["--method", "simclr"], "compares views of one image"),
    ],
)
def test_wrong_input_is_answered_in_one_message(tmp_path, arguments, expected):
    options = [
        word for change in SMALL if not change.startswith("network") for word in ("--set", change)
    ]
    if "--dataset" in arguments or "--network" in arguments:
        options = []
    result = CliRunner().invoke(
        app, ["train", "--out", str(tmp_path / "run"), *options, *arguments]
    )
    assert result.exit_code == 2, result.output
    assert expected in result.output.replace("\n", " ")
    assert "Traceback" not in result.output
    assert not (tmp_path / "run" / "result.json").exists()


def test_an_empty_class_is_named(tmp_path, monkeypatch):
    from PIL import Image

    folder = tmp_path / "images"
    folder.mkdir()
    rows = ["path,label,split"]
    for k in range(12):
        Image.new("RGB", (8, 8), (20 * k, 0, 0)).save(folder / f"{k}.png")
        rows.append(f"images/{k}.png,{'cat' if k < 8 else 'dog'},{'train' if k < 8 else 'test'}")
    # Where the list of all problems goes.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all.csv").write_text("\n".join(rows))
    result = CliRunner().invoke(
        app,
        [
            "train",
            "--dataset",
            str(tmp_path / "all.csv"),
            "--method",
            "ce",
            "--out",
            str(tmp_path / "run"),
        ],
    )
    assert result.exit_code == 2, result.output
    assert "dog" in result.output


def test_divergence_has_its_own_exit_code(tmp_path):
    out = tmp_path / "run"
    result = CliRunner().invoke(
        app, words("optimizer.name=sgd", "optimizer.lr=1e9", method="ce", out=out)
    )
    assert result.exit_code == 3, result.output
    assert "Likely cause" in result.output
    assert "optimizer.lr (now 1e+09)" in result.output


@pytest.mark.slow
def test_tensorboard_gets_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = silently("train.tensorboard=true", "train.epochs=1", out=tmp_path / "run", method="ce")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    logged = {e["step"]: e["terms"]["ce"] for e in record.metrics if e["event"] == "train"}
    assert {e.step: e.value for e in events.Scalars("train/ce")} == pytest.approx(logged)
    assert events.Scalars("test/cell-mean")[-1].value == pytest.approx(
        record.result["records"]["last"]["test"]["cell-mean"]
    )


def test_own_images_without_bias_labels_train(tmp_path):
    from PIL import Image

    rows = ["path,label,split"]
    for k in range(60):
        colour = (250, 20, 20) if k % 2 else (20, 20, 250)
        Image.new("RGB", (10, 10), colour).save(tmp_path / f"{k}.png")
        rows.append(f"{k}.png,{'warm' if k % 2 else 'cold'},{'train' if k < 40 else 'test'}")
    (tmp_path / "own.csv").write_text("\n".join(rows))
    changes = [
        "network.name=simple-conv-3",
        "network.widths=[4, 8]",
        "train.epochs=8",
        "train.batch_size=8",
    ]
    changes += ["optimizer.lr=0.01"]
    out = tmp_path / "run"
    options = [word for change in changes for word in ("--set", change)]
    result = CliRunner().invoke(
        app,
        [
            "train",
            "--dataset",
            str(tmp_path / "own.csv"),
            "--method",
            "ce",
            "--out",
            str(out),
            *options,
        ],
    )
    assert result.exit_code == 0, result.output
    record = RunRecord.read(out)
    assert set(record.result["test"]["own"]["accuracy"]) == {"plain"}
    assert record.result["test"]["own"]["accuracy"]["plain"]["value"] == 1.0


@pytest.mark.slow
def test_compare_runs_what_is_missing_and_prints_mean_and_std(tmp_path):
    options = [word for change in (*SMALL, "train.epochs=1") for word in ("--set", change)]
    common = ["compare", "--dataset", "biased-mnist-mini", "--out", str(tmp_path), *options]
    first = CliRunner().invoke(app, [*common, "--methods", "ce", "--seeds", "2"])
    assert first.exit_code == 0, first.output
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert len(times) == 2
    second = CliRunner().invoke(
        app, [*common, "--methods", "ce,eps-supinfonce+fairkl", "--seeds", "2"]
    )
    assert second.exit_code == 0, second.output
    assert len(list(tmp_path.rglob("result.json"))) == 4
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())
    values = [
        100
        * RunRecord.read(tmp_path / "ce" / f"seed-{s}").result["test"]["own"]["accuracy"][
            "cell-mean"
        ]["value"]
        for s in (0, 1)
    ]
    assert f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" in (
        tmp_path / "table.md"
    ).read_text("utf-8")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_a_planted_shortcut_is_part_of_the_data_of_a_run():
    config = configuration.load(
        dataset="mnist-mini", overrides=["data.inject=colour:0.9", "seed=3"]
    )
    data = build.data(config)
    assert data.info.num_biases == 10
    share = (data.train.labels == data.train.bias).double().mean()
    assert 0.88 < float(share) <= 0.9
    plain = build.data(configuration.override(config, ["data.inject=none"]))
    assert plain.info.num_biases == 0


@pytest.mark.slow
def test_a_method_that_diverges_does_not_stop_a_comparison(tmp_path, monkeypatch):
    from fairmargin.loop import Diverged
    from fairmargin.sweep import compare

    def fails(config, *rest, **named):
        if config.method.name == "supcon":
            raise Diverged("step 3: the loss is nan")
        return run(config, *rest, **named)

    monkeypatch.setattr(compare, "run", fails)
    options = [word for change in (*SMALL, "train.epochs=1") for word in ("--set", change)]
    result = CliRunner().invoke(
        app,
        [
            "compare",
            "--dataset",
            "biased-mnist-mini",
            "--out",
            str(tmp_path),
            *options,
            "--methods",
            "supcon,ce",
            "--seeds",
            "1",
        ],
    )
    assert result.exit_code == 3, result.output
    assert "0 of 1" in result.output
    assert "failed: supcon, seed 0: step 3" in result.output
    assert (tmp_path / "ce" / "seed-0" / "result.json").exists()


@pytest.mark.slow
def test_comparing_all_methods_leaves_out_those_that_the_dataset_does_not_suit(
    tmp_path, monkeypatch
):
    from fairmargin.methods import METHODS

    for name in [name for name in METHODS if name not in ("ce", "simclr", "sin")]:
        monkeypatch.delitem(METHODS, name)
    options = [word for change in (*SMALL, "train.epochs=1") for word in ("--set", change)]
    common = [
        "compare",
        "--dataset",
        "biased-mnist-mini",
        "--out",
        str(tmp_path),
        *options,
        "--seeds",
        "2",
    ]
    every = CliRunner().invoke(app, [*common, "--methods", "all"])
    assert every.exit_code == 0, every.output
    assert sorted(path.parent.parent.name for path in tmp_path.rglob("result.json")) == ["ce", "ce"]
    table = (tmp_path / "table.md").read_text("utf-8")
    assert "- simclr: simclr compares views of one image" in table
    assert "- sin: sin trains on original and stylised images" in table
    assert table.count("simclr compares") == 1  # not once for each seed
    assert "not run: simclr" in every.output
    named = CliRunner().invoke(app, [*common, "--methods", "simclr,ce"])
    assert named.exit_code == 2  # who names a method wants it


@pytest.mark.slow
def test_under_torchrun_a_run_is_written_once_and_resumes(tmp_path):
    from tests.test_torchrun import torchrun

    out = tmp_path / "run"
    linear = ["evaluate.classifiers=['own', 'linear']", "evaluate.linear_epochs=2"]
    said = torchrun(2, "-m", "fairmargin", *words(*linear, out=out))
    record = RunRecord.read(out)
    assert record.environment["world_size"] == 2
    assert record.result["test"]["linear"]["epochs"] == 2  # by the first process
    assert record.result["steps"] == 54
    assert said.count("own classifier") == 1
    single = tmp_path / "single"
    silently(out=single)
    first = next(e for e in RunRecord.read(single).metrics if e["event"] == "train")
    both = next(e for e in record.metrics if e["event"] == "train")
    assert both["pairs"] == first["pairs"]  # the same samples, in the same batches
    assert both["terms"]["eps-supinfonce"] == pytest.approx(
        first["terms"]["eps-supinfonce"], rel=0.05
    )
    shutil.rmtree(out / "checkpoints")
    assert Path(out / "weights.safetensors").exists()
