"""`fairmargin audit` as people type it: on a dataset, a manifest, embeddings; its messages."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.cli.audit_runs import runs_below
from tests.report.fake_runs import write_run, write_unfinished_run

# Left out of the inner loop.
pytestmark = pytest.mark.slow

runner = CliRunner()
QUICK = ("--permutations", "199", "--samples", "500")


def invoke(*words):
    return runner.invoke(app, ["audit", *map(str, words)], env={"COLUMNS": "100"})


def test_a_dataset_by_name(tmp_path):
    result = invoke("biased-mnist-mini", *QUICK, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "Background colour alone tells the label" in result.output
    assert "permuting labels: 199" in result.output  # progress, where there is no terminal
    found = json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))
    assert found["settings"]["samples"] == 500
    assert found["attributes"][0]["name"] == "background colour"
    assert "<h1>Background colour" in (tmp_path / "out" / "audit.html").read_text("utf-8")


def test_exit_code_for_continuous_integration(tmp_path):
    fails = ("--fail-on-shortcut", "--out", tmp_path)
    assert invoke("biased-mnist-mini", *QUICK, *fails).exit_code == 1
    assert invoke("biased-mnist-mini", *QUICK, *fails, "--set", "data.rho=0.1").exit_code == 0


def test_the_folder_is_named_after_the_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(
        "planted", *QUICK, "--inject", "patch:0.9", "--set", "data.rho=0.25"
    )  # its own tint says nothing
    assert result.exit_code == 0, result.output
    assert "planted patch:0.9: found, by " in result.output
    assert (tmp_path / "audit" / "planted-patch-0.9" / "audit.html").is_file()


@pytest.mark.slow
def test_cure_trains_both_methods(tmp_path):
    result = invoke(
        "planted",
        *QUICK,
        "--inject",
        "patch:0.9",
        "--cure",
        "--out",
        tmp_path,
        "--set",
        "train.epochs=1",
    )
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "audit.json").read_text("utf-8"))
    assert set(found["cure"]) == {"ce", "fairmargin"}
    assert all(0 <= accuracy["conflicting"] <= 1 for accuracy in found["cure"].values())
    assert "fairmargin: plain" in result.output
    assert "Does training remove it?" in (tmp_path / "audit.html").read_text("utf-8")


@pytest.fixture
def manifest(tmp_path):
    """Noise of two classes; nine in ten of each come from their own scanner."""
    random = np.random.default_rng(0)
    rows = ["file,label,split,scanner,patient"]
    for i in range(120):
        Image.fromarray(
            random.integers(0, 256, (12, random.integers(10, 16), 3), dtype=np.uint8)
        ).save(tmp_path / f"{i}.png")
        y = i % 2
        rows.append(
            f"{i}.png,{'ab'[y]},{'test' if i % 6 > 3 else 'train'},{'AB'[y ^ (i % 10 > 8)]},p{i}"
        )
    (tmp_path / "m.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "m.csv"


def test_a_manifest_with_its_other_columns(manifest, tmp_path):
    size = ("--set", "data.image_size=8", "--set", "data.path_column=file")
    result = invoke(manifest, *size, "--permutations", 199, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))
    names = {one["name"] for one in found["attributes"]}
    assert {"scanner", "picture size", "aspect ratio", "file size"} <= names
    assert not names & {"label", "split", "file"}
    assert found["shortcuts"] == ["scanner"]
    assert any("patient" in said for said in found["left_out"])


@pytest.fixture
def unsplit(manifest):
    """The same, and nobody says what is for the test."""
    rows = [line.split(",") for line in manifest.read_text().splitlines()]
    table = manifest.parent / "my.csv"
    table.write_text(
        "\n".join(",".join(cells[:2] + cells[3:4]) for cells in rows).replace("file", "path") + "\n"
    )
    return table


def test_a_table_without_a_split_is_looked_at_whole(unsplit, tmp_path):
    for name, more in (("data", ()), ("planted", ("--inject", "colour:0.95"))):
        result = invoke(
            unsplit,
            "--permutations",
            199,
            "--out",
            tmp_path / name,
            "--set",
            "data.image_size=8",
            *more,
        )
        assert result.exit_code == 0, result.output
        found = json.loads((tmp_path / name / "audit.json").read_text("utf-8"))
        assert found["settings"]["samples"] == 120
        assert "scanner" in found["shortcuts"]
        assert not any(one["name"] == "split" for one in found["attributes"])


def test_what_is_held_out_is_not_looked_at(manifest, unsplit, tmp_path):
    fractions = ("--set", "data.test_fraction=0.2", "--set", "data.valid_fraction=0.25")
    for table, more, samples in (
        (unsplit, fractions, 72),
        (manifest, ("--set", "data.path_column=file"), 80),
    ):
        result = invoke(
            table,
            "--permutations",
            199,
            "--out",
            tmp_path / "out",
            "--set",
            "data.image_size=8",
            *more,
        )
        assert result.exit_code == 0, result.output
        assert (
            json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))["settings"]["samples"]
            == samples
        )


def test_a_folder_of_classes_is_looked_at_whole(unsplit, tmp_path):
    for name, label, _ in (line.split(",") for line in unsplit.read_text().splitlines()[1:]):
        (tmp_path / "pictures" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / name).rename(tmp_path / "pictures" / label / name)
    result = invoke(tmp_path / "pictures", "--permutations", 199, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert (
        json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))["settings"]["samples"]
        == 120
    )


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("data.test_fraction=0.25",)], ids=["by itself", "as told"])
def test_a_cure_is_tested_on_images_that_are_held_out(unsplit, tmp_path, more):
    small = (
        *more,
        "data.image_size=16",
        "network.name=simple-conv-3",
        "train.epochs=1",
    )
    words = [word for change in small for word in ("--set", change)]
    result = invoke(
        unsplit,
        "--inject",
        "colour:0.95",
        "--cure",
        "--permutations",
        199,
        "--out",
        tmp_path / "out",
        *words,
    )
    assert result.exit_code == 0, result.output
    assert "fairmargin: plain" in result.output


def test_runs_of_one_name_keep_their_pages_apart(tmp_path, monkeypatch):
    runs = [
        write_run(tmp_path / "work" / name / "ce" / "seed-0", "ce", n=100)
        for name in ("runsA", "runsB")
    ]
    (tmp_path / "work" / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for run in (*runs, "runsA/ce/../ce/seed-0"):
        result = invoke(run)
        assert result.exit_code == 0, result.output
    assert {folder.name for folder in (tmp_path / "work/audit").iterdir()} == {
        "runsA-ce-seed-0",
        "runsB-ce-seed-0",
    }
    monkeypatch.chdir(tmp_path / "work" / "elsewhere")
    assert invoke("../runsA/ce/seed-0").exit_code == 0
    (page,) = (tmp_path / "work/elsewhere/audit").iterdir()
    assert page.name == "-".join(runs[0].parts[1:])
    monkeypatch.chdir(runs[0])
    assert invoke(".").exit_code == 0
    assert (runs[0] / "audit" / "seed-0" / "audit.html").is_file()


def test_files_of_one_name_keep_their_pages_apart(unsplit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = np.arange(20) % 2
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.savez(
            tmp_path / name / "z.v1.npz",
            embeddings=np.eye(2)[labels],
            labels=labels,
            predicted=labels,
        )
        assert invoke(f"{name}/z.v1.npz").exit_code == 0
    quick = ("--permutations", 199, "--set", "data.image_size=8")
    assert invoke("my.csv", *quick).exit_code == 0
    assert invoke("my.csv", *quick, "--inject", "colour:0.9").exit_code == 0
    names = {folder.name for folder in (tmp_path / "audit").iterdir()}
    assert names == {"a-z.v1", "b-z.v1", "my", "my-colour-0.9"}


def test_too_few_samples_for_slices(tmp_path):
    np.savez(tmp_path / "z.npz", embeddings=np.eye(3), labels=np.array([b"x", b"y", b"y"]))
    result = invoke(tmp_path / "z.npz", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "There were too few samples to look for slices." in said
    assert (
        "warning: too few samples to look for slices in 2 classes (a class needs 40): x, y" in said
    )
    page = (tmp_path / "out" / "audit.html").read_text("utf-8")
    assert (
        "There were too few samples to look for slices in 2 classes (a class needs 40): x, y."
        in page
    )
    assert "No slice fails" not in said + page


def test_embeddings(tmp_path):
    random = np.random.default_rng(0)
    labels = np.arange(200) % 2
    z = random.standard_normal((200, 4)) + 3 * labels[:, None]
    np.savez(tmp_path / "z.npz", embeddings=z, labels=labels, predicted=labels)
    result = invoke(tmp_path / "z.npz", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))["kind"] == "arrays"
    assert (tmp_path / "out" / "audit.html").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["biased-mnst"], "did you mean 'biased-mnist'"),
        (["planted", "--cure"], "plant one with --inject colour:0.95"),
        (["planted", "--inject", "color:0.9"], "did you mean 'colour'"),
        (["planted", "--inject", "colour"], 'such as "colour:0.95"'),
        (
            ["planted", "--inject", "colour:0.9", "--set", "data.inject=patch:0.9"],
            "would both be planted; give one",
        ),
        (["planted", "--permutations", "20"], "take at least 100"),
        (["planted", "--alpha", "0"], "alpha must lie between 0 and 1"),
        (["planted", "--set", "data.roh=0.5"], 'did you mean "data.rho"'),
        (["missing.npz"], "missing.npz"),
        (["missing.npz", "--inject", "colour:0.9"], "are for datasets"),
    ],
)
def test_messages(words, message, tmp_path):
    result = invoke(*words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_out_that_is_a_file(tmp_path):
    (tmp_path / "taken").write_text("")
    result = invoke("planted", *QUICK, "--out", tmp_path / "taken")
    assert result.exit_code == 2
    assert "cannot write into" in result.output


def test_a_folder_of_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ("ce", "supcon"):
        write_run(tmp_path / "runs" / method / "seed-0", method, n=120)
    result = invoke("runs")
    assert result.exit_code == 0, result.output
    assert "1 of 2: runs/ce/seed-0" in result.output
    # A line of the table for each: plain, conflicting, worst group, bias, slices.
    rows = [line.split() for line in result.output.splitlines()]
    assert [len(row) for row in rows if row[:1] in (["ce/seed-0"], ["supcon/seed-0"])] == [6, 6]
    assert (tmp_path / "audit" / "runs-ce-seed-0" / "audit.html").is_file()
    assert (tmp_path / "audit" / "runs-supcon-seed-0" / "audit.json").is_file()


def test_a_folder_of_runs_of_which_one_is_not_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "ce", "ce", n=120)
    write_unfinished_run(tmp_path / "runs" / "bad")
    result = invoke("runs", "--out", "pages")
    assert result.exit_code == 2
    assert "not audited: runs/bad is not finished" in result.output
    assert (tmp_path / "pages" / "runs-ce" / "audit.html").is_file()


def test_class_folders_beside_runs_are_images(tmp_path):
    write_run(tmp_path / "runs" / "ce", "ce", n=60)
    (tmp_path / "cat").mkdir()
    assert runs_below(tmp_path) == [tmp_path / "runs" / "ce"]
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "1.png")
    assert runs_below(tmp_path) == []
    assert runs_below(tmp_path / "runs" / "ce") == []
    assert runs_below(tmp_path / "cat" / "1.png") == []
