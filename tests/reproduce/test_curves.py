import json
import re
from dataclasses import replace
from pathlib import Path

from fairmargin import config as configuration
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.command import keep_ledger
from fairmargin.reproduce.figures import curves


def begin(cell: Cell, out: Path, seed: int, accuracies: list[float]) -> None:
    """Write what a curve is read from: a run at the published protocol with these accuracies."""
    folder = cell.folder(out, "paper", seed)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(configuration.dump(cell.config("paper", seed)))
    (folder / "environment.json").write_text("{}")
    events = [
        {
            "event": "evaluation",
            "epoch": epoch,
            "step": epoch,
            "valid": {},
            "test": {"plain": value},
        }
        for epoch, value in enumerate(accuracies, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def one() -> Cell:
    (cell,) = cells("3", pattern="biased-mnist/ce:rho=0.99")
    return cell


def test_a_run_that_goes_on_has_a_curve_beside_the_ledger(tmp_path: Path) -> None:
    begin(one(), tmp_path / "out", 0, [0.5, 0.75])
    keep_ledger(tmp_path / "out", tmp_path / "docs", None, print)
    (curve,) = curves.read(tmp_path / "docs")
    assert (curve.run, curve.epochs, curve.accuracies) == ((one().name, 0), [1, 2], [50.0, 75.0])
    assert (curve.of_epochs, curve.published) == (80, 90.8)
    assert (tmp_path / "docs" / "curves.png").stat().st_size > 10_000
    assert "curves.png" in (tmp_path / "docs" / "ledger.md").read_text("utf-8")
    drawn = (tmp_path / "docs" / "curves.svg").read_text("utf-8")
    # Without its run at hand the curve stays as it was.
    keep_ledger(tmp_path / "elsewhere", tmp_path / "docs", None, print)
    assert curves.read(tmp_path / "docs") == [curve]
    assert (tmp_path / "docs" / "curves.svg").read_text("utf-8") == drawn


def test_a_run_that_went_on_replaces_its_curve_and_leaves_others(tmp_path: Path) -> None:
    begin(one(), tmp_path / "a", 0, [0.5])
    begin(one(), tmp_path / "a", 1, [0.6])
    begin(one(), tmp_path / "b", 0, [0.5, 0.7, 0.8])
    found = curves.merged(curves.collect(tmp_path / "a"), curves.collect(tmp_path / "b"))
    assert [(curve.seed, curve.accuracies) for curve in found] == [
        (0, [50.0, 70.0, 80.0]),
        (1, [60.0]),
    ]


def test_a_run_before_its_first_evaluation_has_no_curve(tmp_path: Path) -> None:
    begin(one(), tmp_path, 0, [])
    assert curves.collect(tmp_path) == []


def curve(cell: str, seed: int = 0) -> curves.Curve:
    return curves.Curve(cell, seed, [1, 2], [50.0, 75.0], of_epochs=80, published=90.8)


def test_data_and_setting_have_a_panel_each(tmp_path: Path) -> None:
    fairkl = curve("biased-mnist/eps-supinfonce+fairkl:rho=0.99@authors", seed=1)
    assert fairkl.panel == "biased-mnist, ρ = 0.99"
    assert fairkl.series == "ε-SupInfoNCE + FairKL, authors, seed 1"
    other = curve("corrupted-cifar10/lff:ratio_pct=5.0")
    assert (other.panel, other.series) == ("corrupted-cifar10, ratio in % = 5.0", "LfF")
    plain = curve("cifar10/ce")
    assert (plain.panel, plain.series) == ("cifar10", "Cross-entropy")
    drawn = curves.draw([fairkl, other, plain], tmp_path)
    assert curves.read(tmp_path) == [fairkl, other, plain]
    # Letters are drawn as shapes, and the source names them.
    text = drawn.svg.read_text("utf-8")
    for words in (fairkl.panel, other.panel, plain.panel, fairkl.series, "75.0 after 2 of 80"):
        assert f"<!-- {words} -->" in text


def test_published_numbers_that_are_close_are_written_apart(tmp_path: Path) -> None:
    ours = replace(curve("biased-mnist/eps-supinfonce+fairkl:rho=0.99@authors"), published=92.86)
    text = curves.draw([curve("biased-mnist/ce:rho=0.99"), ours], tmp_path).svg.read_text("utf-8")
    heights = {}
    for number in ("92.86", "90.8"):
        (place,) = re.findall(rf"<!-- {number} -->\s*<g [^>]*translate\(\S+ ([\d.]+)\)", text)
        heights[number] = float(place)
    assert heights["90.8"] - heights["92.86"] > 6.5  # points: the height of the letters
