"""Columns of the bias are named alike everywhere: one, several with commas, or a list."""

import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.data.drafts import column_names
from fairmargin.runs import build

# What follows data.bias_columns=, and the number of values that the bias then has.
WAYS = [("where", 2), ("where,when", 4), ('["where"]', 2), ('["where", "when"]', 4), ("[]", 0)]


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["path,label,where,when,split"]
    for i in range(60):
        Image.new("RGB", (8, 8), (4 * i, 0, 9)).save(f"{i}.png")
        split = "train" if i < 48 else "test"
        lines.append(f"{i}.png,{'ab'[i % 2]},{'xy'[i // 2 % 2]},{'pq'[i // 4 % 2]},{split}")
    file = tmp_path / "t.csv"
    file.write_text("\n".join(lines))
    return file


def test_names_as_text_or_list():
    assert column_names("a") == column_names(["a"]) == ("a",)
    assert column_names("a, b") == column_names(("a", "b")) == ("a", "b")
    assert column_names("") == column_names([]) == ()


@pytest.mark.parametrize(("written", "values"), WAYS)
def test_in_a_configuration(table, written, values, tmp_path):
    changes = [f"data.bias_columns={written}", "data.image_size=8"]
    config = configuration.load(dataset=str(table), overrides=changes)
    assert build.data(config).info.num_biases == values
    file = tmp_path / "config.toml"
    file.write_text(configuration.dump(config))
    assert configuration.load_resolved(file) == config


@pytest.mark.parametrize("written", ["where", "where,when"])
def test_on_the_command_line(table, written):
    words = ["--bias-columns", written, "--image-size", "8", "--out", "p.png"]
    said = CliRunner().invoke(app, ["data", "show", str(table), *words])
    assert said.exit_code == 0, said.output
    changes = ["--set", f"data.bias_columns={written}", "--set", "data.image_size=8"]
    said = CliRunner().invoke(app, ["audit", str(table), *changes, "--permutations", "110"])
    assert said.exit_code == 0, said.output


def test_a_name_that_is_not_there(table):
    said = CliRunner().invoke(app, ["audit", str(table), "--set", "data.bias_columns=were"])
    assert said.exit_code == 2
    assert 'no column "were": did you mean "where"?' in said.output
