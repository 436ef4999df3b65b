"""The registry, options from the command line, and the pictures."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.config import load
from fairmargin.data import DATASETS, build, options
from fairmargin.runs import build as runs_build

runner = CliRunner()


def test_every_builder_takes_a_root_and_keywords_with_types():
    for name, builder in DATASETS.items():
        known = options.keywords(builder)
        assert "seed" in known, name
        assert all(kind is not None for kind in known.values()), name


def test_build_by_name_and_its_errors(tmp_path):
    assert len(build("biased-mnist-mini", rho=0.9).train) == 3600
    with pytest.raises(
        ValueError, match="unknown dataset 'biased-mnst': did you mean 'biased-mnist'"
    ):
        build("biased-mnst")
    with pytest.raises(
        ValueError, match="unknown option of biased-mnist-mini 'roh': did you mean 'rho'"
    ):
        build("biased-mnist-mini", roh=0.9)
    with pytest.raises(ValueError, match="needs the path of a manifest"):
        build("folder")


def test_missing_data_is_one_clear_message(tmp_path):
    result = runner.invoke(app, ["data", "show", "biased-mnist", "--root", str(tmp_path)])
    assert result.exit_code == 2
    assert "train-images-idx3-ubyte" in result.output
    assert "fairmargin data get mnist" in result.output
    assert str(tmp_path) in result.output


class TestParse:
    builder = staticmethod(DATASETS["folder"])

    def test_types(self):
        words = [
            "--image-size",
            "32",
            "--skip-bad",
            "--bias-columns=sex,age",
            "--base",
            "x/y",
            "--test-fraction",
            "none",
        ]
        assert options.parse(self.builder, "folder", words) == {
            "image_size": 32,
            "skip_bad": True,
            "bias_columns": ("sex", "age"),
            "base": Path("x/y"),
            "test_fraction": None,
        }
        mini = options.parse(
            DATASETS["biased-mnist-mini"], "biased-mnist-mini", ["--no-background", "--rho", "1"]
        )
        assert mini == {"background": False, "rho": 1.0}

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--imagesize", "3"], "did you mean 'image_size'"),
            (["--image-size", "big"], "image_size must be int; got 'big'"),
            (["--image-size"], "--image-size needs a value"),
            (["32"], "expected an option of folder"),
        ],
    )
    def test_errors(self, words, message):
        with pytest.raises(ValueError, match=message):
            options.parse(self.builder, "folder", words)


def test_show_draws_the_embedded_dataset(tmp_path):
    picture = tmp_path / "mini.png"
    result = runner.invoke(
        app, ["data", "show", "biased-mnist-mini", "--rho", "0.9", "--out", str(picture)]
    )
    assert result.exit_code == 0, result.output
    assert "3,600 train, 400 valid, 1,000 test" in result.output
    with Image.open(picture) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {(255, 0, 0), (0, 255, 255), (128, 0, 255)} <= colours  # backgrounds of the palette


def test_own_images_with_broken_rows(tmp_path):
    """One report of everything that is wrong, exit code 2, nothing written.

    --skip-bad continues and says what it skipped.
    """
    random = np.random.default_rng(0)
    rows = ["path,label,bias,split"]
    for i in range(40):
        Image.fromarray(random.integers(256, size=(16, 16, 3), dtype=np.uint8)).save(
            tmp_path / f"{i}.png"
        )
        rows.append(f"{i}.png,{'ab'[i % 2]},{'xy'[i // 2 % 2]},{'test' if i % 4 == 3 else 'train'}")
    rows[5] = "gone.png,a,x,train"
    rows[9] = "8.png,,x,train"
    (tmp_path / "12.png").write_bytes(b"not an image")
    manifest = tmp_path / "manifest.csv"
    manifest.write_text("\n".join(rows) + "\n")
    out = tmp_path / "out" / "picture.png"
    before = sorted(tmp_path.iterdir())
    result = runner.invoke(
        app, ["data", "show", str(manifest), "--image-size", "16", "--out", str(out)]
    )
    assert result.exit_code == 2, result.output
    for name in ("gone.png", "8.png", "12.png"):
        assert name in result.output
    assert "3 problems, nothing was loaded" in result.output
    assert sorted(tmp_path.iterdir()) == before
    result = runner.invoke(
        app, ["data", "show", str(manifest), "--image-size", "16", "--out", str(out), "--skip-bad"]
    )
    assert result.exit_code == 0, result.output
    assert "skipped" in result.output
    assert out.exists()


def test_a_large_report_names_every_bad_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(
        "path,label,split\n"
        + "".join(f"gone{i}.png,a,{'test' if i % 3 else 'train'}\n" for i in range(150))
    )
    result = runner.invoke(app, ["data", "show", str(manifest), "--out", str(tmp_path / "out.png")])
    assert result.exit_code == 2
    (listed,) = tmp_path.glob("*-problems.csv")
    assert listed.name in result.output
    assert all(f"gone{i}.png" in listed.read_text() for i in range(150))
    assert not (tmp_path / "out.png").exists()


def test_the_paths_of_a_table_may_start_elsewhere(tmp_path, monkeypatch):
    for i in range(8):
        (tmp_path / "pictures").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (30 * i, 0, 0)).save(tmp_path / f"pictures/{i}.png")
    rows = [f"{i}.png,{'ab'[i % 2]},{'test' if i > 5 else 'train'}" for i in range(8)]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/my.csv").write_text("\n".join(["path,label,split", *rows]))
    monkeypatch.chdir(tmp_path)
    table = ["data", "show", "tables/my.csv"]
    shown = runner.invoke(app, [*table, "--base", "pictures", "--valid-fraction", "0"])
    assert shown.exit_code == 0, shown.output
    assert "6 train, 0 valid, 2 test" in shown.output
    lost = runner.invoke(app, [*table, "--root", "pictures"])
    assert lost.exit_code == 2
    assert "start from is --base" in " ".join(lost.output.split())
    config = load(
        dataset="tables/my.csv",
        method="ce",
        overrides=["data.base=pictures", "data.valid_fraction=0"],
    )
    assert len(runs_build.data(config).train) == 6
