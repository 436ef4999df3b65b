"""`fm.train`: what the command line does, from Python."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin import config as configuration
from fairmargin.cli.app import app

SMALL = {
    "data.train": 120,
    "data.test": 64,
    "data.side": 8,
    "train.batch_size": 32,
    "train.device": "cpu",
    "train.clip": None,
    "evaluate.resamples": 20,
    "evaluate.classifiers": ["own", "knn"],
}
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("api") / "run"
    return fm.train(
        dataset="planted",
        method="ce",
        seed=3,
        epochs=1,
        settings=SMALL,
        out=str(out),
        console=QUIET,
    )


def test_it_is_the_command_line_s_run(trained, tmp_path):
    words = [
        "train",
        "--dataset",
        "planted",
        "--method",
        "ce",
        "--seed",
        "3",
        "--out",
        str(tmp_path / "run"),
    ]
    changes = SMALL | {"train.epochs": 1, "train.clip": "none"}
    for key, value in changes.items():
        words += ["--set", f"{key}={value}"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    for name in ("config.toml", "weights.safetensors"):
        assert (trained.path / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_what_a_run_tells(trained, tmp_path):
    result = trained.record.outcome
    own = result["test"]["own"]["accuracy"]
    assert trained.accuracy == {name: value["value"] for name, value in own.items()}
    lines = trained.table().splitlines()
    assert lines[0] == "| accuracy | own | knn |"
    assert len(lines) == 2 + len(own)
    assert trained._repr_markdown_().startswith("**ce** on planted")
    page = trained.report(tmp_path / "report.html")
    assert "planted" in page.read_text("utf-8")


def test_the_model(trained):
    assert trained.model is trained.model
    assert trained.model.class_names == fm.load(trained.path).class_names


def test_again_only_reads(trained):
    before = (trained.path / "result.json").stat().st_mtime_ns
    config = configuration.load_resolved(trained.path / "config.toml")
    again = fm.train(config=config, out=trained.path, console=QUIET)
    assert again.accuracy == trained.accuracy
    assert (trained.path / "result.json").stat().st_mtime_ns == before


def test_a_file_of_settings_and_the_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text('seed = 5\n[train]\nepochs = 1\n[method]\nname = "ce"\n')
    run = fm.train(dataset="planted", settings=SMALL, config="my.toml", console=QUIET)
    assert str(run.path) == "runs/planted/ce/seed-5"
    assert (tmp_path / run.path / "result.json").is_file()


def test_wrong_settings_are_said_as_on_the_command_line():
    with pytest.raises(ValueError, match=r'did you mean "train\.epochs"'):
        fm.train(dataset="planted", settings={"train.epoch": 3})
    with pytest.raises(ValueError, match="takes no other settings"):
        fm.train(config=fm.Config(), epochs=3)
