"""`fm.audit.dataset`, `.run` and `.embeddings`: the same as the command, and what they give."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.cli.app import app
from tests.audit.test_dataset import noise
from tests.audit.test_embeddings import biased
from tests.report.fake_runs import write_run

# Left out of the inner loop.
pytestmark = pytest.mark.slow

SMALL = {"data.train": 300, "data.test": 60, "data.side": 8}


@pytest.fixture(scope="module")
def found():
    return fm.audit.dataset("planted", settings=SMALL, permutations=199)


def test_a_dataset_by_name_is_what_the_command_says(found, tmp_path):
    words = ["audit", "planted", "--permutations", "199", "--out", str(tmp_path)]
    for key, value in SMALL.items():
        words += ["--set", f"{key}={value}"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "audit.json").read_text())
    assert told | {"seconds": 0} == found.json | {"seconds": 0}


def test_findings_are_the_rows_of_the_table(found):
    rows = found.json["attributes"]
    assert len(found.findings) == len(rows) > 10
    for one, row in zip(found.findings, rows, strict=True):
        assert one.attribute == row["name"]
        assert one.verdict == row["verdict"]
        assert one.p == row["p_corrected"]
        assert one.accuracy == row["balanced_accuracy"]
        assert one.strength == row["strength"]
    first = found.findings[0]
    assert first.verdict == "shortcut"
    assert first.attribute in found.verdict.lower()


def test_notebooks_show_the_findings(found):
    assert found.verdict in found._repr_markdown_()
    assert found.table().count("\n") == 1 + len(found.findings)
    assert found._repr_html_().count("<tr>") == 1 + len(found.findings)
    assert f"<th>{found.findings[0].attribute}</th>" in found._repr_html_()


def test_names_are_escaped():
    row = {"name": "<script>|x", "balanced_accuracy": 0.5, "strength": 0.1, "p_corrected": 0.2}
    shown = fm.audit.Found("<i>t", "<i>v", {"attributes": [row | {"verdict": "nothing"}]})
    assert "<script>" not in shown._repr_html_()
    assert "<i>" not in shown._repr_html_()
    assert r"\|x" in shown.table()


@pytest.mark.parametrize("kind", [str, Path])
def test_a_run(tmp_path, kind):
    run = write_run(tmp_path / "ce", "ce", n=400)
    found = fm.audit.run(kind(run))
    assert found.json == fm.audit.audit_run(run).json
    assert found.verdict.startswith("The weakest group")
    assert found.save(kind(tmp_path / "page.html")).is_file()


@pytest.mark.parametrize("kind", [str, Path])
def test_save_writes_the_page_and_the_numbers(found, tmp_path, kind):
    page = found.save(kind(tmp_path / "new" / "mine.html"))
    assert page == tmp_path / "new" / "mine.html"
    assert "<title>Audit of planted" in page.read_text()
    assert json.loads((tmp_path / "new" / "mine.json").read_text()) == found.json
    assert found.save(kind(tmp_path)) == tmp_path / "audit.html"
    assert (tmp_path / "audit.json").is_file()
    with pytest.raises(ValueError, match=r"written as .html"):
        found.save(kind(tmp_path / "audit.json"))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_of_images(tmp_path, kind):
    for k in range(60):
        file = tmp_path / ("light" if k % 2 else "dark") / f"{k}.png"
        file.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (40 + 150 * (k % 2) + k,) * 3).save(file)
    found = fm.audit.dataset(kind(tmp_path), permutations=199)
    assert found.findings[0].verdict == "shortcut"
    assert found.findings[0].accuracy == 1.0


def test_datasets_in_memory():
    data = noise(200)
    assert not [f for f in fm.audit.dataset(data).findings if f.verdict == "shortcut"]
    samples = [(torch.full((3, 8, 8), 20 + 100 * (i % 2) + i % 7).byte(), i % 2) for i in range(80)]
    assert fm.audit.dataset(samples).findings[0].verdict == "shortcut"
    with pytest.raises(ValueError, match="leave them out"):
        fm.audit.dataset(data, inject="colour:0.9")
    with pytest.raises(ValueError, match="uint8 images and these are floats"):
        fm.audit.dataset([(image.float(), y) for image, y in samples])


def test_embeddings_may_be_tensors_arrays_or_a_file(tmp_path):
    arrays = biased()
    wanted = fm.audit.audit_embeddings(arrays).json
    tensors = {key: torch.from_numpy(np.asarray(value)) for key, value in arrays.items()}
    tensors["embeddings"].requires_grad_()
    assert fm.audit.embeddings(tensors).json == wanted
    np.savez(tmp_path / "z.npz", **arrays)
    for file in (tmp_path / "z.npz", str(tmp_path / "z.npz")):
        found = fm.audit.embeddings(file)
        assert found.json == wanted
    first = found.findings[0]
    assert (first.attribute, first.verdict, first.p) == ("bias", "can be read", None)
    assert first.accuracy > 0.9
    assert first.strength == wanted["bias_readable"]["above_chance"]


def test_weak_slices_are_findings():
    random = np.random.default_rng(0)
    y = np.arange(1200) % 2
    x = random.normal(size=(1200, 6)).astype(np.float32)
    x[:, 0] += 6 * y
    weak = (y == 0) & (np.arange(1200) % 6 == 0)
    x[weak, 1] += 8
    predicted = np.where(weak & (random.random(1200) < 0.8), 1, y)
    found = fm.audit.embeddings(
        {"embeddings": x, "labels": y, "predicted": predicted, "class_names": ["cat", "dog"]}
    )
    (one,) = found.findings
    assert one.attribute == "slice 1, class cat"
    assert one.verdict == "weak slice"
    assert one.accuracy == pytest.approx(0.2, abs=0.12)
    assert one.p < 0.05
    assert one.strength is None
