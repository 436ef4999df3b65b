"""audit.csv: a row for each picture, safe to open, the same in Python; leaks and names."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.audit._dataset import audit_data
from fairmargin.audit._embeddings import audit_arrays
from fairmargin.audit.page import render, write
from fairmargin.audit.rows import harmless, to_csv
from fairmargin.cli.app import app
from fairmargin.data.inject import inject
from tests.audit.small_photos import dataset, photos

N = 240


def _read(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")))


@pytest.fixture(scope="module")
def leaking():
    """Pictures of which three test ones are training ones, one with another label."""
    train, test = photos(N), photos(30, seed=1)
    test[:3] = train[:3]
    labels, others = torch.arange(N) % 3, torch.arange(30) % 3
    others[2] = (others[2] + 1) % 3
    return dataset(train, test, labels, others)


@pytest.fixture(scope="module")
def found(leaking):
    return audit_data(inject(leaking, "colour:0.9"), permutations=199)


def test_every_picture_has_a_row(leaking, found, tmp_path):
    page, _ = write(found, tmp_path)
    rows = _read(page.with_suffix(".csv").read_bytes())
    assert len(rows) == N + 30 == len(found.rows())
    first = rows[0]
    assert first["path"] == "train/0.png"
    assert (first["split"], first["index"], first["label"]) == ("train", "0", "class 0")
    assert first["bias"]
    assert first["mean colour"].startswith("#")
    told = [row["mean colour: tells"] for row in rows[:N]]
    assert set(told) == {"class 0", "class 1", "class 2"}
    agree = np.mean([a == row["label"] for a, row in zip(told, rows[:N], strict=True)])
    assert agree > 0.75
    assert {row["slice"].split(" ")[0] for row in rows[:N]} == {"follows", "contradicts"}
    assert rows[-1]["split"] == "test"
    assert rows[-1]["mean colour: tells"] == ""
    assert float(first["label confidence"]) <= 1


def test_leaks_are_warned_of_with_names(leaking):
    found = audit_data(leaking, permutations=199)
    assert [leak["second"]["name"] for leak in found.leaks] == [f"test/{k}.png" for k in range(3)]
    assert [leak["first"]["name"] for leak in found.leaks] == [f"train/{k}.png" for k in range(3)]
    assert [leak["labels_differ"] for leak in found.leaks] == [False, False, True]
    warning = next(text for text in found.warnings if text.startswith("leak"))
    assert "3 pictures are copies of one in another split (3 exact), 1 with a different" in warning
    assert "test/0.png (test) of train/0.png (train)" in warning
    row = found.rows()[N]
    assert (row["copy of"], row["copy of: split"], row["copy kind"]) == (
        "train/0.png",
        "train",
        "exact",
    )
    assert set(found.problems) >= {"label error", "outlier", "dark", "bright", "blurred"}


def test_page_shows_names_and_copies_lists_under_its_policy(found):
    page = render(found)
    assert '<small class="file" title="train/' in page
    assert "script-src 'sha256-" in page
    assert page.count("<textarea readonly") >= 1
    assert "unsafe-inline'; script-src" in page
    assert "script-src 'unsafe-inline'" not in page


def test_parts_can_be_left_out(leaking):
    found = audit_data(leaking, permutations=199, leave_out=["copies", "problems"])
    assert found.leaks == []
    assert found.problems == {}
    assert "copy of" not in found.rows()[0]
    assert "outlier" not in found.rows()[0]
    with pytest.raises(ValueError, match='only copies and problems can be left out; got "x"'):
        audit_data(leaking, permutations=199, leave_out=["x"])


def test_cells_are_no_formulas():
    nasty = ["=1+1", "+a", "-b", "@c", "\td", "e,f", 'g"h', "i\nj", "ü", "-1.5", "", "a\udcff"]
    rows = _read(to_csv({"name": nasty, "=x": [float("nan"), None, *[-0.5] * 10]}))
    names = [row["name"] for row in rows]
    assert names[:5] == ["'=1+1", "'+a", "'-b", "'@c", "'\td"]
    assert names[5:11] == ["e,f", 'g"h', "i\nj", "ü", "-1.5", ""]
    assert names[11] == "a\\udcff"
    assert [row["'=x"] for row in rows[:3]] == ["", "", "-0.5"]
    assert harmless("-1+cmd|' /C calc'!A0").startswith("'")


def test_a_model_has_rows_with_names(tmp_path):
    random = np.random.default_rng(0)
    y = np.arange(400) % 2
    z = random.standard_normal((400, 4)).astype(np.float32) + y[:, None]
    # A corner of class 0 that the model always fails.
    corner = (y == 0) & (np.arange(400) % 4 == 0)
    z[corner] += [8, 0, 0, 0]
    logits = np.stack([-z[:, 1], z[:, 1]], 1)
    logits[corner] = [-3, 3]
    names = np.array([f"photo {i}.png" for i in range(400)])
    found = audit_arrays({"embeddings": z, "labels": y, "logits": logits, "names": names})
    page, numbers = write(found, tmp_path)
    rows = _read(page.with_suffix(".csv").read_bytes())
    assert len(rows) == 400
    at = int(np.flatnonzero(corner)[0])
    assert rows[at]["path"] == f"photo {at}.png"
    assert (rows[at]["prediction"], rows[at]["mistake"]) == ("1", "yes")
    assert float(rows[at]["confidence"]) == pytest.approx(1 / (1 + np.exp(-6)), abs=1e-4)
    assert rows[at]["slice"] == "slice 1"
    told = json.loads(numbers.read_text("utf-8"))
    assert f"photo {at}.png" in told["slices"]["found"][0]["mistake_names"]
    assert told["mistakes"][0]["name"].startswith("photo ")
    assert f"photo {at}.png" in render(found)


def test_fail_on_leak_by_path(tmp_path):
    pictures = photos(60)
    folder = tmp_path / "photos"
    folder.mkdir()
    lines = ["path,label,split"]
    for i, pixels in enumerate(pictures):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{i}.png")
        lines.append(f"photos/{i}.png,{'ab'[i % 2]},{'test' if i >= 50 else 'train'}")
    # The same bytes under another name.
    (folder / "59.png").write_bytes((folder / "0.png").read_bytes())
    table = tmp_path / "my.csv"
    table.write_text("\n".join(lines))
    words = ["audit", str(table), "--set", "data.image_size=32", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "--fail-on-leak"], terminal_width=80)
    assert done.exit_code == 1, done.output
    assert "photos/59.png" in done.output
    assert "images:" in done.output
    assert CliRunner().invoke(app, words).exit_code == 0
    both = CliRunner().invoke(app, [*words, "--fail-on-leak", "--leave-out", "copies"])
    assert both.exit_code == 2
    found = fm.audit.dataset(str(table), settings={"data.image_size": 32})
    assert found.rows()[0]["path"] == "photos/0.png"
    assert [leak["second"]["name"] for leak in found.leaks] == ["photos/59.png"]
